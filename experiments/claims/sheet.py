"""The claims table for readers (a sheet: terminal, Markdown, LaTeX) and for programs (CSV)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import polars as pl

from experiments.claims.file import Claim, Common
from experiments.claims.run import Effect, Finding
from experiments.table.sheet import Section, Sheet, Text

PASS, MISS, SIGN, NO_SIGN = "pass", "miss", "sign", "no sign"
_NONE = "–"


def verdict(tested: Finding, tolerance: float) -> str:
    """Of a published regime whether the figure is met, of a chosen one whether its sign is."""
    if tested.claim.published:
        return PASS if tested.effect.error(tested.claim) <= tolerance else MISS
    return SIGN if tested.effect.has_sign(tested.claim) else NO_SIGN


def lay_out(rows: Sequence[Finding], common: Common, is_fast: bool) -> Sheet:
    """One row a claim; published regimes first."""
    parts = [("regime published", True), ("regime chosen: sign and sensitivity", False)]
    sections = []
    for heading, published in parts:
        own = tuple(_row(one, common) for one in rows if one.claim.published == published)
        if own:
            sections.append(Section(heading, own))
    return Sheet(
        title="What papers claim, and what the simulator shows",
        row_headings=("system", "claim"),
        columns=("claimed", "simulated", "error", "verdict", *common.traces),
        sections=tuple(sections),
        best="",
        notes=tuple(_notes(rows, common, is_fast)),
        is_twin=bool(rows) and all(one.effect.source == "twin" for one in rows),
    )


def _row(one: Finding, common: Common) -> tuple[tuple[str, ...], tuple[Text, ...]]:
    claim, said = one.claim, verdict(one, common.tolerance)
    error = one.effect.error(claim)
    cells = (
        Text(_claimed(claim)),
        Text(_effect(one.effect), marks="†" if one.effect.source == "twin" else ""),
        Text(f"{error:.2f}" if math.isfinite(error) else _NONE),
        Text(said, is_bold=said in (PASS, SIGN)),
        *(Text(_effect(one.common[trace]) if trace in one.common else _NONE) for trace in common.traces),
    )
    return (claim.system, claim.text), cells


def _claimed(claim: Claim) -> str:
    low, high = claim.range
    return f"{_factor(low)}" if low == high else f"{_factor(low)} to {_factor(high)}"


def _effect(effect: Effect) -> str:
    if not math.isfinite(effect.factor):
        return _NONE
    if math.isnan(effect.low):
        return _factor(effect.factor)
    return f"{_factor(effect.factor)} ({_factor(effect.low)} to {_factor(effect.high)})"


def _factor(value: float) -> str:
    return f"× {value:.2f}" if value < 9.995 else f"× {value:.3g}"


def _notes(rows: Sequence[Finding], common: Common, is_fast: bool) -> Iterator[str]:
    published = [one for one in rows if one.claim.published]
    met = sum(verdict(one, common.tolerance) == PASS for one in published)
    yield (
        "× f: the system's figure is f times the baseline's, the geometric mean over replicates and its 95 % interval. "
        f"Error: |ln simulated / ln claimed − 1|; at most {common.tolerance:g} passes: {met} of {len(published)}."
    )
    yield f"Right of the verdict: {common.metric} of the same systems with {' '.join(common.settings)}."
    if any(one.effect.source == "twin" for one in rows):
        yield "† on a twin, not the real trace."
    if is_fast:
        yield "Fast mode: fewer replicates, shorter traces."
    for one in rows:
        yield from _remarks(one)


def _remarks(one: Finding) -> Iterator[str]:
    claim = one.claim
    said = [f"{claim.system}, {claim.text}: {claim.source}."]
    if claim.chosen:
        said.append(f"Chosen: {'; '.join(claim.chosen)}.")
    if one.sensitivity:
        told = "; ".join(f"{what} {_effect(effect)}" for what, effect in one.sensitivity.items())
        said.append(f"With {told}.")
    yield " ".join([*said, *claim.found])


def as_csv(rows: Sequence[Finding], common: Common) -> str:
    """One line a claim and regime; `regime`: empty for the own one, else what was chosen otherwise, or a trace."""
    lines = []
    for one in rows:
        found = {"": one.effect, **one.sensitivity, **one.common}
        for regime, effect in found.items():
            is_own = regime == ""
            lines.append(
                {
                    "claim": one.claim.name,
                    "system": one.claim.system,
                    "regime": regime,
                    "published": one.claim.published,
                    "metric": common.metric if regime in one.common else one.claim.metric,
                    "claimed_low": one.claim.range[0],
                    "claimed_high": one.claim.range[1],
                    "simulated": effect.factor,
                    "simulated_low": effect.low,
                    "simulated_high": effect.high,
                    "replicates": effect.replicates,
                    "trace_source": effect.source,
                    "error": effect.error(one.claim) if is_own else None,
                    "verdict": verdict(one, common.tolerance) if is_own else None,
                }
            )
    return pl.DataFrame(lines, infer_schema_length=None).write_csv()
