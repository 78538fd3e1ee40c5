"""SGLang's own scheduler under an affine step time, without a GPU or a model: a run as JSON in, token times out.

Runs in an environment that has SGLang (0.5.14), as a program of its own: it knows nothing of this project. Each line of
standard input is one run (see `tests.oracle.sglang_comparison`), each line of standard output what became of it. The
scheduler is theirs, with its radix cache, its pools of KV (of pages of one token) and its processing of results; what
it talks to (other processes, metrics, a model) does nothing. Its constructor loads a model onto a GPU, so that the
attributes that scheduling reads are set here. Time does not pass in it but is counted, as in `vllm_scheduler.py`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from array import array
from collections import deque
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.managers.schedule_policy import SchedulePolicy
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.scheduler_components.batch_result_processor import SchedulerBatchResultProcessor
from sglang.srt.managers.scheduler_components.new_token_ratio_tracker import NewTokenRatioTracker
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.chunk_cache import ChunkCache
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixCache
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

_VOCABULARY = 1 << 40
_END = 1  # the token that ends a text
_LOOKS = 3  # turns of its loop without a step, after which nothing changes but by an arrival
_DOES_NOTHING = dict.fromkeys(
    (
        *("enable_fpm", "enable_hisparse", "enable_hierarchical_cache", "enable_priority_scheduling", "enable_lora"),
        *(
            "enable_priority_preemption",
            "is_hybrid_swa",
            "is_mixed_chunk",
            "enable_dynamic_chunking",
            "gracefully_exit",
        ),
        *("enable_hicache_storage", "require_mlp_sync", "abort_on_priority_when_disabled", "_engine_paused"),
    ),
    False,
) | dict.fromkeys(
    (
        *("dllm_config", "chunked_req", "_pending_chunked_abort_req", "prefill_delayer", "lora_drainer", "last_batch"),
        *("truncation_align_size", "max_queued_requests", "hisparse_coordinator", "scripted_scheduler_hook"),
    )
)


def scheduler(run: dict[str, Any]) -> Scheduler:
    """SGLang's scheduler with the settings of a run, on pools without KV in them."""
    longest = max(len(r["prompt"]) + len(r["output"]) for r in run["requests"])
    settings = ServerArgs(model_path="dummy", disable_overlap_schedule=not run["asynchronous"])
    settings.attention_backend = "torch_native"  # so that indices are written without a kernel
    settings.page_size = 1
    settings.pp_max_micro_batch_size = run["max_batch"]
    set_global_server_args_for_scheduler(settings)
    s = object.__new__(Scheduler)
    vars(s).update(_DOES_NOTHING)
    s.server_args = settings
    s.page_size = 1
    s.enable_overlap = run["asynchronous"]
    s.disaggregation_mode = DisaggregationMode.NULL
    s.spec_algorithm = SpeculativeAlgorithm.from_string(None)
    s.model_config = SimpleNamespace(vocab_size=_VOCABULARY, is_encoder_decoder=False, think_end_id=None)
    s.max_total_num_tokens = run["kv_tokens"]
    s.max_req_len = run["kv_tokens"] + longest
    s.max_running_requests = run["max_batch"]
    s.max_prefill_tokens = settings.max_prefill_tokens
    s.chunked_prefill_size = run["token_budget"]
    s.priority_scheduling_preemption_threshold = 0
    s.max_prefill_bs = 0
    s.req_to_token_pool = ReqToTokenPool(run["max_batch"] + 2, longest + 8, "cpu", enable_memory_saver=False)
    s.token_to_kv_pool_allocator = TokenToKVPoolAllocator(
        run["kv_tokens"], torch.bfloat16, "cpu", kvcache=None, need_sort=False
    )
    cache = RadixCache if run["prefix_cache"] else ChunkCache
    s.tree_cache = cache(
        CacheInitParams(
            disable=not run["prefix_cache"],
            req_to_token_pool=s.req_to_token_pool,
            token_to_kv_pool_allocator=s.token_to_kv_pool_allocator,
            page_size=1,
        )
    )
    s.waiting_queue = []
    s.running_batch = ScheduleBatch(reqs=[], batch_is_full=False)
    s.policy = SchedulePolicy("fcfs", s.tree_cache, False, False, False)
    s.new_token_ratio_tracker = NewTokenRatioTracker.from_server_args(settings)
    for name in ("grammar_manager", "metrics_reporter", "ipc_channels", "load_inquirer", "dp_attn_adapter"):
        setattr(s, name, MagicMock())
    s.grammar_manager.has_waiting_grammars.return_value = False
    s.dp_attn_adapter.maybe_prepare_mlp_sync_batch = lambda batch, need_sync=None: batch
    s._maybe_prepare_ngram_embedding = lambda batch: batch
    return s


def results(s: Scheduler) -> SchedulerBatchResultProcessor:
    """What takes in the tokens of a step, as the scheduler makes it."""
    return SchedulerBatchResultProcessor(
        is_generation=True,
        disaggregation_mode=s.disaggregation_mode,
        enable_overlap=s.enable_overlap,
        enable_overlap_mlx=False,
        server_args=s.server_args,
        model_config=s.model_config,
        token_to_kv_pool_allocator=s.token_to_kv_pool_allocator,
        tree_cache=s.tree_cache,
        hisparse_coordinator=None,
        req_to_token_pool=s.req_to_token_pool,
        decode_offload_manager=None,
        metrics_collector=MagicMock(),
        metrics_reporter=s.metrics_reporter,
        draft_worker=None,
        model_worker=SimpleNamespace(),
        logprob_result_processor=MagicMock(),
        output_streamer=MagicMock(),
        abort_request=MagicMock(),
    )


