"""The result of an ablation for people (terminal, Markdown) and for programs (CSV, JSON)."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from experiments.ablation.run import Outcome
from experiments.table.formats import as_markdown
from experiments.table.notes import DIFFERS, MISSING
from experiments.table.sheet import Section, Sheet, Text, per_cent, with_interval
from framework.cli.files import write_whole
from framework.metrics.statistics import Estimate

_FEW = 6  # replicates


def lay_out(outcome: Outcome) -> Sheet:
    """The levels of all variants, then their paired differences against each baseline."""
    ablation = outcome.ablation
    levels = [
        ((variant,), tuple(Text(_shown(outcome.level(variant, metric))) for metric in ablation.metrics))
        for variant in ablation.variants
    ]
    sections = [Section("mean ± 95 % interval", tuple(levels))]
    for baseline, variants in ablation.comparisons.items():
        rows = [
            ((variant,), tuple(_difference(outcome, variant, baseline, metric) for metric in ablation.metrics))
            for variant in variants
        ]
        sections.append(Section(f"minus {baseline}", tuple(rows)))
    return Sheet(
        title=ablation.title,
        row_headings=("variant",),
        columns=tuple(ablation.metrics.values()),
        sections=tuple(sections),
        best="",
        notes=tuple(_remarks(outcome)),
        is_fitted=outcome.trace_source == "twin",
    )


def _remarks(outcome: Outcome) -> Iterator[str]:
    """What a reader must know next to the table, published figures next to the measured ones first."""
    ablation = outcome.ablation
    for claim in ablation.published:
        baselines = [name for name, variants in ablation.comparisons.items() if claim.variant in variants]
        changes = (
            f"{_shown(outcome.change(claim.variant, baseline, claim.metric), '+')} % against {baseline!r}"
            for baseline in baselines
        )
        heading = ablation.metrics[claim.metric]
        yield f"{heading}: published {claim.claim}; {claim.variant!r} here {'; '.join(changes)}."
    yield from ablation.notes
    how = "each on a sample of its own" if outcome.replicates > 1 else "without intervals"
    yield (
        f"{outcome.replicates} replicates of {outcome.trace} ({outcome.trace_source}), {how}. Differences are paired "
        f"by replicate, percentages are means of the paired changes; {DIFFERS} = the 95 % interval (Student's t, not "
        "adjusted for the number of comparisons) leaves out 0."
    )
    if 1 < outcome.replicates < _FEW:
        yield (
            f"{outcome.replicates} replicates do not show whether differences are near normal, on which these "
            f"intervals rest: do not trust a {DIFFERS} without more of them."
        )
    if outcome.overrides:
        yield f"With {' '.join(outcome.overrides)}."


def _difference(outcome: Outcome, variant: str, baseline: str, metric: str) -> Text:
    value, change = (of(variant, baseline, metric) for of in (outcome.difference, outcome.change))
    text = _shown(value, "+") + ("" if math.isnan(change.mean) else f" ({per_cent(change.mean)})")
    return Text(text, marks=DIFFERS if value.is_significant else "")


def _shown(value: Estimate, sign: str = "") -> str:
    return MISSING if math.isnan(value.mean) else with_interval(value.mean, value.half_width, sign)


# --- files ------------------------------------------------------------------------------------------------------------


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


def write(directory: Path, outcome: Outcome) -> None:
    """Write NAME.md, NAME.csv and NAME.json, each completely or not at all. Raises InputError if that fails."""
    texts = {"md": as_markdown(lay_out(outcome)), "csv": as_csv(outcome), "json": as_json(outcome)}
    for suffix, text in texts.items():
        write_whole(directory / f"{outcome.ablation.name}.{suffix}", text.encode())
