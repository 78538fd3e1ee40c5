"""The figures of a trace, alone or with its fitted trace: `python -m traces.describe NAME twin=own`."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from framework.cli.command import Arguments, command
from framework.cli.terminal import results_console
from traces.fit import fit_trace, read_trace
from traces.fitted.fitted_trace import SUFFIX, FittedTrace, load_fitted, shipped
from traces.frame import Trace
from traces.statistics import summarize

SHARES = ("rank_correlation", "ideal_hit_ratio", "lru_hit_")  # compared in points, not in percent


def difference(name: str, reference: float, value: float) -> tuple[float, str]:
    """The distance of a figure from its reference: (size, unit); in points of 0.01 for shares, else in %."""
    if name.startswith(SHARES):
        return 100 * (value - reference), "pt"
    return (100 * (value / reference - 1) if reference else 0.0 if value == reference else float("inf")), "%"


def table(title: str, columns: Mapping[str, Mapping[str, float]]) -> Table:
    """Figures as rows, one column per set of them; with two sets a third column has the difference of the second."""
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
    headings = {
        "ideal_hit_ratio": "hit ratio, no limit",
        "duration_s": "duration (s)",
        "rate_per_s": "rate (requests/s)",
    }
    if name.startswith("dispersion_"):
        return f"dispersion of counts, {name.removeprefix('dispersion_').removesuffix('s')} s"
    return headings.get(name, name.replace("_", " "))


def compare(trace: Trace, fitted: FittedTrace, seed: int = 0) -> Table:
    """A recording, or else the published figures of a fitted trace, next to an equally long sample."""
    recorded = trace.source != "twin"
    heading, figures = (trace.source, summarize(trace)) if recorded else ("published", fitted.statistics)
    requests = len(trace) if recorded else fitted.requests
    return table(
        f"{trace.name}: {heading} and fitted trace",
        {heading: figures, "fitted": summarize(fitted.sample(requests, seed))},
    )


_OWN = "own"
_KEYS = {
    "format": "of the file; by content by default",
    "twin": f"compare with a fitted trace: a shipped name, a .json file, or {_OWN}: the shipped one of that name, "
    "else one fitted now",
    "seed": "of the fitted trace's sample, 0 by default",
}


def _fitted_of(trace: Trace, named: str) -> FittedTrace:
    """The given fitted trace, else the shipped one of that name, else one fitted now."""
    if named != _OWN:
        return load_fitted(named)
    return load_fitted(trace.name) if trace.name in shipped() else fit_trace(trace)


@command(__doc__, operands="NAME|FILE", keys=_KEYS)
def main(arguments: Arguments) -> None:
    """Print the figures of a known trace, of a trace file, or of a fitted trace's .json file."""
    (what,), seed = arguments.operands, arguments.whole("seed", 0, least=0)
    if what.endswith(SUFFIX):
        fitted = load_fitted(what)
        shown = compare(fitted.sample(seed=seed), fitted, seed)
    else:
        trace = read_trace(what, arguments.own.get("format"))
        if "twin" not in arguments.own:
            shown = table(f"{trace.name} ({trace.source})", {trace.source: summarize(trace)})
        else:
            shown = compare(trace, _fitted_of(trace, arguments.own["twin"]), seed)
    results_console().print(shown)


if __name__ == "__main__":
    main.start()
