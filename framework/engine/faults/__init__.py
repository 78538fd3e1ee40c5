"""What fails in a run, and what follows from that: compiled apart from the loop, when a run first needs it."""
