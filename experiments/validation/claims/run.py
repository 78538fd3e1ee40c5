"""The runs behind the claims table, and the effects that they show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.validation.claims.file import ARMS, Claim, Trial
from framework.errors import InputError
from framework.metrics.statistics import Floats, estimate
from framework.run.sweep import Outcome, Sweep

_MAIN = "regime"


@dataclass(frozen=True)
class Effect:
    """System over baseline: the geometric mean over replicates and the ends of its 95 % interval, NaN without one.

    `source`: `real`, `twin` or `synthetic`, of the trace.
    """

    factor: float
    low: float
    high: float
    replicates: int
    source: str


@dataclass(frozen=True)
class Finding:
    """A claim and its result, in its regime and with other choices."""

    claim: Claim
    effect: Effect
    sensitivity: Mapping[str, Effect]


@dataclass(frozen=True)
class _Comparison:
    claim: Claim
    kind: str  # _MAIN, or a key of its sensitivity
    overrides: Mapping[str, tuple[str, ...]]  # overrides of each arm
    replicates: int

    def job(self, arm: str, replicate: int) -> tuple[str, ...]:
        return (*self.overrides[arm], f"trace.seed={replicate}")


def put_to_test(claims: Sequence[Claim], trial: Trial, directory: Path) -> list[Finding]:
    """Run what is not in the store, on all cores, and compare.

    Raises InputError, naming the row, for a run that is refused and for a metric that summaries lack.
    """
    comparisons = [one for claim in claims for one in _comparisons(claim, trial)]
    jobs = dict.fromkeys(one.job(arm, k) for one in comparisons for arm in ARMS for k in range(one.replicates))
    launched = Sweep(["hydra/launcher=joblib"], directory).shown(list(jobs))
    outcomes = {outcome.overrides: outcome for outcome in launched}
    effects: dict[str, dict[str, Effect]] = {claim.name: {} for claim in claims}
    for one in comparisons:
        effects[one.claim.name][one.kind] = _effect(one, outcomes)
    return [
        Finding(
            claim,
            effects[claim.name][_MAIN],
            {name: effects[claim.name][name] for name in claim.sensitivity},
        )
        for claim in claims
    ]


def _comparisons(claim: Claim, trial: Trial) -> Iterator[_Comparison]:
    fast = tuple(claim.fast) if trial.is_fast else ()
    for kind, further in {_MAIN: (), **claim.sensitivity}.items():
        arms = {arm: (*claim.settings, *claim.arms[arm], *further, *fast) for arm in ARMS}
        most = trial.replicates if kind == _MAIN else trial.fast_replicates
        yield _Comparison(claim, kind, arms, min(most, claim.replicates or most))


def _effect(one: _Comparison, outcomes: Mapping[tuple[str, ...], Outcome]) -> Effect:
    system, baseline = (_values(one, arm, outcomes) for arm in ARMS)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = estimate(np.log(system / baseline))
    record = outcomes[one.job(ARMS[0], 0)].record
    assert record is not None
    low, high = (math.exp(found.mean + sign * found.half_width) for sign in (-1, 1))
    return Effect(math.exp(found.mean), low, high, one.replicates, str(record.summary["trace_source"]))


def _values(one: _Comparison, arm: str, outcomes: Mapping[tuple[str, ...], Outcome]) -> Floats:
    values = []
    for replicate in range(one.replicates):
        outcome = outcomes[one.job(arm, replicate)]
        where = f"{one.claim.name}, {one.kind}, {arm}"
        if outcome.record is None:
            raise InputError(f"{where}: {outcome.refusal}")
        value = outcome.record.summary.get(one.claim.metric)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InputError(f"{where}: its summary has no figure {one.claim.metric}")
        values.append(value)
    return np.array(values, np.float64)
