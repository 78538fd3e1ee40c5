"""Reports of instances to the front end: the loop returns to Python for each, which keeps what the records hold then.

A run whose views are current compiles nothing of this module.
"""

from __future__ import annotations

from typing import Any

import numba

from framework.codes import YIELDED
from framework.compiler.decorators import entry
from framework.engine.durations.leap import catch_up
from framework.engine.memory.attach import HANDED, attach_at
from framework.engine.roles.changes import note_next_change


@entry(numba.types.int64(HANDED))
def pass_report(words: Any) -> int:
    """Bring all records up to the report for which `engine.loop.run` came back; return YIELDED."""
    s = attach_at(words)
    s.sim.next_report += 1
    note_next_change(s)
    catch_up(s)
    return YIELDED
