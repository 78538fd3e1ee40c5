"""All-to-all communication of expert parallelism: tokens travel to the GPUs of their experts and back."""

from __future__ import annotations

import numpy as np
import polars as pl

from framework.system.model import Experts
from framework.timing.curves import FloatArray
from framework.timing.kernels.interpolate import Ideal, Interpolated, interpolate, nearest
from framework.timing.kernels.measured_rows import rows_of
from framework.timing.kernels.operations import ACTIVATION_BYTES, Operations

_PHASES = ("dispatch", "combine")


def all_to_all_s(operations: Operations, hidden: int, experts: Experts, ep: int, tokens: FloatArray) -> FloatArray:
    """Seconds of dispatch and combine of one layer: tokens go to the GPUs of their experts, and results come back.

    Each of `ep` GPUs sends `tokens`, an array of any shape, which the result has too; each token is `hidden` values.
    The fastest measured library counts. Among more GPUs than were measured a token goes to more of them: k experts lie
    on p (1 - (1 - 1 / p)^k) of p GPUs. Raises InputError if no library was measured.
    """
    shape = {"hidden": hidden, "per_token": experts.per_token, "experts": experts.count}
    rows = nearest(rows_of(operations.kernels, "dispatch", shape), {"ep": ep})
    whole = rows.group_by("comm").agg(pl.col("phase").n_unique()).filter(pl.col("phase") == len(_PHASES))
    times = [
        np.add.reduce(
            [_phase(operations, rows, comm, phase, (hidden, experts, ep)).seconds(tokens) for phase in _PHASES]
        )
        for comm in whole["comm"].sort()
    ]
    return np.minimum.reduce(times)


def _phase(
    operations: Operations, rows: pl.DataFrame, comm: str, phase: str, shape: tuple[int, Experts, int]
) -> Interpolated:
    """Seconds of one phase of one library, over the tokens of each GPU."""
    hidden, experts, ep = shape
    measured = int(rows["ep"][0])
    of_one_node = measured if int(rows["nodes"][0]) == 1 else 1

    def ideal(among: int) -> Ideal:
        reached = among * (1.0 - (1.0 - 1.0 / among) ** experts.per_token)
        token_s = reached * hidden * ACTIVATION_BYTES / operations.link_bytes_s(among, of_one_node)
        return lambda each: np.asarray(token_s * each)

    def make() -> Interpolated:
        chosen = rows.filter((pl.col("comm") == comm) & (pl.col("phase") == phase))
        return interpolate(chosen, ("tokens",), ideal(measured), ideal(ep), capped=False)

    return operations.fit(("all_to_all", *shape, comm, phase), make)
