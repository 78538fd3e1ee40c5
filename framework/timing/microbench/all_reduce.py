"""Times all-reduces over NCCL, with one process for each GPU.

Source for collectives in CUDA graphs: NVIDIA NCCL user guide, "Using NCCL with CUDA Graphs".
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from framework.timing.microbench.cases import Case
from framework.timing.microbench.device import OutOfMemoryError, Timed, UnsupportedError

_BF16_BYTES = 2
_WARM_UP = 3
_ANSWER_S = 180.0  # the first answer waits for NCCL to connect


class ReduceGroups:
    """Groups of processes, one group for each number of GPUs, which start when they are first needed."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._groups: dict[int, Group] = {}

    def prepare(self, case: Case) -> Timed:
        """Prepare an all-reduce on all GPUs of its group. Raises OutOfMemoryError or UnsupportedError."""
        gpus, present = case.size("gpus"), self._torch.cuda.device_count()
        if gpus > present:
            raise UnsupportedError(f"needs {gpus} GPUs, here {'is 1' if present == 1 else f'are {present}'}")
        if gpus not in self._groups:
            self._groups[gpus] = Group(self._torch, gpus)
        return _Reduce(self._groups[gpus], case.size("bytes"))

    def close(self) -> None:
        """End all processes."""
        for group in self._groups.values():
            group.close()
        self._groups.clear()


class _Reduce:
    """One size of message, captured on every GPU of a group."""

    kernel = "nccl"

    def __init__(self, group: Group, message_bytes: int) -> None:
        self._group = group
        group.ask(("prepare", message_bytes))

    def sample(self) -> float:
        """The seconds of one all-reduce: ranks end together, so the shortest time is that of the last one to begin."""
        return min(self._group.ask(("sample", 0)))

    def release(self) -> None:
        """Do nothing: the next message replaces this one."""


class Group:
    """One process for each of `gpus` GPUs, which join one communicator and answer requests together."""

    def __init__(self, torch: Any, gpus: int, backend: str = "nccl") -> None:
        context = import_module("torch.multiprocessing").get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="all_reduce_")
        meeting = Path(self._folder.name) / "meeting"
        self._pipes: list[Connection] = []
        self.processes: list[Any] = []
        for rank in range(gpus):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(rank, gpus, str(meeting), theirs, backend), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self.processes.append(process)
        self._broken = ""

    def ask(self, request: tuple[str, int]) -> list[float]:
        """Send all processes a request (what to do, bytes of the message) and collect their answers, in seconds.

        Raises OutOfMemoryError or UnsupportedError; a group that failed once does not answer again.
        """
        if self._broken:
            raise UnsupportedError(self._broken)
        answers: list[float | str] = []
        try:
            for pipe in self._pipes:
                pipe.send(request)
            due = time.monotonic() + _ANSWER_S
            for pipe in self._pipes:
                if not pipe.poll(max(0.0, due - time.monotonic())):
                    raise TimeoutError(f"no answer within {_ANSWER_S:.0f} s")
                answers.append(pipe.recv())
        except (OSError, EOFError) as error:
            self._broken = f"the processes ended ({type(error).__name__} {error})"
            self.close()
            raise UnsupportedError(self._broken) from None
        for text in (answer for answer in answers if isinstance(answer, str)):
            raise OutOfMemoryError if "out of memory" in text else UnsupportedError(text)
        return [answer for answer in answers if isinstance(answer, float)]

    def close(self) -> None:
        """End the processes, by force after a while."""
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send(("end", 0))
        for process in self.processes:
            process.join(timeout=10)
            if process.is_alive():
                process.terminate()
        for pipe in self._pipes:
            pipe.close()
        self._folder.cleanup()


def serve(rank: int, gpus: int, meeting: str, pipe: Connection, backend: str) -> None:
    """Run the process `rank` of a group: answer requests with seconds or the text of an error, until asked to end."""
    torch, distributed = import_module("torch"), import_module("torch.distributed")
    ready: Any = None
    while True:
        try:
            request, message_bytes = pipe.recv()
        except EOFError:  # the other side has ended
            break
        if request == "end":
            break
        try:
            if not distributed.is_initialized():
                if backend == "nccl":
                    torch.cuda.set_device(rank)
                distributed.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=gpus)
            if request == "prepare":
                ready = None
                ready = (_captured if backend == "nccl" else _eager)(torch, distributed, message_bytes)
                pipe.send(0.0)
            else:
                distributed.barrier()
                pipe.send(ready())
        except Exception as error:  # the other side must receive any error
            pipe.send(" ".join(f"{type(error).__name__}: {error}".split()))
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _captured(torch: Any, distributed: Any, message_bytes: int) -> Any:
    """A function that replays a graph of all-reduces and returns the seconds of one."""
    message = torch.zeros(message_bytes // _BF16_BYTES, dtype=torch.bfloat16, device="cuda")
    for _ in range(_WARM_UP):
        distributed.all_reduce(message)
    torch.cuda.synchronize()
    # The same number on all ranks, so it must not come from a measurement.
    count = 200 if message_bytes <= 2**20 else 40 if message_bytes <= 2**26 else 5
    graph = torch.cuda.CUDAGraph()
    # The library's watchdog thread polls events; a capture of all threads would include its calls.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(count):
            distributed.all_reduce(message)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def replay() -> float:
        torch.cuda.synchronize()
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / count

    return replay


def _eager(torch: Any, distributed: Any, message_bytes: int) -> Any:
    """An all-reduce without a GPU, to check everything around it."""
    message = torch.zeros(message_bytes // _BF16_BYTES, dtype=torch.bfloat16)

    def reduce() -> float:
        started = time.perf_counter()
        distributed.all_reduce(message)
        return time.perf_counter() - started

    return reduce
