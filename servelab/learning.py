"""Routing as a Gymnasium environment: a decision a step, a run an episode, for policies that learn.

`pip install "servelab[learning]"` installs what it needs.
"""

from __future__ import annotations

from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from framework.metrics.slo import judge
from framework.objective.experiment import Experiment
from framework.policy import Cluster, Request
from framework.policy.watching import HOOKS, Watch
from framework.result import Result
from servelab.run_one import Run
from servelab.settings import experiment_of

_BLOCK_S = 300.0  # seconds; samples of a recording consist of its blocks of this length
_SEEDS = 2**31


class RoutingEnv(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Where each request is prefilled, decided by an agent in place of the policy's own rule.

    An episode is one run. A step answers where the request that has just arrived goes, and ends at the next arrival.
    An observation has one row an instance and one column a feature, `features`; rows of instances that take no prompts
    are 0. An action is the number of an instance. The reward is the number of requests that have kept the SLO and ended
    since the last decision, as a share of all requests, so the return of an episode is the run's SLO attainment. `info`
    has `action_mask`, 1 for instances that take prompts, `own`, the answer of the policy's own rule, and at the end of
    an episode `run`, the `Run`.

    Attributes:
        features: Names of the columns: tokens that wait for their prefill, tokens of this prompt that the instance's
            cache lacks, seconds to prefill those, requests that wait or whose prefill is under way, requests that
            decode, seconds of the next decode step, share of KV blocks that is free or evictable.

    Args:
        policy: Decides everything else, as for `servelab.run`.
        trace: As for `servelab.run`; `reset(seed=...)` draws other requests of the same kind.
        settings: As for `servelab.run`.

    Raises:
        InputError: For wrong arguments; by `step` for an instance that takes no prompts.

    Example:
        >>> from servelab.learning import RoutingEnv
        >>> env = RoutingEnv("chunked", "synthetic", limit=60, rate=20)
        >>> seen, info = env.reset(seed=1)
        >>> returned, ended = 0.0, False
        >>> while not ended:
        ...     seen, reward, ended, _, info = env.step(seen[:, 0].argmin())  # the fewest tokens that wait
        ...     returned += reward
        >>> round(returned, 9) == round(info["run"].summary["slo_attainment"], 9)
        True
    """

    features = ("queued_tokens", "lacking_tokens", "prefill_s", "prefills", "decodes", "step_s", "free_kv")

    def __init__(self, policy: Any = "chunked", trace: Any = "synthetic", **settings: Any) -> None:
        self._experiment = experiment_of({"policy": policy, "trace": trace, **settings})
        instances = sum(pool.instances for pool in self._experiment.setting.cluster.pools)
        self._shape = (instances, len(self.features))
        self.observation_space = Box(0.0, np.inf, self._shape, np.float32)
        self.action_space = Discrete(instances)
        self._episode: _Episode | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin a run on requests that the seed draws; without a seed, on the next ones of the last seed."""
        super().reset(seed=seed)
        self.close()
        number = int(self.np_random.integers(1, _SEEDS))
        self._episode = _Episode(self._experiment.on(self._experiment.sample(number, _BLOCK_S)), self._shape)
        seen, _, _, _, info = self._episode.begin()
        return seen, info

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Send the request to an instance, and go on until another one asks."""
        if self._episode is None:
            raise RuntimeError("no run is under way; call reset() first")
        answer = self._episode.answer(int(action))
        if answer.terminated:
            self._episode = None
        return answer

    def close(self) -> None:
        """Give up the run that is under way."""
        if self._episode is not None:
            self._episode.leave()
            self._episode = None


class _Answer(NamedTuple):
    """What a step returns."""

    seen: NDArray[np.float32]
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class _Left(BaseException):
    """The agent has gone. Not an Exception, which a policy might catch."""


class _Episode(Watch):
    """One run in a thread of its own, which waits in every decision for the agent's answer."""

    def __init__(self, experiment: Experiment, shape: tuple[int, int]) -> None:
        super().__init__()
        self._shape = shape
        self._asked: SimpleQueue[_Answer | BaseException] = SimpleQueue()
        self._answers: SimpleQueue[int | None] = SimpleQueue()
        self._thread = Thread(target=self._play, args=(experiment,), daemon=True)
        self._finished, self._good = 0, 0

    def begin(self) -> _Answer:
        """The first decision."""
        self._thread.start()
        return self._next()

    def answer(self, instance: int) -> _Answer:
        """Answer the decision that waits; the next one, or the end. Raises what the run raises."""
        self._answers.put(instance)
        return self._next()

    def leave(self) -> None:
        """End the run where it is."""
        self._answers.put(None)
        self._thread.join()

    def answered(self, number: int, hook: int, request: Request, cluster: Cluster, answer: Any) -> Any:
        """Ask the agent where the prefill goes."""
        if HOOKS[hook] != "route_prefill":
            return answer
        mask = np.zeros(self._shape[0], np.int8)
        mask[cluster.prefill.ids] = 1
        info = {"action_mask": mask, "own": int(answer)}
        self._asked.put(_Answer(self._observed(request, cluster), self._reward(cluster), False, False, info))
        instance = self._answers.get()
        if instance is None:
            raise _Left
        return instance

    def _observed(self, request: Request, cluster: Cluster) -> NDArray[np.float32]:
        pool, seen = cluster.prefill, np.zeros(self._shape, np.float32)
        cached = pool.cached_tokens(request)
        free = (pool.free_blocks + pool.evictable_blocks) / np.maximum(pool.total_blocks, 1)
        prefills = pool.queued + pool.prefilling
        lacking, prefill_s = request.input_tokens - cached, pool.prefill_s(request, cached)
        columns = (pool.queued_tokens, lacking, prefill_s, prefills, pool.running, pool.step_s(), free)
        seen[pool.ids] = np.stack(columns, axis=1)
        return seen

    def _reward(self, cluster: Cluster) -> float:
        """Requests that have kept their limits and ended since the last decision, as a share of all."""
        ended, limits = cluster.finished(self._finished), cluster.requests.limits
        self._finished += len(ended.ids)
        tpot_s = np.nan_to_num(ended.tpot_s)
        kept = (ended.ttft_s <= limits.ttft_s[ended.ids]) & (tpot_s <= limits.tpot_s[ended.ids])
        return self._counted(self._good + int(kept.sum()), len(cluster.requests.arrival_s))

    def _counted(self, good: int, requests: int) -> float:
        gained, self._good = good - self._good, good
        return gained / requests

    def _play(self, experiment: Experiment) -> None:
        try:
            self._asked.put(self._end(experiment, experiment.run(watch=self)))
        except BaseException as error:  # the agent's thread raises it
            self._asked.put(error)

    def _end(self, experiment: Experiment, result: Result) -> _Answer:
        """The rest of the reward, by the SLO's own judgement of the run."""
        good = judge(result, experiment.slo).good
        reward = self._counted(int(good.sum()), len(good))
        info = {"action_mask": np.zeros(self._shape[0], np.int8), "run": Run(result, experiment)}
        return _Answer(np.zeros(self._shape, np.float32), reward, True, False, info)

    def _next(self) -> _Answer:
        answer = self._asked.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer
