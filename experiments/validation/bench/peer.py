"""NVIDIA Dynamo's mocker, the benchmark's peer: offline replay in its own process.

The mocker lives in a separate virtual environment (`make bench` makes it). This file is both sides: imported, it starts
and asks that process; run as a script by that environment's Python, with nothing but the mocker, it answers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

TRACE_BLOCK_TOKENS = 512


class PeerError(Exception):
    """The peer cannot replay this, or is missing."""


@dataclass(frozen=True)
class Job:
    """A replay: a trace in Mooncake's format, `workers` mixed or (prefill, decode), and the engine's options."""

    trace: str
    workers: tuple[int, ...]
    engine: dict[str, Any]


@dataclass(frozen=True)
class PeerRun:
    """CPU seconds of the replay, without reading the trace; peak memory of the process; requests completed."""

    cpu_s: float
    peak_bytes: int
    completed: int


def version(python: Path) -> str | None:
    """The version of the mocker in this Python; None without one."""
    command = "from importlib.metadata import version; import dynamo._core; print(version('ai-dynamo-runtime'))"
    try:
        found = subprocess.run([str(python), "-c", command], capture_output=True, text=True, timeout=60)
    except OSError:
        return None
    return found.stdout.strip() if found.returncode == 0 else None


def job(workload: Any, cluster: Any, model: Any, engine: Any, blocks: int, folder: Path) -> Job:
    """The same requests on as many workers, with equal options; `blocks` of KV each. Writes the trace into `folder`.

    Step times are the mocker's own: it has no affine model.
    """
    trace = folder / "trace.jsonl"
    with trace.open("w") as file:
        write_mooncake(workload, file)
    options = {
        "block_size": engine.block_tokens,
        "num_gpu_blocks": blocks,
        "max_num_batched_tokens": engine.token_budget,
        "max_num_seqs": engine.max_batch,
        "enable_prefix_caching": engine.prefix_cache,
        "kv_transfer_bytes_per_token": int(model.kv_bytes_per_token),
        "kv_transfer_bandwidth": float(cluster.link_bytes_s.min()) / 1e9,
    }
    return Job(str(trace), tuple(pool.instances for pool in cluster.pools), options)


def write_mooncake(workload: Any, file: IO[str]) -> None:
    """One JSON object a request; a workload without prefix information gets hash ids that never repeat."""
    prompts = workload.input_tokens.tolist()
    ids = _hash_ids(workload, prompts)
    rows = zip(workload.arrival_s.tolist(), prompts, workload.output_tokens.tolist(), ids, strict=True)
    for arrival_s, prompt, output, hashes in rows:
        row = {"timestamp": arrival_s * 1e3, "input_length": prompt, "output_length": output, "hash_ids": hashes}
        file.write(json.dumps(row) + "\n")


def _hash_ids(workload: Any, prompts: list[int]) -> Iterator[list[int]]:
    if workload.hash_spans is not None and workload.hash_block_tokens == TRACE_BLOCK_TOKENS:
        for request in range(len(prompts)):
            yield workload.hash_ids_of(request).tolist()
        return
    first = 0
    for prompt in prompts:
        blocks = -(-prompt // TRACE_BLOCK_TOKENS)
        yield list(range(first, first + blocks))
        first += blocks


class Peer:
    """A process with the mocker loaded, which replays one job as often as it is asked."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def replay(self) -> PeerRun:
        """Replay the job once. Raises PeerError with the mocker's own message if it cannot."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("replay\n")
            self._process.stdin.flush()
        except OSError as error:
            raise PeerError("the process of the peer has ended") from error
        return PeerRun(**self._answer())

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:  # the mocker may print lines of its own
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                if "error" in answer:
                    raise PeerError(answer["error"])
                return answer
        raise PeerError("the process of the peer has ended")


@contextmanager
def peer(python: Path, job: Job) -> Iterator[Peer]:
    """Start the mocker's process, and end it. Raises PeerError if there is none."""
    if not python.exists():
        raise PeerError(f"{python} does not exist: make bench installs the peer")
    command = [str(python), str(Path(__file__).resolve()), json.dumps(asdict(job))]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            yield Peer(process)
        finally:
            process.kill()
            with suppress(OSError):  # requests that it has not read
                process.stdin.close()  # type: ignore[union-attr]


# --- in the mocker's process ------------------------------------------------------------------------------------------


def _serve(job: Job) -> None:
    for _ in sys.stdin:
        try:
            answer = asdict(_replay(job))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


def _replay(job: Job) -> PeerRun:
    from dynamo._core import run_mocker_trace_replay

    if len(job.workers) == 1:
        shape: dict[str, Any] = {"num_workers": job.workers[0], "extra_engine_args": {"engine": job.engine}}
    else:
        shape = {}
        for role, workers in zip(("prefill", "decode"), job.workers, strict=True):
            shape[f"num_{role}_workers"] = workers
            shape[f"{role}_engine_args"] = {"engine": {**job.engine, "worker_type": role}}
    options = {"replay_mode": "offline", "router_mode": "round_robin", "trace_block_size": TRACE_BLOCK_TOKENS}
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    summary = run_mocker_trace_replay([job.trace], **options, **shape).summary
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    share = summary["wall_time_ms"] / 1e3 / wall_s  # its own clock leaves out reading the trace
    return PeerRun(cpu_s * min(share, 1.0), _peak_bytes(), summary["completed_requests"])


def _peak_bytes() -> int:
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))


if __name__ == "__main__":
    _serve(Job(**json.loads(sys.argv[1])))
