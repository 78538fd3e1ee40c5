"""The page of a league in Markdown: what to run on each load, who stands where, and why systems lose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from experiments.curve.table import number
from experiments.league.picture import NAME
from experiments.league.results import Entry, Played, Results
from experiments.league.sentences import sentences, spoken
from experiments.league.standing import Standing, ranked, standings
from experiments.league.study import CORE
from framework.cli.files import write_whole
from framework.errors import InputError

BEGIN, END = "<!-- league -->\n", "<!-- /league -->"
_S = 3600


def page(results: Results, expected: Mapping[str, Sequence[str]]) -> str:
    """The text. `expected`: the policies of each cell of the study, by its name."""
    core = {name: cell for name, cell in results.cells.items() if cell.setup == CORE}
    others = {name: cell for name, cell in results.cells.items() if cell.setup != CORE}
    parts = [_loads(core, float(results.made["attainment"]))] if core else []
    if core:
        table = standings(core)
        parts += [
            f"![Share of the bound, policies by loads](league/{NAME}.png)\n",
            _table(table, core),
            _systems(table, core),
        ]
    if others:
        parts.append(_others(others))
    parts.append(_missing(results, expected))
    return "\n".join(part for part in parts if part)


def renew(path: Path, text: str) -> None:
    """Put the text between the marks of a page. Raises InputError for a page without them."""
    try:
        before, begin, rest = path.read_text().partition(BEGIN)
    except OSError as error:
        raise InputError(f"page={path}: {error.strerror}") from error
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InputError(f"page={path}: it has no lines {BEGIN.strip()} and {END}")
    write_whole(path, f"{before}{begin}\n{text}\n{end}{after}".encode())


def _loads(cells: Mapping[str, Played], attainment: float) -> str:
    heads = ("load", "best", "requests/s a GPU", "good requests a $", "of the bound", "next", "below the best")
    rows = []
    for name, cell in cells.items():
        order = ranked(cell)
        if not order:
            continue
        best, entry = order[0]
        half = f"{_of_gpu(entry, cell)} ± {number(_half_width(entry) / cell.gpus)}"
        row = [
            spoken(name),
            f"`{best}`",
            half,
            f"{_per_usd(attainment, entry):,.0f}",
            _percent(entry.mean_rps / cell.bound_rps),
        ]
        if len(order) > 1:
            row += [f"`{order[1][0]}`", f"{100 * (1 - order[1][1].mean_rps / entry.mean_rps):.1f} %"]
        rows.append([*row, *("–",) * (len(heads) - len(row))])
    return (
        _markdown(heads, rows, "llrrrlr") + "\n" + "\n".join(_bound(name, cell) for name, cell in cells.items()) + "\n"
    )


def _bound(name: str, cell: Played) -> str:
    rates = ", ".join(number(rate) for rate in cell.rates_rps)
    limit = f"{number(cell.bound_rps)} requests/s ({cell.bound_limit})"
    return f"- {spoken(name)}: bound {limit}; offered {rates}."


def _table(table: Sequence[Standing], cells: Mapping[str, Played]) -> str:
    heads = ("policy", *map(spoken, cells), "mean", "mean rank", "regret", "where", "answers, µs")
    rows = []
    for one in table:
        shares = [_cell(one, name, cell) for name, cell in cells.items()]
        tail = [_percent(one.mean_share), f"{one.mean_rank:.1f}", _percent(one.regret), spoken(one.worst)]
        rows.append([f"`{one.policy}`", *shares, *tail, f"{one.answer_us:,.0f}" if one.answer_us >= 0.5 else "–"])
    return "## Who stands where\n\n" + _markdown(heads, rows, "l" + "r" * (len(cells) + 3) + "lr")


def _cell(standing: Standing, name: str, cell: Played) -> str:
    place = standing.places.get(name)
    if place is None:
        return "–"
    entry = cell.entries[standing.policy]
    share = f"{100 * place.share:.1f}"
    if entry.mean_rps < cell.rates_rps[0]:
        share = f"< {share}"
    elif entry.mean_rps >= cell.rates_rps[-1]:
        share = f"≥ {share}"
    return f"**{share}**" if place.is_as_good else share


def _systems(table: Sequence[Standing], cells: Mapping[str, Played]) -> str:
    rows = [[f"`{one.policy}`", *sentences(one, cells)] for one in table]
    return "## System by system\n\n" + _markdown(("policy", "where it is best", "why it loses"), rows, "lll")


def _others(cells: Mapping[str, Played]) -> str:
    heads = ("load and setup", "best", "requests/s a GPU", "of the bound", "next three, % below", "last, % below")
    rows = []
    for name, cell in cells.items():
        order = ranked(cell)
        if not order:
            continue
        best = order[0][1]
        behind = [f"`{policy}` {100 * (1 - entry.mean_rps / best.mean_rps):.0f}" for policy, entry in order[1:]]
        row = [spoken(name), f"`{order[0][0]}`", _of_gpu(best, cell), _percent(best.mean_rps / cell.bound_rps)]
        rows.append([*row, ", ".join(behind[:3]) or "–", behind[-1] if len(behind) > 3 else "–"])
    return "## Other setups\n\n" + _markdown(heads, rows, "llrrll")


def _missing(results: Results, expected: Mapping[str, Sequence[str]]) -> str:
    parts = []
    for name, policies in expected.items():
        cell = results.cells.get(name)
        lacking = [policy for policy in policies if cell is None or policy not in cell.entries]
        if len(lacking) == len(policies):
            parts.append(f"{spoken(name)}: all")
        elif lacking:
            parts.append(f"{spoken(name)}: {', '.join(lacking)}")
    refused = [
        f"`{policy}` on {spoken(name)}: {entry.refusal}"
        for name, cell in results.cells.items()
        for policy, entry in cell.entries.items()
        if not entry.capacities_rps
    ]
    if not parts and not refused:
        return ""
    lines = ["## What is missing", ""]
    lines += [*_wrapped(f"Cells that were not played yet: {'; '.join(parts)}."), ""] if parts else []
    lines += [*(line for one in refused for line in _wrapped(f"- {one}")), ""] if refused else []
    return "\n".join(lines)


# --- words ------------------------------------------------------------------------------------------------------------


def _of_gpu(entry: Entry, cell: Played) -> str:
    return number(entry.mean_rps / cell.gpus)


def _half_width(entry: Entry) -> float:
    from framework.metrics.statistics import estimate

    return estimate(entry.values).half_width


def _per_usd(attainment: float, entry: Entry) -> float:
    """Good requests a dollar at the capacity, where that share keeps the SLO."""
    return attainment * entry.mean_rps * _S / entry.usd_per_hour


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]], sides: str) -> str:
    marks = {"l": "---", "r": "---:"}
    lines = [heads, [marks[side] for side in sides], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _wrapped(text: str) -> Iterator[str]:
    import textwrap

    yield from textwrap.wrap(text, 120, subsequent_indent="  " if text.startswith("- ") else "", break_on_hyphens=False)
