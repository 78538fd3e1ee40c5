"""The CUDA side of the micro-benchmark: it sets cases up with PyTorch and times replays of CUDA graphs.

Weights and cached KV come from memory in a real step: all the other layers pass between two uses of one layer's. A case
that used the same ones again and again would be served from the L2 cache instead. So calls take turns over copies that
together are three times as large as L2. Flushing the cache between calls would do the same, but its own writes would
have to be told apart from the call inside a graph, and it would evict the activations too, which a real step has just
written and finds in L2.
"""

from __future__ import annotations

import gc
import math
import subprocess
import time
from collections.abc import Mapping
from importlib import import_module, util
from types import ModuleType
from typing import Any

from framework.errors import InputError
from framework.system.gpu import DTYPE_BYTES
from framework.timing.microbench.all_reduce import ReduceGroups
from framework.timing.microbench.attention import Calls, attention_calls
from framework.timing.microbench.cases import Case
from framework.timing.microbench.device import REASON_LETTERS, OutOfMemoryError, Timed, UnsupportedError
from framework.timing.microbench.options import ATTENTION

_L2_BYTES = 64 * 2**20  # where torch does not tell
_CACHES = 3  # sizes of L2 between two uses of the same weights
_COPIES = 128
_REPLAY_S = 0.005  # so long that starting a graph (some us) does not count
_CALLS = 1024  # in one graph
_FP8_CAPABILITY = (8, 9)
_ROUND_BYTES = 16  # rows of fp8 matrices
_CLOCKS = {"sm": "clocks.sm", "memory": "clocks.mem", "sm_max": "clocks.max.sm", "memory_max": "clocks.max.mem"}


class CudaDevice:
    """The first GPU that torch sees. Raises InputError where torch, a GPU or the attention library is missing."""

    def __init__(self, attention: str = "auto") -> None:
        self._torch = torch = load_torch()
        self._library = _attention_library(attention)
        properties = torch.cuda.get_device_properties(0)
        self._memory_bytes = int(properties.total_memory)
        self._cache_bytes = int(getattr(properties, "L2_cache_size", 0)) or _L2_BYTES
        self._capability = torch.cuda.get_device_capability(0)
        self._uuid = f"GPU-{properties.uuid}" if hasattr(properties, "uuid") else "0"
        self._stream = torch.cuda.Stream()
        self._groups = ReduceGroups(torch)
        self.origin: Mapping[str, str | int | float] = {
            "device": torch.cuda.get_device_name(0),
            "memory_bytes": self._memory_bytes,
            "cache_bytes": self._cache_bytes,
            "capability": ".".join(map(str, self._capability)),
            "gpus": torch.cuda.device_count(),
            "driver": ", ".join(_nvidia_smi(self._uuid, ["driver_version"])),
            "power_limit_w": ", ".join(_nvidia_smi(self._uuid, ["power.limit"])),
            "version": torch.__version__,
            "cuda": str(torch.version.cuda),
            "attention": self._library,
            "attention_version": _version(self._library),
        }

    def clocks_mhz(self) -> Mapping[str, float]:
        """The clocks of SMs and memory in MHz, now and at most; empty without nvidia-smi."""
        values = _nvidia_smi(self._uuid, list(_CLOCKS.values()))
        try:
            return dict(zip(_CLOCKS, map(float, values), strict=True)) if values else {}
        except ValueError:  # "[N/A]": the driver does not tell
            return {}

    def prepare(self, case: Case) -> Timed:
        """Allocate, warm up and capture a case. Raises OutOfMemoryError or UnsupportedError."""
        torch = self._torch
        if torch.cuda.memory_reserved() > self._memory_bytes / 2:
            gc.collect()
            torch.cuda.empty_cache()
        if case.operation == "all_reduce":
            return self._groups.prepare(case)
        try:
            return CapturedGraph(torch, self._stream, self._calls(case))
        except torch.OutOfMemoryError:
            raise OutOfMemoryError from None
        except (RuntimeError, ValueError, TypeError, AssertionError) as error:  # libraries refuse in all these ways
            raise refused(error) from None

    def close(self) -> None:
        """End the processes that join all-reduces."""
        self._groups.close()

    def _calls(self, case: Case) -> Calls:
        if case.operation == "gemm":
            weight_bytes = case.size("n") * case.size("k") * DTYPE_BYTES[case.dtype()]
            if case.dtype() == "fp8" and self._capability < _FP8_CAPABILITY:
                raise UnsupportedError("this GPU does not multiply fp8")
            return gemm_calls(self._torch, case, self._copies(weight_bytes))
        return attention_calls(self._torch, self._library, case, self._copies(case.bytes))

    def _copies(self, read_bytes: float) -> int:
        return min(_COPIES, math.ceil(_CACHES * self._cache_bytes / read_bytes))


