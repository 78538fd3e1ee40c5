"""How an instance runs the attention of a step that prefills and decodes.

Decodes in one kernel with chunks: its tiles hold several rows, and each decode takes up a whole one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from framework.compiler.decorators import inner
from framework.engine.state import State
from framework.errors import InputError, require_at_least, require_whole
from framework.timing.table import StepTables, chunk_s


@dataclass(frozen=True)
class Attention:
    """With prefill attention of T_p seconds and decode attention of T_d, a step with both spends on them

        max(T_p, T_d) + (1 - overlap) * min(T_p, T_d)

    0: one after the other; 1: the shorter is hidden wholly. A step with one of them alone takes what it takes.

    With `decode_rows` both are one kernel for chunks, the tiles of which hold so many rows of queries: beside chunks
    each decode computes a whole tile, so that T_d is at least that of a chunk of so many tokens for each. 0: decodes
    have a kernel of their own. Raises InputError for an overlap that is not from 0 to 1, and for rows below 0.
    """

    overlap: float = 0.0
    decode_rows: int = 0

    def __post_init__(self) -> None:
        require_whole("engine.attention.decode_rows", self.decode_rows)
        require_at_least("engine.attention.overlap", self.overlap, 0)
        if self.overlap > 1:
            raise InputError(f"engine.attention.overlap must be at most 1, got {self.overlap!r}")

    def engine_options(self) -> Mapping[str, float]:
        """Values of the fields of `OPTIONS` that the compiled part reads."""
        return {"attention_overlap": self.overlap, "decode_rows": self.decode_rows}


# --- the compiled part ------------------------------------------------------------------------------------------------


@inner
def beside_chunks_s(s: State, i: int, decodes: int, context: int, decode_s: float) -> float:
    """Attention of `decodes` that read `context` tokens in all, `decode_s` in a step of their own, beside chunks."""
    rows = s.options.decode_rows
    if rows == 0:
        return decode_s
    tables = StepTables(s.timing_rows, s.timing_data)
    return max(decode_s, decodes * chunk_s(tables, s.instances[i].pool, context // decodes, rows))
