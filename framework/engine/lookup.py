"""Questions about the engine's memory that Python asks in passing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from framework.engine.kvcache import matched_blocks
from framework.engine.state import State
from framework.jit import compiled


@compiled
def cached_tokens(s: State, instances: NDArray[np.int64], r: int) -> NDArray[np.int64]:
    """Tokens of r's prompt in the prefix cache of each of these instances."""
    tokens = np.empty(len(instances), np.int64)
    for j in range(len(instances)):
        run = matched_blocks(s, instances[j], r, s.requests[r].input_tokens)
        tokens[j] = run * s.sim[0].hash_blocks * s.sim[0].block_tokens
    return tokens
