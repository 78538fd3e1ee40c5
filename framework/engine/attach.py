"""From the arrays that Python holds to the pointers that compiled functions pass around."""

from __future__ import annotations

import numba
import numpy as np

from framework.compiler.decorators import inner
from framework.compiler.pointer import only, pointer
from framework.engine.records import INSTANCE, REQUEST
from framework.engine.state import OPTIONS, SIM, Memory, State
from framework.policy.inspection import View

VIEW = numba.typeof(View(np.zeros(1, OPTIONS), np.zeros(1, SIM), np.zeros(1, REQUEST), np.zeros(1, INSTANCE)))
FLOATS = numba.types.float64[::1]
# A compiled hook: (request, view, the policy's parameters, the policy's own numbers) -> an instance or a verdict.
DECISION = numba.types.int64(numba.types.int64, VIEW, FLOATS, FLOATS)


@inner
def attach(m: Memory, seen: int) -> State:
    """The state of a run for compiled functions; `seen`: where what compiled hooks are handed is kept, 0: nowhere."""
    return State(
        only(m.options),
        only(m.sim),
        only(m.error),
        pointer(m.hooks),
        pointer(m.actions),
        pointer(m.requests),
        pointer(m.instances),
        pointer(m.step),
        pointer(m.prefill_step),
        pointer(m.tiers),
        pointer(m.links),
        pointer(m.channels),
        pointer(m.times),
        pointer(m.lists),
        pointer(m.step_log),
        pointer(m.token_log),
        pointer(m.timing_rows),
        pointer(m.timing_data),
        seen,
    )
