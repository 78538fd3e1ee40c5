"""One run: a workload through a policy on a cluster, to columns of results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from framework.codes import REASON_LENGTH
from framework.engine.setup.config import EngineConfig, Setting, require_whole_instances
from framework.engine.setup.spans import require_what_spans_need
from framework.errors import InputError, InvariantError, noting
from framework.load import Load, Open, Window
from framework.policy.base import Policy
from framework.policy.laying_out import lay_out
from framework.policy.predictor import Predictions, Predictor
from framework.policy.request_view import Limits
from framework.policy.view import Cluster
from framework.policy.watching import Watch
from framework.replay.compiled import CompiledEngine
from framework.replay.contract import Engine, Replayed
from framework.replay.lookups import interpreted_with
from framework.result import FINISHED, UNSENT, Result, of_those_sent
from framework.system.cluster import ClusterSpec
from framework.system.model import Model
from framework.timing.table import Timing
from framework.workload import Workload, longest_tokens, within_context


def _reference_engine(setting: Setting) -> Engine:
    from framework.replay.reference import ReferenceEngine  # fifty modules that no other run reads

    return ReferenceEngine(setting)


_ENGINES: dict[str, Callable[[Setting], Engine]] = {"compiled": CompiledEngine, "reference": _reference_engine}


def simulate(
    workload: Workload,
    cluster: ClusterSpec,
    model: Model,
    timing: Timing,
    engine: EngineConfig | None = None,
    policy: Policy | None = None,
    predictor: Predictor | None = None,
    load: Load | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Simulate one run of parts that were made before; `servelab.run` makes them by their names.

    Args:
        workload: N requests.
        cluster: The pools of instances, and the links between them.
        model: The model that they serve.
        timing: Seconds of a step.
        engine: How instances form steps and hold KV; None: the defaults.
        policy: It serves one run; None: `Policy()`.
        predictor: Of output lengths, for one run; None: none.
        load: Who sends requests, and when; None: as the workload says.
        seed: Of all that is random in the run.
        progress: Called now and then with the numbers of requests that have ended, and of all.

    Returns:
        The run as arrays: `requests` (N,), `instances` (M,), the logs of steps and tokens; times in seconds.

    Raises:
        InputError: If the parts cannot be combined; PolicyError, which is one, for an invalid answer of the policy.

    Example:
        >>> parts = run.experiment
        >>> result = servelab.simulate(parts.workload, parts.cluster, parts.model, parts.timing, parts.engine)
        >>> result.requests.shape, round(result.end_s) > 0
        ((60,), True)
    """
    setting = Setting(workload, cluster, model, timing, engine or EngineConfig(), load or Open(), seed)
    return replay(setting, policy or Policy(), predictor, progress)


def replay(
    given: Setting,
    policy: Policy,
    predictor: Predictor | None = None,
    progress: Callable[[int, int], None] | None = None,
    limits: Callable[[], Limits] | None = None,
    watch: Watch | None = None,
) -> Result:
    """Let the policy decide until every request has ended, in the engine that `engine.implementation` names.

    A policy and a predictor serve one run each. `progress(ended, total)` is called now and then. `limits` are those of
    an SLO, which views show. `watch` sees the routing decisions. Raises InputError if the parts cannot be combined,
    PolicyError for an invalid answer of a policy, and whatever a policy raised.
    """
    if given.cluster.auto and given.cluster.split is None:
        raise InputError("cluster.prefill=auto: no load has set the number of prefill instances yet; give a number")
    for part in (policy, predictor):
        _claim(part)
    setting = _laid_out(given, policy)
    workload, load = setting.workload, setting.load
    replaying = _ENGINES[setting.engine.implementation](setting)
    if predictor is not None:
        with noting(f"predictor {predictor.name}", "prepare"):
            predictor.prepare(workload, setting.seed)
    predictions = Predictions(predictor, workload, lambda: replaying.inspection.finished)
    view = Cluster(replaying.inspection, setting.cluster, predictions, limits)
    with noting(f"policy {policy.name}", "prepare"):
        policy.prepare(view)
    if watch is not None:
        watch.attach(policy, view, interpreted_with(replaying.inspection, setting.engine.sharing.slowdowns()))
    window = load.window(workload)
    marks_s = () if window is None else (window.start_s, window.end_s)
    replayed = replaying.replay(policy, view, progress or _silent, marks_s)
    outcomes = _complete(replayed.requests, predictions, given.workload.output_tokens > workload.output_tokens)
    sent = outcomes["state"] != UNSENT
    if load.duration_s is not None and sent.all():
        window = None  # clients ran out of requests before the end of the load
    result = _result(setting, policy.name, "none" if predictor is None else predictor.name, replayed, outcomes, window)
    return result if sent.all() else of_those_sent(result)


