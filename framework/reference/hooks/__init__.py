"""What the reference engine asks of a policy."""
