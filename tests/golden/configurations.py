"""The configurations of the golden set, as overrides of run.py, and what each must reach.

EXACT gives the same bytes on every machine: step times, links and gaps between arrivals are short sums of powers of
two, lengths are drawn from lists, and nothing passes through exp, log or a matrix product, whose last bit depends on
the library and the processor. SAME_MACHINE does pass through them (fitted traces, distributions with a density,
measured step times, one predictor); it serves to compare two checkouts on one machine.
"""

from __future__ import annotations

from dataclasses import dataclass

_HELD = ("server=none", "engine.transfers=sent")  # unless a configuration names another: defaults may change


@dataclass(frozen=True)
class Golden:
    """One run. `words`: its overrides, separated by blanks, which come after `held`.

    `positive`: keys of summary.json that must be above 0. `requests` and `steps`: SQL conditions, each of which must
    hold for a row of that table. `unlike`: another configuration, whose requests must fare differently.
    """

    words: str
    positive: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    unlike: str = ""
    held: tuple[str, ...] = _HELD

    @property
    def overrides(self) -> list[str]:
        return [*self.held, *self.words.split()]


_TIMES = (
    "timing=affine timing.base_s=0.0078125 timing.per_prefill_token_s=1.52587890625e-05 "
    "timing.prefill_quadratic_s=4.656612873077393e-10 timing.per_sequence_s=3.0517578125e-05 "
    "timing.per_context_token_s=5.960464477539063e-08 "
    "gpu.pcie_bytes_s=34359738368 cluster.link_bandwidth_bytes_s=17179869184 cluster.link_latency_s=0.0001220703125 "
)
_REQUESTS = (
    _TIMES + "trace=synthetic trace.requests=160 trace.arrivals={law:fixed,rate:32} "
    "trace.input={law:empirical,values:[24,64,130,250,400,512,800,1024,1500,2600,4800]} "
    "trace.output={law:empirical,values:[1,6,24,60,100,150,220,300]} "
)
_SESSIONS = (
    _TIMES + "trace=synthetic_sessions trace.requests=160 trace.arrivals={law:fixed,rate:4} "
    "trace.input={law:empirical,values:[32,100,260,500]} trace.output={law:empirical,values:[1,16,50,120]} "
    "trace.sessions.turns={law:empirical,values:[1,3,5,8]} "
    "trace.sessions.think_s={law:empirical,values:[0.25,0.5,1,3]} trace.sessions.prefix_tokens=256 "
)
_TWO = "cluster=mixed cluster.instances=2 "
_APART = "cluster=disaggregated cluster.prefill=2 cluster.decode=2 "
_CHUNKED = "policy=chunked policy.routing=least_queued " + _TWO + _REQUESTS
_DISTSERVE = "policy=distserve policy.routing=least_queued " + _APART + _REQUESTS
_LOSSES = (
    "engine/faults=gpu cluster.tp=2 engine.faults.fewer.setup_s=0.25 engine.faults.fewer.load_bytes_s=68719476736 "
    "engine.faults.crashes=[{instance:0,at_s:1.5,down_s:2.0,gpus:1},{instance:1,at_s:2.0,down_s:1.0,gpus:1}] "
)
_OF_FOUR = "cluster.dp=4 engine.token_budget=512 engine.max_batch=64 "  # of each rank
_SLOW_LINKS = _DISTSERVE + "cluster.link_bandwidth_bytes_s=1073741824 "
_CLIENTS = "load=closed load.duration_s=null load.backoff_s=0 "  # the whole trace is sent
_CACHED = (
    "policy=vllm_v1 policy.routing=round_robin " + _TWO + _SESSIONS + "engine.prefix_cache=true engine.kv_tokens=8192 "
)
_RETRACTING = (
    "policy=sglang policy.steps=chunks_first policy.routing=round_robin engine.token_budget=1024 "
    "engine.output_reserve.declared_tokens=64 "
)
_TIGHT = "policy=continuous policy.routing=round_robin " + _TWO + _REQUESTS + "engine.kv_tokens=8192 "

