"""One run from Python, and its results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from framework.checks import is_numeric
from framework.metrics.slo import Slo
from framework.metrics.summary import Evaluation
from framework.objective.experiment import Experiment
from framework.objective.goodput import evaluated
from framework.result import Result
from framework.run.output import step_table, write
from servelab.settings import experiment_of


@dataclass(frozen=True)
class Run:
    """A simulated run of an experiment, judged by its SLO; tables are made when they are first used.

    Attributes:
        result: The run as arrays, with the logs of steps and tokens.
        experiment: What was simulated: workload, cluster, model, timing, engine, policy.

    Raises:
        InputError: By `judged_by` for a limit on what the run has not kept, by `save` for a folder that cannot be used.

    Example:
        >>> run.summary["completed"], len(run.requests), run.pools["gpus"].sum()
        (60, 60, 5)
        >>> strict = run.judged_by(servelab.Slo(ttft_s=0.03))
        >>> strict.summary["slo_attainment"] < run.summary["slo_attainment"]
        True
        >>> strict.compare(run).columns
        ['metric', 'this', 'other', 'difference', 'ratio']
    """

    result: Result
    experiment: Experiment

    @cached_property
    def evaluation(self) -> Evaluation:
        """All that is reported of the run, computed together."""
        return evaluated(self.experiment, self.result)

    @property
    def slo(self) -> Slo:
        """The SLO that judges it."""
        return self.experiment.slo

    @property
    def summary(self) -> Mapping[str, Any]:
        """The content of summary.json, among it goodput in requests/s, attainment, percentiles of TTFT, TPOT and E2E in
        ms, usage and cost.
        """
        return self.evaluation.summary

    @property
    def requests(self) -> pl.DataFrame:
        """One row a request (N rows), as in requests.parquet; times in seconds, null if undefined."""
        return self.evaluation.requests

    @property
    def pools(self) -> pl.DataFrame:
        """One row a pool."""
        return self.evaluation.pools

    @property
    def steps(self) -> pl.DataFrame:
        """One row a leap of equal steps of an instance, as in steps.parquet."""
        return step_table(self.result)

    def judged_by(self, slo: Slo) -> Run:
        """The run under another SLO, without simulating it again."""
        return Run(self.result, replace(self.experiment, slo=slo))

    def compare(self, other: Run) -> pl.DataFrame:
        """One row for each figure that both summaries have: `metric`, `this`, `other`, `difference`, `ratio`.

        `difference` is this - other, `ratio` this / other, null if the other is 0.
        """
        figures = [name for name, value in self.summary.items() if is_numeric(value)]
        shared = [name for name in figures if is_numeric(other.summary.get(name))]
        table = pl.DataFrame(
            {
                "metric": shared,
                "this": [float(self.summary[name]) for name in shared],
                "other": [float(other.summary[name]) for name in shared],
            },
            schema={"metric": pl.String, "this": pl.Float64, "other": pl.Float64},
        )
        this, that = pl.col("this"), pl.col("other")
        return table.with_columns(difference=this - that, ratio=pl.when(that != 0).then(this / that))

    def save(self, directory: str | Path, *, steps: bool = False, timeline: bool = False) -> list[Path]:
        """Write the files that `run.py` leaves, and return their paths. Raises InputError if they cannot be
        written.
        """
        return write(Path(directory), self.result, self.evaluation, steps=steps, timeline=timeline, slo=self.slo)


def run(policy: Any = "ares", trace: Any = "mooncake", **settings: Any) -> Run:
    """Replay a trace through a policy.

    Args:
        policy: A name of conf/policy, FILE.py:CLASS or a Policy. A Policy object gets a cluster of mixed instances or,
            if it is a `Disaggregated`, of prefill and decode instances, unless `cluster` is given.
        trace: A name of conf/trace, a file, a Workload, or a DataFrame of polars, pandas or any library with named
            columns: those of `traces.frame`, or others that `trace__columns={"arrival_s": "time", ...}` names.
        settings: Those of `run.py`, with `__` for the dots of a key; `rate` (requests/s) and `limit` (requests) are
            those of the trace. `predictor`, `model`, `gpu`, `slo`, `cluster`, `engine`, `load` and `timing` are names
            or objects.

    Returns:
        The run; its `summary` has goodput in requests/s and latencies in ms.

    Raises:
        InputError: One line, for wrong arguments.

    Example:
        >>> two = servelab.run("chunked", "synthetic", rate=20, limit=60, cluster__instances=2, slo=servelab.Slo())
        >>> two.summary["gpus"], two.summary["completed"]
        (2, 60)
    """
    experiment = experiment_of({"policy": policy, "trace": trace, **settings})
    return Run(experiment.run(), experiment)
