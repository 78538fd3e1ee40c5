"""Decodes in one kernel with chunks: its tiles hold several rows, and each decode takes up a whole one."""

from __future__ import annotations

from framework.engine.state import State
from framework.jit import kernel
from framework.timing.step import StepTables, chunk_s


@kernel
def beside_chunks_s(s: State, i: int, decodes: int, context: int, decode_s: float) -> float:
    """Attention of `decodes` that read `context` tokens in all, `decode_s` in a step of their own, beside chunks."""
    rows = s.sim[0].decode_rows
    if rows == 0:
        return decode_s
    tables = StepTables(s.timing_rows, s.timing_data)
    return max(decode_s, decodes * chunk_s(tables, s.instances[i].pool, context // decodes, rows))
