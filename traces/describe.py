"""What a trace looks like, alone or beside its twin: `python -m traces.describe NAME|FILE [--twin [TWIN]]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from framework.cli.launch import USER_ERROR, report_error
from framework.errors import InputError
from traces.fit import fit_twin, read_trace
from traces.frame import Trace
from traces.statistics import summarize
from traces.twin import SUFFIX, Twin, load_twin, shipped

SHARES = ("rank_correlation", "ideal_hit_ratio", "lru_hit_")  # compared in points, not in percent


def difference(name: str, reference: float, value: float) -> tuple[float, str]:
    """How far a figure lies from its reference: (size, unit); in points of 0.01 for shares, else in %."""
    if name.startswith(SHARES):
        return 100 * (value - reference), "pt"
    return (100 * (value / reference - 1) if reference else 0.0 if value == reference else float("inf")), "%"


def table(title: str, columns: Mapping[str, Mapping[str, float]]) -> Table:
    """Figures down, one column per set of them; with two sets a third column says how far the second lies off."""
    result = Table(title=title, title_justify="left")
    result.add_column("figure")
    for heading in columns:
        result.add_column(heading, justify="right")
    if len(columns) == 2:
        result.add_column("difference", justify="right")
    reference, *others = columns.values()
    for name, value in reference.items():
        cells = [_number(value), *(_number(other.get(name)) for other in others)]
        if len(others) == 1 and name in others[0]:
            size, unit = difference(name, value, others[0][name])
            cells.append(f"{size:+.1f} {unit}")
        result.add_row(_label(name), *cells)
    return result


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if float(value).is_integer() and abs(value) >= 1:
        return f"{value:,.0f}"
    return f"{value:,.3f}" if abs(value) < 100 else f"{value:,.1f}"


def _label(name: str) -> str:
    if name.startswith("lru_hit_"):
        return f"hit ratio, LRU of {int(name.split('_')[2]):,} tokens"
    words = {"ideal_hit_ratio": "hit ratio, no limit", "duration_s": "duration (s)", "rate_per_s": "rate (requests/s)"}
    if name.startswith("dispersion_"):
        return f"dispersion of counts, {name.removeprefix('dispersion_').removesuffix('s')} s"
    return words.get(name, name.replace("_", " "))


def compare(trace: Trace, twin: Twin, seed: int = 0) -> Table:
    """A trace beside a sample of a twin, as long; for a trace that is itself a sample, the twin's published figures."""
    recorded = trace.source != "twin"
    heading, figures = (trace.source, summarize(trace)) if recorded else ("published", twin.statistics)
    requests = len(trace) if recorded else twin.requests
    return table(
        f"{trace.name}: {heading} and twin", {heading: figures, "twin": summarize(twin.sample(requests, seed))}
    )


def _twin_of(trace: Trace, named: str) -> Twin:
    """The twin asked for, else the shipped one of that name, else one fitted now."""
    if named:
        return load_twin(named)
    return load_twin(trace.name) if trace.name in shipped() else fit_twin(trace)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m traces.describe", description="Figures of a trace and of its twin."
    )
    parser.add_argument("trace", help="the name of a known trace, a trace file, or a twin's .json file")
    parser.add_argument("--format", default=None, help="the file's format; guessed from the content if not given")
    parser.add_argument(
        "--twin", nargs="?", const="", default=None, metavar="TWIN",
        help="compare with a twin: a shipped name, a .json file, or none: its own, fitted now if none is shipped",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="seed of the twin's sample")
    options = parser.parse_args(arguments)
    try:
        if options.seed < 0:
            raise InputError(f"--seed is {options.seed}, must not be negative")
        if options.trace.endswith(SUFFIX):
            twin = load_twin(options.trace)
            shown = compare(twin.sample(seed=options.seed), twin, options.seed)
        else:
            trace = read_trace(options.trace, options.format)
            if options.twin is None:
                shown = table(f"{trace.name} ({trace.source})", {trace.source: summarize(trace)})
            else:
                shown = compare(trace, _twin_of(trace, options.twin), options.seed)
    except InputError as error:
        report_error(str(error))
        return USER_ERROR
    Console().print(shown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
