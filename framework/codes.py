"""The small numbers in the engine's memory, and their meanings."""

from __future__ import annotations

# Request states. The values up to HANDING_OVER hold or await resources. Suspended requests await the policy: without
# KV, with KV on their instance, or with KV in host memory. PARKED awaits an instance that can take it, GATED the
# gateway, SPANLESS the instances that compute it together. The last five are ends; an UNSENT request would have been
# sent after the end of the load.
(
    FUTURE,
    FETCHING,
    WAITING,
    PREFILLING,
    PREFILLED,
    JOINING,
    DECODING,
    PAUSED,
    SWAPPED,
    HANDING_OVER,
    SUSPENDED,
    SUSPENDED_HERE,
    SUSPENDED_OUT,
    PARKED,
    GATED,
    SPANLESS,
    FINISHED,
    REJECTED,
    FAILED,
    CANCELLED,
    UNSENT,
) = range(21)
# Instance roles, as sets of the phases of which an instance takes work, and batching modes.
OFF, PREFILL, DECODE, MIXED = range(4)
DECODE_FIRST, PREFILL_FIRST, WHOLE_MIXED, STATIC, UNIFIED, DECODE_ONLY, CONCURRENT, CHUNKS_FIRST = range(8)
ROLES = {"mixed": MIXED, "prefill": PREFILL, "decode": DECODE, "off": OFF}
MODES = {
    "decode_first": DECODE_FIRST,
    "prefill_first": PREFILL_FIRST,
    "mixed": WHOLE_MIXED,
    "static": STATIC,
    "unified": UNIFIED,
    "decode_only": DECODE_ONLY,
    "concurrent": CONCURRENT,
    "chunks_first": CHUNKS_FIRST,
}
# Kinds of events, in the order in which ties are broken.
(
    STEP_END,
    PREFILL_STEP_END,
    COPY_END,
    ROLE_CHANGE,
    FAULT,
    REPORT,
    PIN_END,
    GIVE_UP,
    TICK,
    ARRIVAL,
    GATEWAY,
    SCHEDULE,
) = range(12)
# What happens at a fault.
CRASH, DETECTION, HANG, LINK_FAULT, SLOWDOWN, REPAIR = range(6)
WHAT_FAILS = {
    "crash": CRASH,
    "detection": DETECTION,
    "hang": HANG,
    "link": LINK_FAULT,
    "slowdown": SLOWDOWN,
    "repair": REPAIR,
}
# What becomes of a request that a crash drops: it is computed again, restored from a backup, or it fails; or a
# decision to cancel it had not been carried out yet.
RECOMPUTED, RESTORED, LOST, CALLED_OFF = range(4)
# Live migration of a decoding request: the copy runs, or the copy is done and the switch is due.
NOT_MIGRATING, COPYING, COPIED = range(3)
# Why the loop came back.
(
    DONE,
    YIELDED,
    LOG_FULL,
    HOOK_RAISED,
    BAD_INSTANCE,
    BAD_ROLE,
    OUT_OF_BLOCKS,
    STUCK,
    MARKED,
    DECIDES,
    FAULT_DUE,
    SPAN_DUE,
) = range(12)
# Reasons that the engine knows; a policy's own follow.
(
    NO_REASON,
    REASON_CONTEXT,
    REASON_KV,
    REASON_STALLED,
    REASON_POLICY,
    REASON_LENGTH,
    REASON_CRASH,
    REASON_GAVE_UP,
    REASON_SHED,
    REASON_EXPIRED,
) = range(10)
REASONS = ("", "context", "kv", "stalled", "policy", "length", "crash", "gave up", "shed", "expired")
# How the gateway chooses among the tenants of one band.
IN_ARRIVAL_ORDER, ROUND_ROBIN, LEAST_TOKENS = range(3)
FAIRNESS = {"arrival": IN_ARRIVAL_ORDER, "round_robin": ROUND_ROBIN, "tokens": LEAST_TOKENS}
# Preemption.
RECOMPUTE, SWAP = range(2)
# The rule by which an incoming request goes to a rank of an instance.
RANK_OF_LEAST_KV, RANK_OF_LEAST_REQUESTS, RANK_IN_TURN = range(3)
RANK_CHOICES = {"kv": RANK_OF_LEAST_KV, "requests": RANK_OF_LEAST_REQUESTS, "round_robin": RANK_IN_TURN}
# The source of token 1 of a request that decodes on another instance, or when the token reaches the client.
TOKEN_AT_PREFILL, TOKEN_AT_JOIN, TOKEN_AT_STEP, TOKEN_RECOMPUTED = range(4)
FIRST_TOKENS = {
    "prefill": TOKEN_AT_PREFILL,
    "join": TOKEN_AT_JOIN,
    "decode": TOKEN_AT_STEP,
    "recomputed": TOKEN_RECOMPUTED,
}
# Actions of a policy. Those from PREEMPT on decide about requests that already run, or scale a pool; a run compiles
# them only if it has any.
(
    MIGRATE,
    SET_TOKEN_BUDGET,
    SET_ROLE,
    SET_MAX_BATCH,
    SET_DRAFTS,
    PREEMPT,
    RESUME,
    CANCEL,
    REQUEUE,
    SCALE,
) = range(10)
# The KV that a request keeps when the policy preempts it.
KEEP_NOTHING, KEEP_HERE, KEEP_SWAPPED = range(3)
KEPT = {"drop": KEEP_NOTHING, "kv": KEEP_HERE, "swap": KEEP_SWAPPED}
# Ranks of cached blocks: RANKS of them from the lowest on, which is evicted first. NO_RANK: blocks keep theirs.
LOWEST_RANK, RANKS, NO_RANK = -8, 16, 100
