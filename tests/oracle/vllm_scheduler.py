"""vLLM's own scheduler under an affine step time, without a GPU or a model: a run as JSON in, token times out.

Runs in an environment that has vLLM (0.24.0), as a program of its own: it knows nothing of this project. Each line of
standard input is one run (see `tests.oracle.drawing`), each line of standard output what became of it. Time does not
pass in it but is counted: a step lasts what its tokens cost, and requests that have arrived by the start of a step,
also at that very time, are added before it is formed.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

PAGE_BYTES = 128  # of a block
_LONGEST = 200_000  # tokens of prompt and output
_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 1000,
    "max_position_embeddings": _LONGEST,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rms_norm_eps": 1e-5,
}


def model() -> ModelConfig:
    """A model of which nothing but its longest context matters; no weights, no tokenizer."""
    folder = tempfile.mkdtemp()
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(_MODEL, file)
    return ModelConfig(
        model=folder, tokenizer=folder, skip_tokenizer_init=True, dtype="bfloat16", seed=0, max_model_len=_LONGEST
    )


def scheduler(run: dict[str, Any], model_config: ModelConfig, transfers: KVTransferConfig | None = None) -> Scheduler:
    """vLLM's scheduler with the settings of a run, and one block more, which vLLM keeps as its null block."""
    settings = SchedulerConfig(
        max_num_seqs=run["max_batch"],
        max_num_batched_tokens=max(run["token_budget"], run["max_batch"]),
        max_num_scheduled_tokens=run["token_budget"],
        max_model_len=max(len(r["prompt"]) + len(r["output"]) for r in run["requests"]),
        enable_chunked_prefill=run["chunked"],
        is_encoder_decoder=False,
        async_scheduling=False,
        watermark=run["watermark"],
        scheduler_reserve_full_isl=run["reserve_whole_prompt"],
        long_prefill_token_threshold=run["long_prefill_tokens"],
        policy="priority" if run["priorities"] else "fcfs",
    )
    cache = CacheConfig(
        block_size=run["block_tokens"], gpu_memory_utilization=0.9, enable_prefix_caching=run["prefix_cache"]
    )
    cache.num_gpu_blocks = run["blocks"] + 1
    config = VllmConfig(
        model_config=model_config,
        scheduler_config=settings,
        cache_config=cache,
        parallel_config=ParallelConfig(),
        device_config=DeviceConfig("cpu"),
        kv_transfer_config=transfers,
    )
    spec = FullAttentionSpec(block_size=run["block_tokens"], num_kv_heads=1, head_size=1, dtype=torch.float32)
    blocks = KVCacheConfig(
        num_blocks=run["blocks"] + 1,
        kv_cache_tensors=[KVCacheTensor(PAGE_BYTES * (run["blocks"] + 1), ["layer"])],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    kind = AsyncScheduler if run["asynchronous"] else Scheduler
    return kind(
        vllm_config=config,
        kv_cache_config=blocks,
        structured_output_manager=StructuredOutputManager(config),
        block_size=run["block_tokens"],
        log_stats=False,
    )


def duration_s(times: dict[str, float], decodes: list[tuple[int, int]], chunks: list[tuple[int, int]]) -> float:
    """Of a step: of each decode and each chunk the tokens before it, and its own."""
    seconds = times["base_s"] + times["per_prefill_token_s"] * sum(tokens for _, tokens in chunks)
    seconds += times["per_sequence_s"] * sum(tokens for _, tokens in decodes)
    pairs = sum((before + tokens) ** 2 - before**2 for before, tokens in chunks)
    context = sum(before + tokens for before, tokens in decodes)
    return seconds + times["prefill_quadratic_s"] * pairs + times["per_context_token_s"] * context


class Replay:
    """One run: its clock, its requests, and what has happened to them."""

    def __init__(self, run: dict[str, Any], model_config: ModelConfig) -> None:
        self.run = run
        self.scheduler = scheduler(run, model_config)
        self.hasher = get_request_block_hasher(run["block_tokens"], sha256) if run["prefix_cache"] else None
        self.now_s = 0.0
        self.due = [(r["arrival_s"], k) for k, r in enumerate(run["requests"]) if r["previous"] < 0]
        given_up = ((r.get("cancel_s"), k) for k, r in enumerate(run["requests"]))
        self.given_up = sorted((time_s, k) for time_s, k in given_up if time_s is not None)
        self.next_turn = {r["previous"]: k for k, r in enumerate(run["requests"]) if r["previous"] >= 0}
        self.present: dict[str, Request] = {}
        self.added: list[int] = []
        self.decoding: set[str] = set()
        self.promised = [0] * len(run["requests"])  # tokens of each request, those of steps under way included
        self.under_way: list[tuple[float, Any, list[str], list[list[int]]]] = []
        self.busy_until_s = 0.0
        self.tokens: list[list[float]] = [[] for _ in run["requests"]]
        self.preemptions = [0] * len(run["requests"])
        self.steps: list[tuple[float, list[tuple[int, int, int]]]] = []  # start; request, tokens before, tokens in it
        self.stalled = False

    def play(self) -> dict[str, Any]:
        """Until all requests have ended, or nothing can be scheduled any more."""
        ahead = 2 if self.run["asynchronous"] else 1  # batches under way, the one that is being formed included
        while self.due or self.present:
            if not self.present:
                self.now_s = max(self.now_s, min(self.due)[0])
                self.under_way.clear()
            self._take_news()
            output = self.scheduler.schedule()
            for name in output.preempted_req_ids or ():
                output_tokens = len(self.run["requests"][int(name)]["output"])
                if self.promised[int(name)] < output_tokens:  # else it has ended by now
                    self.preemptions[int(name)] += 1
                self.decoding.discard(name)  # it prefills again, also what it generated
            if output.num_scheduled_tokens or any(names for _, _, names, _ in self.under_way):
                self.under_way.append(self._start(output))
                if len(self.under_way) == ahead:
                    self._end(*self.under_way.pop(0))
            elif output.preempted_req_ids:
                continue
            elif self.due or self.given_up:
                self.now_s = min(self.due + self.given_up)[0]
            else:
                self.stalled = True
                break
        return {
            "tokens": self.tokens,
            "preemptions": self.preemptions,
            "steps": self.steps,
            "stalled": self.stalled,
        }

    def _take_news(self) -> None:
        """What has come by now, in order of time: requests, and cancellations of those that are here."""
        while True:
            gone = self.given_up[0] if self.given_up else (float("inf"), 0)
            come = min(self.due) if self.due else (float("inf"), 0)
            if min(gone, come)[0] > self.now_s:
                return
            if gone[0] <= come[0]:
                self.given_up.pop(0)
                self._cancel(*gone)
            else:
                self.due.remove(come)
                self._add(come[1])

    def _cancel(self, time_s: float, k: int) -> None:
        """A request that runs ends with the step that has just ended, any other at once."""
        request = self.present.pop(str(k), None)
        if request is None:
            return
        runs = request.status == RequestStatus.RUNNING
        self.scheduler.finish_requests(str(k), RequestStatus.FINISHED_ABORTED)
        self.decoding.discard(str(k))
        self._let_next_turn_come(k, self.now_s if runs else time_s)

    def _let_next_turn_come(self, k: int, ended_s: float) -> None:
        later = self.next_turn.get(k)
        if later is not None:
            self.due.append((ended_s + self.run["requests"][later]["think_s"], later))

    def _add(self, k: int) -> None:
        r = self.run["requests"][k]
        request = Request(
            request_id=str(k),
            prompt_token_ids=r["prompt"],
            sampling_params=SamplingParams(max_tokens=len(r["output"]), ignore_eos=True),
            pooling_params=None,
            arrival_time=float(len(self.added)),  # the front end takes in one after the other
            block_hasher=self.hasher,
            priority=r["priority"],
        )
        self.present[str(k)] = request
        self.added.append(k)
        self.scheduler.add_request(request)

    def _start(self, output: Any) -> tuple[float, Any, list[str], list[list[int]]]:
        """Of a step of what has been scheduled: its end, and the tokens that it will have given to each request."""
        counts = output.num_scheduled_tokens
        sampled, held = [], []
        decodes: list[tuple[int, int]] = []
        chunks: list[tuple[int, int]] = []
        for name, tokens in counts.items():
            request = self.present[name]
            before = request.num_computed_tokens - tokens
            held.append((int(name), before, tokens))
            (decodes if name in self.decoding else chunks).append((before, tokens))
            sampled.append([] if request.is_prefill_chunk else self._emitted(int(name), tokens))
            if sampled[-1]:
                self.decoding.add(name)
        start_s = max(self.now_s, self.busy_until_s)
        self.busy_until_s = start_s
        if counts:
            self.busy_until_s += duration_s(self.run["times"], decodes, chunks)
            self.steps.append((start_s, held))
        return self.busy_until_s, output, list(counts), sampled

    def _emitted(self, k: int, tokens: int) -> list[int]:
        """The tokens that a step gives request k: one, and of the drafts in it those before the first wrong one."""
        first, r = self.promised[k], self.run["requests"][k]
        drafts = tokens - 1 if str(k) in self.decoding else 0
        last = first
        while last < first + drafts and last + 1 < len(r["output"]) and self.run["right"][k][last]:
            last += 1
        self.promised[k] = last + 1
        return list(r["output"][first : last + 1])

    def _end(self, end_s: float, output: Any, names: list[str], sampled: list[list[int]]) -> None:
        self.now_s = max(self.now_s, end_s)
        self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: k for k, name in enumerate(names)},
                sampled_token_ids=sampled,
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            ),
        )
        for name, emitted in zip(names, sampled, strict=True):
            if emitted and name in self.present:
                self._emit(name, len(emitted))
        drafting = [name for name, emitted in zip(names, sampled, strict=True) if emitted and name in self.present]
        if self.run["drafts"] and drafting:
            self.scheduler.update_draft_token_ids(DraftTokenIds(drafting, [[0] * self.run["drafts"]] * len(drafting)))

    def _emit(self, name: str, count: int) -> None:
        self.tokens[int(name)] += [self.now_s] * count
        if self.present[name].is_finished():
            del self.present[name]
            self.decoding.discard(name)
            self._let_next_turn_come(int(name), self.now_s)


def main() -> None:
    """Answer each line of standard input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed goes to standard error
    init_none_hash(sha256)
    model_config = model()
    for line in sys.stdin:
        answers.write(json.dumps(Replay(json.loads(line), model_config).play()) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
