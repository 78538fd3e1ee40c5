"""What a reader must know next to a table: the sources of its figures, and the meaning of its marks."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

from experiments.table.cells import Figures, pairs_needed
from experiments.table.replicates import sampling, trace_of, transforms
from experiments.table.select import Place, Selection, label, shown, timing_of, value_of
from framework.metrics.load_state import OVERLOADED
from framework.metrics.statistics import LEVEL, least_p
from framework.report.arms import Arm, unlike
from framework.report.load_words import MARKS, MEANS, SHORT, SHORT_MEANS, has_short_window, is_overloaded
from framework.run.store import Record

MISSING, UNDEFINED = "–", "n/a"
NEAR, DIFFERS, DOUBTFUL, OVERLOAD = "†", "*", "?", MARKS[OVERLOADED]
_FEW = 6  # pairs below which a plot cannot show whether differences are near normal
_PER_CENT = f"{100 * LEVEL:.0f} %"


def notes(figures: Figures, filters: Mapping[str, str]) -> Iterator[str]:
    """Lines, the most needed first."""
    yield from _replicates(figures)
    yield from _differences(figures)
    yield from _gaps(figures)
    yield from _arms(figures.selection)
    yield from _doubtful_runs(figures.selection)
    yield from _sources(figures.selection)
    if filters:
        yield f"Runs with {' '.join(f'{key}={text}' for key, text in filters.items())}."


def _replicates(figures: Figures) -> Iterator[str]:
    """The number and kind of replicates, and why a cell has no interval."""
    selection = figures.selection
    counts = {place: len(runs) for place, runs in selection.cells.items()}
    fewest, most = min(counts.values()), max(counts.values())
    if most == 1:
        yield "One run a cell: no intervals, and nothing is tested."
        return
    number = f"{most}" if fewest == most else f"{fewest} to {most}"
    several = [runs for runs in selection.cells.values() if len(runs) > 1]
    kinds = sorted({(trace_of(runs), sampling(runs) or "") for runs in several})
    samples = [f"{trace}: {kind}" for trace, kind in kinds if kind]
    yield f"Mean ± 95 % interval (Student's t) over {number} replicates ({selection.replicate}){_after(samples)}."
    same = [trace for trace, kind in kinds if not kind]
    if same:
        yield (
            f"Replicates on {', '.join(same)} have the same requests each time: an interval covers only what the run "
            "itself draws, and nothing is tested. trace.resample_s draws replicates of a recording."
        )
    if fewest < most:
        few = [_name(place) for place, count in counts.items() if count < most]
        yield f"Fewer than {most} replicates: {_listed(few)}."
    cells = [cell for own in figures.cells.values() for cell in own.values()]
    if any(len(cell.values) > 1 and math.isnan(cell.level.half_width) and not cell.undefined for cell in cells):
        yield "No interval where all replicates have the same value."


def best_note(figures: Figures) -> str:
    """What is in bold, and what is marked as not worse; empty if nothing is."""
    cells = [cell for own in figures.cells.values() for cell in own.values()]
    if not any(cell.is_best for cell in cells):
        return ""
    best = f"the best of each {'row' if figures.in_columns else 'column'} among runs on the same requests"
    near = f"; {NEAR}: not significantly worse than that ({_PER_CENT}, Holm)"
    return f"{best}{near if any(cell.is_near_best for cell in cells) else ''}."


def _differences(figures: Figures) -> Iterator[str]:
    """What is compared with the baseline, how it is tested, and whether that could show anything."""
    if figures.baseline is None:
        return
    found = {
        key: [cell.difference for cell in own.values() if cell.difference is not None]
        for key, own in figures.cells.items()
    }
    tests = {key: [one for one in own if not math.isnan(one.p)] for key, own in found.items()}
    most = max(len(own) for own in tests.values())
    word, replicate = figures.baseline.word, figures.selection.replicate
    if not most:
        yield f"Differences from {word} are paired by {replicate}, and not tested; in brackets their mean in %."
        return
    yield (
        f"{DIFFERS}: differs from {word}, paired by {replicate} (symmetric bootstrap-t, two-sided, {_PER_CENT}"
        f"{f' over the {most} comparisons of a metric by Holm' if most > 1 else ''}). Intervals of differences are "
        "Student's t over the pairs, not adjusted for the number of comparisons; in brackets the mean of the paired "
        "changes."
    )
    if any(one.is_doubtful for own in tests.values() for one in own):
        yield (
            f"{DOUBTFUL}: the interval leaves out 0, but only if the differences are near normal: the bootstrap test, "
            "which does not suppose so, finds none. Do not trust it; run more replicates."
        )
    pairs = {one.comparison.pairs for own in tests.values() for one in own}
    if min(pairs) < _FEW:
        yield f"{min(pairs)} pairs do not show whether differences are near normal, on which their intervals rest."
    if least_p(max(pairs)) * most > LEVEL:
        yield (
            f"{max(pairs)} pairs are too few to conclude from {most} comparisons, whatever they show: "
            f"run at least {pairs_needed(most)} replicates."
        )


def _gaps(figures: Figures) -> Iterator[str]:
    """Cells without a figure, and figures of fewer than all requests."""
    selection = figures.selection
    missing = [
        _name((row, column))
        for row in selection.rows.labels
        for column in selection.columns.labels
        if (row, column) not in selection.cells
    ]
    if missing:
        yield f"{MISSING}: no run in the store (one that is refused, or fails, leaves none): {_listed(missing)}."
    undefined = {
        f"{_name(place)} {metric.name} in {cell.undefined} of {len(cell.values)} runs"
        for metric in figures.metrics
        for place, cell in figures.cells[metric.key].items()
        if cell.undefined
    }
    if undefined:
        places = _listed(sorted(undefined))
        yield f"{UNDEFINED}: undefined (nothing completed, or the run has no such thing): {places}."
    lost = {place: max(_lost(record) for record in runs.values()) for place, runs in selection.cells.items()}
    if any(metric.is_latency for metric in figures.metrics) and any(lost.values()):
        worst = max(lost, key=lambda place: lost[place])
        yield (
            "Latencies are those of completed requests; others were rejected or failed: "
            f"up to {100 * lost[worst]:.2g} % in {_name(worst)}."
        )


def _arms(selection: Selection) -> Iterator[str]:
    """How compared runs differ besides the policy and the keys of the table."""
    given = tuple(key for key in (*selection.rows.keys, *selection.columns.keys) if key != "policy")
    runs = [next(iter(replicates.values())) for replicates in selection.cells.values()]
    arms = [Arm(shown(value_of(run, "policy")), run.config, label(run, given), given) for run in runs]
    if (line := unlike(arms)) is not None:
        yield line


def _doubtful_runs(selection: Selection) -> Iterator[str]:
    summaries = [record.summary for record in selection.records]
    if is_overloaded(summaries):
        yield f"{OVERLOAD}: {MEANS[OVERLOADED]}."
    if has_short_window(summaries):
        yield f"{SHORT}: {SHORT_MEANS}."


def _sources(selection: Selection) -> Iterator[str]:
    """Requests, step times, SLO and hardware."""
    records, axes = selection.records, (*selection.rows.keys, *selection.columns.keys, selection.replicate)
    traces = sorted({(str(one.summary.get("trace")), str(one.summary.get("trace_source"))) for one in records})
    timings = sorted({timing_of(one) for one in records})
    yield f"Requests: {'; '.join(_requests(*trace, records, axes) for trace in traces)}."
    yield f"Step times: {'; '.join(timings)}{_extrapolated(records)}."
    slos = sorted({slo_of(record) for record in records})
    yield f"SLO: {slos[0]}." if len(slos) == 1 else f"SLOs differ: {'; '.join(slos)}."
    common = {group: {record.choices.get(group) for record in records} for group in ("model", "gpu")}
    gpus = sorted({record.summary.get("gpus", 0) for record in records})
    parts = [f"{group} {next(iter(found))}" for group, found in common.items() if len(found) == 1]
    loads = sorted({str(record.summary.get("load")) for record in records} - {"open"})
    number = f"{gpus[0]} GPUs" if len(gpus) == 1 else f"{gpus[0]} to {gpus[-1]} GPUs: compare figures per GPU"
    yield f"{_capital(', '.join([*parts, *(f'load {load}' for load in loads), number]))}."
    versions = sorted({record.version for record in records})
    revisions = {record.summary.get("git_revision") for record in records}
    if len(versions) > 1:
        yield f"Runs were made by versions {' and '.join(versions)}."
    elif len(revisions) > 1:
        yield f"Runs were made by {len(revisions)} revisions of the code."


def _requests(trace: str, source: str, records: Collection[Record], axes: Collection[str]) -> str:
    """A trace, its source and its changes."""
    own = [one for one in records if (one.summary.get("trace"), one.summary.get("trace_source")) == (trace, source)]
    return f"{trace} ({', '.join(filter(None, [source, transforms(own, axes)]))})"


def _extrapolated(records: Collection[Record]) -> str:
    share = max(record.summary.get("extrapolated") or 0.0 for record in records)
    ratio = max(record.summary.get("extrapolation") or 0.0 for record in records)
    return (
        f", up to {100 * share:.2g} % of busy time extrapolated, to {ratio:.2g} times the measured size"
        if share
        else ""
    )


def slo_of(record: Record) -> str:
    """The limits that are in force."""
    limits = {name: value_of(record, f"slo.{key}") for name, key in (("TTFT", "ttft_s"), ("TPOT", "tpot_s"))}
    kept = [f"{name} ≤ {_time(value)}" for name, value in limits.items() if isinstance(value, (int, float))]
    kept += ["limits of their own for classes"] if any(key.startswith("slo.classes.") for key in record.config) else []
    return ", ".join(kept) or "none in force"


def _time(value_s: float) -> str:
    return f"{value_s:g} s" if value_s >= 1 else f"{1e3 * value_s:g} ms"


def _lost(record: Record) -> float:
    summary = record.summary
    unserved = sum(summary.get(key, 0) for key in ("rejected", "failed", "cancelled"))
    return float(unserved) / max(1, summary.get("offered", 1))


def _after(words: Collection[str]) -> str:
    return f"; {'; '.join(words)}" if words else ""


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _name(place: Place) -> str:
    return " / ".join(", ".join(shown(value) for value in one) for one in place if one)


def _listed(names: Collection[str]) -> str:
    most = 6
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return "; ".join(list(names)[:most]) + more
