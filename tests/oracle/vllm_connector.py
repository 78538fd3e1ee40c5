"""vLLM's prefill and decode servers under affine step times, without a GPU: a run as JSON in, token times out.

Runs with `vllm_scheduler.py`, in an environment that has vLLM (0.24.0). Each server is a scheduler of vLLM with the
scheduler's side of its NIXL connector, which decides what is held, fetched and freed. What the workers would do is
counted: each fetch waits until the sender's and the receiver's side of the network are free, and lasts what its blocks
take. A server takes notice of the ends of copies when a step of it ends or, idle, at once; whatever is due at one time
comes about before any server forms a step.
"""

from __future__ import annotations

import heapq
import json
import os
import sys
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

from vllm.config import KVTransferConfig, ModelConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm_scheduler import duration_s, model, scheduler

_STEP_END, _COPY_END, _ARRIVAL = range(3)  # the order of what is due at one time


class Server:
    """One scheduler: what it computes now, and the copies whose end it has not taken notice of."""

    def __init__(self, run: dict[str, Any], pool: dict[str, Any], model_config: ModelConfig) -> None:
        connector = KVTransferConfig(kv_connector="NixlConnector", kv_role=pool["kv_role"], kv_buffer_device="cuda")
        self.times = run["times"]
        self.scheduler = scheduler({**run, **pool}, model_config, connector)
        self.hasher = get_request_block_hasher(run["block_tokens"], sha256) if run["prefix_cache"] else None
        self.present: dict[str, Request] = {}
        self.decoding: set[str] = set()
        self.added = self.preemptions = 0
        self.step: tuple[SchedulerOutput, list[str], list[list[int]]] | None = None
        self.received: list[str] = []
        self.sent: list[str] = []
        self.egress_free_s = self.ingress_free_s = 0.0

    def add(self, k: int, r: dict[str, Any], tokens: int, transfer: dict[str, Any]) -> None:
        request = Request(
            request_id=str(k),
            prompt_token_ids=r["prompt"],
            sampling_params=SamplingParams(
                max_tokens=tokens, ignore_eos=True, extra_args={"kv_transfer_params": transfer}
            ),
            pooling_params=None,
            arrival_time=float(self.added),
            block_hasher=self.hasher,
            priority=r["priority"],
        )
        self.added += 1
        self.present[str(k)] = request
        self.scheduler.add_request(request)

    def form_step(self, outputs: list[list[int]]) -> tuple[float, dict[str, int]]:
        """Its next step: its seconds, 0 where it has none, and the blocks of each request that are to be fetched."""
        output = self.scheduler.schedule()
        while output.preempted_req_ids and not output.num_scheduled_tokens:
            self._note_preempted(output)
            output = self.scheduler.schedule()
        self._note_preempted(output)
        fetched = {
            name: sum(len(group) for group in meta.local_block_ids)
            for name, meta in output.kv_connector_metadata.reqs_to_recv.items()
        }
        decodes, chunks, sampled = [], [], []
        for name, tokens in output.num_scheduled_tokens.items():
            request = self.present[name]
            before = request.num_computed_tokens - tokens
            fresh = request.num_output_tokens == 0 and request.num_preemptions == 0
            last = before == request.num_prompt_tokens - 1 and _is_fetched(request)
            if name in self.decoding or (fresh and last):
                self.decoding.add(name)
                decodes.append((before, tokens))
            else:
                chunks.append((before, tokens))
            emitted = request.num_output_tokens
            sampled.append([] if request.is_prefill_chunk else [outputs[int(name)][emitted]])
            if sampled[-1]:
                self.decoding.add(name)
        if not sampled:
            return 0.0, fetched
        self.step = output, list(output.num_scheduled_tokens), sampled
        return duration_s(self.times, decodes, chunks), fetched

    def _note_preempted(self, output: SchedulerOutput) -> None:
        for name in output.preempted_req_ids or ():
            self.preemptions += 1
            self.decoding.discard(name)

    def end_step(self) -> list[tuple[str, dict[str, Any] | None, bool]]:
        """Of the step under way, and of copies: the requests that emitted a token, what the decode server of each gets,
        and whether it was its last.
        """
        output, names, sampled = self.step or (SchedulerOutput.make_empty(), [], [])
        self.step = None
        emitted = self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: k for k, name in enumerate(names)},
                sampled_token_ids=sampled,
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
                kv_connector_output=KVConnectorOutput(finished_sending=self.sent, finished_recving=self.received),
            ),
        )
        self.sent, self.received = [], []
        emitting = [one for group in emitted.values() for one in group.outputs if one.new_token_ids]
        for one in emitting:
            if one.finish_reason is not None:
                del self.present[one.request_id]
                self.decoding.discard(one.request_id)
        return [(one.request_id, one.kv_transfer_params, one.finish_reason is not None) for one in emitting]


