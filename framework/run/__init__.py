"""One configuration to files, and many to a store."""
