"""From what requests need to the input of the bounds: demand of the fluid program, work in windows, least durations.

It also bounds how many requests can have their first token in time, by prefill work in windows from arrival to
deadline.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framework.bound.program import Demand
from framework.bound.requests import Needs, Pool
from framework.bound.setting import Setting
from framework.compiler.decorators import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


def demand_of(setting: Setting, pools: Sequence[Pool], needs: Needs, chosen: Flags) -> Demand:
    """What the chosen requests need of steps, link, front end and clients.

    Requests that may share cached blocks divide the cost of each block equally.
    """
    columns, uses = _columns(setting, pools, needs), _uses(setting, pools, needs)
    columns["uses"] = np.stack([use.each for use in uses])
    if not chosen.all():
        for name, column in columns.items():  # one by one: with millions of requests each column is large
            columns[name] = column[..., chosen]
    prompts = setting.workload.input_tokens[chosen].astype(np.float64) if setting.caches else columns["tokens"]
    return Demand(
        **columns,
        computed=prompts,
        pace_s=_pace_s(setting, needs, chosen),
        recomputes=setting.recomputes,
        rates=np.array([use.rate for use in uses]),
        lasting=np.array([use.lasting for use in uses]),
    )


def _columns(setting: Setting, pools: Sequence[Pool], needs: Needs) -> dict[str, NDArray[Any]]:
    """The fields of `Demand` by name, for all requests, except a few fields."""
    workload, prefixes = setting.workload, needs.prefixes
    prompts, later = workload.input_tokens, setting.decode_steps
    tokens, none = prompts.astype(np.float64), np.zeros_like(prompts)
    known = none
    if setting.caches:
        tokens = prefixes.charged(lambda upto: upto.astype(np.float64), prompts)
        known = prefixes.block_tokens * (prompts // prefixes.block_tokens)
    extra_s, again_s = (np.full((len(pools), len(prompts)), np.inf) for _ in range(2))
    alone = np.zeros(extra_s.shape, bool)
    for k, pool in enumerate(pools):
        if pool.attention is None or pool.steps.chunks is None:
            continue
        # Of the two attentions in one step the decodes' counts in full: at most this much can be hidden behind it.
        seen = 1 - setting.engine.attention.overlap if pool.steps.mixes else 1.0
        if setting.caches:
            spent_s = prefixes.charged(pool.attention.upto_s, prompts)
        else:
            spent_s = pool.attention.prompt_s(none, prompts)
            alone[k] = pool.steps.chunks.whole & (prompts > pool.steps.chunks.budget)
        if pool.prefills:
            extra_s[k] = np.where(pool.holds, seen * spent_s + pool.row.per_sampled_s, np.inf)
        anew_s = pool.attention.upto_s(prompts + 1) - pool.attention.upto_s(known)
        again_s[k] = np.where(pool.holds, seen * anew_s + pool.row.per_sampled_s, np.inf)
    return {
        "tokens": tokens,
        "decodes": later.astype(np.float64),
        "context": later * prompts + 0.5 * later * (later + 1),
        "extra_s": extra_s,
        "alone": alone,
        "known": known.astype(np.float64),
        "again_s": again_s,
    }


def use_names(setting: Setting, pools: Sequence[Pool], needs: Needs) -> list[str]:
    """The names of `Demand.uses`, in order."""
    return [use.name for use in _uses(setting, pools, needs)]


class _Use(NamedTuple):
    name: str
    each: Floats  # (N,) use of each request
    rate: float  # what there is a second
    lasting: bool = False


def _uses(setting: Setting, pools: Sequence[Pool], needs: Needs) -> list[_Use]:
    """What requests use in addition to steps."""
    workload, cluster = setting.workload, setting.cluster
    entrance = next(pool.row for pool in pools if pool.spec.role != "decode")
    uses = [_Use("front end", np.full(len(workload), entrance.intake_s), 1.0)]
    if setting.transfers:
        tokens = workload.input_tokens.astype(np.float64)
        recomputed = setting.first_token_recomputed
        if setting.caches:  # a block is copied at least once for all requests that hold it
            tokens = needs.prefixes.charged(lambda upto: upto.astype(np.float64), workload.input_tokens)
        tokens = np.maximum(tokens - recomputed, 0.0)
        bytes_ = np.where((workload.output_tokens > 1) | recomputed, tokens * setting.copy_bytes_per_token, 0.0)
        roles = np.array([pool.role for pool in cluster.pools])[cluster.pool_of_instance]
        ends = [float(cluster.link_bytes_s[roles == role].sum()) for role in ("prefill", "decode")]
        fabric_bytes_s = cluster.link.fabric_bytes_s
        uses.append(_Use("link", bytes_, min(ends) if fabric_bytes_s is None else min(*ends, fabric_bytes_s)))
    if setting.load.clients is not None:
        waited_s = np.where(needs.served, needs.ready_s + needs.prefill_s + needs.transfer_s, 0.0)
        uses.append(_Use("clients", waited_s, float(setting.load.clients), lasting=True))
    return uses


def _pace_s(setting: Setting, needs: Needs, chosen: Flags) -> Floats | None:
    """The most time that the chosen requests may spend in decode steps; None if one of them has no limit."""
    later = setting.workload.output_tokens - 1
    spent_s = np.where(later > 0, setting.limits_s("tpot_s"), 0.0) * later - needs.transfer_s
    if setting.engine.first_token != "prefill":  # the first decode steps may come before token 1 is stamped
        spent_s += np.where(later > 0, setting.limits_s("ttft_s"), 0.0) + needs.transfer_s
    spent_s = spent_s[chosen]
    return spent_s if np.all(np.isfinite(spent_s)) else None


def most_started(setting: Setting, pools: Sequence[Pool], needs: Needs) -> int:
    """The most requests, of those good alone, whose prompts can all be prefilled between arrival and deadline.

    The GPUs of all pools that prefill count as one machine. A token costs its least cost in any step.
    """
    assert setting.arrival_s is not None
    limit_s = setting.limits_s("ttft_s")
    held = needs.good_alone & np.isfinite(limit_s)
    free = int(np.count_nonzero(needs.good_alone & ~held))
    prompts, cached = setting.workload.input_tokens[held], needs.prefixes.cached[held]
    computed = (prompts - cached).astype(np.float64)
    work_s, speed = np.full(len(prompts), np.inf), 0.0
    for pool in pools:
        if not pool.prefills or pool.attention is None or pool.steps.chunks is None or not pool.holds[held].any():
            continue
        chunks = pool.steps.chunks
        own_s = chunks.least_token_s * computed
        if chunks.whole:
            own_s = np.where(computed > chunks.budget, chunks.step_s(computed), own_s)
        own_s += pool.attention.prompt_s(cached, prompts) + pool.row.per_sampled_s
        mean_s = max(float(own_s[pool.holds[held]].mean()), np.finfo(float).tiny)
        work_s = np.where(pool.holds[held], np.minimum(work_s, own_s / mean_s), work_s)
        speed += pool.spec.instances / mean_s
    ready_s = setting.arrival_s[held] + needs.ready_s[held]
    due_s = setting.arrival_s[held] + limit_s[held]
    return free + most_in_time(ready_s, due_s, work_s / speed)


# --- first tokens in time ---------------------------------------------------------------------------------------------


Integers = NDArray[np.int64]

_SLACK = 1e-9  # slack of a deadline, since sums of times in another order round differently


def most_in_time(ready_s: Floats, due_s: Floats, work_s: Floats) -> int:
    """The most jobs that one machine, with interruptions, can complete within [ready, due]; each array (N,).

    `ready_s` must not fall. A deadline earlier than a preceding one is put off to it, which can only let more jobs
    pass. First come, first served then keeps all deadlines if any order does. Jobs can be dropped one by one: whenever
    a job would be late, drop the job without which the others end earliest (H. Kise, T. Ibaraki, H. Mine, "A solvable
    case of the one-machine scheduling problem with ready and due times", Operations Research 26(1), 1978).
    """
    due_s = np.maximum.accumulate(due_s)
    count = len(ready_s)
    kept, start_s = np.empty(count, np.int64), np.empty(count)
    return int(_kept(ready_s, due_s + _SLACK * (1 + np.abs(due_s)), work_s, kept, start_s))


@compiled
def _kept(ready_s: Floats, due_s: Floats, work_s: Floats, kept: Ints, start_s: Floats) -> int:
    """How many jobs are kept; they and their starts stand first in `kept` and `start_s` (N,)."""
    count, end_s = 0, -np.inf
    for job in range(len(ready_s)):
        kept[count], start_s[count] = job, max(end_s, ready_s[job])
        end_s = start_s[count] + work_s[job]
        count += 1
        if end_s <= due_s[job]:
            continue
        out, saved_s, slack_s = count - 1, work_s[job], np.inf
        for k in range(count - 1, -1, -1):  # dropping k moves those behind it by as much as each can move
            if k == count - 1:
                before_s = -np.inf if k == 0 else start_s[k - 1] + work_s[kept[k - 1]]
                saved_s = end_s - before_s
            elif min(work_s[kept[k]], slack_s) > saved_s:
                out, saved_s = k, min(work_s[kept[k]], slack_s)
            slack_s = min(slack_s, start_s[k] - ready_s[kept[k]])
            if slack_s <= saved_s:
                break
        count -= 1
        end_s = -np.inf if out == 0 else start_s[out - 1] + work_s[kept[out - 1]]
        for k in range(out, count):
            kept[k] = kept[k + 1]
            start_s[k] = max(end_s, ready_s[kept[k]])
            end_s = start_s[k] + work_s[kept[k]]
    return count
