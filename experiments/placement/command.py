"""Parallelism and replicas of each phase on its own, by simulation: the placement search of DistServe.

    python -m experiments.placement model=llama3_70b gpu=h100 trace=azure_conv tp=4,8 rate=20

Zhong et al., OSDI 2024, section 4.1, for a network that does not bind. For each phase alone it finds the (TP, PP) whose
fewest GPUs serve the rate within its limit. (The paper takes the highest rate per GPU, which is the same for high
rates.) Prefill alone: requests end with their first token, within the TTFT. Decode alone: prompts find an idle instance
and a fast link, within the TPOT.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from hydra.errors import HydraException
from hydra.utils import instantiate
from rich.table import Table

from experiments.tune.base import Configuration
from experiments.tune.files import write_tuned
from framework.checks import require_positive
from framework.cli.arguments import ANY, program, whole
from framework.cli.command import Arguments, command
from framework.cli.explain import explain
from framework.cli.terminal import results_console
from framework.errors import InputError
from framework.objective.experiment import Experiment
from framework.run.compose import compose
from framework.workload import rate_rps

_KEYS = {
    "tp": "degrees of tensor parallelism to try, 1,2,4,8 by default",
    "pp": "numbers of pipeline stages to try, 1 by default",
    "rate": "requests/s to serve; that of the trace by default",
    "name": "of the file in conf/tuned, placement by default",
}
_PREFILLS = 64  # instances for one that decodes, so that it never waits for prompts
_ALONE = {
    "prefill": ("cluster.decode=1", "slo.tpot_s=null"),
    "decode": (f"cluster.prefill={_PREFILLS}", "cluster.link_bandwidth_bytes_s=1e18", "slo.ttft_s=null"),
}


@dataclass(frozen=True)
class Found:
    """The capacity of one instance of a phase alone, requests/s; or why there is none."""

    phase: str
    tp: int
    pp: int
    capacity_rps: float = 0.0
    refusal: str = ""

    @property
    def per_gpu(self) -> float:
        return self.capacity_rps / (self.tp * self.pp)


@command(__doc__, keys=_KEYS, settings=ANY)
def main(arguments: Arguments) -> None:
    """Search, print the result and write the best placement. Raises InputError if a phase cannot be served."""
    overrides = arguments.settings
    base = Configuration(("policy=distserve", "objective=capacity", "objective.tolerance=0.03", *overrides))
    rate = _rate(arguments, base)
    tps, pps = ([whole(key, one) for one in arguments.several(key)] for key in ("tp", "pp"))
    rows = []
    for phase in _ALONE:
        for tp in tps or (1, 2, 4, 8):
            for pp in pps or (1,):
                rows.append(_alone(base, phase, tp, pp))
                print(f"{phase}, tp {tp}, pp {pp}: {rows[-1].capacity_rps:.4g} requests/s", file=sys.stderr)
    best = {phase: _best([row for row in rows if row.phase == phase], rate) for phase in _ALONE}
    count = {phase: math.ceil(rate / one.capacity_rps) for phase, one in best.items()}
    chosen = [f"trace.rate={rate:g}"]
    for phase, one in best.items():
        chosen += [f"cluster.{phase}={count[phase]}", f"cluster.{phase}_tp={one.tp}", f"cluster.{phase}_pp={one.pp}"]
    of_run = [word for word in overrides if not word.startswith("objective")]
    placed = Configuration(("policy=distserve", *of_run, *chosen))
    result = compose(placed.config)
    attained = (
        instantiate(placed.config.objective, _convert_="all").measure(result).evaluation.summary["slo_attainment"]
    )
    path = write_tuned(
        arguments.own.get("name", "placement"), placed, f"python -m experiments.placement {' '.join(arguments.every)}"
    )
    _print(rows, best, count)
    console = results_console()
    console.print(
        f"together at {rate:.4g} requests/s: {100 * attained:.3g} % meet the SLO, on {result.cluster.gpus} GPUs"
    )
    console.print(f"{program()} +tuned={path.stem}", highlight=False)


def _alone(base: Configuration, phase: str, tp: int, pp: int) -> Found:
    """Search the capacity of one instance of `phase`."""
    sizes = [f"cluster.{side}_{name}={value}" for side in _ALONE for name, value in (("tp", tp), ("pp", pp))]
    try:
        config = base.with_overrides([*_ALONE[phase], f"cluster.{phase}=1", *sizes]).config
        experiment = _one_token_each(compose(config)) if phase == "prefill" else compose(config)
        return Found(phase, tp, pp, instantiate(config.objective, _convert_="all").rate_rps(experiment))
    except (InputError, HydraException) as error:
        return Found(phase, tp, pp, refusal=explain(error) or str(error))


def _one_token_each(experiment: Experiment) -> Experiment:
    workload = experiment.workload
    return experiment.on(replace(workload, output_tokens=np.ones_like(workload.output_tokens)))


def _best(rows: Sequence[Found], rate: float) -> Found:
    """The placement whose fewest GPUs serve the rate; among equals the one with the highest rate per GPU."""
    able = [row for row in rows if row.capacity_rps > 0]
    if not able:
        reasons = "; ".join(dict.fromkeys(row.refusal or "its limit is missed at any rate" for row in rows))
        raise InputError(f"no {rows[0].phase} instance can serve: {reasons}")
    return min(able, key=lambda row: (math.ceil(rate / row.capacity_rps) * row.tp * row.pp, -row.per_gpu))


def _rate(arguments: Arguments, base: Configuration) -> float:
    if "rate" not in arguments.own:
        return rate_rps(instantiate(base.config.trace, _convert_="all"))
    rate = arguments.number("rate", 0.0)
    require_positive("rate", rate)
    return rate


def _print(rows: Sequence[Found], best: dict[str, Found], count: dict[str, int]) -> None:
    table = Table("phase", "TP", "PP", "req/s", "per GPU", "instances", title="Each phase alone", box=None)
    for row in rows:
        instances = str(count[row.phase]) if row is best[row.phase] else row.refusal
        table.add_row(row.phase, str(row.tp), str(row.pp), f"{row.capacity_rps:.4g}", f"{row.per_gpu:.4g}", instances)
    results_console().print(table, highlight=False)
