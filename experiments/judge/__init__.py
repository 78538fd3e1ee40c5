"""A score for a policy that is given as text: for programs that write schedulers."""
