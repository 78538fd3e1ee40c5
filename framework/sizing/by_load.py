"""How many instances of a cluster should prefill, and how many decode: the answer to `cluster.prefill=auto`.

By the run's step times, a request takes a certain time of an instance in each phase. Its prompt is computed in chunks,
in full steps. Its output is decoded in steps that it shares with as many others as the limit of TPOT, KV memory and
seats allow. The load of a pool is the rate of arrivals times this time divided by its instances. The split is the one
that leaves the pool with the larger load the most room. The same holds for the links, over which every prompt's KV
leaves one pool and reaches the other.

Neither pool can be loaded fully. Prompts wait for each other, and must keep the limit of TTFT; the number of decodes
varies at random, and they must fit. So each load counts as a share of its limit. The rate does not affect the choice,
since it loads both pools equally.

Some policies let decode instances prefill too, next to others that only prefill. If a step full of prompts keeps the
limit of TPOT, decodes tolerate that, and an instance that only prefills cannot use its spare capacity for decodes: then
one such instance is enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from framework.bound.setting import Setting
from framework.compiler.decorators import compiled
from framework.engine.setup.config import step_row
from framework.system.cluster import ClusterSpec, PoolSpec
from framework.system.split import Split
from framework.timing.table import StepTables, base_s, chunk_s, stack, step_s
from framework.workload import ids_in_order, rate_rps, within_context

_LENGTHS = 256  # quantiles of prompts for which seconds are computed
_KEPT = 0.1  # quantile of limits: nine requests in ten have no tighter one
_BUSIEST = 0.7  # largest busy share of a prefilling pool, or of a link: arrivals are more bunched than random ones
_TAIL = math.log(10.0)  # times the mean: nine waits in ten are shorter
_MOST_CACHED = 0.99  # share of prompt tokens: the last one is always computed
_SPREAD = 1.28  # standard deviations above the mean: nine numbers of decodes in ten are smaller


def sized(cluster: ClusterSpec, setting: Setting) -> ClusterSpec:
    """The cluster with the split that the load of `setting` needs.

    The cluster of `setting` is the same as the policy lays it out: pools of the same name have its options.
    """
    laid_out = {pool.name: pool for pool in setting.cluster.pools}
    prefill, decode = (
        next(laid_out.get(pool.name, pool) for pool in cluster.pools if pool.name == name)
        for name in ("prefill", "decode")
    )
    setting = replace(setting, workload=within_context(setting.workload, setting.model.max_context))
    prefills, decodes = _prefills(setting, prefill), _Decodes(setting, decode)
    sent_s, fetched_s = _transfer_s(setting, prefill), _transfer_s(setting, decode)
    total = sum(pool.instances // pool.group for pool in cluster.pools if pool.name in ("prefill", "decode"))

    def strain(count: int) -> float:
        links = max(sent_s / count, fetched_s / (total - count)) / _BUSIEST
        return max(prefills.strain(count), decodes.strain(total - count), links)

    both = prefill.role == "prefill" and decode.role == "mixed" and prefills.step_s <= decodes.limit_s
    best = 1 if both else min(range(1, total), key=strain)
    rate = rate_rps(setting.workload)
    batch, limit = decodes.batch(total - best)
    return cluster.divided(
        Split(
            prefill=best,
            decode=total - best,
            rate_rps=rate if setting.load.clients is None and math.isfinite(rate) else None,
            prefill_s=prefills.mean_s,
            decode_s=decodes.request_s(total - best),
            batch=batch,
            batch_limit=limit,
            transfer_s=fetched_s,
            decode_prefills=both,
        )
    )


def _limit_s(setting: Setting, name: str) -> float:
    """A limit at least as loose as the tightest tenth's; inf: none."""
    return float(np.quantile(setting.limits_s(name), _KEPT, method="lower"))


def _tables(setting: Setting, pool: PoolSpec) -> StepTables:
    return stack([step_row(setting.engine, setting.timing, setting.model, pool)])


def _transfer_s(setting: Setting, pool: PoolSpec) -> float:
    """Seconds of an instance's link for the KV of a prompt."""
    link_bytes_s = pool.link_bytes_s or setting.cluster.link.bandwidth_bytes_s
    return float(setting.workload.input_tokens.mean()) * setting.copy_bytes_per_token / link_bytes_s / pool.group


# --- prefill ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Prefills:
    """Seconds of an instance for a prompt, their squared coefficient of variation, the limit of TTFT, and the seconds
    of a full step.
    """

    mean_s: float
    variation: float
    limit_s: float
    step_s: float

    def strain(self, instances: int) -> float:
        """Seconds of such a pool for each request, divided by the share of its time that it may be busy."""
        return self.mean_s / (instances * self._most(instances))

    def _most(self, instances: int) -> float:
        """The load, at most `_BUSIEST`, at which nine prompts in ten have their token in time, by bisection.

        The mean wait in a queue before c servers follows A. O. Allen, "Probability, Statistics, and Queueing Theory"
        (1990), as W = s (1 + C^2) / 2 * load^(sqrt(2 (c + 1)) - 1) / (c (1 - load)); waits are exponential.
        """
        allowed_s = max(self.limit_s - self.mean_s, 0.1 * self.mean_s) / _TAIL
        power = math.sqrt(2.0 * (instances + 1)) - 1.0

        def wait_s(load: float) -> float:
            return self.mean_s * (1.0 + self.variation) / 2.0 * load**power / (instances * (1.0 - load))

        low, high = 0.0, _BUSIEST
        if wait_s(high) <= allowed_s:
            return high
        while high - low > 1e-6:
            middle = (low + high) / 2.0
            low, high = (middle, high) if wait_s(middle) <= allowed_s else (low, middle)
        return high


