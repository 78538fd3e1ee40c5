"""The micro-benchmark of steps: layers, two streams, launches, on a GPU whose streams are two clocks."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from framework.system.model import Model
from framework.timing.microbench import cuda as measure_cuda
from framework.timing.microbench.attention import Calls
from framework.timing.microbench.cases import LAUNCH, LAYER, MIXED, STREAMS, Case
from framework.timing.microbench.device import UnsupportedError
from framework.timing.microbench.graphs import CapturedGraph
from framework.timing.microbench.steps import step_cases
from framework.timing.microbench.streams import Concurrent, Launches, Parts
from tests.helpers.parts import load

LLAMA: Model = load("model", "llama3_8b")
CASES = step_cases([LLAMA], [1])


def of(operation: str, **sizes: int | str) -> list[Case]:
    return [case for case in CASES if case.operation == operation and sizes.items() <= dict(case.key).items()]


def test_a_layer_is_its_products_and_its_attention() -> None:
    (layer,) = of(LAYER, tokens=512, prefix=4096, decodes=64, context=1024)
    *products, attention = layer.parts
    assert [(part.size("m"), part.size("n"), part.size("k")) for part in products] == [
        *((576, 6144, 4096), (576, 4096, 4096), (576, 28672, 4096), (576, 4096, 14336))
    ]
    assert attention.operation == MIXED
    assert attention.flops == 4 * 32 * 128 * (512 * 4608 - 512**2 / 2 + 64 * 1023.5)
    assert layer.flops == sum(part.flops for part in layer.parts)
    assert of(LAYER, tokens=131072)[0].parts[-1].operation == "prefill_attention"
    assert of(LAYER, tokens=0, decodes=64)[0].parts[-1].operation == "decode_attention"


def test_streams_have_the_measured_layer_first() -> None:
    for case in of(STREAMS):
        first = case.parts[0]
        assert (first.size("tokens") > 0) == (case.dtype("stream") == "prefill")
        assert sum(part.size("tokens") for part in case.parts) == case.size("tokens")
        assert sum(part.size("decodes") for part in case.parts) == case.size("decodes")
        assert len(case.parts) == 1 + (case.size("tokens") > 0 < case.size("decodes"))
    assert {case.size("percent") for case in of(STREAMS) if case.round == 2} == {100}
    joint = {case.size("percent") for case in of(STREAMS) if len(case.parts) == 2}
    alone = {case.size("percent") for case in of(STREAMS) if len(case.parts) == 1}
    assert joint < alone


def test_models_without_such_layers_have_launches_alone() -> None:
    assert {case.operation for case in step_cases([load("model", "mixtral_8x7b")], [1])} == {LAUNCH}
    short: Model = load("model", "llama2_7b")
    longest = [max(c.size("tokens") + c.size("prefix"), c.size("context")) for c in step_cases([short], [1])]
    assert max(longest) <= short.max_context


# --- two clocks


@dataclass
class FakeStream:
    """`now` is when what was launched in it will have ended; `slow` is how many times as long a call takes."""

    now: float = 0.0
    slow: float = 1.0

    def wait_event(self, event: Event) -> None:
        self.now = max(self.now, event.at)


@dataclass
class Event:
    torch: TwoClocks
    at: float = 0.0

    def record(self, stream: FakeStream | None = None) -> None:
        self.at = (stream or self.torch.current).now

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return 1e3 * (end.at - self.at)


@dataclass
class Graph:
    torch: TwoClocks
    seconds: float = 0.0

    def replay(self) -> None:
        self.torch.current.now += self.seconds * self.torch.current.slow
        self.torch.host_s += self.torch.launch_s

    def reset(self) -> None:
        self.seconds = 0.0


@dataclass
class TwoClocks:
    """Stands for torch: each stream has a clock of its own."""

    launch_s: float = 0.0
    host_s: float = 0.0
    current: FakeStream = field(default_factory=FakeStream)
    capturing: Graph | None = None

    @property
    def cuda(self) -> TwoClocks:
        return self

    def spend(self, seconds: float) -> None:
        if self.capturing is None:
            self.current.now += seconds
            self.host_s += max(seconds, self.launch_s)
        else:
            self.capturing.seconds += seconds

    def _sleep(self, cycles: int) -> None:
        self.spend(1e-6)

    def synchronize(self) -> None:
        pass

    def current_device(self) -> int:
        return 0

    def ExternalStream(self, handle: int) -> tuple[str, int]:  # noqa: N802
        return "external", handle

    def Stream(self) -> FakeStream:  # noqa: N802
        return FakeStream()

    @contextlib.contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def Event(self, enable_timing: bool) -> Event:  # noqa: N802
        return Event(self)

    def CUDAGraph(self) -> Graph:  # noqa: N802
        return Graph(self)

    @contextlib.contextmanager
    def graph(self, graph: Graph, stream: FakeStream) -> Iterator[None]:
        self.capturing = graph
        yield
        self.capturing = None


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> TwoClocks:
    clocks = TwoClocks()
    monkeypatch.setattr("time.perf_counter", lambda: clocks.host_s)
    return clocks


def captured(torch: TwoClocks, seconds: float, slow: float = 1.0) -> CapturedGraph:
    graph = CapturedGraph(torch, FakeStream(), Calls("kernel", lambda turn: torch.spend(seconds), [(0,)]))
    graph.stream.slow = slow
    return graph


@pytest.mark.parametrize("other_s", [1e-4, 2e-3, 5e-2])
def test_a_stream_is_timed_while_the_other_runs(torch: TwoClocks, other_s: float) -> None:
    """It takes as long as it is slowed down, and the other one runs until after its end, however short it is."""
    measured, other = captured(torch, 1e-3, slow=4.0), captured(torch, other_s)
    joint = Concurrent(torch, measured, other)
    for _ in range(3):
        before = other.stream.now
        assert joint.sample() == pytest.approx(4e-3)
        assert before < measured.stream.now < other.stream.now
    assert joint.kernel == "kernel"


def test_a_stream_that_cannot_be_kept_busy_is_unsupported(torch: TwoClocks) -> None:
    joint = Concurrent(torch, captured(torch, 1.0), captured(torch, 1e-3, slow=1e-6))
    with pytest.raises(UnsupportedError, match="the other stream ends"):
        joint.sample()


@pytest.mark.parametrize(
    ("mode", "kernels", "seconds"), [("eager", 50, 4e-6), ("graph", 16, 1e-6), ("replay", 16, 4e-6)]
)
def test_launches(torch: TwoClocks, mode: str, kernels: int, seconds: float) -> None:
    torch.launch_s = 4e-6
    case = Case(LAUNCH, (("mode", mode), ("kernels", kernels)), 0, 0.0, 1.0)
    assert Launches(torch, FakeStream(), case).sample() == pytest.approx(seconds)


class Driver:
    """Stands for cuda.bindings.driver on a GPU of 132 multiprocessors."""

    CUdevResourceType = SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM=1)
    CUgreenCtxCreate_flags = SimpleNamespace(CU_GREEN_CTX_DEFAULT_STREAM=1)
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)

    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.counts: list[int] = []

    def __getattr__(self, name: str) -> Callable[..., tuple[Any, ...]]:
        def call(*arguments: Any) -> tuple[Any, ...]:
            if name == "cuDevSmResourceSplitByCount":
                whole, count = arguments[1], arguments[3]
                rest = SimpleNamespace(sm=SimpleNamespace(smCount=whole.sm.smCount - count))
                return self.error, [SimpleNamespace(sm=SimpleNamespace(smCount=count))], 1, rest
            if name == "cuDevResourceGenerateDesc":
                return 0, arguments[0][0].sm.smCount
            if name == "cuDeviceGetDevResource":
                return 0, SimpleNamespace(sm=SimpleNamespace(smCount=132))
            return 0, arguments[0]

        return call


@pytest.mark.parametrize(("percent", "count"), [(25, 32), (50, 64), (75, 96), (12, 16), (1, 8)])
def test_parts_of_the_multiprocessors(
    torch: TwoClocks, monkeypatch: pytest.MonkeyPatch, percent: int, count: int
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", Driver())
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(driver=Driver()))
    parts = Parts(torch)
    assert parts.streams(percent) == (
        *(("external", count), ("external", 132 - count), f"{count} of 132 multiprocessors"),
    )
    assert parts.streams(percent) is parts.streams(percent)


def test_a_driver_that_splits_nothing_is_unsupported(torch: TwoClocks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", Driver(error=801))
    with pytest.raises(UnsupportedError, match="801"):
        Parts(torch).streams(50)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with pytest.raises(UnsupportedError, match="cuda-bindings"):
        Parts(torch).streams(50)
    assert Parts(torch).streams(100)[2] == "all multiprocessors"


def test_the_parts_of_a_layer_take_turns_over_their_copies() -> None:
    seen: list[tuple[str, int]] = []
    parts = [Calls(name, lambda i, name=name: seen.append((name, i)), [(0,), (1,)]) for name in ("mm", "attend")]
    calls = measure_cuda.layer_calls([parts[0], *parts])
    assert calls.kernel == "mm + attend"
    for turn in range(3):
        calls(turn)
    assert seen == [("mm", 0), ("mm", 0), ("attend", 0), ("mm", 1), ("mm", 1), ("attend", 1), *seen[:3]]


def test_elementwise_kernels_move_their_bytes() -> None:
    torch = pytest.importorskip("torch")
    case = Case("elementwise", (("bytes", 4096),), 0, 0.0, 4096.0)
    out: Any = measure_cuda.elementwise_calls(torch, case, "cpu")(0)
    assert 2 * out.numel() * out.element_size() == 4096
