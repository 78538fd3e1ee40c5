"""What the parts of an experiment mean to the reference engine: step times, one Spec for each instance, options.

The step times are those of the timing's rows; the effect of the KV format is applied here, token by token.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

from framework.engine.setup.config import EngineConfig, Setting, step_rows
from framework.errors import InputError
from framework.reference.options import Drafts, JointKernel, Options, Spec, Tier
from framework.system.cluster import PoolSpec
from framework.timing import table
from framework.timing.rank_row import instance_row, on_fewer_gpus
from framework.timing.table import StepTables
from framework.timing.uncertainty.lateness import lateness_s

_UNBOUNDED = 1 << 40
_remembering = functools.lru_cache(maxsize=1 << 14)  # a table is queried for the same step repeatedly


@dataclass(frozen=True, eq=False)
class TableTime:
    """Step times of each pool from its table, with the format of KV applied.

    `factors`: of prefill attention, and of the context that decodes read. `pack_s`: of each prefilled token, by pool.
    """

    tables: StepTables
    factors: tuple[float, float]
    pack_s: tuple[float, ...]

    @_remembering
    def base_s(self, pool: int, prefill_tokens: int, decodes: int, sampled: int, drafts: int = 0) -> float:
        """Seconds that do not depend on contexts; `drafts` of the `decodes` are drafted tokens."""
        time_s = float(table.base_s(self.tables, pool, prefill_tokens, decodes, sampled, drafts))
        return time_s + self.pack_s[pool] * prefill_tokens

    @_remembering
    def chunk_s(self, pool: int, prefix: int, chunk: int) -> float:
        """Prefill attention of one chunk."""
        return self.factors[0] * float(table.chunk_s(self.tables, pool, prefix, chunk))

    def joint_kernel(self, pool: int) -> JointKernel:
        """The kernel of attention in a step with chunks and decodes."""
        row = self.tables.rows[pool]
        return JointKernel(*(float(row[name]) for name in JointKernel._fields))

    def tiles_s(self, pool: int, decodes: int, context: int) -> float:
        """Seconds of the decodes' tiles in such a step."""
        tables: Any = self.tables
        return self.factors[0] * float(table.tiles_of_decodes_s(tables, pool, decodes, context))

    @_remembering
    def decode_s(self, pool: int, decodes: int, context: int) -> float:
        """Decode attention."""
        return float(table.decode_s(self.tables, pool, decodes, self.factors[1] * context)[0])  # type: ignore[arg-type]

    def uneven_s(self, pool: int, decodes: int, context: int, longest: int) -> float:
        """Additional seconds of decodes with unequal contexts."""
        return self.factors[1] * float(table.uneven_s(self.tables, pool, decodes, context, longest))

    @_remembering
    def host_s(self, pool: int, tokens: int, decodes: int) -> float:
        """The least seconds of a step, independent of its kernels."""
        return float(table.host_s(self.tables, pool, tokens, decodes))

    def extrapolation(
        self, pool: int, tokens: int, sampled: int, decodes: int, context: int, longest_prompt: int
    ) -> float:
        """How far a step exceeds the measured range; at most 1: within it."""
        read = self.factors[1] * context
        tables: Any = self.tables
        return float(table.extrapolation(tables, pool, tokens, sampled, decodes, read, longest_prompt))


def step_time(setting: Setting) -> TableTime:
    """Step times of the setting's pools."""
    kv, model, pools = setting.engine.kv_compression, setting.model, setting.cluster.pools
    attention, fewer = setting.engine.attention, setting.fewer
    rows = {pool.name: attention.step_row(instance_row(setting.timing, model, pool)) for pool in pools}
    pack_s = {pool.name: _token_s(setting, pool, kv.pack_bytes_s) for pool in pools}
    return TableTime(
        table.stack([*rows.values(), *(on_fewer_gpus(rows[pool.name], *left[2:4]) for pool, left in fewer)]),
        (kv.prefill_factor, kv.read_factor),
        (*pack_s.values(), *(left.work * pack_s[pool.name] for pool, left in fewer)),
    )


def shown_tables(setting: Setting) -> StepTables:
    """The tables that a policy is shown: the rows with the format of KV applied."""
    return table.stack(step_rows(setting))


