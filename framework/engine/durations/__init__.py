"""How long a step takes, and how many decode steps have one closed form."""
