"""The simulated cluster behind the server: an experiment whose requests come from clients instead of a trace."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from framework.codes import OFF, PREFILL
from framework.engine.setup.config import Setting, require_whole_instances
from framework.errors import InputError
from framework.objective.experiment import Experiment
from framework.policy.base import Policy
from framework.policy.predictor import Predictions, Predictor
from framework.policy.request_view import Limits, Request
from framework.policy.view import Cluster
from framework.replay.live import LiveEngine, Sent
from framework.workload import Workload


@dataclass(frozen=True)
class Simulated:
    """The engine of a cluster, its setting, and what was drawn: the output (most,) with which each request would end.

    `pins`: the instance that prefills each request, (most,), where clients choose it; -1: the policy does.
    """

    engine: LiveEngine
    setting: Setting
    policy: Policy
    natural_tokens: NDArray[np.int64]
    pins: NDArray[np.int64]

    @property
    def entrances(self) -> list[int]:
        """The instances that take prompts while they are on."""
        return np.flatnonzero(self.engine.inspection.instances["pool_role"] & PREFILL).tolist()

    def takes_prompts(self, instance: int) -> bool:
        """Whether an instance takes prompts now; -1: whether any does."""
        roles = self.engine.inspection.instances["role"]
        return bool((roles & PREFILL).any() if instance < 0 else roles[instance] & PREFILL)

    @property
    def scalable(self) -> dict[str, tuple[int, int]]:
        """The number and the size of each pool whose instances go on and off one by one."""
        pools = enumerate(self.setting.cluster.pools)
        return {pool.name: (number, pool.instances) for number, pool in pools if pool.group == 1 and pool.role != "off"}

    @property
    def pools(self) -> list[dict[str, str | int]]:
        """Each pool: its name, its instances, those that are on or start, and those that have started."""
        rows, found = self.engine.inspection.instances, list[dict[str, str | int]]()
        for number, pool in enumerate(self.setting.cluster.pools):
            own = rows[rows["pool"] == number]
            counts = {name: int((own[role] != OFF).sum()) for name, role in (("on", "next_role"), ("ready", "role"))}
            found.append({"pool": pool.name, "instances": len(own), **counts})
        return found


_TRIED, _TRIED_S = 1024, 60.0  # requests for which a trial has room, and its longest time
_PROMPT_TOKENS, _OUTPUT_TOKENS = 300, 40
Doors = Literal["one", "each"]  # the policy chooses the instance that prefills, or the client does, by its port


def simulated(experiment: Experiment, most: int, caches: object, doors: Doors = "one") -> Simulated:
    """A cluster for at most `most` requests, before the first of them.

    `caches`: `engine.prefix_cache` as it was configured; auto is true if the model allows it. Raises InputError for a
    load of its own, or for parts that cannot be combined.
    """
    if experiment.load.clients is not None:
        raise InputError(f"load={experiment.load.name}: clients of the server send as they like; choose load=open")
    policy, pins = experiment.policy, np.full(most, -1, np.int64)
    setting = _setting(experiment, caches)
    vars(policy)["changes_roles"] = True  # instances may be switched on and off from outside
    if doors == "each":
        vars(policy)["route_prefill"] = _Chosen(pins).route_prefill
    engine = LiveEngine(setting, most)
    drawn = _drawn(experiment.workload, most, experiment.seed)
    predictions = _predictions(experiment.predictor, drawn, engine, experiment.seed)
    limits = experiment.slo.limits_s("ttft_s", None, most), experiment.slo.limits_s("tpot_s", None, most)
    view = Cluster(engine.inspection, setting.cluster, predictions, lambda: Limits(*limits))
    policy.prepare(view)
    engine.begin(policy, view)
    return Simulated(engine, setting, policy, drawn[1], pins)


def warm(experiment: Experiment, caches: object) -> None:
    """Serve two requests on a cluster of its own, so that the first ones of clients compile and load nothing."""
    policy, predictor = experiment.renew()
    engine = simulated(replace(experiment, policy=policy, predictor=predictor), _TRIED, caches).engine
    for _ in range(2):
        engine.send(Sent(_PROMPT_TOKENS, _OUTPUT_TOKENS, np.zeros(0, np.int32)), 0.0)
    left = False
    while engine.next_s < _TRIED_S and not (left and engine.inspection.finished.size):
        engine.run_to(engine.next_s)
        engine.news()
        left = left or engine.cancel(1, "left")


class _Chosen:
    """The instance that the client chose; while that takes no prompts, any other: the server then ends the answer."""

    def __init__(self, pins: NDArray[np.int64]) -> None:
        self._pins = pins

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        chosen = int(self._pins[request.id])
        return chosen if chosen in cluster.prefill.ids else int(cluster.prefill.ids[0])


def _setting(experiment: Experiment, caches: object) -> Setting:
    engine, model = experiment.engine, experiment.model
    if caches == "auto":
        engine = replace(engine, prefix_cache=model.linear is None)
    setting = replace(experiment.setting, engine=engine)
    require_whole_instances(setting.cluster, engine, experiment.policy.shares_gpus)
    return setting


def _drawn(workload: Workload, most: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Prompts and outputs of as many requests, drawn from those of a trace."""
    rows = np.random.default_rng(seed).integers(0, len(workload), most)
    return workload.input_tokens[rows], workload.output_tokens[rows]


def _predictions(
    predictor: Predictor | None, drawn: tuple[NDArray[np.int64], NDArray[np.int64]], engine: LiveEngine, seed: int
) -> Predictions:
    """The predictor knows what was drawn; an output that its client limits is known as it is, from its sending on."""
    expected = Workload(arrival_s=np.zeros(len(drawn[0])), input_tokens=drawn[0], output_tokens=drawn[1])
    if predictor is not None:
        predictor.prepare(expected, seed)
    return Predictions(predictor, expected, lambda: engine.inspection.finished)
