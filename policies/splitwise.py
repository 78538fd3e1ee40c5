"""Prompt and token machines that help each other (Splitwise: Patel et al., ISCA 2024, sections IV-A to IV-C).

Both phases join the shortest queue of their pool. Past a bound a request goes to a machine of the mixed pool, or
borrows one of the other pool, which counts as mixed until it has no work of the other phase left. Prompts are batched
whole, first come first served; a mixed machine runs them concurrently with its decodes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.checks import Count, Positive, checked
from framework.codes import DECODE, PREFILL
from framework.policy import Policy, View, decision
from framework.system.cluster import ClusterSpec

Floats = NDArray[np.float64]

_KINDS = {"prefill": 0, "decode": 1, "mixed": 2}  # kinds of machines: prompt, token, mixed


@decision(observes=True)
def prompt_machine(request: int, view: View, params: Floats, state: Floats) -> int:
    """The first of prompt, mixed and token machines with a queue below the bound; among each kind, the shortest queue.

    If all are past it, the shortest queue of prompt machines, or of mixed ones if all are borrowed.
    """
    tokens = view.requests[request].input_tokens
    best, best_rank, best_queue, best_held = -1, 6, 0, 0
    for i in range(len(view.instances)):
        inst = view.instances[i]
        if inst.role & PREFILL == 0:  # it has crashed
            continue
        kind = params[2 + inst.pool]
        if kind == 0.0:
            rank = 1 if inst.running + inst.incoming > 0 else 0
        else:
            rank = 1 if kind == 2.0 or inst.queued_tokens > 0 else 2
        if inst.queued_tokens > 0 and inst.queued_tokens + tokens > params[0]:
            rank += 3
        held = inst.kv_tokens + inst.incoming_kv_tokens
        if rank < best_rank or (
            rank == best_rank
            and (inst.queued_tokens < best_queue or (inst.queued_tokens == best_queue and held < best_held))
        ):
            best, best_rank, best_queue, best_held = i, rank, inst.queued_tokens, held
    return best


@decision(observes=True)
def token_machine(request: int, view: View, params: Floats, state: Floats) -> int:
    """The prompt's instance, unless that is a prompt machine; otherwise the first of token, mixed and prompt machines
    with KV below the bound, and among each kind the one that holds or awaits the fewest tokens.
    """
    here = view.requests[request].instance
    if params[2 + view.instances[here].pool] != 0.0:
        return here
    tokens = view.requests[request].input_tokens
    best, best_rank, least = -1, 6, 0
    for i in range(len(view.instances)):
        inst = view.instances[i]
        if inst.role & DECODE == 0:
            continue
        kind = params[2 + inst.pool]
        if kind == 1.0:
            rank = 1 if inst.queued_tokens > 0 else 0
        else:
            rank = 1 if kind == 2.0 or inst.running + inst.incoming > 0 else 2
        held = inst.kv_tokens + inst.incoming_kv_tokens
        coming = 0 if i == here else tokens
        full = held + coming > params[1] * inst.total_blocks * view.options[0].block_tokens
        if full or inst.running + inst.incoming >= inst.max_batch:
            rank += 3
        if rank < best_rank or (rank == best_rank and held < least):
            best, best_rank, least = i, rank, held
    return best


class Splitwise(Policy):
    """Prefill pools are prompt machines, decode pools token machines; all can do both, with `batch_tokens` prompt
    tokens and decodes a step. `prompt_bound`: tokens that a queue may hold; `token_bound`: share of KV memory that
    decodes may hold.
    """

    suggested_cluster = "disaggregated"
    route_prefill: Any = prompt_machine
    route_decode: Any = token_machine

    @checked("policy.")
    def __init__(self, batch_tokens: Count = 2048, prompt_bound: Count = 8192, token_bound: Positive = 0.9) -> None:
        self.batch_tokens, self.prompt_bound, self.token_bound = batch_tokens, prompt_bound, token_bound

    def layout(self, spec: ClusterSpec) -> ClusterSpec:
        spec = super().layout(spec)
        kinds = (float(_KINDS[pool.role]) for pool in spec.pools)
        self.compiled_params = (float(self.prompt_bound), float(self.token_bound), *kinds)
        pools = (replace(pool, role="mixed", batching="mixed", token_budget=self.batch_tokens) for pool in spec.pools)
        return replace(spec, pools=tuple(pools))
