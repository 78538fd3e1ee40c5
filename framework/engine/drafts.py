"""Options of speculative decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from framework.errors import InputError
from framework.validate import require_at_least, require_count, require_share, require_whole

Depth = int | Literal["adaptive"]


@dataclass(frozen=True)
class Speculation:
    """A decode step drafts `depth` tokens for each decode and has the model verify them; 0: none.

    `acceptance`: probability that a draft is right where those before it are. `depth` may be `adaptive`: at each step
    as many, up to `max_depth`, as give most tokens a second. `draft_cost`: seconds to draft one token for each of a
    batch, as a share of a decode step of that batch; None: one layer of the model. Raises InputError for a value out
    of range.
    """

    depth: Depth = 0
    acceptance: float = 0.0
    max_depth: int = 8
    draft_cost: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.depth, str):
            if self.depth != "adaptive":
                raise InputError(f"engine.speculation.depth must be a whole number or adaptive, got {self.depth!r}")
        else:
            require_whole("engine.speculation.depth", self.depth)
        if self.acceptance != 0:
            require_share("engine.speculation.acceptance", self.acceptance)
        require_count("engine.speculation.max_depth", self.max_depth)
        if self.draft_cost is not None:
            require_at_least("engine.speculation.draft_cost", self.draft_cost, 0)

    @property
    def most(self) -> int:
        """Tokens drafted for a decode in one step, at most."""
        return self.max_depth if isinstance(self.depth, str) else self.depth

    @property
    def adaptive(self) -> bool:
        """Whether each step has a depth of its own."""
        return isinstance(self.depth, str)
