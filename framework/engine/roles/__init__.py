"""Roles of instances and faults: changes, drops, actions of a tick, circles of held KV."""
