"""The least needs of each request, alone on an idle cluster that knows all: time to first token, time per token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framework.bound.prefills import Attention, Prefixes, attention, no_prefixes, shared_blocks, shared_prefixes
from framework.bound.setting import Setting
from framework.bound.steps import PoolSteps
from framework.bound.tables import Extent, least_steps, rising
from framework.engine.setup.config import step_row
from framework.system.cluster import PoolSpec
from framework.timing.table import StepRow

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]

_SLACK = 1e-9  # sums of times in another order round differently
_ROUNDED_S = 2.0**-31  # a copy may take this much less, as times of copies are rounded


@dataclass(frozen=True)
class Pool:
    """The least times of a pool's steps, and which requests its memory can hold, (N,)."""

    spec: PoolSpec
    row: StepRow
    steps: PoolSteps
    attention: Attention | None  # None: it computes no prompts
    holds: Flags

    @property
    def prefills(self) -> bool:
        """Whether it computes prompts for the first time."""
        return self.attention is not None and not self.steps.again_only

    def prefill_s(self, cached: Integers, tokens: Integers) -> Floats:
        """The least time from the start of each prompt's prefill to its token, (N,)."""
        assert self.attention is not None
        assert self.steps.chunks is not None
        stages = self.spec.parallelism.pp
        computed = stages * (tokens - cached)
        time_s = _of_each(self.steps.chunks.prompts_s, computed) + stages * self.attention.prompt_s(cached, tokens)
        return np.where(self.holds, time_s + self.steps.chunks.ending_s, np.inf)


def _of_each(function: Callable[[Floats], Floats], numbers: Integers) -> Floats:
    """`function` of each number, (N,); of every number that may occur, if these are fewer."""
    count = int(numbers.max(initial=0)) + 1
    if count > len(numbers):
        return function(numbers.astype(np.float64))
    return function(np.arange(count, dtype=np.float64))[numbers]


@dataclass(frozen=True)
class Needs:
    """Lower bounds for any schedule; each array (N,).

    `served`: the engine does not reject it; `good_alone`: it could keep its SLO. A request takes `ready_s` from its
    client to the scheduler, then `prefill_s` to its first token, then `transfer_s` and `decode_s` to its last token.
    """

    served: Flags
    good_alone: Flags
    prefixes: Prefixes
    ready_s: Floats
    prefill_s: Floats
    transfer_s: Floats
    decode_s: Floats

    @property
    def total_s(self) -> Floats:
        return self.ready_s + self.prefill_s + self.transfer_s + self.decode_s


def make_pools(setting: Setting) -> list[Pool]:
    """The pools of the cluster, in order. Raises InputError if the model does not fit a pool."""
    workload, model, engine = setting.workload, setting.model, setting.engine
    kv_blocks = [setting.kv_blocks(pool) for pool in setting.cluster.pools]
    holds = [setting.peak_blocks <= engine.largest_request(blocks) for blocks in kv_blocks]
    can = np.any(holds, axis=0) & (workload.input_tokens + workload.output_tokens <= model.max_context)
    prompts, totals = workload.input_tokens[can], (workload.input_tokens + workload.output_tokens)[can]
    many = (workload.output_tokens[can] > 1) | setting.first_token_recomputed
    longest, longest_prompt = int(totals.max(initial=1)), int(prompts.max(initial=1))
    drafts = engine.speculation.most
    pools = []
    for spec, blocks, held in zip(setting.cluster.pools, kv_blocks, holds, strict=True):
        row = step_row(engine, setting.timing, model, spec)
        stages, ranks = spec.parallelism.pp, spec.parallelism.dp if spec.has_ranks else 1
        if drafts > 0 or stages > 1 or ranks > 1:
            row = rising(row)
        batch = min(engine.seats_of(spec), len(workload))
        extent = Extent(
            prompt_tokens=longest_prompt,
            kv_tokens=blocks * engine.block_tokens + drafts * batch,
            batch=batch,
            least_context=int(prompts[many].min(initial=longest)) + (not setting.first_token_recomputed),
            most_context=int(totals[many].max(initial=1 - drafts)) - 1 + drafts,
            shared_tokens=longest_prompt if setting.caches else 0,
            stages=stages,
            ranks=ranks,
        )
        batching = engine.batching_of(spec)
        budget = engine.budget_of(spec) + stages - 1
        whole = batching not in ("decode_first", "unified", "concurrent", "chunks_first")
        if ranks > 1 and not whole:  # If one rank has decodes beyond its share, others have all of theirs.
            budget += batch
        if not engine.chunked_prefill and not whole:  # a prompt may be longer than the budget
            budget = max(budget, stages * extent.kv_tokens)
        if (setting.caches or stages > 1) and whole:
            # It is not known how much of a prompt is left to compute, and so neither how many fit nor how many
            # micro-batches have a longer one.
            budget = stages * extent.kv_tokens
        steps = least_steps(spec, row, extent, budget, batching, again=setting.recomputes_there)
        of_prompts = None
        if steps.chunks is not None:
            of_prompts = attention(row, longest, steps.chunks.budget, whole=steps.chunks.whole)
        pools.append(Pool(spec, row, steps, of_prompts, held))
    return pools


