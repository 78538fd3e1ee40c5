"""Prefills and decodes as two streams on disjoint parts of one GPU (Nexus: arXiv 2507.06608).

A controller divides the streaming multiprocessors by a model of each phase's next step. While KV memory is far from
full, prefills get the largest part at which decodes keep close to their time on the whole GPU. Once it is nearly full,
decodes get the largest part at which prefills do. Each stream takes its new part at its own next step. Short prompts go
first, and age.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from framework.checks import NotNegative, Share, Whole, at_least, checked
from framework.codes import CONCURRENT
from framework.compiler.decorators import either
from framework.engine.parallel.sm_sharing import Percent
from framework.engine.setup.config import Batching
from framework.errors import InputError
from framework.policy import Aggregated, decision
from framework.policy.rules import PREFILL_RULES, rule
from framework.policy.view import Cluster, Floats, View
from framework.replay.lookups import as_plan, decode_slowdown, instance_of, prefill_slowdown, streams_s
from framework.system.cluster import ClusterSpec

_LARGEST = 99  # percent: each stream keeps at least one
Slack = Annotated[float, at_least(1)]


# The numbers of a policy: settings, then the percent of the SMs of each instance's prefills.
_DYNAMIC, _FULL, _DECODE_SLACK, _PREFILL_SLACK, _HYSTERESIS, _PERCENTS_AT = range(6)


@either()
def largest(engine: Any, decodes: bool, step_s: float, slack: float, percent: int) -> int:
    """The largest part of one stream, in steps of 1 % from the present one, at which the other stream, whose step takes
    `step_s` on all SMs, keeps its limit with the rest. A stream without work keeps it with any part.

    `decodes`: the other stream decodes.
    """
    limit_s = slack * step_s
    while percent > 1 and on_part_s(engine, decodes, step_s, 100 - percent) > limit_s:
        percent -= 1
    while percent < _LARGEST and on_part_s(engine, decodes, step_s, 100 - percent - 1) <= limit_s:
        percent += 1
    return percent


@either()
def on_part_s(engine: Any, decodes: bool, step_s: float, percent: int) -> float:
    """Seconds of a step on `percent` of the SMs."""
    if step_s == 0.0:
        return 0.0
    factor = decode_slowdown(engine, percent) if decodes else prefill_slowdown(engine, percent)
    seconds: float = step_s * factor
    return seconds


@either()
def best_percent(engine: Any, i: int, params: Floats, percent: int) -> int:
    """The prefills' part of the SMs, searched from the present one."""
    inst = instance_of(engine, i)
    prefill_s, decode_s = streams_s(engine, i)
    if inst.free_blocks + inst.evictable_blocks > (1.0 - params[_FULL]) * inst.total_blocks:
        return largest(engine, True, decode_s, params[_DECODE_SLACK], percent)
    return 100 - largest(engine, False, prefill_s, params[_PREFILL_SLACK], 100 - percent)


@decision(observes=True)
def divided(i: int, view: View, params: Floats, state: Floats) -> int:
    """The plan of an instance with the best parts for its streams, unless the present ones nearly are."""
    percent = int(params[_PERCENTS_AT + i])
    if params[_DYNAMIC]:
        best = best_percent(view.engine, i, params, percent)
        if abs(best - percent) > params[_HYSTERESIS]:
            percent = best
            params[_PERCENTS_AT + i] = percent
    return as_plan(percent, view.instances[i].token_budget, CONCURRENT)


class Nexus(Aggregated):
    """`split`: static at `prefill_percent`, or dynamic, beginning there. `queue`: spf or fcfs.

    Below `full` of the KV memory the search finds the largest prefill part at which a decode step takes at most
    `decode_slack` times as long as on all SMs; from there on, the largest decode part with `prefill_slack`. A part that
    differs from the present one by at most `hysteresis` percent is not applied. A waiting prompt is aged by `aging`
    tokens a second.
    """

    batching_mode: ClassVar[Batching | None] = "concurrent"
    shares_gpus: ClassVar[bool] = True

    @checked("policy.")
    def __init__(
        self,
        split: Literal["dynamic", "static"] = "dynamic",
        prefill_percent: Percent = 50,
        queue: Literal["spf", "fcfs"] = "spf",
        aging: NotNegative = 15.0,
        full: Share = 0.7,
        decode_slack: Slack = 1.1,
        prefill_slack: Slack = 1.3,
        hysteresis: Whole = 5,
        routing: str = "least_queued",
    ) -> None:
        self.route_prefill = rule("policy.routing", routing, PREFILL_RULES)
        self.dynamic = split == "dynamic"
        self.first_percent = prefill_percent
        self.full, self.decode_slack, self.prefill_slack = full, decode_slack, prefill_slack
        self.hysteresis = hysteresis
        self.aging = aging
        vars(self)["batching"] = divided
        if queue == "spf":
            vars(self)["prioritize"] = self.shortest_first

    def layout(self, spec: ClusterSpec) -> ClusterSpec:
        other = [pool.name for pool in spec.pools if pool.batching not in (None, self.batching_mode)]
        if other:
            raise InputError(f"policy nexus: pool {other[0]} has a batching of its own; leave it out")
        return super().layout(spec)

    def shortest_first(self, queue: NDArray[np.int64], cluster: Cluster) -> Any:
        """Prompt - aging * age. All ages grow equally, so prompt + aging * arrival gives the same order."""
        return cluster.requests.input_tokens[queue] + self.aging * cluster.requests.arrival_s[queue]

    def prepare(self, cluster: Cluster) -> None:
        self.compiled_params = np.full(_PERCENTS_AT + len(cluster.instances), float(self.first_percent))
        slacks = self.decode_slack, self.prefill_slack
        self.compiled_params[:_PERCENTS_AT] = self.dynamic, self.full, *slacks, self.hysteresis
