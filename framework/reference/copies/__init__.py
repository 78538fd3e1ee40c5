"""KV between instances of the reference engine."""
