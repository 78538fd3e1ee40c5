"""What steps cost on top of measured kernels: CPU work between steps, and wave quantization of short chunks.

Both lay something over the step times of another source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from framework.checks import Count, check_fields
from framework.errors import InputError
from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.curves import Curve
from framework.timing.server import Server
from framework.timing.step_row import StepRow, Timing

_LONGEST = 16384  # tokens from which on a prompt counts as filling the GPU
_FILLS = 0.8  # share of the slots from which on keys are not split over blocks to fill the others (FlashAttention 2)


@dataclass(frozen=True)
class CpuOverhead:
    """The steps of `gpu_times`, of any source, with a server whose CPU prepares each and reads its results.

    The GPU waits meanwhile. `by_tp` has (seconds of a step, seconds of each decode in it) for each tensor-parallel
    degree, as framework.timing.server.Server.host_by_tp. `host` says whose work it is. Raises InputError for seconds
    below 0 and where tp 1 is not named.
    """

    gpu_times: Timing
    host: str
    by_tp: Mapping[int, Sequence[float]]

    def __post_init__(self) -> None:
        if 1 not in self.by_tp:
            raise InputError("timing.by_tp must name tp 1, the least there is")
        Server(self.host, host_by_tp=self.by_tp)

    @property
    def source(self) -> str:
        return f"{self.gpu_times.source}, with the host's work in {self.host}"

    def row(self, model: Model, gpu: Gpu, parallelism: Parallelism) -> StepRow:
        """The step times of one instance; raises InputError as `gpu_times` does."""
        work = Server(self.host, host_by_tp=self.by_tp).overheads(model.layers, parallelism)
        return self.gpu_times.row(model, gpu, parallelism) + work


@dataclass(frozen=True)
class WaveQuantization:
    """The steps of `gpu_times`, where attention of a chunk takes longer by what its blocks leave idle of the GPU.

    A block computes `tile_rows` queries of one head. A GPU runs as many blocks at once, in one wave, as `slots` has for
    its name, and n blocks take as long as the next multiple of that. Where they would fill less than 0.8 of one wave,
    keys are split until they do. Measured times of whole prompts have this in them already: a chunk takes longer by its
    own waste over that of a prompt up to its end. Raises InputError for counts below 1 and for a GPU that `slots` does
    not name.
    """

    gpu_times: Timing
    tile_rows: Count
    slots: Mapping[str, Count]

    def __post_init__(self) -> None:
        check_fields(self, "timing.")

    @property
    def source(self) -> str:
        return f"{self.gpu_times.source}, chunks in waves"

    def row(self, model: Model, gpu: Gpu, parallelism: Parallelism) -> StepRow:
        """The step times of one instance; raises InputError as `gpu_times` does."""
        if gpu.name not in self.slots:
            raise InputError(f"timing.slots names {', '.join(self.slots)}, not gpu={gpu.name}; add its blocks at once")
        heads = max(1, model.heads // parallelism.tp)
        return replace(self.gpu_times.row(model, gpu, parallelism), waste=self._waste(heads, self.slots[gpu.name]))

    def _waste(self, heads: int, slots: int) -> Curve:
        """Time over that of a full GPU, by tokens of a chunk: falls within a tile, and rises where another begins."""
        knots, values = [], []
        for tile in range(_LONGEST // self.tile_rows):
            for tokens in (tile * self.tile_rows + 1, (tile + 1) * self.tile_rows):
                knots.append(float(tokens))
                values.append(self.waste_of(tokens, heads, slots))
        return Curve((*knots, knots[-1] + 1, knots[-1] + 2), (*values, 1.0, 1.0))

    def waste_of(self, tokens: int, heads: int, slots: int) -> float:
        """The time of a chunk of `tokens` over that of as much work on a full GPU, at least 1.

        `heads` are those of one GPU, and `slots` are the blocks that it runs at once.
        """
        tiles = math.ceil(tokens / self.tile_rows)
        waves = tiles * heads / slots
        if waves >= _FILLS:
            waves = math.ceil(waves)
        return waves * slots * self.tile_rows / (tokens * heads)
