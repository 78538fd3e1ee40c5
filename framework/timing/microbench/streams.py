"""Two concurrent CUDA streams, on all multiprocessors or on parts of them, and the time of launches.

Parts are green contexts of the CUDA driver (CUDA Programming Guide, "Green Contexts"): a stream of one runs its kernels
on the multiprocessors assigned to it.
"""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

from framework.timing.microbench.cases import Case
from framework.timing.microbench.device import UnsupportedError
from framework.timing.microbench.graphs import CapturedGraph
from framework.timing.microbench.steps import WHOLE

_STEP = 8  # multiprocessors by which parts differ, on GPUs since Hopper
_MOST_REPLAYS = 4096  # most replays of the other stream with one of the measured stream
_WARM_UP = 20  # launches


class Parts:
    """Streams by the measured stream's percent of the multiprocessors."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._known: dict[int, tuple[Any, Any, str]] = {}
        self._contexts: list[Any] = []  # contexts, which end with this object's process

    def streams(self, percent: int) -> tuple[Any, Any, str]:
        """The measured stream, the other one, and the multiprocessors of the first. Raises UnsupportedError without
        parts.
        """
        if percent not in self._known:
            self._known[percent] = self._whole() if percent == WHOLE else self._split(percent)
        return self._known[percent]

    def _whole(self) -> tuple[Any, Any, str]:
        return self._torch.cuda.Stream(), self._torch.cuda.Stream(), "all multiprocessors"

    def _split(self, percent: int) -> tuple[Any, Any, str]:
        try:
            driver = import_module("cuda.bindings.driver")
        except ImportError:
            raise UnsupportedError("parts of the multiprocessors need the package cuda-bindings") from None
        device = _done(driver.cuDeviceGet(self._torch.cuda.current_device()))
        kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        whole = _done(driver.cuDeviceGetDevResource(device, kind))
        count = max(1, round(percent / WHOLE * whole.sm.smCount / _STEP)) * _STEP
        groups, _, rest = _done(driver.cuDevSmResourceSplitByCount(1, whole, 0, count))
        streams = [self._stream(driver, device, part) for part in (groups[0], rest)]
        return streams[0], streams[1], f"{groups[0].sm.smCount} of {whole.sm.smCount} multiprocessors"

    def _stream(self, driver: Any, device: Any, part: Any) -> Any:
        description = _done(driver.cuDevResourceGenerateDesc([part], 1))
        flags = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
        context = _done(driver.cuGreenCtxCreate(description, device, flags))
        self._contexts.append(context)
        stream = _done(driver.cuGreenCtxStreamCreate(context, driver.CUstream_flags.CU_STREAM_NON_BLOCKING, 0))
        return self._torch.cuda.ExternalStream(int(stream))


class Concurrent:
    """A graph timed while another stream replays its own without a pause, from before the graph until after it."""

    def __init__(self, torch: Any, measured: CapturedGraph, other: CapturedGraph) -> None:
        self.kernel = measured.kernel
        self._torch, self._measured, self._other = torch, measured, other
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        self._replays = 2

    def sample(self) -> float:
        """The seconds of one call. Raises UnsupportedError if the other stream never lasts long enough."""
        while self._replays <= _MOST_REPLAYS:
            seconds, longer = self._both()
            if longer:
                return seconds
            self._replays *= 2
        raise UnsupportedError("the other stream ends before the measured one")

    def release(self) -> None:
        """Drop both graphs."""
        self._measured.release()
        self._other.release()

    def _both(self) -> tuple[float, bool]:
        """The seconds of one call, and whether the other stream ran longer than the measured one."""
        begun, start, end, last = self._events
        mine, its = self._measured.stream, self._other.stream
        self._other.replay()
        begun.record(its)
        self._other.replay()
        mine.wait_event(begun)
        start.record(mine)
        self._measured.replay()
        end.record(mine)
        for _ in range(self._replays - 1):
            self._other.replay()
        last.record(its)
        self._torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / self._measured.count, end.elapsed_time(last) > 0


class Launches:
    """Launches of the smallest kernel in one of the modes that framework.timing.microbench.steps describes."""

    kernel = "spin of 0 cycles"

    def __init__(self, torch: Any, stream: Any, case: Case) -> None:
        self._torch, self._stream = torch, stream
        self._mode, self._kernels = case.dtype("mode"), case.size("kernels")
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                torch.cuda._sleep(0)
        torch.cuda.synchronize()
        with torch.cuda.graph(self._graph, stream=stream):
            for _ in range(self._kernels):
                torch.cuda._sleep(0)

    def sample(self) -> float:
        """The seconds of one kernel, or of one launch of a graph."""
        sample = {"eager": self._eager_s, "graph": self._graph_s, "replay": self._replay_s}[self._mode]
        with self._torch.cuda.stream(self._stream):
            return sample()

    def release(self) -> None:
        """Drop the graph."""
        self._graph.reset()

    def _eager_s(self) -> float:
        self._torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(self._kernels):
            self._torch.cuda._sleep(0)
        self._torch.cuda.synchronize()
        return (time.perf_counter() - started) / self._kernels

    def _graph_s(self) -> float:
        start, end = self._events
        start.record()
        self._graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / self._kernels

    def _replay_s(self) -> float:
        self._torch.cuda.synchronize()
        started = time.perf_counter()
        self._graph.replay()
        passed_s = time.perf_counter() - started
        self._torch.cuda.synchronize()
        return passed_s


def _done(answer: tuple[Any, ...]) -> Any:
    """The result of a driver call. Raises UnsupportedError for an error."""
    error, *values = answer
    if int(error) != 0:
        raise UnsupportedError(f"the driver splits no multiprocessors ({error})")
    return values[0] if len(values) == 1 else values
