"""Roles of instances: changes, what an instance drops, the actions of a tick, circles of held KV."""
