"""Kernel calls in a CUDA graph, as servers replay them."""

from __future__ import annotations

import math
import time
from typing import Any

from framework.timing.microbench.attention import Calls

_REPLAY_S = 0.005  # seconds of a replay: enough to hide the start of a graph (some us)
_CALLS = 1024  # calls in one graph


class CapturedGraph:
    """Calls captured in a CUDA graph: enough to take at least 5 ms, and at least one."""

    def __init__(self, torch: Any, stream: Any, calls: Calls) -> None:
        self.kernel = calls.kernel
        self._torch, self.stream, self._calls = torch, stream, calls
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        torch.cuda.synchronize()  # the inputs were made on another stream
        with torch.cuda.stream(stream):  # libraries set themselves up on the stream that captures
            eager_s = self._eager_s()
        self._capture(max(1, min(_CALLS, math.ceil(_REPLAY_S / eager_s))))
        replay_s = self.count * self.sample()
        if replay_s < _REPLAY_S / 2 and self.count < _CALLS:  # the CPU was slower than the GPU
            self._capture(min(_CALLS, math.ceil(self.count * _REPLAY_S / replay_s)))

    def sample(self) -> float:
        """The seconds of one call: those of one replay over the number of calls in it."""
        start, end = self._events
        with self._torch.cuda.stream(self.stream):
            start.record()
            self._graph.replay()
            end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / self.count

    def replay(self) -> None:
        """Launch the graph in its stream, which holds `count` calls."""
        with self._torch.cuda.stream(self.stream):
            self._graph.replay()

    def release(self) -> None:
        """Drop the graph. What the calls hold is freed with this object."""
        self._graph.reset()

    def _eager_s(self) -> float:
        """Seconds of a call outside a graph, without the first ones (which compile and choose kernels)."""
        for i in range(2):
            self._calls(i)
        self._torch.cuda.synchronize()
        started = time.perf_counter()
        self._calls(2)
        self._torch.cuda.synchronize()
        return time.perf_counter() - started

    def _capture(self, count: int) -> None:
        self.count = count
        self._graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(self._graph, stream=self.stream):
            for i in range(count):
                self._calls(i)
