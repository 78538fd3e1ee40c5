"""Planners of a fleet of prefill and decode workers, as documented of NVIDIA Dynamo (ai-dynamo/dynamo, docs: load and
SLA planner, planner design). Each says at a tick which workers change.

`load` adds or removes one worker of each kind by thresholds of the queue and of KV memory. `sla` forecasts the load of
the next interval. `both` runs two loops: the counts of `sla`, at the longer interval, are the floor of a loop that adds
or removes one worker at the shorter one, by the latencies that a next request would see.

Simplified: Prophet and Kalman filters are no predictors here, and ARIMA is of the fixed order (1, 1, 0). The latencies
are those of the step times in place of a regression over observed steps; the queue of a worker includes the prompt
under way. Neither loop of `both` acts while a worker changes, as documented.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np

from framework.checks import require_positive, require_share
from framework.codes import DECODE, PREFILL
from framework.errors import InputError
from framework.policy import Action
from framework.policy.rules import rule
from framework.policy.view import Cluster, Floats, Integers
from framework.timing.estimate import estimate_s
from policies._scaling import corrections, forecast, largest_batch, prefill_only, resize, within

LOAD = {
    "queue_high": 0.5,  # prompts per prefill worker at which one is added
    "queue_low": 0.2,
    "kv_high": 0.9,  # share of KV memory at which a decode worker is added
    "kv_low": 0.5,
    "kv_per_waiting": 0.02,  # share that a waiting request adds
    "patience": 3,  # intervals of a trend, and after an addition
}
SLA = {"ttft_s": 0.5, "itl_s": 0.05, "window": 50, "predictor": "arima"}
BOTH = SLA | {
    "throughput_interval_s": 180.0,  # of the loop that sets the floor
    "load_interval_s": 5.0,  # of the loop above it
    "sensitivity": 0.8,  # share of a limit that the latencies would keep with one worker less
}


def _last(history: list[float]) -> float:
    return history[-1]


PREDICTORS: dict[str, Callable[[list[float]], float]] = {"constant": _last, "arima": forecast}


class Planned(Protocol):
    """What planners read and keep of the policy."""

    planning: dict[str, Any]
    shares_queue: bool  # waiting prompts are the fleet's
    tick_s: float | None
    arrived: int  # requests since the load was last looked at, their prompt tokens, and requests that have ended
    prompt_tokens: int
    ended: int
    history: list[tuple[float, ...]]  # what has been seen, one entry an interval
    floor: tuple[int, int]
    floor_due_s: float


def plan_nothing(policy: Planned, cluster: Cluster) -> Iterable[Action]:
    """Leave the fleet as it is."""
    return ()


# --- by load ----------------------------------------------------------------------------------------------------------


def plan_by_load(policy: Planned, cluster: Cluster) -> Iterable[Action]:
    """Add or remove one worker of each kind, by the waiting prompts and by the KV memory in use.

    A prefill worker is added if `queue_high` is exceeded now and, by the present trend, in `patience` intervals; a
    decode worker is not removed within that many intervals of an addition.
    """
    options, there, (prefill, decode) = policy.planning, cluster.instances, _workers(cluster)
    waiting = there.queued[prefill_only(cluster)]
    queue = float(waiting.mean()) if len(waiting) else 0.0
    pool = cluster.decode
    used = 1.0 - (pool.free_blocks + pool.evictable_blocks) / pool.total_blocks
    kv = float((used + options["kv_per_waiting"] * (pool.incoming + pool.queued)).mean())
    before, added_at = (policy.history[-1][0], policy.history[-1][1]) if policy.history else (queue, -math.inf)
    interval = len(policy.history)
    trend = queue + options["patience"] * (queue - before)
    more = (
        _step(up=min(queue, trend) > options["queue_high"], down=queue < options["queue_low"] and prefill > 1),
        _step(up=kv > options["kv_high"], down=kv < options["kv_low"] and decode > 1),
    )
    if more[1] < 0 and interval - added_at < options["patience"]:
        more = (more[0], 0)
    policy.history.append((queue, interval if more[1] > 0 else added_at))
    return resize(cluster, prefill + more[0], decode + more[1], "mixed", stop=min(more) < 0)


def _step(*, up: bool, down: bool) -> int:
    return 1 if up else -1 if down else 0


# --- by forecast throughput -------------------------------------------------------------------------------------------


def plan_by_sla(policy: Planned, cluster: Cluster) -> Iterable[Action]:
    """The workers for the forecast load. Both counts are scaled down to the fleet."""
    wanted = _wanted(policy, cluster, policy.tick_s or math.inf)
    return resize(cluster, *within(cluster, *wanted), "mixed", stop=True) if wanted else ()


def _wanted(policy: Planned, cluster: Cluster, interval_s: float) -> tuple[int, int] | None:
    """The workers of each kind for the load forecast from intervals of this length, None if none is known yet.

    Tokens of a second, of prompts and outputs, are divided by a worker's capacity within `itl_s`, by the step times,
    corrected by what was observed in the interval: TTFT, by the prefill of a mean prompt alone, and ITL, by the step of
    as many requests as a worker had on average (Little's law).
    """
    options, done = policy.planning, cluster.finished(policy.ended)
    policy.ended += len(done.ids)
    if policy.arrived and len(done.ids):
        seen = (policy.arrived, policy.prompt_tokens / policy.arrived, float(done.output_tokens.mean()))
        policy.history = [*policy.history, seen][-int(options["window"]) :]
    elif policy.history:
        policy.history = [*policy.history, (policy.arrived, *policy.history[-1][1:])]
    policy.arrived = policy.prompt_tokens = 0
    if not policy.history:
        return None
    predict = PREDICTORS[options["predictor"]]
    count, prompt, output = (predict(list(column)) for column in zip(*policy.history, strict=True))
    pool, context = cluster.decode, max(prompt + output / 2, 1.0)
    ttft_s = float(cluster.prefill.estimate_s(max(int(prompt), 1), 0, 0)[0])
    slow, correction = corrections(cluster, done, interval_s)
    batch = largest_batch(pool, options["itl_s"] / max(correction, 1e-9), context, int(pool.max_batch[0]))
    decode_rate = batch / float(pool.estimate_s(0, batch, int(batch * context))[0])
    rate = count / interval_s
    wanted = math.ceil(rate * ttft_s * min(1.0, slow)), math.ceil(rate * output / decode_rate)
    return max(wanted[0], 1), max(wanted[1], 1)


# --- both -------------------------------------------------------------------------------------------------------------


def plan_by_both(policy: Planned, cluster: Cluster) -> Iterable[Action]:
    """A floor by the forecast load every `throughput_interval_s`; above it, every `load_interval_s`, one worker of a
    kind more if a next request would be late on each of them, or one less if it would not be late without it.
    """
    options = policy.planning
    if cluster.now_s >= policy.floor_due_s:
        policy.floor = _wanted(policy, cluster, options["throughput_interval_s"]) or policy.floor
        policy.floor_due_s += options["throughput_interval_s"]
    if cluster.instances.changing().any():
        return ()
    prefill, decode = _workers(cluster)
    workers = prefill_only(cluster)
    prompt, context = _next_request(policy)
    ttft_s, own_s = _ttft_s(policy, cluster, workers, prompt)
    spread = len(workers) / max(len(workers) - 1, 1)
    more_ttft_s = _ttft_s(policy, cluster, workers, prompt, spread)[0]
    itl_s, more_itl_s = (_itl_s(cluster, context, factor) for factor in (1.0, decode / max(decode - 1, 1)))
    queue_limit_s = (options["ttft_s"] - own_s) * options["sensitivity"]
    may_be_fewer = bool(np.all(more_ttft_s - own_s < queue_limit_s))
    prefill += _step(up=bool(np.all(ttft_s > options["ttft_s"])), down=prefill > 1 and may_be_fewer)
    has_slack = bool(np.all(more_itl_s < options["itl_s"] * options["sensitivity"]))
    decode += _step(up=bool(np.all(itl_s > options["itl_s"])), down=decode > 1 and has_slack)
    wanted = max(prefill, policy.floor[0]), max(decode, policy.floor[1])
    return resize(cluster, *within(cluster, *wanted), "mixed", stop=True)


def _next_request(policy: Planned) -> tuple[int, int]:
    """The prompt of a next request, by the arrivals since the last forecast, and the context that it decodes with."""
    _, prompt, output = policy.history[-1] if policy.history else (0, 1.0, 0.0)
    prompt = policy.prompt_tokens / policy.arrived if policy.arrived else prompt
    return max(int(prompt), 1), max(int(prompt + output / 2), 1)


def _ttft_s(
    policy: Planned, cluster: Cluster, workers: Integers, prompt: int, spread: float = 1.0
) -> tuple[Floats, float]:
    """Seconds to the first token of a next prompt on each worker, behind `spread` times what waits there, and of the
    prompt alone on the first of them.
    """
    there = cluster.instances
    waiting = there.queued_tokens[workers].astype(np.float64)
    if policy.shares_queue and len(workers):
        waiting[:] = waiting.mean()
    found = [_chunks_s(cluster, i, int(w * spread) + prompt) for i, w in zip(workers.tolist(), waiting, strict=True)]
    return np.array(found), _chunks_s(cluster, int(workers[0]), prompt) if len(workers) else 0.0


def _chunks_s(cluster: Cluster, instance: int, tokens: int) -> float:
    """Seconds of so many prompt tokens, in steps of the instance's budget."""
    there = cluster.instances
    budget = int(there.token_budget[instance])
    whole, rest = divmod(tokens, budget)
    step_s = estimate_s(there.step_times, instance, budget, 0, 0) if whole else 0.0
    return whole * step_s + (estimate_s(there.step_times, instance, rest, 0, 0) if rest else 0.0)


def _itl_s(cluster: Cluster, context: int, spread: float) -> Floats:
    """Seconds of a decode step on each worker with `spread` times its requests, and a next one. What would not fit
    into its KV memory takes for ever.
    """
    there, found = cluster.instances, []
    for i in cluster.decode.ids.tolist():
        held = int((there.kv_tokens[i] + there.incoming_kv_tokens[i]) * spread)
        count = int((there.running[i] + there.incoming[i]) * spread)
        fits = spread == 1.0 or held < there.total_blocks[i] * cluster.block_tokens
        found.append(estimate_s(there.step_times, i, 0, count + 1, held + context) if fits else math.inf)
    return np.array(found)


def _workers(cluster: Cluster) -> tuple[int, int]:
    """The numbers of workers that only prefill, and that decode, once all changes are done."""
    roles = cluster.instances.next_role
    return int(np.count_nonzero(roles == PREFILL)), int(np.count_nonzero(roles & DECODE))


# --- by name ----------------------------------------------------------------------------------------------------------

Planner = Callable[[Any, Cluster], Iterable[Action]]
PLANNERS: dict[str, Planner] = {"none": plan_nothing, "load": plan_by_load, "sla": plan_by_sla, "both": plan_by_both}
OPTIONS: dict[str, dict[str, Any]] = {"none": {}, "load": LOAD, "sla": SLA, "both": BOTH}


def options_of(planner: str, given: dict[str, Any] | None) -> dict[str, Any]:
    """The options of a planner. Raises InputError for one that it does not have, and for bad values of `both`."""
    options = OPTIONS[planner] | (given or {})
    for name in options:
        rule("policy.planning", name, OPTIONS[planner])
    if "predictor" in options:
        rule("policy.planning.predictor", options["predictor"], PREDICTORS)
    if planner == "both":
        for name in ("throughput_interval_s", "load_interval_s"):
            require_positive(f"policy.planning.{name}", options[name])
        require_share("policy.planning.sensitivity", options["sensitivity"])
        if options["load_interval_s"] > options["throughput_interval_s"]:
            raise InputError(
                f"policy.planning.load_interval_s must not exceed throughput_interval_s, "
                f"{options['throughput_interval_s']}; got {options['load_interval_s']}"
            )
    return options