def options(setting: Setting) -> Options:
    """What holds for the whole run."""
    engine, model, cluster = setting.engine, setting.model, setting.cluster
    entrance_pool = cluster.pools[cluster.entrance]
    entrance = setting.timing.row(model, entrance_pool.gpu, entrance_pool.parallelism)
    experts, slowdowns = model.experts, engine.sharing.slowdowns()
    return Options(
        engine=engine,
        faults=engine.faults.schedule(cluster).events,
        narrow=narrow_specs(setting),
        block_tokens=engine.block_tokens,
        watermark=engine.watermark,
        preemption=engine.preemption,
        prefix_cache=bool(engine.prefix_cache),
        shares_blocks=engine.shares_blocks,
        first_token=engine.first_token,
        kv_bytes_per_token=_kv_bytes(setting),
        copy_bytes_per_token=model.kv_bytes_per_token * engine.copy_share(model),
        state_bytes=model.state_bytes,
        attention_overlap=engine.attention.overlap,
        max_context=model.max_context,
        admission_wait_steps=engine.admission_wait_steps,
        role_change_s=engine.role_change_s,
        latency_s=cluster.link.latency_s,
        link_sharing=cluster.link.sharing,
        fabric_bytes_s=cluster.link.fabric_bytes_s,
        layerwise_tokens=engine.layerwise_tokens,
        layers=model.layers,
        request_s=entrance.request_s,
        intake_s=entrance.intake_s,
        intake_token_s=entrance.intake_token_s,
        late_s=lateness_s(entrance, len(setting.workload), setting.seed).tolist(),
        start_draws=engine.start.draws(setting.seed).tolist(),
        asynchronous=engine.asynchronous,
        clients=setting.load.clients,
        horizon_s=math.inf if setting.load.duration_s is None else setting.load.duration_s + entrance.request_s,
        backoff_s=setting.load.backoff_s,
        patience_s=math.inf if setting.load.patience.wait_s is None else setting.load.patience.wait_s,
        retries=setting.load.patience.retries,
        retry_backoff_s=setting.load.patience.retry_backoff_s,
        drafts=_drafts(setting),
        tiers=_tiers(setting),
        loads_layer_wise=engine.prefix_stores.layer_wise,
        prefill_percent=engine.sharing.prefill_percent,
        prefill_slowdown=slowdowns[0].tolist(),
        decode_slowdown=slowdowns[1].tolist(),
        weight_bytes=model.weight_bytes,
        chosen_share=0.0 if experts is None else experts.per_token / experts.count,
    )


def specs(setting: Setting) -> list[Spec]:
    """One Spec for each instance, pool after pool. Raises InputError if no block fits, or if prefixes do not match
    blocks.
    """
    _require_whole_blocks(setting)
    cluster = setting.cluster
    found = []
    for k, pool in enumerate(cluster.pools):
        spec = _spec(setting, k, pool)
        found += [replace(spec, begins_on=number < pool.begins_on) for number in range(pool.instances)]
    return found


def narrow_specs(setting: Setting) -> dict[tuple[int, int], Spec]:
    """Of an instance that has lost GPUs, by its pool and their number; 0 blocks: the model does not fit the others."""
    cluster, block_tokens, found = setting.cluster, setting.engine.block_tokens, {}
    losses = setting.engine.faults.schedule(cluster).losses(cluster)
    for row, ((k, lost), (pool, left)) in enumerate(zip(losses, setting.fewer, strict=True), len(cluster.pools)):
        whole, blocks = _spec(setting, k, pool), left.kv_tokens // block_tokens
        most = blocks - math.floor(setting.engine.watermark * blocks)
        found[k, lost] = replace(
            whole,
            row=row,
            gpus=left.gpus,
            total_blocks=blocks if most > 0 else 0,
            reserve_blocks=None if whole.reserve_blocks is None else min(whole.reserve_blocks, most),
            host_bytes_s=pool.gpu.pcie_bytes_s * left.gpus,
            memory_bytes_s=whole.memory_bytes_s * (left.gpus / whole.gpus),
            unpack_s=left.work * whole.unpack_s,
            shrink_s=left.shrink_s,
            grow_s=left.grow_s,
        )
    return found


