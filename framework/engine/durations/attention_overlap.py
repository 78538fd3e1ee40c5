"""Attention of a step that both prefills and decodes.

Where decodes share one kernel with chunks, a tile of that kernel holds several rows, and each decode takes a whole
tile.
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
    """Given prefill attention of T_p seconds and decode attention of T_d seconds, a step with both spends

        max(T_p, T_d) + (1 - overlap) * min(T_p, T_d)

    With overlap 0 they run one after the other; with 1 the longer hides the shorter entirely. A step with only one of
    them is unaffected.

    With `decode_rows` both share one kernel whose tiles hold that many rows of queries. In a step with chunks each
    decode then computes a whole tile, so T_d is at least that of a chunk of `decode_rows` tokens for each decode. 0:
    decodes have their own kernel; None: as the step times state, which know the GPU. Raises InputError for an overlap
    outside 0 to 1, and for negative rows.
    """

    overlap: Annotated[NotNegative, at_most(1)] = 0.0
    decode_rows: Whole | None = None

    def __post_init__(self) -> None:
        check_fields(self, "engine.attention.")

    def engine_options(self) -> Mapping[str, float]:
        """Values of the fields of `OPTIONS` that the compiled part reads."""
        return {"attention_overlap": self.overlap}

    def step_row(self, row: StepRow) -> StepRow:
        """The step times of an instance with this attention, made from those of the source."""
        if self.decode_rows is None or self.decode_rows == row.decode_rows:
            return row
        return replace(row, decode_rows=float(self.decode_rows))

    def chosen(self, rows: Iterable[StepRow]) -> str:
        """The choice that was made for the user, as text that follows the source of the times; "" if there was none."""
        if self.decode_rows is not None or not any(row.decode_rows for row in rows):
            return ""
        return JOINT