def least_needs(setting: Setting, pools: list[Pool]) -> Needs:
    """What each request needs on the best of the pools."""
    workload = setting.workload
    prompts, later = workload.input_tokens, workload.output_tokens - 1
    ttft_limit_s, tpot_limit_s = setting.limits_s("ttft_s"), setting.limits_s("tpot_s")
    served = _served(setting, pools)
    prefixes = no_prefixes(workload)
    if setting.caches:
        due_s = None if setting.arrival_s is None else setting.arrival_s + ttft_limit_s
        if setting.engine.shares_blocks:
            prefixes = shared_blocks(workload, due_s, setting.engine.block_tokens)
        else:
            prefixes = shared_prefixes(workload, due_s)
    ready_s = _ready_s(setting, pools)
    computing = [pool for pool in pools if pool.attention is not None]
    prefills_s = [pool.prefill_s(prefixes.cached, prompts) for pool in computing]
    prefill_s = np.min([own_s for pool, own_s in zip(computing, prefills_s, strict=True) if pool.prefills], axis=0)
    again_s = np.full(len(workload), np.inf)
    recomputes = setting.recomputes
    if recomputes:  # After the first prefill a cache may save all but one token of a later one.
        again_s = np.min(prefills_s, axis=0)
        if setting.caches:
            chunks = [pool.steps.chunks for pool in pools if pool.steps.chunks is not None]
            again_s = np.full(len(workload), min(float(one.step_s(np.ones(1))[0]) + one.ending_s for one in chunks))
    recomputed = setting.first_token_recomputed
    transfer_s = np.where(((later > 0) | recomputed) & setting.transfers, _transfer_s(setting, prefixes), 0.0)
    decodes = _LoneDecodes(pools, prompts[served] - recomputed, later[served] + recomputed)
    steps = setting.decode_steps
    decode_s = np.where(served, decodes.total_s(prompts + 1, steps, again_s), np.inf)
    first_s, limit_s = ready_s + prefill_s, np.where(later > 0, tpot_limit_s, np.inf) * np.maximum(later, 1)
    good = _within(first_s, ttft_limit_s) & _within(transfer_s + decode_s, limit_s)
    if setting.transfers and setting.engine.first_token in ("join", "recomputed"):
        first_token_s = first_s + transfer_s
        if recomputed:
            first_token_s += decodes.total_s(prompts, np.ones(len(later), np.int64), again_s)
        good = _within(first_token_s, ttft_limit_s) & _within(decode_s, limit_s)
    if setting.engine.first_token == "decode":
        # Token 1 is stamped with the first decode after a transfer, if that step also gives token 2.
        second_s = decodes.total_s(prompts + 1, np.minimum(steps, 1), np.full(len(later), np.inf))
        rest_s = decodes.total_s(prompts + 2, np.maximum(steps - 1, 0), again_s)
        stamped = _within(first_s + transfer_s + second_s, ttft_limit_s) & _within(rest_s, limit_s)
        if setting.transfers:
            good &= (later == 0) | _within(transfer_s + again_s + rest_s, limit_s)
        good |= stamped & (later > 0)
    return Needs(served, served & good, prefixes, ready_s, prefill_s, transfer_s, decode_s)


