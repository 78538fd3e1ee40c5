"""How long a step takes, and how many decode steps one closed form covers."""
