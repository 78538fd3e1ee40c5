"""The time of elementwise kernels: a launch, then bytes at the speed of the cache if they fit, else of memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from framework.timing.curves import FloatArray


@dataclass(frozen=True)
class Copies:
    """Seconds over bytes: `launch_s`, and bytes a second, `rates`, at the measured `sizes` in bytes.

    Between two sizes the logarithm of the rate is interpolated over that of the size; beyond them it is constant.
    """

    launch_s: float
    sizes: FloatArray
    rates: FloatArray

    @classmethod
    def at(cls, rate: float, launch_s: float) -> Copies:
        """Copies at one rate for all sizes."""
        return cls(launch_s, np.array([1.0]), np.array([rate]))

    @classmethod
    def measured(cls, rows: pl.DataFrame, shared: float) -> Copies:
        """Copies from the rows of the table `elementwise`, each of which had the whole cache.

        `shared` is the factor by which more bytes pass through the cache in a step: a kernel has the rate of one that
        moves that many bytes. Sizes are grouped by powers of two. The launch is the least time of any of them.
        """
        powers = rows.group_by(pl.col("bytes").log(2).round(0).alias("power")).agg(
            pl.col("bytes").median(), pl.col("latency_s").median()
        )
        sizes, times = (powers.sort("power")[name].to_numpy().astype(float) for name in ("bytes", "latency_s"))
        launch_s = float(times.min())
        above = times > 1.25 * launch_s  # Below that, a time says nothing of the rate.
        if not above.any():
            above[-1] = True
        rates = sizes[above] / np.maximum(times[above] - launch_s, 0.1 * launch_s)
        return cls(launch_s, sizes[above] / shared, rates)

    def seconds(self, moved_bytes: FloatArray) -> FloatArray:
        """The seconds above the launch."""
        at = np.log2(np.maximum(moved_bytes, 1.0))
        return np.asarray(moved_bytes / 2.0 ** np.interp(at, np.log2(self.sizes), np.log2(self.rates)))
