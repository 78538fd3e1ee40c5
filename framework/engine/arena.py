"""One integer array that holds all lists of variable size."""

from __future__ import annotations


class Arena:
    """Hands out consecutive stretches of one integer array."""

    def __init__(self) -> None:
        self.size = 0

    def take(self, count: int) -> int:
        """Where the next `count` entries begin."""
        at = self.size
        self.size += count
        return at
