"""The step of the reference engine: what it holds, how long it takes, its end."""
