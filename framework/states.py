"""How a request ended, as results number it."""

STATES = ("pending", "finished", "rejected", "failed")
FINISHED = STATES.index("finished")
