"""How an instance runs the attention of a step that prefills and decodes.

Decodes in one kernel with chunks: its tiles hold several rows, and each decode takes up a whole one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from framework.checks import NotNegative, Whole, at_most, check_fields
from framework.timing.joint_attention import JOINT
from framework.timing.step_row import StepRow


@dataclass(frozen=True)
class Attention:
    """With prefill attention of T_p seconds and decode attention of T_d, a step with both spends on them

        max(T_p, T_d) + (1 - overlap) * min(T_p, T_d)

    0: one after the other; 1: the shorter is hidden wholly. A step with one of them alone takes what it takes.

    With `decode_rows` both are one kernel for chunks, the tiles of which hold so many rows of queries: with chunks
    each decode computes a whole tile, so that T_d is at least that of a chunk of so many tokens for each. 0: decodes
    have a kernel of their own; None: as the step times have it, which know the GPU. Raises InputError for an overlap
    that is not from 0 to 1, and for rows below 0.
    """

    overlap: Annotated[NotNegative, at_most(1)] = 0.0
    decode_rows: Whole | None = None

    def __post_init__(self) -> None:
        check_fields(self, "engine.attention.")

    def engine_options(self) -> Mapping[str, float]:
        """Values of the fields of `OPTIONS` that the compiled part reads."""
        return {"attention_overlap": self.overlap}

    def step_row(self, row: StepRow) -> StepRow:
        """The step times of an instance with this attention, from those that its source states."""
        if self.decode_rows is None or self.decode_rows == row.decode_rows:
            return row
        return replace(row, decode_rows=float(self.decode_rows))

    def chosen(self, rows: Iterable[StepRow]) -> str:
        """What was chosen for the user, as text that follows the source of the times; "" if nothing was."""
        if self.decode_rows is not None or not any(row.decode_rows for row in rows):
            return ""
        return JOINT
