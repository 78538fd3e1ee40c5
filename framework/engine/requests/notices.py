"""Notices for the policy and for pins: whose KV has come free with its end, who has been admitted, whose KV has moved.

They are dealt with before the next event, in order: `roles/call_ends.py`. Of N requests, one that has ended is noted by
its number r, one that has been admitted, or has ended before, by -1 - r, and one whose KV has moved by N + r. Each is
noted once.
"""

from __future__ import annotations

from framework.compiler.decorators import inner
from framework.engine.memory.state import State


@inner
def note_call_end(s: State, r: int) -> None:
    """Note that r has finished, and that its KV has come free."""
    _note(s, r)


@inner
def note_use(s: State, r: int) -> None:
    """Note that r, admitted for the first time or ended before, needs no pin of those that it waited for."""
    _note(s, -1 - r)


@inner
def note_move(s: State, r: int) -> None:
    """Note that the KV of r, which has ended, has come to another instance."""
    _note(s, s.options.requests + r)


@inner
def _note(s: State, notice: int) -> None:
    s.lists[s.options.notices_at + s.sim.notices] = notice
    s.sim.notices += 1