_POLICIES = {
    "static": Golden(
        "policy=static policy.routing=least_queued policy.reserve_tokens=8192 slo=slowdown slo.slowdown.tp=1 "
        + _TWO
        + _REQUESTS,
        requests=("good", "NOT good"),
    ),
    "orca": Golden(
        "policy=orca policy.reserve_tokens=8192 engine.kv_tokens=65536 "
        + _CLIENTS
        + "load.concurrency=24 "
        + _TWO
        + _REQUESTS,
        unlike="static",
    ),
    "continuous": Golden(
        _TIGHT + "predictor=bucket policy.order=shortest_predicted",
        requests=("predicted_output_tokens > 0",),
        unlike="recompute",
    ),
    "vllm_v1": Golden(
        _CACHED + "engine.prefix_cache=false engine.kv_tokens=4096 trace.arrivals.rate=16", positive=("preemptions",)
    ),
    "sglang": Golden(
        _RETRACTING + _TWO + _REQUESTS + "engine.kv_tokens=8192 output.steps=true",
        positive=("preemptions",),
        steps=("batch = 0 AND prefill_tokens = 1024",),
        unlike="without_reserve",
    ),
    "chunked": Golden(
        _CHUNKED + "output.steps=true output.timeline=true", steps=("batch > 0 AND prefill_tokens > 0", "steps > 1")
    ),
    "chunk_schedule": Golden(
        _CHUNKED + "policy.chunks={high:1024,low:256,stages:4,prompt_tokens:4096} policy.routing=round_robin",
        unlike="chunked",
    ),
    "distserve": Golden(_DISTSERVE + "output.steps=true", requests=("transfer_s > 0",)),
    "splitwise": Golden(
        "policy=splitwise policy.prompt_bound=4096 trace.arrivals.rate=128 " + _APART + _REQUESTS,
        requests=("prefill_instance >= 2", "transfer_s > 0"),
    ),
    "splitwise_pulled": Golden(
        "policy=splitwise policy.prompt_bound=4096 trace.arrivals.rate=128 engine.transfers=pulled "
        "engine.first_token=recomputed " + _APART + _REQUESTS,
        requests=("prefill_instance >= 2", "transfer_s > 0"),
        unlike="splitwise",
    ),
    "mooncake": Golden(
        "policy=mooncake engine.kv_tokens=8192 engine.prefix_stores.tiers.dram.capacity_bytes=4294967296 "
        "trace.sessions.prefixes=2 policy.kvcache_balancing_threshold=1.5 " + _APART + _SESSIONS,
        positive=("cache_hit_rate", "cache_hit_rate_dram", "loaded_bytes_dram"),
        unlike="mooncake_local",
    ),
    "mooncake_local": Golden(
        "policy=mooncake policy.routing=local engine.kv_tokens=8192 trace.sessions.prefixes=2 "
        "engine.prefix_stores.tiers.dram.capacity_bytes=4294967296 " + _APART + _SESSIONS,
    ),
    "mooncake_left": Golden(
        "policy=mooncake policy.estimate=left engine.layerwise_tokens=1 engine.kv_tokens=8192 "
        "trace.sessions.prefixes=2 engine.prefix_stores.tiers.dram.capacity_bytes=4294967296 "
        "policy.kvcache_balancing_threshold=1.5 " + _APART + _SESSIONS,
        positive=("cache_hit_rate", "cache_hit_rate_dram", "loaded_bytes_dram"),
        unlike="mooncake",
    ),
    "mooncake_rejects": Golden(
        "policy=mooncake policy.admission=predicted policy.decode_s=2 policy.tbt_s=0.0087890625 policy.ttft_s=0.125 "
        + _APART
        + _REQUESTS,
        positive=("rejected", "completed"),
        requests=("reason = 'tbt'", "reason = 'ttft'"),
    ),
    "deepseek": Golden(
        "policy=deepseek model=llama3_8b gpu=h100 cluster.prefill=2 cluster.prefill_dp=4 cluster.prefill_ep=1 "
        "cluster.decode=2 cluster.decode_dp=4 cluster.decode_ep=1 engine.token_budget=1024 engine.max_batch=64 "
        "engine.kv_tokens=16384 policy.attention_tokens=512 output.steps=true " + _SESSIONS,
        positive=("speculation_acceptance", "loaded_bytes_disk"),
        steps=("depth = 1",),
    ),
    "deepseek_pulled": Golden(
        "policy=deepseek model=llama3_8b gpu=h100 cluster.prefill=2 cluster.prefill_dp=4 cluster.prefill_ep=1 "
        "cluster.decode=2 cluster.decode_dp=4 cluster.decode_ep=1 engine.token_budget=1024 engine.max_batch=64 "
        "engine.kv_tokens=16384 policy.attention_tokens=512 engine.transfers=pulled engine.first_token=recomputed "
        + _SESSIONS,
        positive=("speculation_acceptance", "loaded_bytes_disk"),
        requests=("transfer_s > 0",),
        unlike="deepseek",
    ),
    "nexus": Golden("policy=nexus output.steps=true " + _TWO + _REQUESTS, steps=("stream = 1",)),
    "nexus_ahead": Golden(
        "policy=nexus server=vllm_v1 engine.transfers=pulled output.steps=true " + _TWO + _REQUESTS,
        steps=("stream = 1",),
        unlike="nexus",
    ),
    "nexus_static": Golden(
        "policy=nexus policy.split=static policy.queue=fcfs engine.sharing.contention=false " + _TWO + _REQUESTS,
        unlike="nexus",
    ),
    "nexus_model": Golden("policy=nexus engine/sharing=nexus_model " + _TWO + _REQUESTS, unlike="nexus"),
    "ares": Golden(
        "policy=ares predictor=oracle policy.discount=1.0 policy.period_s=0.25 policy.cooldown_s=0.5 "
        "policy.placement=round_robin policy.amortisation=1.0 policy.amortised_by=decoding "
        + _APART
        + _REQUESTS
        + "cluster.decode=3",
        positive=("migrations",),
    ),
    "ares_saving": Golden(
        "policy=ares predictor=oracle policy.discount=1.0 policy.period_s=0.25 policy.cooldown_s=0.5 "
        "policy.placement=round_robin policy.amortisation=0.125 policy.near=0.125 "
        + _APART
        + _REQUESTS
        + "cluster.decode=3",
        positive=("migrations",),
        unlike="ares",
    ),
    "split": Golden(
        "policy=distserve cluster=disaggregated cluster.instances=4 "
        + _REQUESTS
        + "trace.output={law:empirical,values:[1,6,24]}",
        requests=("prefill_instance = 2", "decode_instance = 3"),
    ),
    "taichi": Golden(
        "policy=taichi engine.kv_tokens=24576 policy.tpot_s=0.015625 policy.full=0.5 " + _APART + _REQUESTS,
        positive=("migrations",),
    ),
    "taichi_context": Golden(
        "policy=taichi engine.kv_tokens=24576 policy.tpot_s=0.015625 policy.full=0.5 policy.flow=change "
        "policy.estimate=context " + _APART + _REQUESTS,
        positive=("migrations",),
        unlike="taichi",
    ),
    "arrow": Golden(
        "policy=arrow policy.ttft_s=0.25 policy.donor=1.0 policy.period_s=0.25 policy.passes=1 policy.cooldown_s=1 "
        + _APART
        + _REQUESTS
        + "trace.arrivals.rate=64 cluster.prefill=1 cluster.decode=3",
        requests=("prefill_instance >= 1",),
    ),
    "dopd": Golden(
        "policy=dopd policy.interval_s=0.5 engine.role_change_s=0.125 " + _APART + _REQUESTS + "cluster.prefill=3",
        requests=("decode_instance < 3",),
    ),
    "dopd_grows": Golden(
        "policy=dopd policy.interval_s=0.5 policy.tpot=observed policy.rounding=ceiling engine.role_change_s=0.125 "
        "cluster.spare=4 output.steps=true "
        + _APART
        + _REQUESTS
        + "trace.arrivals.rate=128 cluster.prefill=1 cluster.decode=1",
        steps=("instance >= 2",),
    ),
    "dynaserve": Golden(
        "policy=dynaserve " + _TWO + _REQUESTS, positive=("migrations",), requests=("predicted_output_tokens > 0",)
    ),
    "ecoserve": Golden(
        "policy=ecoserve policy.most_members=2 policy.least_members=1 policy.slack=least cluster.instances=4 "
        + _REQUESTS
    ),
    "dynamo": Golden(
        "policy=dynamo policy.local_tokens=512 " + _APART + _REQUESTS,
        requests=("transfer_s > 0", "prefill_instance = decode_instance"),
    ),
    "dynamo_load": Golden(
        "policy=dynamo policy.planner=load policy.interval_s=0.25 policy.local_tokens=128 policy.queue=16 "
        "cluster.spare=2 engine.start_s=0.25 output.steps=true " + _APART + _REQUESTS + "trace.arrivals.rate=128",
        steps=("instance >= 4",),
    ),
    "dynamo_sla": Golden(
        "policy=dynamo policy.planner=sla policy.interval_s=0.5 "
        "+policy.planning={ttft_s:0.25,itl_s:0.015625} "
        "output.steps=true " + _APART + _REQUESTS + "trace.arrivals.rate=128 cluster.prefill=1 cluster.decode=1 "
        "cluster.spare=4",
        steps=("instance >= 2",),
    ),
    "dynamo_both": Golden(
        "policy=dynamo policy.planner=both policy.prefill_queue=fleet policy.local_tokens=128 policy.queue=16 "
        "+policy.planning={ttft_s:0.25,itl_s:0.015625,throughput_interval_s:1.0,load_interval_s:0.125} "
        "output.steps=true " + _APART + _REQUESTS + "trace.arrivals.rate=128 cluster.prefill=1 cluster.decode=1 "
        "cluster.spare=4",
        steps=("instance >= 2",),
    ),
}