class Replay:
    """One run: its clock, its requests, and what has happened to them."""

    def __init__(self, run: dict[str, Any]) -> None:
        self.run = run
        self.scheduler = scheduler(run)
        self.results = results(self.scheduler)
        self.now_s = 0.0
        self.gpu_free_s = 0.0
        self.due = [(r["arrival_s"], k) for k, r in enumerate(run["requests"]) if r["previous"] < 0]
        self.next_turn = {r["previous"]: k for k, r in enumerate(run["requests"]) if r["previous"] >= 0}
        self.present: dict[int, Req] = {}
        self.under_way: deque[tuple[ScheduleBatch, float]] = deque()
        self.tokens: list[list[float]] = [[] for _ in run["requests"]]
        self.retractions = [0] * len(run["requests"])
        self.steps: list[tuple[float, float, str, list[int]]] = []
        self.stalled = False

    def play(self) -> dict[str, Any]:
        """Until all requests have ended, or nothing can be scheduled any more."""
        s, idle = self.scheduler, 0
        while self.due or self.present:
            self._add_arrivals()
            batch = s.get_next_batch_to_run()
            if batch:
                self.under_way.append((batch.copy(), self._start(batch)))
            idle = idle + 1 if not batch and not self.under_way else 0
            if self.under_way and (not self.run["asynchronous"] or s.last_batch):
                self._end(*self.under_way.popleft())
            s.last_batch = batch
            if idle and not self.present:
                s.new_token_ratio_tracker.reset()
            if idle > _LOOKS:
                if not self.due:
                    self.stalled = True
                    break
                self.now_s = max(self.now_s, min(self.due)[0])
        return {
            "tokens": self.tokens,
            "preemptions": self.retractions,
            "steps": self.steps,
            "stalled": self.stalled,
        }

    def _add_arrivals(self) -> None:
        for entry in sorted(due for due in self.due if due[0] <= self.now_s):
            self.due.remove(entry)
            k = entry[1]
            r = self.run["requests"][k]
            declared = self.run["declared_tokens"] or len(r["output"])
            asked = SamplingParams(max_new_tokens=declared)
            asked.normalize(None)
            request = Req(
                str(k),
                "",
                array("q", r["prompt"]),
                asked,
                eos_token_ids={_END},
                vocab_size=_VOCABULARY,
            )
            self.scheduler.init_req_max_new_tokens(request)
            self.present[k] = request
            self.scheduler._add_request_to_queue(request)

    def _start(self, batch: ScheduleBatch) -> float:
        """When a step ends that begins now, or once the one before it has ended."""
        times = self.run["times"]
        duration_s = times["base_s"]
        if batch.forward_mode.is_extend():
            for before, tokens in zip(batch.prefix_lens, batch.extend_lens, strict=True):
                duration_s += times["per_prefill_token_s"] * tokens
                duration_s += times["prefill_quadratic_s"] * ((before + tokens) ** 2 - before**2)
        else:
            for request in batch.reqs:
                duration_s += times["per_sequence_s"] + times["per_context_token_s"] * request.kv_committed_len
        start_s = max(self.now_s, self.gpu_free_s)
        self.gpu_free_s = start_s + duration_s
        kind = "chunks" if batch.forward_mode.is_extend() else "decodes"
        self.steps.append((start_s, self.gpu_free_s, kind, [int(r.rid) for r in batch.reqs]))
        return self.gpu_free_s

    def _end(self, batch: ScheduleBatch, end_s: float) -> None:
        self.now_s = max(self.now_s, end_s)
        before = [len(request.output_ids) for request in batch.reqs]
        sampled = [self._token(request) for request in batch.reqs]
        result = GenerationBatchResult(logits_output=None, next_token_ids=torch.tensor(sampled, dtype=torch.int64))
        if batch.forward_mode.is_extend():
            self.results.process_batch_result_prefill(batch, result)
        else:
            self.results.process_batch_result_decode(batch, result)
        for request, count in zip(batch.reqs, before, strict=True):
            self._emit(request, len(request.output_ids) - count)

    def _token(self, request: Req) -> int:
        """The next token of a request; the last one ends it, where its length is not what was declared."""
        output = self.run["requests"][int(request.rid)]["output"]
        k = len(request.output_ids)
        return int(output[k]) if k < len(output) - 1 else _END

    def _emit(self, request: Req, count: int) -> None:
        k = int(request.rid)
        self.tokens[k] += [self.now_s] * count
        self.retractions[k] = request.retraction_count
        if count and request.finished():
            del self.present[k]
            later = self.next_turn.get(k)
            if later is not None:
                self.due.append((self.now_s + self.run["requests"][later]["think_s"], later))


def main() -> None:
    """Answer each line of standard input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed goes to standard error
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    for line in sys.stdin:
        answers.write(json.dumps(Replay(json.loads(line)).play()) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
