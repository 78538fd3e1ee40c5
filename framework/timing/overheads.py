"""Wave quantization of short chunks, added to the step times of another source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from framework.checks import Count, check_fields
from framework.errors import InputError
from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.curves import Curve
from framework.timing.step_row import StepRow, Timing

_LONGEST = 16384  # tokens from which on a prompt counts as filling the GPU
_FILLS = 0.8  # share of the slots from which on keys are not split over blocks to fill the others (FlashAttention 2)


@dataclass(frozen=True)
class WaveQuantization:
    """The steps of `gpu_times` with attention of a chunk lengthened by the idle part of its blocks' waves.

    A block computes `tile_rows` queries of one head. A GPU runs as many blocks at once, in one wave, as `slots` has for
    its name, and n blocks take as long as the next multiple of that. If they would fill less than 0.8 of one wave, keys
    are split until they do. Measured times of whole prompts already include this: a chunk takes longer by its own waste
    relative to that of a prompt up to its end. Raises InputError for counts below 1 and for a GPU that `slots` does not
    name.
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
        """Time relative to a full GPU, by tokens of a chunk: it falls within a tile, and rises where another begins."""
        knots, values = [], []
        for tile in range(_LONGEST // self.tile_rows):
            for tokens in (tile * self.tile_rows + 1, (tile + 1) * self.tile_rows):
                knots.append(float(tokens))
                values.append(self.waste_of(tokens, heads, slots))
        return Curve((*knots, knots[-1] + 1, knots[-1] + 2), (*values, 1.0, 1.0))

    def waste_of(self, tokens: int, heads: int, slots: int) -> float:
        """The time of a chunk of `tokens` relative to equal work on a full GPU, at least 1.

        `heads` are those of one GPU, and `slots` are the blocks that it runs at once.
        """
        tiles = math.ceil(tokens / self.tile_rows)
        waves = tiles * heads / slots
        if waves >= _FILLS:
            waves = math.ceil(waves)
        return waves * slots * self.tile_rows / (tokens * heads)