class CapturedGraph:
    """Calls captured in a CUDA graph, as many as take at least 5 ms, but at least one."""

    def __init__(self, torch: Any, stream: Any, calls: Calls) -> None:
        self.kernel = calls.kernel
        self._torch, self._stream, self._calls = torch, stream, calls
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        torch.cuda.synchronize()  # the inputs were made on another stream
        with torch.cuda.stream(stream):  # libraries set themselves up on the stream that captures
            eager_s = self._eager_s()
        self._capture(max(1, min(_CALLS, math.ceil(_REPLAY_S / eager_s))))
        replay_s = self._count * self.sample()
        if replay_s < _REPLAY_S / 2 and self._count < _CALLS:  # the CPU had been slower than the GPU
            self._capture(min(_CALLS, math.ceil(self._count * _REPLAY_S / replay_s)))

    def sample(self) -> float:
        """The seconds of one call: those of one replay over the number of calls in it."""
        start, end = self._events
        with self._torch.cuda.stream(self._stream):
            start.record()
            self._graph.replay()
            end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / self._count

    def release(self) -> None:
        """Drop the graph. What the calls hold is freed with this object."""
        self._graph.reset()

    def _eager_s(self) -> float:
        """Seconds of a call outside a graph, the first ones (which compile and choose kernels) apart."""
        for i in range(2):
            self._calls(i)
        self._torch.cuda.synchronize()
        started = time.perf_counter()
        self._calls(2)
        self._torch.cuda.synchronize()
        return time.perf_counter() - started

    def _capture(self, count: int) -> None:
        self._count = count
        self._graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(self._graph, stream=self._stream):
            for i in range(count):
                self._calls(i)


def gemm_calls(torch: Any, case: Case, copies: int, device: str = "cuda") -> Calls:
    """Calls that multiply (m, k) activations and (n, k) weights, in turn over `copies` copies of the weights.

    All are filled with normal noise, as in `PagedCache`. Raises UnsupportedError for sizes that fp8 kernels refuse.
    """
    m, n, k = (case.size(name) for name in ("m", "n", "k"))
    noise = {"dtype": torch.bfloat16, "device": device}
    activations = torch.randn((m, k), **noise)
    weights = [torch.randn((n, k), **noise) for _ in range(copies)]
    if case.dtype() == "bf16":
        out = torch.empty((m, n), **noise)
        return Calls("torch_mm", lambda w: torch.mm(activations, w.t(), out=out), [(w,) for w in weights])
    if n % _ROUND_BYTES or k % _ROUND_BYTES:
        raise UnsupportedError(f"fp8 matrices need sizes that are multiples of {_ROUND_BYTES}")
    one = torch.ones((), dtype=torch.float32, device=device)  # one scale for a whole matrix
    narrow = activations.to(torch.float8_e4m3fn)
    scaled = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16, "use_fast_accum": True}
    inputs = [(w.to(torch.float8_e4m3fn),) for w in weights]
    return Calls("torch_scaled_mm", lambda w: torch._scaled_mm(narrow, w.t(), **scaled), inputs)


def load_torch() -> ModuleType:
    """PyTorch, which sees a GPU. Raises InputError, in one line, without either."""
    try:
        torch = import_module("torch")
    except ImportError as error:
        raise InputError(
            f"the micro-benchmark needs PyTorch with CUDA ({error}): install it beside this project on a machine with"
            " a GPU (pytorch.org), or add list to see what would be measured"
        ) from None
    if not torch.cuda.is_available():
        raise InputError(
            f"PyTorch {torch.__version__} sees no CUDA GPU: run this on a machine with one, or add list to see what"
            " would be measured"
        )
    return torch


def _attention_library(name: str) -> str:
    """The library of that name, for auto the first that is installed."""
    found = [library for library in ATTENTION if util.find_spec(library) is not None]
    if name != "auto" and name not in found:
        raise InputError(f"attention={name}: is not installed; choose one of {', '.join(found)}")
    return found[0] if name == "auto" else name


def _version(library: str) -> str:
    """The version of an attention library; InputError where it does not load."""
    try:
        return str(getattr(import_module(library), "__version__", "unknown"))
    except (ImportError, OSError, RuntimeError) as error:  # built for another torch, say
        raise InputError(f"{library} does not load ({error}); mend it or choose another with attention=") from None


def refused(error: Exception) -> Exception:
    """The exception that an error at set-up amounts to: no memory, an unsupported case, or a fault of the GPU.

    After a fault of the GPU nothing more can be measured, so that it is an InputError.
    """
    text = " ".join(str(error).split())
    if "out of memory" in text:
        return OutOfMemoryError()
    if "CUDA error" in text:  # the context is lost, and with it all further cases
        return InputError(f"the GPU failed: {text[:REASON_LETTERS]}; what was measured is kept, run this again")
    return UnsupportedError(text)


def _nvidia_smi(gpu: str, fields: list[str]) -> list[str]:
    """Values of fields of nvidia-smi, none where it cannot be asked."""
    command = ["nvidia-smi", f"--id={gpu}", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        line = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [value.strip() for value in line.strip().split(",")]