_MECHANISMS = {
    "node_pools": Golden(
        "policy=chunked cluster=node_pools cluster.pools.on_demand.on_at_start=null "
        "cluster.pools.on_demand.instances=1 cluster.pools.reserved.usd_per_hour=1.5 output.steps=true " + _REQUESTS,
        steps=("instance = 2",),
    ),
    "recompute": Golden(_TIGHT, positive=("preemptions",)),
    "swap": Golden(_TIGHT + "engine.preemption=swap", positive=("preemptions",), unlike="recompute"),
    "preempted_decodes": Golden(_DISTSERVE + "engine.kv_tokens=8192 engine.preemption=swap", positive=("preemptions",)),
    "recompute_there": Golden(
        _DISTSERVE + "engine.kv_tokens=8192 output.steps=true",
        positive=("preemptions",),
        steps=("instance >= 2 AND prefill_tokens > 0",),
        unlike="recompute_routed",
    ),
    "crashes": Golden(
        _CHUNKED + "engine/faults=crash output.steps=true "
        "engine.faults.crashes=[{instance:0,at_s:1.5,down_s:1.0},{instance:1,at_s:2.0,down_s:2.0},{instance:0,at_s:4.0,down_s:0.5}]",
        requests=("prefill_instance = 0 AND decode_instance = 1", "prefill_instance = 1 AND decode_instance = 0"),
    ),
    "lost_gpus": Golden(_CHUNKED + _LOSSES, positive=("dropped",), unlike="lost_gpus_wait"),
    "lost_gpus_wait": Golden(
        _CHUNKED + _LOSSES + "engine.faults.fewer.after_loss=wait", positive=("dropped",), unlike="crashes"
    ),
    "crashes_apart": Golden(
        _DISTSERVE + "engine/faults=crash "
        "engine.faults.crashes=[{instance:0,at_s:1.0,down_s:1.0},{instance:3,at_s:1.25,down_s:2.0},{instance:2,at_s:2.0,down_s:0.5}]",
        requests=("arrival_s > 2 AND arrival_s < 2.125 AND queue_s > 0.375",),
        unlike="crashes_fail",
    ),
    "crashes_fail": Golden(
        _DISTSERVE + "engine/faults=crash engine.faults.recovery=fail "
        "engine.faults.crashes=[{instance:0,at_s:1.0,down_s:1.0},{instance:3,at_s:1.25,down_s:2.0},{instance:2,at_s:2.0,down_s:0.5}]",
        positive=("failed",),
        requests=("reason = 'crash'",),
    ),
    "crashes_restore": Golden(
        _DISTSERVE + "engine/faults=crash engine.faults.recovery=restore "
        "engine.faults.crashes=[{instance:0,at_s:1.0,down_s:1.0},{instance:3,at_s:1.25,down_s:2.0},{instance:2,at_s:2.0,down_s:0.5}]",
        positive=("dropped_restored", "restored_tokens"),
        unlike="crashes_apart",
    ),
    "recompute_routed": Golden(_DISTSERVE + "engine.kv_tokens=8192 engine.recompute=routed", positive=("preemptions",)),
    "one_list": Golden(
        _CACHED + "engine.kv_tokens=4096 trace.arrivals.rate=16 engine.longest_chunk=96 engine.admission_room=chunk "
        "engine.watermark=0.0625 engine.victim=least_urgent policy.order=shortest_prompt",
        positive=("preemptions", "cache_hit_rate"),
        unlike="two_lists",
    ),
    "two_lists": Golden(
        _CACHED + "engine.kv_tokens=4096 trace.arrivals.rate=16 engine.longest_chunk=96 engine.admission_room=chunk "
        "engine.watermark=0.0625 engine.step_order=decodes_first engine.idle_watermark=true "
        "policy.order=shortest_prompt",
        positive=("preemptions", "cache_hit_rate"),
    ),
    "without_reserve": Golden(
        _RETRACTING.replace("engine.output_reserve.declared_tokens=64", "engine/output_reserve=none")
        + _TWO
        + _REQUESTS
        + "engine.kv_tokens=8192",
        positive=("preemptions",),
    ),
    "requeued_first": Golden(
        _RETRACTING + _TWO + _REQUESTS + "engine.kv_tokens=8192 engine.requeue=first",
        positive=("preemptions",),
        unlike="sglang",
    ),
    "whole_prompts": Golden(
        _CACHED + "engine.chunked_prefill=false engine.token_budget=512 engine.speculation.depth=2 "
        "+engine.speculation.acceptance=0.75",
        positive=("cache_hit_rate", "accepted_per_step"),
        unlike="prefix_cache",
    ),
    "asynchronous": Golden(_CACHED + "server=vllm_v1 ", unlike="prefix_cache"),
    "ended_with_kv": Golden(
        _CACHED + "server=vllm_v1 " + "engine.prefix_cache=false engine.kv_tokens=4096 trace.arrivals.rate=16",
        positive=("preemptions",),
        unlike="vllm_v1",
    ),
    "prefix_cache": Golden(_CACHED, positive=("cache_hit_rate",)),
    "prefix_trace_blocks": Golden(
        _CACHED + "engine.prefix_unit=trace", positive=("cache_hit_rate",), unlike="prefix_cache"
    ),
    "store_dram_ssd": Golden(
        _CACHED + "engine/prefix_stores=dram_ssd engine.prefix_stores.tiers.dram.capacity_bytes=1073741824 "
        "engine.prefix_stores.tiers.ssd.bandwidth_bytes_s=4294967296",
        positive=("cache_hit_rate_gpu", "loaded_bytes_dram", "loaded_bytes_ssd"),
        unlike="prefix_cache",
    ),
    "store_trace_blocks": Golden(
        _CACHED + "engine/prefix_stores=dram_ssd engine.prefix_stores.tiers.dram.capacity_bytes=1073741824 "
        "engine.prefix_stores.tiers.ssd.bandwidth_bytes_s=4294967296 engine.prefix_unit=trace",
        positive=("cache_hit_rate_gpu", "loaded_bytes_dram", "loaded_bytes_ssd"),
        unlike="store_dram_ssd",
    ),
    "store_pool": Golden(
        _CACHED + "engine/prefix_stores=pool engine.prefix_stores.tiers.pool.bandwidth_bytes_s=8589934592 "
        "engine.prefix_stores.layer_wise=false",
        positive=("loaded_bytes_pool",),
        unlike="prefix_cache",
    ),
    "store_vllm_offload": Golden(
        _CACHED + "engine/prefix_stores=vllm_offload engine.prefix_stores.tiers.host.capacity_bytes=1073741824",
        positive=("loaded_bytes_host",),
        unlike="prefix_cache",
    ),
    "store_lmcache": Golden(
        _CACHED + "engine/prefix_stores=lmcache engine.prefix_stores.tiers.host.capacity_bytes=1073741824",
        positive=("loaded_bytes_host",),
        unlike="store_vllm_offload",
    ),
    "store_hicache_write_back": Golden(
        _CACHED + "engine/prefix_stores=hicache engine.prefix_stores.tiers.host.capacity_bytes=1073741824 "
        "engine.prefix_stores.tiers.host.write=back",
        positive=("loaded_bytes_host",),
        unlike="store_vllm_offload",
    ),
    "store_mooncake": Golden(
        _CACHED + "engine/prefix_stores=mooncake_store engine.prefix_stores.tiers.host.capacity_bytes=1073741824 "
        "engine.prefix_stores.tiers.pool.bandwidth_bytes_s=8589934592",
        positive=("loaded_bytes_host", "loaded_bytes_pool"),
        unlike="store_vllm_offload",
    ),
    "draft": Golden(
        _CHUNKED
        + "engine.speculation.depth=4 +engine.speculation={acceptance:0.75,draft_cost:0.0625} output.steps=true",
        positive=("accepted_per_step",),
        steps=("depth = 4",),
    ),
    "draft_adaptive": Golden(
        _CHUNKED
        + "engine.speculation.depth=adaptive +engine.speculation={acceptance:0.5,draft_cost:0.03125} output.steps=true",
        positive=("accepted_per_step",),
        steps=("depth = 2", "depth = 3"),
    ),
    "mtp": Golden(
        _DISTSERVE + "engine.speculation.depth=1 +engine.speculation.acceptance=0.875", positive=("accepted_per_step",)
    ),
    "kv_smaller": Golden(
        _DISTSERVE + "engine.kv_compression.memory_share=0.5 engine.kv_compression.copy_share=0.25 "
        "engine.kv_compression.read_factor=0.5 engine.kv_compression.prefill_factor=0.75",
        unlike="distserve",
    ),
    "kv_packed": Golden(
        _DISTSERVE + "engine.kv_compression.copy_share=0.125 engine.kv_compression.pack_bytes_s=34359738368 "
        "engine.kv_compression.unpack_bytes_s=17179869184",
        unlike="distserve",
    ),
    "attention_overlaps": Golden(_CHUNKED + "engine.attention.overlap=0.75", unlike="chunked"),
    "attention_in_tiles": Golden(_CHUNKED + "+engine.attention.decode_rows=64", unlike="chunked"),
    "ranks_kv": Golden(_CHUNKED + _OF_FOUR + "cluster.rank_choice=kv"),
    "ranks_requests": Golden(_CHUNKED + _OF_FOUR + "cluster.rank_choice=requests", unlike="ranks_kv"),
    "ranks_routed": Golden(
        _CHUNKED + "cluster.dp=4 cluster.rank_choice=routed policy.routing=least_waiting output.steps=true",
        positive=("bubble_share",),
        requests=("decode_instance = 7",),
        unlike="ranks_requests",
    ),
    "ranks_routed_apart": Golden(
        _DISTSERVE + "cluster.dp=2 cluster.rank_choice=routed policy.routing=least_waiting "
        "policy.placement=least_waiting",
        positive=("bubble_share",),
        requests=("decode_instance = 4 AND transfer_s > 0",),
        unlike="ranks_in_turn",
    ),
    "ranks_in_turn": Golden(
        _DISTSERVE + "cluster.dp=2 cluster.rank_choice=round_robin engine.token_budget=1024 engine.max_batch=128",
        unlike="distserve",
    ),
    "pipeline": Golden(
        "policy=continuous policy.routing=round_robin " + _TWO + _REQUESTS + "cluster.pp=4", positive=("bubble_share",)
    ),
    "layer_wise": Golden(_DISTSERVE + "engine.layerwise_tokens=512", unlike="distserve"),
    "links_shared": Golden(_SLOW_LINKS, requests=("transfer_s > 0.25",)),
    "links_in_turn": Golden(_SLOW_LINKS + "cluster.link_sharing=fifo", unlike="links_shared"),
    "fabric": Golden(_SLOW_LINKS + "cluster.fabric_bandwidth_bytes_s=1610612736", unlike="links_shared"),
    "first_token_decode": Golden(_DISTSERVE + "engine.first_token=decode", unlike="distserve"),
    "first_token_join": Golden(_DISTSERVE + "engine.first_token=join", unlike="distserve"),
    "first_token_recomputed": Golden(_DISTSERVE + "engine.first_token=recomputed", unlike="first_token_join"),
    "pulled": Golden(
        _SLOW_LINKS + "engine.kv_tokens=8192 engine.transfers=pulled cluster.link_sharing=fifo",
        positive=("preemptions",),
        unlike="links_in_turn",
    ),
    "pulled_unified": Golden(
        "policy=vllm_v1 policy.routing=round_robin "
        + _APART
        + _SESSIONS
        + "engine.kv_tokens=4096 trace.arrivals.rate=16 "
        "engine.max_batch=8 engine.transfers=pulled engine.first_token=recomputed",
        positive=("preemptions", "cache_hit_rate"),
        requests=("decode_instance = 3 AND transfer_s > 0",),
        unlike="vllm_v1",
    ),
    "admission_waits": Golden(_TIGHT + "engine.admission_wait_steps=8", unlike="recompute"),
    "front_end": Golden(
        _CHUNKED + "timing.request_s=0.001953125 timing.intake_s=0.03125 trace.jitter_s=1", unlike="chunked"
    ),
    "closed_sessions": Golden(
        _CACHED + _CLIENTS + "load.concurrency=6",
        positive=("cache_hit_rate",),
        unlike="prefix_cache",
    ),
    "vtc": Golden(
        "policy=vtc " + _TWO + _REQUESTS + "trace.tenants={a:0.75,b:0.25} slo.reader_wait_s=0.125 engine.max_batch=4",
        positive=("service_difference",),
        unlike="chunked",
    ),
    "fastserve": Golden(
        "policy=fastserve policy.quantum_s=0.0625 engine.max_batch=4 engine.kv_tokens=16384 " + _TWO + _REQUESTS,
        positive=("preemptions",),
        unlike="continuous",
    ),
    "llumnix": Golden(
        "policy=llumnix policy.period_s=0.25 policy.migrate_below=1000 policy.accept_above=1000 engine.kv_tokens=16384 "
        + _TWO
        + _REQUESTS,
        positive=("migrations",),
        unlike="continuous",
    ),
    "andes": Golden(
        "policy=andes policy.reading_tokens_s=4 policy.preemptions=4 engine.max_batch=4 " + _TWO + _REQUESTS,
        positive=("preemptions",),
        unlike="continuous",
    ),
    "trail": Golden(
        "policy=trail predictor=oracle engine.max_batch=4 " + _TWO + _REQUESTS,
        positive=("preemptions",),
        unlike="chunked",
    ),
    "ltr": Golden(
        "policy=ltr policy.patience_s=1 predictor=oracle engine.max_batch=4 engine.kv_tokens=8192 " + _TWO + _REQUESTS,
        positive=("preemptions",),
        unlike="trail",
    ),
    "autellix": Golden(
        "policy=autellix policy.quantum_s=0.25 policy.short_tokens=300 engine.max_batch=2 " + _TWO + _SESSIONS,
        positive=("preemptions",),
        unlike="chunked",
    ),
    "apex": Golden("policy=apex slo.ttft_s=1 slo.tpot_s=0.0078125 " + _TWO + _REQUESTS, unlike="chunked"),
    "continuum": Golden(
        "policy=continuum policy.samples=8 engine.kv_tokens=4096 " + _TWO + _SESSIONS,
        positive=("cache_hit_rate",),
        unlike="sticky",
    ),
    "loongserve": Golden(
        "policy=loongserve policy.least_tokens=1024 policy.output_tokens=512 engine.kv_tokens=4096 " + _TWO + _REQUESTS,
        requests=("input_tokens > 4096 AND state = 'finished'",),
        unlike="continuous",
    ),
    "loongserve, as a pipeline": Golden(
        "policy=loongserve policy.least_tokens=1024 policy.output_tokens=512 policy.chunk_tokens=512 "
        + _TWO
        + _REQUESTS,
        unlike="loongserve",
    ),
    "cachesage": Golden(
        "policy=cachesage policy.samples=2 policy.horizon_s=1 trace.tenants={a:0.5,b:0.5} engine.kv_tokens=4096 "
        + _TWO
        + _SESSIONS,
        positive=("cache_hit_rate",),
        unlike="sticky",
    ),
    "heddle": Golden(
        "policy=heddle policy.wide=0 policy.period_s=1 engine.kv_tokens=4096 " + _TWO + _SESSIONS,
        positive=("cache_hit_rate",),
        unlike="sticky",
    ),
    "seer": Golden(
        "policy=seer policy.chunk_tokens=64 policy.period_s=0.25 engine.max_batch=4 " + _TWO + _REQUESTS,
        positive=("preemptions", "migrations"),
        unlike="vllm_v1",
    ),
    "sticky": Golden("policy=sticky " + _TWO + _SESSIONS, unlike="lmetric"),
    "polyserve": Golden("policy=polyserve policy.tpot_s=0.01171875 " + _TWO + _REQUESTS, unlike="chunked"),
    "qlm": Golden(
        "policy=qlm policy.classes_ttft_s=[20,0.5] trace.slo_classes={batch:0.5,chat:0.5} engine.max_batch=4 "
        + _TWO
        + _REQUESTS,
        positive=("preemptions",),
        unlike="continuous",
    ),
    "slos_serve": Golden(
        "policy=slos_serve policy.tpot_s=0.01171875 policy.ttft_s=0.25 " + _TWO + _REQUESTS, unlike="chunked"
    ),
    "preble": Golden("policy=preble policy.window_s=8 engine.max_batch=2 " + _TWO + _SESSIONS, unlike="lmetric"),
    "llm_d": Golden("policy=llm_d " + _TWO + _SESSIONS, unlike="lmetric"),
    "chiron": Golden(
        "policy=chiron policy.classes_ttft_s=[40,1] policy.calm_s=1 trace.slo_classes={batch:0.5,chat:0.5} "
        "engine.max_batch=4 engine.start_s=0.5 cluster=mixed cluster.instances=4 cluster.on_at_start=1 " + _REQUESTS,
        positive=("starts", "stops"),
        unlike="vllm_v1",
    ),
    "blitzscale": Golden(
        "policy=blitzscale policy.calm_s=1 policy.wait_s=0.015625 engine.kv_tokens=16384 engine/start=none "
        "engine.start_s=0.5 cluster=mixed cluster.instances=4 cluster.on_at_start=1 " + _REQUESTS,
        positive=("starts", "stops"),
        unlike="vllm_v1",
    ),
    "failsafe": Golden("policy=failsafe " + _TWO + _REQUESTS + _LOSSES, positive=("dropped",), unlike="lost_gpus"),
    "lmetric": Golden("policy=lmetric " + _TWO + _SESSIONS, unlike="vllm_v1"),
    "kairos": Golden(
        "policy=kairos policy.ttft_s=0.015625 policy.tpot_s=0.0107421875 policy.period_s=0.015625 policy.spare=0.01 "
        + _APART
        + _REQUESTS
        + "trace.arrivals.rate=64",
    ),
    "log_reduced": Golden(_CHUNKED + "engine.log=reduced"),
    "slo_classes": Golden(
        _CHUNKED + "trace.slo_classes={chat:0.75,batch:0.25} "
        "slo.classes={chat:{ttft_s:0.25},batch:{ttft_s:4,tpot_s:null}} slo.tbt_p99_s=0.0625 slo.tbt_tail_s=0.0625 "
        "slo.normalized_s=0.015625",
        requests=("good", "NOT good"),
    ),
    "capacity": Golden(
        _CHUNKED + "objective=capacity objective.tolerance=0.25 objective.most_requests=640",
        positive=("capacity",),
    ),
    "tightness": Golden(_CHUNKED + "objective=tightness", positive=("slo_tightness",)),
    "transforms": Golden(
        _CHUNKED + "trace.window_s=[0.5,4] trace.max_input_tokens=2600 trace.tile=2 trace.limit=150 "
        "trace.rate_scale=0.5 seed=3",
    ),
}

