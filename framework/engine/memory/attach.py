"""Makes the pointers that compiled functions pass around from the arrays that Python holds."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.np.numpy_support import from_dtype
from numpy.typing import NDArray

from framework.compiler.decorators import inner
from framework.compiler.dispatchers import numba_config
from framework.compiler.fields import Fields, fields_at
from framework.compiler.pointer import Pointer, RecordPointer, only, pointer
from framework.engine.memory.options import OPTIONS
from framework.engine.memory.records import INSTANCE, REQUEST
from framework.engine.memory.state import SIM, Memory, State, sample_memory
from framework.engine.memory.unused import UNUSED
from framework.policy.inspection import View

_RECORDS = 3  # the first fields of a memory; each holds one record
VIEW = numba.typeof(View(np.zeros(1, OPTIONS), np.zeros(1, SIM), np.zeros(1, REQUEST), np.zeros(1, INSTANCE)))
FLOATS = numba.types.float64[::1]
# A compiled hook: (request, view, the policy's parameters, the policy's own numbers) -> an instance or a verdict.
DECISION = numba.types.int64(numba.types.int64, VIEW, FLOATS, FLOATS)
HANDED = numba.types.int64[::1]  # what an entry of the engine takes


@inner
def attach(m: Memory, seen: int) -> State:
    """The state of a run for compiled functions; `seen`: the address of what compiled hooks receive, 0: none."""
    return State(
        only(m.options),
        only(m.sim),
        only(m.error),
        pointer(m.hooks),
        pointer(m.actions),
        pointer(m.postponed),
        pointer(m.requests),
        pointer(m.instances),
        pointer(m.step),
        pointer(m.prefill_step),
        pointer(m.tiers),
        pointer(m.flows),
        pointer(m.links),
        pointer(m.channels),
        pointer(m.times),
        pointer(m.lists),
        pointer(m.names),
        pointer(m.step_log),
        pointer(m.token_log),
        pointer(m.timing_rows),
        pointer(m.timing_data),
        seen,
    )


# --- for functions that Python calls: handing over 20 arrays takes longer than most of these functions run -----------

if numba_config.DISABLE_JIT:

    def addresses_of(memory: Memory) -> Any:
        """The argument of `attach_at`: the memory itself."""
        return memory

    def handed(memory: Memory, view: View, params: NDArray[np.float64], numbers: NDArray[np.float64]) -> Any:
        """The argument of the engine's entries: the memory itself, as hooks are closures that hold their arguments."""
        return memory

    def attach_at(addresses: Any) -> State:
        """The state of a run from what `addresses_of` or `handed` returned."""
        return attach(addresses, 0)

    attach_plain_at = attach_at

else:
    from framework.compiler.calls import words_of

    _KINDS = [RecordPointer if k < _RECORDS else Pointer for k in range(len(Memory._fields))]
    _of: Any = from_dtype
    _sample: Any = sample_memory()
    _kinds = [kind(_of(array.dtype)) for kind, array in zip(_KINDS, _sample, strict=True)]
    _fields = dict(zip(State._fields, [*_kinds, numba.types.int64], strict=True))
    _state_at, _plain_state_at = fields_at(Fields("State", _fields)), fields_at(Fields("State", _fields, UNUSED))

    def addresses_of(memory: Memory) -> Any:
        """The addresses of the memory's arrays, which must stay alive, and 0 for `seen`: shape (22,)."""
        return np.array([*(array.ctypes.data for array in memory), 0], np.int64)

    def handed(memory: Memory, view: View, params: NDArray[np.float64], numbers: NDArray[np.float64]) -> Any:
        """The argument of the engine's entries: these addresses, of which `seen` is that of what follows them, the
        arrays that compiled hooks receive. All arrays must stay alive.
        """
        own = len(State._fields)
        seen = [word for array in (*view, params, numbers) for word in words_of(array)]
        words = np.array([*addresses_of(memory), *seen], np.int64)
        words[own - 1] = words[own:].ctypes.data
        return words

    @inner
    def attach_at(addresses: Any) -> State:
        """The state of a run from what `addresses_of` or `handed` returned."""
        return _state_at(addresses)

    @inner
    def attach_plain_at(addresses: Any) -> State:
        """The same of a memory that `unused.is_plain`."""
        return _plain_state_at(addresses)
