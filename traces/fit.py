"""Fits a trace: `python -m traces.fit FILE out=my_twin.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from framework.cli.command import Arguments, command
from framework.errors import InputError
from traces.catalogue import CATALOGUE, obtain
from traces.drawn import servegen
from traces.fitted.arrivals import fit_arrivals
from traces.fitted.fitted_trace import SUFFIX, FittedTrace
from traces.fitted.lengths_fit import fit_lengths
from traces.fitted.prefix_fit import fit_prefix
from traces.frame import Trace
from traces.load import from_file
from traces.statistics import column, hash_paths, ideal_hits, summarize

MIN_REQUESTS = 100
CALIBRATION_ROUNDS = 3
CALIBRATION_SAMPLES = 6
CALIBRATION_STEP = (0.5, 2.0)


def fit_trace(trace: Trace) -> FittedTrace:
    """The fitted trace of a trace, with the trace's figures, as it reads back from its file.

    Raises InputError for fewer than MIN_REQUESTS or a trace without duration.
    """
    arrival = column(trace, "arrival_s")
    if len(trace) < MIN_REQUESTS:
        raise InputError(
            f"trace {trace.name}: {len(trace)} requests are too few to fit a fitted trace, it takes {MIN_REQUESTS}"
        )
    if arrival[-1] <= arrival[0]:
        raise InputError(f"trace {trace.name}: all requests arrive at once, there is no arrival process to fit")
    arrivals = fit_arrivals(arrival)
    inputs, outputs = (trace.frame[name].to_numpy() for name in ("input_tokens", "output_tokens"))
    prefixes = None
    if "hash_ids" in trace.frame.columns:
        prefixes = fit_prefix(arrival, hash_paths(trace), trace.hash_block_tokens)
    fitted = FittedTrace(
        name=trace.name,
        requests=len(trace),
        arrivals=arrivals,
        lengths=fit_lengths(inputs, outputs, arrivals.counts),
        prefixes=prefixes,
        statistics={name: value for name, value in summarize(trace).items() if not name.endswith("_max")},
        original_sha256=trace.sha256,
    )
    return FittedTrace.from_json(_calibrated(fitted, trace).to_json(), trace.name)


def _calibrated(fitted: FittedTrace, trace: Trace) -> FittedTrace:
    """The fitted trace with the drift of sharing for which each part has the trace's ideal hits on average."""
    if fitted.prefixes is None or not fitted.prefixes.kind_weights.any():
        return fitted

    parts = len(fitted.prefixes.drift)
    alone = _hits(_with_drift(fitted, np.zeros(parts)).sample(), parts)
    wanted = _hits(trace, parts) - alone
    for _ in range(CALIBRATION_ROUNDS):
        drawn = [_hits(fitted.sample(seed=seed), parts) for seed in range(CALIBRATION_SAMPLES)]
        found = np.maximum(np.mean(drawn, axis=0) - alone, 1.0)
        fitted = _with_drift(fitted, fitted.prefixes.drift * np.clip(wanted / found, *CALIBRATION_STEP))
    return fitted


def _with_drift(fitted: FittedTrace, drift: NDArray[np.float64]) -> FittedTrace:
    return replace(fitted, prefixes=fitted.prefixes and replace(fitted.prefixes, drift=drift))


def _hits(trace: Trace, parts: int) -> NDArray[np.float64]:
    """Tokens that an unlimited cache would hold, by equal parts of the trace."""
    hits = ideal_hits(hash_paths(trace), column(trace, "input_tokens"), trace.hash_block_tokens)
    return np.bincount(np.arange(len(hits)) * parts // len(hits), hits).astype(np.float64)


def read_trace(what: str, format_name: str | None = None) -> Trace:
    """A known trace by name, a file, or the busy period of a ServeGen folder's clients."""
    if format_name == "servegen":
        return servegen.busy_requests(Path(what))
    if what in CATALOGUE and format_name is None and not Path(what).exists():
        return obtain(what)
    return from_file(what, format_name)


_KEYS = {
    "format": "of the file, servegen for a folder of clients; by content by default",
    "out": f"where to write the fitted trace, NAME{SUFFIX} in this folder by default",
    "name": "of the fitted trace; the trace's by default",
    "original": "where the trace can be had, kept in the fitted trace",
    "licence": "of the trace, kept in the fitted trace",
    "citation": "what to cite, kept in the fitted trace",
    "first_seed": "from which samples are numbered, 0 by default",
}


def _with_provenance(fitted: FittedTrace, trace: Trace, own: Mapping[str, str]) -> FittedTrace:
    """The origin of the trace: as given on the command line, else as the catalogue knows a published file."""
    known = CATALOGUE.get(trace.name)
    if known is None or known.sha256 != trace.sha256:
        known = None
    return replace(
        fitted,
        name=own.get("name", fitted.name),
        original=own.get("original", (known.url or "") if known else ""),
        licence=own.get("licence", known.licence if known else ""),
        citation=own.get("citation", known.citation if known else ""),
        note="; ".join(trace.notes),
    )


@command(__doc__, operands="FILE", keys=_KEYS)
def main(arguments: Arguments) -> None:
    """Fit and write the fitted trace of a file, of a folder of ServeGen clients, or of a known trace."""
    (what,), format_name = arguments.operands, arguments.own.get("format")
    trace = read_trace(what, format_name)
    if trace.source == "twin":
        raise InputError(f"trace {trace.name}: the recording is not at hand, only a sample of its fitted trace")
    fitted = _with_provenance(fit_trace(trace), trace, arguments.own)
    fitted = replace(fitted, first_seed=arguments.whole("first_seed", 0, least=0))
    out = arguments.path("out") or Path(f"{fitted.name}{SUFFIX}")
    fitted.save(out)
    chosen = f" format={format_name}" if format_name else ""
    print(f"{out}: fitted trace of {len(trace)} requests, {out.stat().st_size / 1000:.0f} kB")
    print(f"compare: python -m traces.describe {what}{chosen} twin={out}")


if __name__ == "__main__":
    main.start()
