"""The split of instances that a load needs."""