def _is_fetched(request: Request) -> bool:
    return bool(request.kv_transfer_params.get("remote_block_ids"))


class Replay:
    """One run: prefill servers, decode servers, a clock, and what has happened to each request."""

    def __init__(self, run: dict[str, Any], model_config: ModelConfig) -> None:
        self.run = run
        self.requests = run["requests"]
        self.outputs = [r["output"] for r in self.requests]
        self.prefill, self.decode = (
            [Server(run, pool, model_config) for _ in range(pool["servers"])]
            for pool in (run["prefill"], run["decode"])
        )
        self.servers = [*self.prefill, *self.decode]
        self.next_turn = {r["previous"]: k for k, r in enumerate(self.requests) if r["previous"] >= 0}
        self.due = [(r["arrival_s"], _ARRIVAL, k) for k, r in enumerate(self.requests) if r["previous"] < 0]
        heapq.heapify(self.due)
        self.now_s = 0.0
        self.tokens: list[list[float]] = [[] for _ in self.requests]

    def play(self) -> dict[str, Any]:
        """Until nothing is due."""
        while self.due:
            self.now_s = self.due[0][0]
            while self.due and self.due[0][0] == self.now_s:
                self._take(*heapq.heappop(self.due)[1:])
            for j, server in enumerate(self.servers):
                if server.step is None:
                    self._form_step(j, server)
        return {
            "tokens": self.tokens,
            "preemptions": [server.preemptions for server in self.servers],
            "unfinished": [k for k, r in enumerate(self.requests) if len(self.tokens[k]) < len(r["output"])],
        }

    def _take(self, kind: int, k: int) -> None:
        if kind == _ARRIVAL:
            self.prefill[k % len(self.prefill)].add(k, self.requests[k], 1, {"do_remote_decode": True})
        elif kind == _COPY_END:
            for server, ended in ((self._source(k), self._source(k).sent), (self._target(k), self._target(k).received)):
                ended.append(str(k))
                if server.step is None:
                    server.end_step()
        else:
            self._end_step(self.servers[k])

    def _end_step(self, server: Server) -> None:
        for name, transfer, ends in server.end_step():
            k = int(name)
            if transfer is not None:
                r = self.requests[k]
                self._target(k).add(k, r, len(r["output"]), transfer)
                continue
            self.tokens[k].append(self.now_s)
            later = self.next_turn.get(k)
            if ends and later is not None:
                heapq.heappush(self.due, (self.now_s + self.requests[later]["think_s"], _ARRIVAL, later))

    def _form_step(self, j: int, server: Server) -> None:
        seconds, fetched = server.form_step(self.outputs)
        for name, blocks in fetched.items():
            self._fetch(int(name), blocks)
        if server.step is not None:
            heapq.heappush(self.due, (self.now_s + seconds, _STEP_END, j))

    def _fetch(self, k: int, blocks: int) -> None:
        source, target = self._source(k), self._target(k)
        end_s = max(self.now_s, source.egress_free_s, target.ingress_free_s) + blocks * self.run["block_copy_s"]
        source.egress_free_s = target.ingress_free_s = end_s
        heapq.heappush(self.due, (end_s + self.run["latency_s"], _COPY_END, k))

    def _source(self, k: int) -> Server:
        return self.prefill[k % len(self.prefill)]

    def _target(self, k: int) -> Server:
        return self.decode[k % len(self.decode)]


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
