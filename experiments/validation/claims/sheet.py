"""The claims table for readers (a sheet: terminal, Markdown, LaTeX) and for programs (CSV)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import polars as pl

from experiments.table.sheet import Section, Sheet, Text
from experiments.validation.claims.file import Claim, Trial
from experiments.validation.claims.rule import NO_SIGN, PASS, SIGN, off_by, verdict
from experiments.validation.claims.run import Effect, Finding

_NONE = "–"


def verdict_of(tested: Finding, trial: Trial) -> str:
    """The verdict of the row in its own regime."""
    return verdict(tested.claim, tested.effect.factor, trial.passes_within)


def lay_out(rows: Sequence[Finding], trial: Trial) -> Sheet:
    """One row for each claim; published regimes first."""
    parts = [("regime published", True), ("regime chosen: sign and sensitivity", False)]
    sections = []
    for heading, published in parts:
        own = tuple(_row(one, trial) for one in rows if one.claim.published == published)
        if own:
            sections.append(Section(heading, own))
    return Sheet(
        title="What papers claim, and what the simulator shows" + (" (fast mode)" if trial.is_fast else ""),
        row_headings=("system", "claim"),
        columns=("claimed", "simulated", "off by", "verdict"),
        sections=tuple(sections),
        best="",
        notes=tuple(_notes(rows, trial)),
        is_fitted=bool(rows) and all(one.effect.source == "twin" for one in rows),
    )


def _row(one: Finding, trial: Trial) -> tuple[tuple[str, ...], tuple[Text, ...]]:
    claim, factor = one.claim, one.effect.factor
    said, off = verdict_of(one, trial), off_by(claim, factor)
    cells = (
        Text(_claimed(claim)),
        Text(shown_effect(one.effect), marks="†" if one.effect.source == "twin" else ""),
        Text(f"{off:.2f}" if math.isfinite(off) else _NONE),
        Text(said, is_bold=said == PASS or (said == SIGN and not claim.published)),
    )
    return (claim.system, claim.text), cells


def _claimed(claim: Claim) -> str:
    low, high = claim.range
    return f"{_factor(low)}" if low == high else f"{_factor(low)} to {_factor(high)}"


def shown_effect(effect: Effect) -> str:
    """A factor and its interval, if there is one."""
    if not math.isfinite(effect.factor):
        return _NONE
    if math.isnan(effect.low):
        return _factor(effect.factor)
    return f"{_factor(effect.factor)} ({_factor(effect.low)} to {_factor(effect.high)})"


def _factor(value: float) -> str:
    return f"× {value:.2f}" if value < 9.995 else f"× {value:.3g}"


def _notes(rows: Sequence[Finding], trial: Trial) -> Iterator[str]:
    yield (
        f"× f: the system's figure is f times the baseline's, the geometric mean over {trial.replicates} replicates"
        " and its 95 % interval. Off by: the factor between that and what is claimed, or the nearer end of the range."
    )
    yield (
        "A regime counts as published where model, GPUs, lengths and limit stand in the paper or its artifact and are"
        f" played. Such a row passes where f is off by at most {trial.passes_within:g} and is nearer, in logarithm, to"
        f" the claim than to 1. None passes that claims less than × {trial.passes_within:g}, for any right sign would"
        " do, or whose figure rests on a mistake of the paper's simulator. Of other rows only the side of 1, the sign,"
        " counts."
    )
    yield f"By this rule {_count(rows, trial)}"
    if any(one.sensitivity for one in rows):
        yield f"Where something is chosen otherwise there are {trial.fast_replicates} replicates."
    if any(one.effect.source == "twin" for one in rows):
        yield "† on a fitted synthetic trace, not the recording."
    if trial.is_fast:
        yield "Fast mode: fewer replicates, shorter traces."


def _count(rows: Sequence[Finding], trial: Trial) -> str:
    published = [verdict_of(one, trial) for one in rows if one.claim.published]
    others = [verdict_of(one, trial) for one in rows if not one.claim.published]
    neither = published.count(NO_SIGN)
    have = "has" if neither == 1 else "have"
    return (
        f"{published.count(PASS)} of {len(published)} published rows pass, {published.count(SIGN)} more have the sign,"
        f" {neither} {have} not; {others.count(SIGN)} of {len(others)} others have the sign."
    )


def as_csv(rows: Sequence[Finding], trial: Trial) -> str:
    """One line for each claim and regime; `regime`: empty for the paper's, else the changed choice."""
    lines = []
    for one in rows:
        found = {"": one.effect, **one.sensitivity}
        for regime, effect in found.items():
            is_own = regime == ""
            lines.append(
                {
                    "claim": one.claim.name,
                    "system": one.claim.system,
                    "regime": regime,
                    "published": one.claim.published,
                    "metric": one.claim.metric,
                    "claimed_low": one.claim.range[0],
                    "claimed_high": one.claim.range[1],
                    "simulated": effect.factor,
                    "simulated_low": effect.low,
                    "simulated_high": effect.high,
                    "replicates": effect.replicates,
                    "trace_source": effect.source,
                    "off_by": off_by(one.claim, effect.factor) if is_own else None,
                    "verdict": verdict_of(one, trial) if is_own else None,
                }
            )
    return pl.DataFrame(lines, infer_schema_length=None).write_csv()
