"""From the arrays that Python holds to the pointers that compiled functions pass around."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from framework.compiler.decorators import inner
from framework.compiler.dispatchers import numba_config
from framework.compiler.pointer import only, only_at, pointer, pointer_at
from framework.engine.records import INSTANCE, REQUEST
from framework.engine.state import OPTIONS, SIM, Memory, State, sample_memory
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


# --- for functions that Python calls often: 18 arrays take longer to hand over than most of these functions compute ---

if numba_config.DISABLE_JIT:

    def words_of(memory: Memory) -> Any:
        """What `attach_at` takes: the memory itself."""
        return memory

    def attach_at(words: Any) -> State:
        """The state of a run of which `words_of` has told."""
        return attach(words, 0)

else:
    _RECORDS = 3  # the first fields, of which there is one record each
    _at = [(only_at if k < _RECORDS else pointer_at)(array.dtype) for k, array in enumerate(sample_memory())]
    _options, _sim, _error, _hooks, _actions, _requests, _instances, _step, _prefill_step = _at[:9]
    _tiers, _links, _channels, _times, _lists, _step_log, _token_log, _timing_rows, _timing_data = _at[9:]

    def words_of(memory: Memory) -> Any:
        """Where each array of the memory begins, which must live on: shape (18,)."""
        return np.array([array.ctypes.data for array in memory], np.int64)

    @inner
    def attach_at(words: Any) -> State:
        """The state of a run of which `words_of` has told."""
        return State(
            _options(words[0]),
            _sim(words[1]),
            _error(words[2]),
            _hooks(words[3]),
            _actions(words[4]),
            _requests(words[5]),
            _instances(words[6]),
            _step(words[7]),
            _prefill_step(words[8]),
            _tiers(words[9]),
            _links(words[10]),
            _channels(words[11]),
            _times(words[12]),
            _lists(words[13]),
            _step_log(words[14]),
            _token_log(words[15]),
            _timing_rows(words[16]),
            _timing_data(words[17]),
            0,
        )