def laid_out(given: Setting, policy: Policy) -> ClusterSpec:
    """The cluster as the policy lays it out for these requests."""
    longest = given.cluster.longest_request_tokens or longest_tokens(given.workload, given.model.max_context)
    return lay_out(policy, replace(given.cluster, longest_request_tokens=longest))


def _laid_out(given: Setting, policy: Policy) -> Setting:
    """What an engine takes: the cluster is laid out, the prefix cache on or off, and outputs end with the context."""
    cluster, workload = laid_out(given, policy), within_context(given.workload, given.model.max_context)
    engine = given.engine.on(workload, given.model)
    require_whole_instances(cluster, engine, policy.shares_gpus)
    require_what_spans_need(policy, cluster, engine, given.model)
    return replace(given, workload=workload, cluster=cluster, engine=engine)


def _result(
    setting: Setting,
    policy: str,
    predictor: str,
    replayed: Replayed,
    outcomes: NDArray[np.void],
    window: Window | None,
) -> Result:
    """The columns of a run; `policy` and `predictor`: their names."""
    model, timing = setting.model, setting.timing
    rows = [timing.row(model, pool.gpu, pool.parallelism) for pool in setting.cluster.pools]
    return Result(
        workload=setting.workload,
        cluster=setting.cluster,
        model=model,
        engine=setting.engine,
        policy=policy,
        predictor=predictor,
        timing_source=timing.source + setting.engine.attention.chosen(rows),
        load=setting.load.name,
        seed=setting.seed,
        reasons=replayed.reasons,
        events=replayed.events,
        steps=replayed.steps,
        requests=outcomes,
        instances=_whole(replayed.instances, setting),
        tiers=replayed.tiers,
        crashes=replayed.crashes,
        drops=replayed.drops,
        attempts=replayed.attempts,
        gated_s=replayed.gated_s,
        hung=replayed.hung,
        step_log=replayed.step_log,
        token_log=replayed.token_log,
        window=window,
        counted=setting.load.counted(setting.workload, outcomes["arrival_s"]),
        marks=replayed.marks,
        gaps=replayed.gaps,
        replay_s=replayed.replay_s,
        hooks_s=replayed.hooks_s,
    )


def _whole(instances: NDArray[np.void], setting: Setting) -> NDArray[np.void]:
    """The instances with the blocks of all their GPUs, so that shares of memory are those of what is paid for."""
    if setting.fewer:
        blocks = np.array([setting.kv_blocks(pool) for pool in setting.cluster.pools])
        lacking = blocks[instances["pool"]] - instances["total_blocks"]
        for name in ("total_blocks", "free_blocks"):
            instances[name] += lacking
    return instances


def _silent(ended: int, total: int) -> None:
    pass


def _claim(part: Policy | Predictor | None) -> None:
    """Claim a policy or predictor for this run: it keeps counters, so another run needs another object."""
    if part is not None:
        if "_claimed" in vars(part):
            raise InputError(f"{type(part).__name__} has served a run already; make a new one for the next")
        vars(part)["_claimed"] = True


def _complete(outcomes: NDArray[np.void], predictions: Predictions, cut: NDArray[np.bool_]) -> NDArray[np.void]:
    if np.any(outcomes["state"] == 0):
        raise InvariantError("a run ended with requests that have not")
    outcomes["reason"][cut & (outcomes["state"] == FINISHED)] = REASON_LENGTH
    outcomes["predicted_tokens"] = predictions.first_total
    return outcomes
