"""From a Result to numbers."""