class _LoneDecodes:
    """The least times to decode a request alone, by the tokens that a step reads."""

    def __init__(self, pools: list[Pool], prompts: Integers, later: Integers) -> None:
        """Prepare for requests with these prompts and numbers of tokens after the first."""
        self._low = int(prompts.min()) + 1 if len(prompts) else 1
        contexts = np.arange(self._low, int((prompts + later).max(initial=self._low)) + 1, dtype=np.float64)
        steps = [pool.steps.decodes for pool in pools if pool.steps.decodes is not None]
        times_s = [np.interp(contexts, one.contexts[0], one.pure_s[0]) for one in steps]
        self._least_s = np.min(times_s, axis=0) if steps else np.zeros(len(contexts))
        self._sum_s = np.concatenate([[0.0], np.cumsum(self._least_s)])

    def total_s(self, context: Integers, tokens: Integers, again_s: Floats) -> Floats:
        """Seconds of `tokens` tokens, the first of which reads `context`; at most `again_s` each; (N,)."""
        first = np.clip(context - self._low, 0, len(self._least_s))
        last = np.clip(first + tokens, 0, len(self._least_s))
        change = np.clip(np.searchsorted(self._least_s, again_s), first, last)
        again = last - change
        return self._sum_s[change] - self._sum_s[first] + again * np.where(again > 0, again_s, 0.0)


def _served(setting: Setting, pools: list[Pool]) -> Flags:
    """Whether each request fits the model's context, and the memory of a pool for each of its phases."""
    workload = setting.workload
    served = workload.input_tokens + workload.output_tokens <= setting.model.max_context
    served &= np.any([pool.holds for pool in pools if pool.spec.role != "decode"], axis=0)
    decoded = np.any([pool.holds for pool in pools if pool.spec.role != "prefill"], axis=0)
    return served & (decoded | (workload.output_tokens == 1))


def _ready_s(setting: Setting, pools: list[Pool]) -> Floats:
    """Seconds until the scheduler sees a request: the way to the front end, its queue and its own time."""
    row = next(pool.row for pool in pools if pool.spec.role != "decode")
    arrival_s = setting.arrival_s
    taken_s = np.full(len(setting.workload), row.intake_s)
    if arrival_s is not None and row.intake_s > 0:
        turn_s = row.intake_s * np.arange(len(setting.workload))
        taken_s = np.maximum.accumulate(arrival_s - turn_s) + turn_s - arrival_s + row.intake_s
    read_s = row.intake_token_s * setting.workload.input_tokens
    return np.asarray(row.request_s + taken_s + read_s, np.float64)


def _transfer_s(setting: Setting, prefixes: Prefixes) -> Floats:
    """Seconds to send the KV that only this prompt has, or its last layer, over the best links."""
    pools = setting.cluster.pools
    of_instance, bandwidth = setting.cluster.pool_of_instance, setting.cluster.link_bytes_s
    best = [max(bandwidth[[pools[k].role != other for k in of_instance]]) for other in ("decode", "prefill")]
    unpack_s = min(
        setting.engine.kv_compression.unpack_s(setting.model, pool.own_parallelism)
        for pool in pools
        if pool.role != "prefill"
    )
    tokens = setting.workload.input_tokens
    copied = tokens - setting.first_token_recomputed
    if setting.caches:  # other requests may have brought the rest to its destination
        copied = np.maximum(copied - prefixes.held_by_others, 0)
    bytes_, link = copied * setting.copy_bytes_per_token, setting.cluster.link
    fastest = min(best) if link.fabric_bytes_s is None else min(*best, link.fabric_bytes_s)
    sent_s = np.maximum(bytes_ / fastest - _ROUNDED_S, 0.0)
    if setting.engine.layerwise_tokens is not None:
        last_layer_s = bytes_ / setting.model.layers / min(best)
        sent_s = np.where(tokens >= setting.engine.layerwise_tokens, last_layer_s, sent_s)
    return sent_s + link.latency_s + copied * unpack_s


def _within(time_s: Floats, limit_s: Floats) -> Flags:
    return time_s <= limit_s * (1 + _SLACK) + _SLACK
