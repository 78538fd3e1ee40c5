"""How much of the hardware a run used: FLOPs, bandwidth, KV memory, energy and money.

Shares are of the window (`framework.metrics.clock.Clock`), idle time included. Energy and money are of the whole run,
to the last answer. All work counts, including recomputation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.errors import InputError
from framework.metrics.clock import Clock
from framework.result import FINISHED, Result
from framework.system.cluster import PoolSpec
from framework.system.gpu import DTYPE_BYTES
from framework.system.model import Model

Floats = NDArray[np.float64]
_HOUR_S = 3600.0
_TURNS = ("starts", "stops", "reversals")  # of a fleet


def flops(model: Model, instances: NDArray[np.void]) -> Floats:
    """Model FLOPs of each instance's work, shape (M,).

    Two FLOPs per token and weight that it passes (without embeddings), and two per multiply-add of causal attention
    (scores and values). A chunk after a prefix attends to ((prefix + chunk)^2 - prefix^2) / 2 positions, each token
    that a decode verifies to its context (Kaplan et al., arXiv 2001.08361, section 2.1; Chowdhery et al., arXiv
    2204.02311, appendix B). The work of drafting is not counted.
    """
    tokens = instances["prefill_tokens"] + _verified_tokens(instances)
    attended = instances["prefill_square"] / 2 + instances["decode_pairs"]
    work: Floats = model.flops_per_token * tokens + model.attention_flops_per_pair * attended
    return work


def memory_bytes(
    model: Model, instances: NDArray[np.void], kv_share: float = 1.0, copies: Floats | float = 1.0
) -> Floats:
    """Bytes that each instance must move, shape (M,): weights, KV that decodes read, KV written.

    Weights are read once a step, or in a pipeline once for each of its micro-batches. Outside the experts each instance
    reads `copies` (M,) of them: every data-parallel group has its own. Of the experts it reads those that the tokens
    choose, evenly and at random. Memory holds the share `kv_share` of the model's KV bytes. Decodes read and write
    their states of linear attention.
    """
    tokens = instances["prefill_tokens"] + _verified_tokens(instances)
    kv_tokens = instances["context_tokens"] + tokens
    expert_bytes = model.expert_parameters * DTYPE_BYTES[model.expert_dtype]
    others = copies * (model.weight_bytes - expert_bytes)
    weights = others * instances["weight_passes"] + expert_bytes * instances["expert_reads"]
    states = 2.0 * model.state_bytes * (instances["decode_tokens"] - instances["accepted_tokens"])
    moved: Floats = weights + kv_share * model.kv_bytes_per_token * kv_tokens + states
    return moved


def _verified_tokens(instances: NDArray[np.void]) -> NDArray[np.int64]:
    """The number of tokens that decode steps passed through the model, including right and wrong drafts."""
    tokens: NDArray[np.int64] = instances["decode_tokens"] - instances["accepted_tokens"] + instances["drafted_tokens"]
    return tokens


def usage(result: Result, clock: Clock) -> dict[str, float | None]:
    """Use of the whole cluster: mfu, mbu, kv_utilization (shares of the window), gpu_hours, energy_j, cost_usd (of the
    run).

    A GPU draws its idle power, plus up to its TDP in proportion to its instance's busy time, without pipeline bubbles.
    One that is off draws and costs nothing. A share, of all GPUs, is None if it is undefined: in a run without
    duration, or for a GPU that states no peak for the model's operands. Reserved KV counts as used; `kv_fill` says how
    much of it holds tokens.
    """
    model, totals = result.model, clock.totals
    groups = _of_instances(result, lambda pool: pool.own_parallelism.dp)
    moved = memory_bytes(model, totals, result.engine.kv_compression.memory_share, groups)
    peak_flops = _of_instances(result, lambda pool: pool.own_parallelism.gpus * _peak_flops(pool, model))
    peak_bytes_s = _of_instances(result, lambda pool: pool.own_parallelism.gpus * pool.gpu.bandwidth_bytes_s)
    window_s = _window_s(result, clock)
    return {
        "mfu": _share(flops(model, totals).sum(), float(peak_flops @ clock.lengths_s)),
        "mbu": _share(moved.sum(), float(peak_bytes_s @ clock.lengths_s)),
        "kv_utilization": _share(totals["kv_block_s"].sum(), result.instances["total_blocks"].sum() * window_s),
        **_spent(result, clock, slice(None)),
    }


def _spent(result: Result, clock: Clock, chosen: NDArray[np.bool_] | slice) -> dict[str, float | None]:
    """GPU-hours, energy and money of some instances over the run."""
    gpus = _of_instances(result, lambda pool: pool.own_parallelism.gpus)[chosen]
    idle_w = _of_instances(result, lambda pool: pool.gpu.idle_w)[chosen]
    tdp_w = _of_instances(result, lambda pool: pool.gpu.tdp_w)[chosen]
    usd_per_hour = _of_instances(result, lambda pool: pool.gpu.usd_per_hour)[chosen]
    pipelines = _of_instances(result, lambda pool: pool.parallelism.pp)[chosen]
    instances, on_s = result.instances[chosen], _on_s(result, clock)[chosen]
    busy_s = instances["busy_s"] - instances["bubble_s"] / pipelines
    return {
        "gpu_hours": float(gpus @ on_s) / _HOUR_S,
        "energy_j": float(gpus @ (idle_w * on_s + (tdp_w - idle_w) * busy_s)),
        "cost_usd": float((gpus * usd_per_hour) @ on_s) / _HOUR_S,
    }


def fleet(result: Result, clock: Clock) -> dict[str, Any]:
    """How a fleet was scaled over the run, by the summary's names; none if no instance was switched on or off, no
    phase grew and shrank, and all GPUs have one price.

    `starts`, `stops`: how often an instance was switched on, and went off. `reversals`: changes after which a phase,
    whose number of instances last grew, has fewer, or the reverse. `mean_instances_on`: instances that were on,
    averaged over the run: from the order to start until they were off. `fleet`: the same of each pool, with its
    GPU-hours, energy and cost.
    """
    instances = result.instances
    prices = {pool.gpu.usd_per_hour for pool in result.cluster.pools}
    if not any(instances[name].any() for name in _TURNS) and len(prices) == 1:
        return {}
    rows = []
    for index, pool in enumerate(result.cluster.pools):
        own = instances["pool"] == index
        rows.append({"pool": pool.name, **_scaled(result, clock, own), **_spent(result, clock, own)})
    return {**_scaled(result, clock, np.ones(len(instances), np.bool_)), "fleet": rows}


def _scaled(result: Result, clock: Clock, chosen: NDArray[np.bool_]) -> dict[str, float | None]:
    counts = {name: int(result.instances[name][chosen].sum()) for name in _TURNS}
    return counts | {"mean_instances_on": _share(float(_on_s(result, clock)[chosen].sum()), clock.run_s)}


def gpus_on(result: Result, clock: Clock) -> float:
    """GPUs that were on: their time up to the last answer divided by `Clock.window_s`, and no more than there are.

    Work that is held back beyond the window so counts as if it were done in it. If a run ends before the window, as
    many are on in the rest of the window as were on in the run, on average.
    """
    return _on_average(result, clock, _of_instances(result, lambda pool: pool.own_parallelism.gpus))


def price_usd_per_hour(result: Result, clock: Clock) -> float:
    """The price of these GPUs for an hour."""
    each = _of_instances(result, lambda pool: pool.own_parallelism.gpus * pool.gpu.usd_per_hour)
    return _on_average(result, clock, each)


def _on_average(result: Result, clock: Clock, each: Floats) -> float:
    """The sum of `each` (M,) over the instances that were on, at most that over all."""
    lasted_s, whole = min(clock.window_s, clock.run_s), float(each.sum())
    return min(whole, float(each @ _on_s(result, clock)) / lasted_s) if lasted_s > 0 else whole


def _on_s(result: Result, clock: Clock) -> Floats:
    """Seconds up to the last answer for which each instance was on, (M,)."""
    on_s: Floats = clock.run_s - np.minimum(result.instances["off_s"], clock.run_s)
    return on_s


def _window_s(result: Result, clock: Clock) -> float:
    """The length of the time over which `Clock.totals` are integrals."""
    return result.window.length_s if clock.is_fixed and result.window is not None else clock.run_s


def kv_fill(result: Result) -> float | None:
    """Share of the KV blocks in use that holds tokens, over the run; the rest is reserved or partly filled.

    Prefixes that requests share count for each, so a cache may take it above 1. None if nothing was held.
    """
    instances = result.instances
    return _share(instances["kv_token_s"].sum(), instances["kv_block_s"].sum() * result.engine.block_tokens)


def bubbles(result: Result) -> dict[str, float | None]:
    """`bubble_share`: the share of the time in steps that pipeline stages wait, or that ranks in lockstep wait for the
    slowest; no key without either.
    """
    stages = _of_instances(result, lambda pool: pool.parallelism.pp)
    piped = (stages > 1) | (_of_instances(result, lambda pool: pool.group) > 1)
    if not piped.any():
        return {}
    stage_s = float((stages * result.instances["busy_s"])[piped].sum())
    return {"bubble_share": _share(result.instances["bubble_s"].sum(), stage_s)}


def prefill_batch_tokens(result: Result) -> float | None:
    """Prompt tokens in a step that computes any, on average; None if there is none, or if the step log was reduced."""
    computing = result.step_log["prefill_tokens"] > 0
    tokens, steps = (result.step_log[name][computing].astype(np.int64) for name in ("prefill_tokens", "steps"))
    return _share((tokens * steps).sum(), steps.sum())


def drafted(result: Result) -> dict[str, float]:
    """Accepted drafts: `accepted_per_step` by a decode, `speculation_acceptance` of all; no keys if none were made."""
    accepted, drafts = (int(result.instances[name].sum()) for name in ("accepted_tokens", "drafted_tokens"))
    if drafts == 0:
        return {}
    decodes = int(result.instances["decode_tokens"].sum()) - accepted
    return {"accepted_per_step": accepted / decodes, "speculation_acceptance": accepted / drafts}


def loaded(result: Result) -> dict[str, float | None]:
    """Where cached prompt tokens were found, as shares of those asked for: `cache_hit_rate_gpu`, and one key for each
    tier of `engine.prefix_stores`; and the `loaded_bytes` of each, with those of recomputation. No keys without stores.
    """
    tiers = list(result.engine.prefix_stores.tiers)
    if len(result.tiers) == 0:
        return {}
    admitted = ~np.isnan(result.requests["start_s"])
    asked = float(result.workload.input_tokens[admitted].sum())
    rows = result.tiers.reshape(-1, len(tiers))
    found = rows["hit_tokens"].sum(axis=0)
    in_gpu = float(result.requests["cached_tokens"][admitted].sum() - found.sum())
    rates = {"gpu": in_gpu} | {name: float(tokens) for name, tokens in zip(tiers, found, strict=True)}
    bytes_ = rows["loaded_bytes"].sum(axis=0)
    return {f"cache_hit_rate_{name}": _share(tokens, asked) for name, tokens in rates.items()} | {
        f"loaded_bytes_{name}": float(size) for name, size in zip(tiers, bytes_, strict=True)
    }


def pool_table(result: Result, clock: Clock) -> pl.DataFrame:
    """One row a pool: pool, role, instances, gpus, utilization (share of time in a step), kv_utilization, mean_batch,
    mfu, mbu; shares are of the window.

    `mean_batch`: decodes in a step, averaged over the time that the run spent in steps. Null if undefined.
    """
    totals, window_s = clock.totals, _window_s(result, clock)
    work = flops(result.model, totals)
    groups = _of_instances(result, lambda pool: pool.own_parallelism.dp)
    moved = memory_bytes(result.model, totals, result.engine.kv_compression.memory_share, groups)
    rows = []
    for index, pool in enumerate(result.cluster.pools):
        is_own = result.instances["pool"] == index
        own, blocks = totals[is_own], int(result.instances["total_blocks"][is_own].sum())
        run = result.instances[is_own]
        gpu_s = pool.own_parallelism.gpus * float(clock.lengths_s[is_own].sum())
        rows.append(
            {
                "pool": pool.name,
                "role": pool.role,
                "instances": pool.instances,
                "gpus": pool.gpus,
                "utilization": _share(own["busy_s"].sum(), pool.instances * window_s),
                "kv_utilization": _share(own["kv_block_s"].sum(), blocks * window_s),
                "mean_batch": _share(run["batch_s"].sum(), run["busy_s"].sum()),
                "mfu": _share(work[is_own].sum(), gpu_s * _peak_flops(pool, result.model)),
                "mbu": _share(moved[is_own].sum(), gpu_s * pool.gpu.bandwidth_bytes_s),
            }
        )
    numbers = ("utilization", "kv_utilization", "mean_batch", "mfu", "mbu")
    return pl.DataFrame(rows, schema_overrides=dict.fromkeys(numbers, pl.Float64))


def _of_instances(result: Result, value: Callable[[PoolSpec], float]) -> Floats:
    return np.array([value(pool) for pool in result.cluster.pools], np.float64)[result.instances["pool"]]


def costs(result: Result, requests: pl.DataFrame, used: Mapping[str, Any], clock: Clock) -> dict[str, Any]:
    """Size of the fleet, energy and money; `requests` are those that count."""
    served_tokens = int(result.workload.output_tokens[result.requests["state"] == FINISHED].sum())
    good = requests.filter(pl.col("good"))
    usd_per_hour = price_usd_per_hour(result, clock)
    paid_usd = usd_per_hour * clock.window_s / _HOUR_S
    return {
        **fleet(result, clock),
        "energy_j": used["energy_j"],
        "cost_usd": used["cost_usd"],
        "usd_per_hour": usd_per_hour,
        "energy_per_token_j": _per(used["energy_j"], served_tokens),
        "usd_per_million_good_tokens": _per(paid_usd, int(good["output_tokens"].sum()) / 1e6),
        "good_per_usd": _per(len(good), paid_usd),
    }


def _per(total: float | None, count: float) -> float | None:
    return total / count if total is not None and count > 0 else None


def _peak_flops(pool: PoolSpec, model: Model) -> float:
    try:
        return pool.gpu.peak(model.dtype)
    except InputError:
        return float("nan")


def _share(part: float, whole: float) -> float | None:
    return float(part / whole) if whole > 0 else None
