"""What a policy sees: read-only views over the engine's arrays, without anything that a real scheduler would
not know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.codes import DECODE, PREFILL
from framework.policy.inspection import Inspection, View
from framework.policy.predictor import Predictions
from framework.policy.request_view import Finished, Floats, Integers, Limits, Request, Requests, read_only
from framework.system.cluster import ClusterSpec
from framework.timing.estimate import StepTimes, estimates_s

__all__ = ["Cluster", "Finished", "Floats", "Instances", "Integers", "Request", "Requests", "View"]


_INSTANCE_COLUMNS = (
    *("pool", "role", "next_role", "draining_role", "queued", "queued_tokens", "running", "prefilling", "kv_tokens"),
    *("incoming", "incoming_kv_tokens", "swapped", "total_blocks", "free_blocks", "evictable_blocks", "token_budget"),
    *("max_batch", "bandwidth_bytes_s", "prefill_percent", "gpus", "most_drafts"),
)
_NONE = Finished(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0))


class Instances:
    """Some instances as columns, each an array of shape (len(self),) in the order of `ids`, as of the present event.

    Attributes:
        ids: Their numbers in the cluster.
        pool: The number of the pool of each.
        role: The phases of which it takes new work, as the bits PREFILL (1) and DECODE (2) of `framework.codes`.
        next_role, draining_role: Its role after and before a change; one is under way while they differ.
        queued, queued_tokens: Requests that wait for their prefill, tokens still to be prefilled.
        running, prefilling: Requests that decode, requests whose prefill is under way.
        kv_tokens, incoming_kv_tokens: KV tokens held here, and on their way here.
        incoming, swapped: Requests whose KV is on its way here, and whose KV is in host memory.
        total_blocks, free_blocks, evictable_blocks: KV blocks; evictable are cached prefixes without a reference.
        token_budget, max_batch: Most tokens of a step, most requests at once.
        prefill_percent: The share of the SMs of its prefill stream, if two streams share it.
        gpus: The GPUs of each that work.
        most_drafts: Tokens drafted for each decode of a step, at most if the depth is adaptive.
        bandwidth_bytes_s: Of its network in each direction, in bytes/s, which concurrent copies share.
        step_times: For a policy's own compiled functions, which call `framework.timing.estimate`.
    """

    pool: Integers
    role: Integers
    next_role: Integers
    draining_role: Integers
    queued: Integers
    queued_tokens: Integers
    running: Integers
    prefilling: Integers
    kv_tokens: Integers
    incoming: Integers
    incoming_kv_tokens: Integers
    swapped: Integers
    total_blocks: Integers
    free_blocks: Integers
    evictable_blocks: Integers
    token_budget: Integers
    prefill_percent: Integers
    gpus: Integers
    most_drafts: Integers
    max_batch: Integers
    bandwidth_bytes_s: Floats

    def __init__(self, engine: Inspection, ids: Integers) -> None:
        self.ids = read_only(ids)
        self._ids = ids
        self._engine = engine
        self.follow_gpus()
        self._first = int(ids[0]) if len(ids) else 0
        self._consecutive = len(ids) > 0 and bool(np.all(np.diff(ids) == 1))
        if self._consecutive:
            rows = read_only(engine.instances[self._first : self._first + len(ids)])
            for name in _INSTANCE_COLUMNS:
                setattr(self, name, rows[name])

    def follow_gpus(self) -> None:
        """Set `step_times` to those of the GPUs that each runs on now."""
        engine = self._engine
        tables = read_only(engine.tables.rows), read_only(engine.tables.data)
        rows, stages = (read_only(engine.instances[name][self._ids].astype(np.int64)) for name in ("row", "stages"))
        self.step_times = StepTimes(*tables, rows, read_only(np.maximum(stages, 1)))

    def __getattr__(self, name: str) -> NDArray[Any]:
        if name in _INSTANCE_COLUMNS:  # reached only if the ids are not consecutive
            return self._engine.instances[name][self._ids]
        raise AttributeError(f"instances have no column {name!r}; there are: {', '.join(_INSTANCE_COLUMNS)}")

    def __len__(self) -> int:
        return len(self.ids)

    def argmin(self, values: NDArray[Any]) -> int:
        """The instance with the smallest value (the first of equal ones), as its number in the cluster."""
        position = int(values.argmin())
        return self._first + position if self._consecutive else int(self._ids[position])

    def cached_tokens(self, request: Request) -> Integers:
        """Tokens of the request's prompt that each instance has in its prefix cache and its stores."""
        return self._engine.cached_tokens(self._ids, request.id)

    def prefill_s(
        self, request: Request, cached_tokens: Integers | None = None, chunk_tokens: int | None = None
    ) -> Floats:
        """Seconds to prefill the rest of the request on each instance, alone, without queues.

        `cached_tokens`, if given, replaces the tokens that are actually cached. The prefill is in one piece or, if
        given, in chunks of `chunk_tokens`.
        """
        cached = self.cached_tokens(request) if cached_tokens is None else np.asarray(cached_tokens, np.int64)
        if cached.shape != self._ids.shape:
            raise ValueError(f"prefill_s: cached_tokens has shape {cached.shape}, of {len(self)} instances")
        most = np.iinfo(np.int64).max if chunk_tokens is None else chunk_tokens
        if most < 1:
            raise ValueError(f"prefill_s: chunk_tokens is {most}; a chunk has 1 token or more")
        return self._engine.prefill_times_s(self._ids, request.id, cached, most)

    def estimate_s(self, prompt_tokens: int, decodes: int, context_tokens: int, prefix_tokens: int = 0) -> Floats:
        """Seconds of one step on each: a whole prompt (0: none) and decodes that read `context_tokens` together.

        The prompt is `prompt_tokens` beyond the `prefix_tokens` that are cached.
        """
        if prefix_tokens == 0:
            return estimates_s(self.step_times, prompt_tokens, decodes, context_tokens)
        return estimates_s(self.step_times, prompt_tokens, decodes, context_tokens, prefix_tokens)

    def changing(self) -> NDArray[np.bool_]:
        """Whether a change of role is under way, (len(self),)."""
        return np.asarray(self.draining_role != self.next_role)

    def step_s(self) -> Floats:
        """Seconds of each instance's next decode step as it stands; 0 if nothing decodes."""
        return self._engine.step_times_s(self._ids)


