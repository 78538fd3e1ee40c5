"""Configuration to arrays of a run, and the addresses of the policy's hooks."""
