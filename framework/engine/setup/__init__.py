"""A configuration -> the arrays of a run; the addresses of the policy's hooks."""
