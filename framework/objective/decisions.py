"""What routing decisions cost: each with estimates of the alternatives, and for a sample the run with the other choice.

A replay is the same run, the same requests and seed, in which one decision is answered with the best other instance by
estimate. The policy goes on by its own rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl

from framework.errors import InvariantError
from framework.metrics.slo import judge
from framework.objective.experiment import Experiment
from framework.objective.goodput import Measurement
from framework.policy.watching import HOOKS, Change, Recorder, Routed
from framework.result import FINISHED, Result

PHASES = tuple(hook.removeprefix("route_") for hook in HOOKS)
_STREAM = 0x7265_6772  # of the generator, in addition to the seed of the run
_BETTER_S = 1e-9  # the least change of summed times that counts


class Replay(NamedTuple):
    """What the other choice would have given, minus what was: requests that keep the SLO, and seconds from arrival to
    last token, summed over requests that finished in both, and of the request itself. NaN: not finished in both.
    """

    number: int
    good: int
    e2e_s: float
    own_e2e_s: float


@dataclass(frozen=True)
class Decisions:
    """All routing decisions of a run in order, and the replays of a sample of them."""

    routed: Sequence[Routed]
    replays: Sequence[Replay]

    @property
    def with_choice(self) -> int:
        """Decisions that had another instance."""
        return sum(one.other >= 0 <= one.chosen for one in self.routed)

    @property
    def against_estimate(self) -> int:
        """Decisions for an instance although the estimate of another was less."""
        return sum(one.other >= 0 <= one.chosen and one.other_s < one.chosen_s for one in self.routed)

    @property
    def regretted(self) -> int:
        """Replays in which the other choice was better: more good requests, or as many in less time."""
        return sum(_is_better(one) for one in self.replays)

    @property
    def worse(self) -> int:
        """Replays in which the other choice was worse."""
        return sum(_is_better(one._replace(good=-one.good, e2e_s=-one.e2e_s)) for one in self.replays)

    def table(self) -> pl.DataFrame:
        """One row a decision; docs/columns.md has its columns. Null where nothing was estimated or replayed."""
        columns = {name: [getattr(one, name) for one in self.routed] for name in Routed._fields}
        table = pl.DataFrame(columns, schema_overrides={"chosen_s": pl.Float64, "other_s": pl.Float64})
        known = table.with_columns(
            pl.col("hook").replace_strict(dict(enumerate(PHASES)), return_dtype=pl.String).alias("phase"),
            *(pl.when(pl.col(name) >= 0).then(pl.col(name)).alias(name) for name in ("chosen", "other")),
            *(pl.col(name).fill_nan(None) for name in ("chosen_s", "other_s")),
        ).drop("hook")
        fields = {"good_change": "good", "e2e_change_s": "e2e_s", "own_e2e_change_s": "own_e2e_s"}
        replayed = pl.DataFrame(
            {"number": [one.number for one in self.replays]}
            | {column: [getattr(one, name) for one in self.replays] for column, name in fields.items()},
            schema={"number": pl.UInt32, "good_change": pl.Int64, "e2e_change_s": pl.Float64}
            | {"own_e2e_change_s": pl.Float64},
        )
        joined = known.with_row_index("number").join(replayed, on="number", how="left", maintain_order="left")
        order = ("number", "time_s", "request", "phase", "chosen", "chosen_s", "other", "other_s", *fields)
        return joined.select(*order).with_columns(pl.col("e2e_change_s", "own_e2e_change_s").fill_nan(None))


def decisions(experiment: Experiment, measurement: Measurement, replays: int) -> Decisions:
    """The decisions of the run `measurement` of `experiment`, and `replays` of them changed, drawn by its seed."""
    recorder, base = Recorder(), measurement.result
    again = experiment.on(experiment.workload).run(watch=recorder)
    if again.requests.tobytes() != base.requests.tobytes():
        raise InvariantError("a run whose decisions were recorded differs from the run")
    open_ones = [number for number, one in enumerate(recorder.rows) if one.other >= 0 <= one.chosen]
    generator = np.random.default_rng((_STREAM, experiment.seed))
    drawn = generator.choice(len(open_ones), min(replays, len(open_ones)), replace=False)
    return Decisions(recorder.rows, [_replay(experiment, base, recorder.rows, open_ones[k]) for k in sorted(drawn)])


def _replay(experiment: Experiment, base: Result, rows: Sequence[Routed], number: int) -> Replay:
    watch = Change(number, rows[number].other)
    result = experiment.on(experiment.workload).run(watch=watch)
    good = int(judge(result, experiment.slo).good.sum() - judge(base, experiment.slo).good.sum())
    if len(result.requests) != len(base.requests):  # a closed load sent others
        return Replay(number, good, float("nan"), float("nan"))
    lasted = [np.where(one.requests["state"] == FINISHED, _e2e_s(one), np.nan) for one in (base, result)]
    change_s = lasted[1] - lasted[0]
    return Replay(number, good, float(np.nansum(change_s)), float(change_s[rows[number].request]))


def _e2e_s(result: Result) -> np.ndarray:
    taken: np.ndarray = result.requests["end_s"] - result.requests["arrival_s"]
    return taken


def _is_better(one: Replay) -> bool:
    return one.good > 0 or (one.good == 0 and one.e2e_s < -_BETTER_S)
