"""An ablation's outcome for people (terminal, Markdown) and for programs (CSV, JSON)."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from experiments.ablation.run import Outcome
from framework.errors import InputError
from framework.metrics.statistics import Estimate

_NONE = "–"
_WARNING = "bold black on yellow"
_FEW = 6  # replicates


@dataclass(frozen=True)
class Section:
    """Rows below one heading: a variant and one cell a metric."""

    heading: str
    rows: list[tuple[str, list[str]]]


def sections(outcome: Outcome) -> Iterator[Section]:
    """The levels of all variants, then their paired differences against each baseline."""
    ablation = outcome.ablation
    levels = [
        (variant, [_level(outcome.level(variant, metric)) for metric in ablation.metrics])
        for variant in ablation.variants
    ]
    yield Section("mean ± 95 % interval", levels)
    for baseline, variants in ablation.comparisons.items():
        rows = [
            (variant, [_difference(outcome, variant, baseline, metric) for metric in ablation.metrics])
            for variant in variants
        ]
        yield Section(f"minus {baseline}", rows)


def as_table(outcome: Outcome) -> Table:
    """The terminal's table."""
    title = Text(outcome.ablation.title, "bold")
    if outcome.trace_source == "twin":
        title.append("  ").append(" fitted trace, not a recording ", _WARNING)
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("variant", no_wrap=True)
    for heading in outcome.ablation.metrics.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for section in sections(outcome):
        table.add_row(Text(section.heading, "italic dim"))
        for label, cells in section.rows:
            table.add_row(Text(f"  {label}"), *(Text(cell, "bold" if cell.endswith("*") else "") for cell in cells))
        table.add_section()
    return table


def remarks(outcome: Outcome) -> Iterator[str]:
    """What a reader must know next to the table, published figures next to the measured ones first."""
    ablation = outcome.ablation
    for claim in ablation.published:
        baselines = [name for name, variants in ablation.comparisons.items() if claim.variant in variants]
        changes = (
            f"{_level(outcome.change(claim.variant, baseline, claim.metric), signed=True)} % against {baseline!r}"
            for baseline in baselines
        )
        heading = ablation.metrics[claim.metric]
        yield f"{heading}: published {claim.claim}; {claim.variant!r} here {'; '.join(changes)}."
    yield from ablation.notes
    how = "each on a sample of its own" if outcome.replicates > 1 else "without intervals"
    yield (
        f"{outcome.replicates} replicates of {outcome.trace} ({outcome.trace_source}), {how}. Differences are paired "
        "by replicate, percentages are means of the paired changes; * = the 95 % interval (Student's t, not adjusted "
        "for the number of comparisons) leaves out 0."
    )
    if 1 < outcome.replicates < _FEW:
        yield (
            f"{outcome.replicates} replicates do not show whether differences are near normal, on which these "
            "intervals rest: do not trust a * without more of them."
        )
    if outcome.overrides:
        yield f"With {' '.join(outcome.overrides)}."


def _level(value: Estimate, *, signed: bool = False) -> str:
    digits = _digits(value)
    sign = "+" if signed else ""
    if math.isnan(value.mean):
        return _NONE
    mean = f"{value.mean:{sign},.{digits}f}".replace("-", "−")
    return mean if math.isnan(value.half_width) else f"{mean} ± {value.half_width:,.{digits}f}"


def _difference(outcome: Outcome, variant: str, baseline: str, metric: str) -> str:
    value = outcome.difference(variant, baseline, metric)
    change = outcome.change(variant, baseline, metric)
    text = _level(value, signed=True)
    if not math.isnan(change.mean):
        text += f" ({change.mean:+,.{0 if abs(change.mean) >= 9.95 else 1}f} %)".replace("-", "−")
    return text + (" *" if value.is_significant else "")


def _digits(value: Estimate) -> int:
    """Decimals that give the interval two significant digits, or the mean three where there is no interval."""
    size, significant = (value.mean, 3) if math.isnan(value.half_width) else (value.half_width, 2)
    if size == 0 or not math.isfinite(size):
        return 0
    return max(0, min(6, significant - 1 - math.floor(math.log10(abs(size)))))


# --- files ------------------------------------------------------------------------------------------------------------


def as_markdown(outcome: Outcome) -> str:
    """The same table and remarks in Markdown."""
    headings = list(outcome.ablation.metrics.values())
    fitted = " (fitted trace, not a recording)" if outcome.trace_source == "twin" else ""
    lines = [
        f"**{outcome.ablation.title}**{fitted}",
        "",
        "| | " + " | ".join(headings) + " |",
        "|---|" + "---:|" * len(headings),
    ]
    for section in sections(outcome):
        lines.append(f"| *{section.heading}* |" + " |" * len(headings))
        lines += [
            f"| {label} | {' | '.join(cell.replace('*', chr(92) + '*') for cell in cells)} |"
            for label, cells in section.rows
        ]
    return "\n".join([*lines, "", *(f"- {remark}" for remark in remarks(outcome))]) + "\n"


def as_csv(outcome: Outcome) -> str:
    """One row a variant and replicate, one column a metric."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["variant", "replicate", *outcome.ablation.metrics])
    for variant, values in outcome.values.items():
        for replicate in range(outcome.replicates):
            writer.writerow([variant, replicate, *(_number(values[metric][replicate]) for metric in values)])
    return text.getvalue()


def as_json(outcome: Outcome) -> str:
    """The ablation, every value, levels and paired differences; undefined figures are null."""
    ablation = outcome.ablation
    document = {
        "ablation": asdict(ablation),
        "replicates": outcome.replicates,
        "overrides": list(outcome.overrides),
        "trace": outcome.trace,
        "trace_source": outcome.trace_source,
        "values": {
            variant: {metric: [_number(value) for value in row] for metric, row in values.items()}
            for variant, values in outcome.values.items()
        },
        "levels": {
            variant: {metric: _interval(outcome.level(variant, metric)) for metric in ablation.metrics}
            for variant in ablation.variants
        },
        "differences": {
            baseline: {
                variant: {
                    metric: _interval(outcome.difference(variant, baseline, metric)) for metric in ablation.metrics
                }
                for variant in variants
            }
            for baseline, variants in ablation.comparisons.items()
        },
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _interval(value: Estimate) -> dict[str, float | None]:
    return {"mean": _number(value.mean), "half_width_95": _number(value.half_width)}


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def require_writable(directory: Path) -> None:
    """Raise InputError if files could not be written to `directory`, which need not exist yet; makes nothing."""
    nearest = next(folder for folder in (directory.absolute(), *directory.absolute().parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"{directory}: results cannot be written there; choose another directory")


def write(directory: Path, outcome: Outcome) -> None:
    """Write NAME.md, NAME.csv and NAME.json, each whole or not at all. Raises InputError if that fails."""
    makers = {"md": as_markdown, "csv": as_csv, "json": as_json}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for suffix, make in makers.items():
            target = directory / f"{outcome.ablation.name}.{suffix}"
            unfinished = target.with_name(f".{target.name}.{os.getpid()}.tmp")
            try:
                unfinished.write_text(make(outcome), encoding="utf-8")
                os.replace(unfinished, target)
            finally:
                unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            f"{directory}: results cannot be written ({error.strerror}); choose another directory"
        ) from error