EXACT = _POLICIES | _MECHANISMS

_TWIN = "trace.limit=300 "
_MEASURED = (
    "policy=chunked policy.routing=least_queued cluster.instances=2 "
    "trace=azure_conv trace.limit=200 trace.rate_scale=2 "
)

SAME_MACHINE = {
    # requests
    "default": Golden("trace.limit=400", held=()),
    "twin_azure_code": Golden("policy=distserve trace=azure_code engine/kv_compression=kvquant " + _TWIN),
    "twin_azure_conv": Golden(
        "policy=continuous policy.routing=round_robin trace=azure_conv trace.poisson=true engine/kv_compression=int8 "
        + _TWIN
    ),
    "twin_reasoning": Golden("policy=dynaserve trace=reasoning " + _TWIN),
    "twin_mix": Golden(
        "policy=taichi engine.prefix_cache=false trace=mix trace.rate=20 engine/kv_compression=hack " + _TWIN
    ),
    "twin_mooncake": Golden(
        "policy=mooncake trace=mooncake trace.resample_s=60 trace.window_s=[0,300] policy.routing=random " + _TWIN,
        positive=("cache_hit_rate",),
    ),
    "laws": Golden(
        "policy=dopd "
        "trace=synthetic trace.requests=300 trace.input={law:pareto,mean:800,shape:2.5} "
        "trace.output={law:exponential,mean:150} trace.arrivals={law:gamma,cv:2}"
    ),
    "laws_sessions": Golden(
        "policy=vllm_v1 policy.routing=round_robin engine.prefix_cache=true server=vllm_v1 "
        "trace=synthetic_sessions trace.requests=300",
        positive=("cache_hit_rate",),
    ),
    "predictor_lognormal": Golden(
        "policy=ares policy.period_s=0.25 predictor.persistence=0.5 timing=affine " + _REQUESTS,
        requests=("predicted_output_tokens > 0",),
    ),
    "predictor_by_prompt": Golden(
        "policy=ares policy.period_s=0.25 predictor=by_prompt timing=affine " + _REQUESTS,
        requests=("predicted_output_tokens > 0",),
        unlike="predictor_lognormal",
    ),
    "long": Golden(
        "policy=chunked cluster.instances=4 trace=synthetic trace.requests=60000 trace.arrivals.rate=60 "
        "trace.output.mean=50 "
        "output.steps=true"
    ),
    "long_reduced": Golden(
        "policy=chunked cluster.instances=4 trace=synthetic trace.requests=60000 trace.arrivals.rate=60 "
        "trace.output.mean=50 "
        "engine.log=reduced"
    ),
    # step times
    "h100": Golden(_MEASURED + "gpu=h100 output.steps=true"),
    "h100_trtllm": Golden(_MEASURED + "gpu=h100 model=qwen3_32b cluster.tp=2 timing.backend=trtllm", unlike="h100"),
    "h200_uncalibrated": Golden(_MEASURED + "gpu=h200 timing.calibrated=false engine/attention=varlen", unlike="h100"),
    "a100": Golden(_MEASURED + "gpu=a100 model=llama3_70b cluster.tp=4", unlike="h100"),
    "b200_experts": Golden(
        _MEASURED + "gpu=b200 model=gpt_oss_120b cluster.ep=2 cluster.dp=2 timing.expert_load=1.25 "
        "engine.token_budget=1024 engine.max_batch=128",
        unlike="h100",
    ),
    "l40s": Golden(_MEASURED + "gpu=l40s engine/attention=pod", unlike="h100"),
    "rtx_pro_6000": Golden(_MEASURED + "gpu=rtx_pro_6000 cluster.tp=2", unlike="l40s"),
    "rtx_pro_6000_serial": Golden(_MEASURED + "gpu=rtx_pro_6000 engine/attention=serial", unlike="rtx_pro_6000"),
    "l20_from_l40s": Golden(_MEASURED + "gpu=l20 engine/kv_compression=fp8", unlike="l40s"),
    "v100_from_a100": Golden("policy=nexus " + _MEASURED + "gpu=v100 model=qwen25_7b engine/speculation=draft"),
    "unlike_gpus": Golden(
        "policy=splitwise +gpu@cluster.decode_gpu=a100 trace=azure_conv trace.limit=200",
        requests=("transfer_s > 0",),
    ),
    "roofline": Golden(_MEASURED + "timing=roofline engine/kv_compression=int4"),
    "roofline_pipeline": Golden(
        _MEASURED + "timing=roofline model=llama3_70b cluster.pp=4", positive=("bubble_share",)
    ),
    "roofline_experts": Golden(_MEASURED + "timing=roofline model=mixtral_8x7b gpu=a10g cluster.tp=8 slo=targets_2025"),
    "vllm_2023": Golden(_MEASURED + "timing=vllm_2023 model=opt_13b gpu=a100 trace.max_input_tokens=1500"),
    "vllm_2024": Golden(_MEASURED + "timing=vllm_2024 gpu=a100 cluster.tp=2"),
    "distserve_times": Golden(
        "policy=distserve timing=distserve model=opt_13b gpu=a100 trace=azure_conv trace.max_input_tokens=1500 "
        "engine/kv_compression=cachegen " + _TWIN
    ),
    "vllm_2023_served": Golden(
        _MEASURED + "timing=vllm_2023_served model=opt_13b gpu=a100 trace.max_input_tokens=1500"
    ),
    "distserve_served": Golden(
        "policy=distserve timing=distserve_served model=opt_13b gpu=a100 trace=azure_conv trace.max_input_tokens=1500 "
        + _TWIN
    ),
    "splitwise_times": Golden(
        "policy=splitwise timing=splitwise model=bloom_176b cluster.tp=8 engine.kv_tokens=89238 trace=azure_conv "
        + _TWIN
    ),
    "splitwise_simulator": Golden(
        "policy=splitwise timing=splitwise_simulator model=bloom_176b gpu=a100 cluster.tp=8 engine.kv_tokens=89238 "
        "trace=azure_conv " + _TWIN
    ),
    "sarathi": Golden(_MEASURED + "timing=sarathi model=yi_34b gpu=a100_pcie cluster.tp=2"),
    "deepseek_times": Golden(
        "policy=deepseek trace=synthetic trace.requests=400 trace.arrivals.rate=400",
        positive=("speculation_acceptance",),
    ),
}