class Cluster:
    """The cluster as of the present event, read-only; a hook gets it.

    Attributes:
        instances: All instances, as columns.
        prefill: Those that take prompts.
        decode: Those that decode; an instance that does both is in both.
        requests: All requests, as columns of shape (N,).
        groups: The instances in lockstep, in order; an instance that steps alone is its own group.
        spec: The pools and links, as the policy laid them out.
        predictions: The answers of the run's predictor.
        view: What compiled rules receive.
        block_tokens: Tokens of a KV block.
        kv_bytes_per_token: Bytes of a token's KV in a copy between instances.

    Raises:
        IndexError: For an instance or request that there is not; KeyError: for a pool.

    Example:
        >>> class Soonest(servelab.Aggregated):
        ...     def route_prefill(self, request, cluster: servelab.Cluster):
        ...         pool = cluster.prefill
        ...         return pool.argmin((1 + pool.queued_tokens / request.input_tokens) * pool.prefill_s(request))
        >>> servelab.run(Soonest(), "synthetic", limit=60, rate=20).summary["completed"]
        60
    """

    def __init__(
        self,
        engine: Inspection,
        spec: ClusterSpec,
        predictions: Predictions,
        limits: Callable[[], Limits] | None = None,
    ) -> None:
        self._engine = engine
        self._limits = limits
        self.spec = spec
        self.groups = spec.groups
        self.instances = Instances(engine, np.arange(len(engine.instances)))
        self._role_changes = -1
        self.follow_roles()
        self.requests = Requests(engine, limits)
        self.view = engine.view
        self.predictions = predictions
        self.block_tokens = engine.block_tokens
        self.kv_bytes_per_token = engine.copy_bytes_per_token

    def seen_by(self, engine: Inspection) -> Cluster:
        """The same cluster as another inspection of the run shows it."""
        return Cluster(engine, self.spec, self.predictions, self._limits)

    def follow_roles(self) -> None:
        """Set `prefill` and `decode` to the instances that take such work now."""
        changes = self._engine.role_changes
        if changes != self._role_changes:
            roles = self._engine.instances["role"]
            self._role_changes = changes
            self.prefill = Instances(self._engine, np.flatnonzero(roles & PREFILL))
            self.decode = Instances(self._engine, np.flatnonzero(roles & DECODE))
            self.instances.follow_gpus()

    def finished(self, after: int) -> Finished:
        """The requests that have finished, except the first `after`, as columns in the order of their ends."""
        ids = self._engine.finished[after:].copy()
        if len(ids) == 0:
            return _NONE
        requests = self._engine.requests
        emitted, first_token_s = requests["emitted"][ids], requests["first_token_s"][ids]
        tpot_s, later = np.full(len(ids), np.nan), emitted - 1
        np.divide(requests["end_s"][ids] - first_token_s, later, out=tpot_s, where=later > 0)
        ttft_s = first_token_s - requests["arrival_s"][ids]
        return Finished(ids, requests["input_tokens"][ids], emitted, ttft_s, tpot_s)

    @property
    def now_s(self) -> float:
        """Time of the present event, in seconds of the run."""
        return self._engine.now_s

    def group(self, instance: int) -> range:
        """The instances whose steps begin and end with those of this one, itself included: the ranks of one model."""
        self._require_instance(instance)
        return next(group for group in self.groups if instance in group)

    def _require_instance(self, instance: int) -> None:
        if not 0 <= instance < len(self.instances):
            raise IndexError(f"there is no instance {instance}; they are 0 to {len(self.instances) - 1}")

    def streams_s(self, instance: int) -> tuple[Floats, Floats]:
        """Seconds of an instance's next prefill and decode step if they share it, by the percent of the SMs that each
        has, shape (101,); 0 for a stream without work, else inf for no SMs.
        """
        self._require_instance(instance)
        return self._engine.stream_times_s(instance)

    def decoding(self, instance: int) -> Integers:
        """Ids of the requests that decode on an instance, in running order; shape (running,)."""
        self._require_instance(instance)
        return self._engine.decoding(instance)

    def prefilling(self, instance: int) -> Integers:
        """Ids of the requests whose prompts are under way on an instance, in order; shape (prefilling,)."""
        self._require_instance(instance)
        return self._engine.prefilling(instance)

    def queued(self, instance: int) -> Integers:
        """Ids of the requests that wait for their prefill on an instance, in the order of its queue; shape (queued,).

        Requests that no step can hold yet follow, if steps are formed ahead (`engine.asynchronous`).
        """
        self._require_instance(instance)
        return self._engine.queued(instance)

    @property
    def suspended(self) -> Integers:
        """Ids of the requests that `Preempt` has taken off their instances and that wait for `Resume`, ascending.

        `requests.instance` is the instance where each was.
        """
        return self._engine.suspended

    def suspended_on(self, instance: int) -> Integers:
        """Those of them that were on an instance, ascending."""
        self._require_instance(instance)
        there = self._engine.suspended
        return there[self.requests.instance[there] == instance] if len(there) else there

    def decoding_on(self, pool: Instances) -> tuple[Integers, Integers]:
        """Ids of all requests that decode on a pool's instances, and each one's position in the pool; shapes (k,)."""
        return self._engine.decoding_on(pool._ids)

    def residents(self, pool: Instances) -> tuple[Integers, Integers, NDArray[np.bool_]]:
        """Requests that decode on a pool's instances or whose KV is on its way there: ids, each one's position in the
        pool, and which stay where they are. A request on its way, from its prefill or in a migration, counts at its
        destination: it has that position, or is left out.
        """
        return self._engine.residents(pool._ids)

    def migrating(self, ids: Integers) -> NDArray[np.bool_]:
        """Which of these decoding requests are already being migrated; shape of `ids`."""
        return self._engine.migrating(ids)

    def remaining_tokens(self, ids: Integers) -> Floats:
        """Output tokens that the run's predictor still expects of these requests, (k,); NaN without a predictor."""
        return self.predictions.remaining(ids, self.requests.generated(ids))

    def pool(self, name: str) -> Instances:
        """The instances of a named pool of the cluster's layout."""
        names = [pool.name for pool in self.spec.pools]
        if name not in names:
            raise KeyError(f"there is no pool {name}; there are {', '.join(names)}")
        return Instances(self._engine, np.flatnonzero(self._engine.instances["pool"] == names.index(name)))
