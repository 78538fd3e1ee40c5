"""One instance: its role, what it drops when that changes, the actions of a tick, circles of held KV."""