def _prefills(setting: Setting, pool: PoolSpec) -> _Prefills:
    prompts = np.sort(setting.workload.input_tokens)
    at = ((np.arange(_LENGTHS) + 0.5) / _LENGTHS * len(prompts)).astype(np.int64)
    tables, share = _tables(setting, pool), _cached_share(setting, pool)
    lengths, counts = np.unique(prompts[at], return_counts=True)
    budget = setting.engine.budget_of(pool)
    most = min(budget, setting.engine.longest_chunk or budget)
    seconds = [_prompt_s(tables, pool, int(share * length), int(length), most) for length in lengths]
    times_s = np.repeat(seconds, counts)
    mean_s, full = float(times_s.mean()), most / float(prompts.mean() * (1 - share))
    variation = float(times_s.var()) / mean_s**2 if mean_s > 0 else 0.0
    return _Prefills(mean_s / pool.group, variation, _limit_s(setting, "ttft_s"), mean_s * full)


def _prompt_s(tables: StepTables, pool: PoolSpec, cached: int, prompt: int, most: int) -> float:
    """Seconds of full steps for a prompt without its `cached` tokens, in chunks of at most `most` tokens."""
    stages = pool.parallelism.pp
    piece = -(-most // stages)
    step_s = base_s(tables, 0, stages * piece, 0, stages)
    return float((prompt - cached) / (stages * piece) * step_s + _chunks_s(tables, cached, prompt, piece))


@compiled
def _chunks_s(tables: StepTables, cached: int, prompt: int, piece: int) -> float:
    """Seconds of attention of a prompt after its `cached` tokens, in chunks of `piece`."""
    time_s = 0.0
    for done in range(cached, prompt, piece):
        time_s += chunk_s(tables, 0, done, min(piece, prompt - done))
    return time_s


def _cached_share(setting: Setting, pool: PoolSpec) -> float:
    """The share of prompt tokens that an instance finds cached, if it holds its latest computed blocks.

    One instance of n sees an n-th of the requests, so it holds an n-th of those with the same prefix, from n times as
    long ago.
    """
    workload, engine = setting.workload, setting.engine
    if not (engine.prefix_cache and workload.has_prefixes):
        return 0.0
    size = workload.hash_block_tokens
    held = setting.kv_blocks(pool) * engine.block_tokens // size
    bytes_per_token = setting.model.kv_bytes_per_token * engine.memory_share(setting.model)
    ids = ids_in_order(workload)
    every = len(ids)
    held += sum(tier.blocks(size, bytes_per_token, every) for tier in engine.prefix_stores.tiers.values())
    order = np.argsort(ids, kind="stable")
    again = np.diff(ids[order]) == 0
    hits = int(np.count_nonzero(np.diff(order)[again] <= held))
    return min(hits * size / float(workload.input_tokens.sum()), _MOST_CACHED)


# --- decode -----------------------------------------------------------------------------------------------------------


class _Decodes:
    """Steps of an instance that decodes as many requests at once as it may."""

    def __init__(self, setting: Setting, pool: PoolSpec) -> None:
        inputs, outputs = setting.workload.input_tokens, setting.workload.output_tokens
        speculation = setting.engine.speculation
        accepted = float(np.sum(speculation.acceptance ** np.arange(speculation.most + 1)))  # tokens of a step
        self._tables, self._group, self._clients = _tables(setting, pool), pool.group, setting.load.clients
        self._steps = float((outputs - 1).mean()) / accepted
        # While a request decodes: requests with long outputs are present for longer.
        self._context = float((outputs * (inputs + outputs / 2)).sum() / outputs.sum())
        self.limit_s = _limit_s(setting, "tpot_s") * accepted  # limit of a step
        self._memory = max(int(setting.kv_blocks(pool) * setting.engine.block_tokens / self._context), 1)
        self._seats = setting.engine.seats_of(pool)

    def strain(self, instances: int) -> float:
        """Seconds of such a pool for each request, divided by the share of its time that it may be busy."""
        slots = instances * self._group * self.batch(instances)[0]
        return self.request_s(instances) / instances * (1.0 + _SPREAD / math.sqrt(slots))

    def request_s(self, instances: int) -> float:
        """Seconds of an instance for one request."""
        batch, _ = self.batch(instances)
        return self._steps * self._step_s(batch) / batch / self._group

    def batch(self, instances: int) -> tuple[int, str]:
        """The most requests that decode at once, and the limit on them."""
        limits = (self._memory, "memory"), (self._seats, "seats"), (self._paced, "TPOT")
        batch, limit = min(limits, key=lambda one: one[0])
        if self._clients is not None and self._clients < batch * instances * self._group:
            return max(self._clients // (instances * self._group), 1), "clients"
        return batch, limit

    @cached_property
    def _paced(self) -> int:
        """The largest batch whose step keeps the limit of TPOT, at least 1."""
        low, high = 1, min(self._memory, self._seats) + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._step_s(middle) <= self.limit_s else (low, middle)
        return low

    def _step_s(self, batch: int) -> float:
        return step_s(self._tables, 0, [], [], batch, int(batch * self._context))