def _spec(setting: Setting, k: int, pool: PoolSpec) -> Spec:
    engine, blocks, schedule = setting.engine, _blocks(setting, pool), pool.chunk_schedule
    memory_bytes_s = pool.gpu.bandwidth_bytes_s * pool.own_parallelism.gpus
    return Spec(
        pool=k,
        role=pool.role,
        total_blocks=blocks,
        token_budget=engine.budget_of(pool),
        max_batch=engine.seats_of(pool),
        mode=engine.batching_of(pool),
        reserve_blocks=_reserve_blocks(engine, pool, blocks, _state_blocks(setting, pool)),
        state_blocks=_state_blocks(setting, pool),
        spares_idle=not engine.idle_watermark,
        pulls=engine.pulls,
        chunk_sizes=schedule.sizes if schedule else (),
        stage_tokens=schedule.stage_tokens if schedule else 1,
        ranks=pool.parallelism.dp if pool.has_ranks else 1,
        stages=pool.parallelism.pp,
        group=pool.group,
        rank_choice=pool.rank_choice,
        bandwidth_bytes_s=pool.link_bytes_s or setting.cluster.link.bandwidth_bytes_s,
        host_bytes_s=pool.host_bytes_s,
        unpack_s=_token_s(setting, pool, engine.kv_compression.unpack_bytes_s),
        memory_bytes_s=memory_bytes_s if engine.sharing.contention else math.inf,
        start_s=setting.start_s(pool),
        provisioning_s=engine.start.before_load_s(pool),
        source_s=engine.start.source_s(setting.model, pool),
        row=k,
        gpus=pool.own_parallelism.gpus,
    )


def _blocks(setting: Setting, pool: PoolSpec) -> int:
    engine, share = setting.engine, setting.engine.memory_share(setting.model)
    tokens = pool.kv_tokens(setting.model, engine.kv_fraction, share)
    tokens = tokens if engine.kv_tokens is None else engine.kv_tokens
    if tokens < engine.block_tokens:
        raise InputError(
            f"pool {pool.name}: {tokens} KV tokens are less than one block; "
            f"lower engine.block_tokens={engine.block_tokens}"
        )
    return tokens // engine.block_tokens


def _reserve_blocks(engine: EngineConfig, pool: PoolSpec, blocks: int, states: int) -> int | None:
    if pool.reserve_tokens is None:
        return None
    most = blocks - math.floor(engine.watermark * blocks)
    return min(-(-pool.reserve_tokens // engine.block_tokens) + states, most)


def _state_blocks(setting: Setting, pool: PoolSpec) -> int:
    """Blocks with as many bytes on each GPU as the GPU's heads of a request's states."""
    model, tp = setting.model, pool.parallelism.tp
    if model.linear is None:
        return 0
    block_bytes = setting.engine.block_tokens * _kv_bytes(setting) * model.kv_share(tp)
    return math.ceil(round(model.state_bytes / tp / block_bytes, 6))


def _kv_bytes(setting: Setting) -> float:
    """Bytes of a token in memory."""
    return setting.model.kv_bytes_per_token * setting.engine.memory_share(setting.model)


def _token_s(setting: Setting, pool: PoolSpec, bytes_s: float | None) -> float:
    """Seconds of one token's keys and values on each GPU: heads are divided over tp, tokens over dp and pp."""
    if bytes_s is None:
        return 0.0
    split = pool.own_parallelism
    own_bytes = setting.model.kv_bytes_per_token * setting.model.kv_share(split.tp)
    return own_bytes / bytes_s / (split.dp * split.pp)


def _drafts(setting: Setting) -> Drafts:
    speculation = setting.engine.speculation
    cost = 1 / setting.model.layers if speculation.draft_cost is None else speculation.draft_cost
    seed = setting.seed % 2**32
    return Drafts(speculation.acceptance, speculation.most, speculation.adaptive, cost, seed)


def _tiers(setting: Setting) -> tuple[Tier, ...]:
    """The tiers, in blocks that are shared; none without prefixes."""
    engine, found = setting.engine, []
    size = engine.block_tokens if engine.shares_blocks else setting.workload.hash_block_tokens
    for tier in engine.prefix_stores.tiers.values() if size else ():
        tokens = tier.capacity_tokens
        if tier.capacity_bytes is not None:
            tokens = int(tier.capacity_bytes / _kv_bytes(setting))
        chunk = size if tier.chunk_tokens is None else tier.chunk_tokens
        chunks = _UNBOUNDED if tokens is None else tokens // chunk
        store = (chunks, chunk // size, tier.write_after, tier.write, tier.outputs)
        found.append(Tier(store, tier.bandwidth_bytes_s, tier.latency_s, tier.shared))
    return tuple(found)


def _require_whole_blocks(setting: Setting) -> None:
    workload, engine = setting.workload, setting.engine
    if engine.prefix_cache and workload.has_prefixes and workload.hash_block_tokens % engine.block_tokens:
        raise InputError(
            f"prefix cache: trace blocks of {workload.hash_block_tokens} tokens are no multiple of "
            f"engine.block_tokens={engine.block_tokens}; choose a divisor, or engine.prefix_cache=false"
        )
