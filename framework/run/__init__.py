"""From a configuration to files, and from many to a store."""
