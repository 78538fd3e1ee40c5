"""Fits a twin to a trace: `python -m traces.fit FILE [--format FORMAT] [--out TWIN]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from framework.errors import InputError
from traces.frame import Trace
from traces.prefix import fit_prefix
from traces.statistics import clock_tick, column, hash_paths, summarize
from traces.twin import SUFFIX, ArrivalModel, LengthModel, Twin

MAX_WINDOWS = 128
LEVELS_S = (60.0, 10.0, 1.0)  # each a multiple of the next
COPULA_CLASSES = 16
LENGTH_LEVELS = np.unique(np.concatenate((np.linspace(0, 1, 201), 1 - np.geomspace(1e-2, 1e-4, 13))))


def fit_twin(trace: Trace) -> Twin:
    """The twin of a trace, with the trace's figures. Raises InputError for fewer than 100 requests or no duration."""
    arrival = column(trace, "arrival_s")
    if len(trace) < 100:
        raise InputError(f"trace {trace.name}: {len(trace)} requests are too few to fit a twin, it takes 100")
    if arrival[-1] <= arrival[0]:
        raise InputError(f"trace {trace.name}: all requests arrive at once, there is no arrival process to fit")
    prefixes = None
    if "hash_ids" in trace.frame.columns:
        prefixes = fit_prefix(arrival, hash_paths(trace), trace.hash_block_tokens)
    return Twin(
        name=trace.name,
        requests=len(trace),
        arrivals=fit_arrivals(arrival),
        lengths=fit_lengths(column(trace, "input_tokens"), column(trace, "output_tokens")),
        prefixes=prefixes,
        statistics=summarize(trace),
        original_sha256=trace.sha256,
    )


def fit_arrivals(arrival_s: NDArray[np.float64]) -> ArrivalModel:
    """Arrivals per window and the concentration of each split below it, by the method of moments."""
    since = arrival_s - arrival_s[0]
    tick = clock_tick(arrival_s)
    levels = _levels(float(since[-1]), tick)
    offsets = np.zeros(1)
    if tick > 0:
        nearest = np.round(since / tick)
        offsets = np.quantile(since - nearest * tick, np.linspace(0.01, 0.99, 32), method="nearest")
        since = (nearest + 0.5) * tick
    cells = int(since[-1] // levels[0] + 1) * round(levels[0] / levels[-1])
    counts = np.bincount(np.minimum((since / levels[-1]).astype(np.int64), cells - 1), minlength=cells)
    parts, concentration = [], []
    for above, below in zip(levels, levels[1:], strict=False):
        split = round(above / below)
        table = counts.reshape(-1, split, round(below / levels[-1])).sum(axis=2)
        parts.append(split)
        concentration.append(_concentration(table))
    windows = counts.reshape(-1, round(levels[0] / levels[-1])).sum(axis=1)
    filled = since[-1] / levels[0] - (len(windows) - 1)
    if len(windows) > 1 and filled > 0.1:  # the last window at its full rate; the sample's length cuts it
        windows[-1] = round(windows[-1] / filled)
    return ArrivalModel(levels[0], windows, tuple(parts), tuple(concentration), tick, np.round(offsets, 6))


def _levels(duration_s: float, tick_s: float) -> list[float]:
    """Widths from the window down, each a whole multiple of the next and none below the tick."""
    levels = [level for level in LEVELS_S if level <= duration_s / 4] or [duration_s / 4]
    if tick_s > 0:
        coarse = max(1, round(levels[0] / tick_s)) * tick_s
        levels = [coarse, tick_s] if coarse > tick_s else [tick_s]
    levels[0] *= int(np.ceil(duration_s / (MAX_WINDOWS * levels[0])))
    if levels[0] > LEVELS_S[0] and tick_s == 0:
        levels.insert(1, LEVELS_S[0])
    return levels


def _concentration(table: NDArray[np.int64]) -> float:
    """Of Dirichlet-multinomial rows (J, m), from sum over rows of m / (m - 1) sum_k (c_k - N / m)^2 = N (N + A) / (1 + A)."""
    total = table.sum(axis=1)
    parts = table.shape[1]
    spread = float(((table - total[:, None] / parts) ** 2).sum()) * parts / (parts - 1)
    if spread <= 1.001 * total.sum():
        return float("inf")
    squares = float((total.astype(np.float64) ** 2).sum())
    return max(1e-2, (squares - spread) / (spread - total.sum()))


def fit_lengths(inputs: NDArray[np.float64], outputs: NDArray[np.float64]) -> LengthModel:
    """Quantile functions and the checkerboard copula of two paired samples (N,); ties are broken by place in the trace."""
    count = len(inputs)
    rank = [np.empty(count, np.int64) for _ in range(2)]
    shuffle = np.random.default_rng(0).permutation(count)  # ties in random order, the same on every fit
    for row, values in zip(rank, (inputs, outputs), strict=True):
        row[shuffle[np.argsort(values[shuffle], kind="stable")]] = np.arange(count)
    classes = [row * COPULA_CLASSES // count for row in rank]
    copula = np.bincount(classes[0] * COPULA_CLASSES + classes[1], minlength=COPULA_CLASSES**2) / count
    return LengthModel(
        levels=LENGTH_LEVELS,
        input_tokens=np.quantile(inputs, LENGTH_LEVELS),
        output_tokens=np.quantile(outputs, LENGTH_LEVELS),
        copula=copula.reshape(COPULA_CLASSES, COPULA_CLASSES),
        max_total_tokens=int((inputs + outputs).max()),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m traces.fit", description="Fit a twin to a trace file.")
    parser.add_argument("file", help="the trace")
    parser.add_argument("--format", default=None, help="its format; guessed from the content if not given")
    parser.add_argument("--out", default=None, help="where to write the twin (default: NAME.json in this folder)")
    options = parser.parse_args(arguments)
    try:
        trace = read_any(options.file, options.format)
        out = Path(options.out or f"{trace.name}{SUFFIX}")
        twin = fit_twin(trace)
        twin.save(out)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{out}: twin of {len(trace)} requests, {out.stat().st_size / 1000:.0f} kB")
    print(f"compare: python -m traces.describe {options.file} --twin {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
