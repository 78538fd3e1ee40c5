"""Reports of instances to the front end: the loop returns to Python for each, which keeps what the records hold then.

A run whose views are current compiles nothing of this module.
"""

from __future__ import annotations

import numba
import numpy as np

from framework.codes import YIELDED
from framework.compiler.decorators import entry
from framework.compiler.fields import fields_on_stack
from framework.engine.durations.leap import catch_up
from framework.engine.events.ask import keep_seen
from framework.engine.memory.attach import FLOATS, VIEW, attach
from framework.engine.memory.state import Memory, sample_memory
from framework.engine.roles.changes import note_next_change
from framework.policy.inspection import View


@entry(numba.types.int64(numba.typeof(sample_memory()), VIEW, FLOATS, FLOATS))
def pass_report(memory: Memory, view: View, params: np.ndarray, numbers: np.ndarray) -> int:
    """Bring all records up to the report for which `engine.loop.run` came back; return YIELDED."""
    s = fields_on_stack(attach(memory, keep_seen((view, params, numbers))))
    s.sim.next_report += 1
    note_next_change(s)
    catch_up(s)
    return YIELDED
