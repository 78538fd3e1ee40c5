"""vLLM's scheduler with its OffloadingConnector, without a GPU: a run as JSON in, token times out.

Runs with `vllm_scheduler.py`, in an environment that has vLLM (0.24.0). What the worker would do is counted: a load
takes its latency and a time for each block, and a store has ended with the step after its own. Requests come one after
another: each finds the server idle.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

from vllm.config import KVTransferConfig, ModelConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm_scheduler import PAGE_BYTES, duration_s, model, scheduler


class Replay:
    """One run: its clock, its requests, and what each of them found."""

    def __init__(self, run: dict[str, Any], model_config: ModelConfig) -> None:
        connector = KVTransferConfig(
            kv_connector="OffloadingConnector",
            kv_role="kv_both",
            kv_connector_extra_config={"cpu_bytes_to_use": PAGE_BYTES * run["host_blocks"]},
        )
        self.run = run
        self.scheduler = scheduler(run, model_config, connector)
        self.hasher = get_request_block_hasher(run["block_tokens"], sha256)
        self.now_s = 0.0
        self.storing: list[int] = []  # jobs that end with the next step
        self.tokens: list[list[float]] = [[] for _ in run["requests"]]
        self.loaded: list[int] = [0] * len(run["requests"])  # blocks

    def play(self) -> dict[str, Any]:
        """All requests, in order."""
        for k, r in enumerate(self.run["requests"]):
            self.now_s = max(self.now_s, r["arrival_s"])
            self._serve(k, r)
        return {"tokens": self.tokens, "preemptions": [0], "loaded": self.loaded}

    def _serve(self, k: int, r: dict[str, Any]) -> None:
        request = Request(
            request_id=str(k),
            prompt_token_ids=r["prompt"],
            sampling_params=SamplingParams(max_tokens=len(r["output"]), ignore_eos=True),
            pooling_params=None,
            arrival_time=float(k),
            block_hasher=self.hasher,
        )
        self.scheduler.add_request(request)
        while not request.is_finished() or self.storing:
            self._step(k, request, r["output"])

    def _step(self, k: int, request: Request, outputs: list[int]) -> None:
        output = self.scheduler.schedule()
        tokens = output.num_scheduled_tokens.get(str(k), 0)
        ended, self.storing = self.storing, list(output.kv_connector_metadata.store_jobs)
        received = set()
        for job, load in output.kv_connector_metadata.load_jobs.items():
            blocks = len(load.transfer_spec[1].block_ids)
            self.loaded[k] += blocks
            self.now_s += self.run["latency_s"] + blocks * self.run["block_load_s"]
            ended.append(job)
            received.add(str(k))
        names: list[str] = []
        sampled: list[list[int]] = []
        if tokens:
            before = request.num_computed_tokens - tokens
            held = [(before, tokens)]
            decodes = bool(self.tokens[k])
            self.now_s += duration_s(self.run["times"], held if decodes else [], [] if decodes else held)
            names, sampled = [str(k)], [[] if request.is_prefill_chunk else [outputs[len(self.tokens[k])]]]
            self.tokens[k] += [self.now_s] * len(sampled[0])
        self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: j for j, name in enumerate(names)},
                sampled_token_ids=sampled,
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
                kv_connector_output=KVConnectorOutput(
                    finished_recving=received,
                    kv_connector_worker_meta=OffloadingWorkerMetadata(completed_jobs=dict.fromkeys(ended, 1)),
                ),
            ),
        )


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
