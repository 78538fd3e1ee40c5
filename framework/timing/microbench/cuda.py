"""The CUDA side of the micro-benchmark: it prepares cases with PyTorch and times replays of CUDA graphs.

Weights and cached KV come from memory in a real step: all other layers pass between two uses of one layer's. A case
that reused the same ones would find them in the L2 cache. So calls take turns over copies that together are three times
as large as L2. Flushing the cache between calls would do the same, but its own writes would have to be distinguished
from the call inside a graph, and it would evict the activations too, which a real step has just written and finds in
L2.
"""

from __future__ import annotations

import gc
import math
import subprocess
from collections.abc import Mapping, Sequence
from importlib import import_module, util
from types import ModuleType
from typing import Any

from framework.errors import InputError
from framework.system.gpu import DTYPE_BYTES
from framework.timing.microbench.all_reduce import ReduceGroups
from framework.timing.microbench.attention import Calls, attention_calls
from framework.timing.microbench.cases import LAUNCH, LAYER, STREAMS, Case
from framework.timing.microbench.device import REASON_LETTERS, OutOfMemoryError, Timed, UnsupportedError
from framework.timing.microbench.graphs import CapturedGraph
from framework.timing.microbench.options import ATTENTION
from framework.timing.microbench.streams import Concurrent, Launches, Parts

_L2_BYTES = 64 * 2**20  # bytes of the L2 cache if torch does not state it
_CACHES = 3  # sizes of L2 between two uses of the same weights
_COPIES = 128
_FP8_CAPABILITY = (8, 9)
_ROUND_BYTES = 16  # rows of fp8 matrices
_CLOCKS = {"sm": "clocks.sm", "memory": "clocks.mem", "sm_max": "clocks.max.sm", "memory_max": "clocks.max.mem"}


class CudaDevice:
    """The first GPU that torch sees. Raises InputError if torch, a GPU or the attention library is missing."""

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
        self._parts = Parts(torch)
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
        """The present and the highest clocks of SMs and memory in MHz; empty without nvidia-smi."""
        values = _nvidia_smi(self._uuid, list(_CLOCKS.values()))
        try:
            return dict(zip(_CLOCKS, map(float, values), strict=True)) if values else {}
        except ValueError:  # "[N/A]": the driver does not state it
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
            if case.operation == LAUNCH:
                return Launches(torch, self._stream, case)
            if case.operation == STREAMS:
                return self._streams(case)
            return CapturedGraph(torch, self._stream, self._calls(case))
        except torch.OutOfMemoryError:
            raise OutOfMemoryError from None
        except (RuntimeError, ValueError, TypeError, AssertionError) as error:  # libraries refuse in all these ways
            raise refused(error) from None

    def close(self) -> None:
        """End the processes of all-reduces."""
        self._groups.close()

    def _streams(self, case: Case) -> Timed:
        *streams, had = self._parts.streams(case.size("percent"))
        graphs = [
            CapturedGraph(self._torch, stream, self._calls(part))
            for part, stream in zip(case.parts, streams, strict=False)
        ]
        graphs[0].kernel = f"{graphs[0].kernel}, {had}"
        return graphs[0] if len(graphs) == 1 else Concurrent(self._torch, graphs[0], graphs[1])

    def _calls(self, case: Case) -> Calls:
        if case.operation == LAYER:
            return layer_calls([self._part_calls(part, self._copies(case)) for part in case.parts])
        if case.operation == "elementwise":
            return elementwise_calls(self._torch, case)
        return self._part_calls(case, self._copies(case))

    def _part_calls(self, case: Case, copies: int) -> Calls:
        if case.operation == "gemm":
            if case.dtype() == "fp8" and self._capability < _FP8_CAPABILITY:
                raise UnsupportedError("this GPU does not multiply fp8")
            return gemm_calls(self._torch, case, copies)
        return attention_calls(self._torch, self._library, case, copies)

    def _copies(self, case: Case) -> int:
        weights = case.operation == "gemm"
        read_bytes = case.size("n") * case.size("k") * DTYPE_BYTES[case.dtype()] if weights else case.bytes
        return min(_COPIES, math.ceil(_CACHES * self._cache_bytes / read_bytes))


def layer_calls(parts: Sequence[Calls]) -> Calls:
    """Calls of all parts of a layer in turn."""
    kernel = " + ".join(dict.fromkeys(part.kernel for part in parts))
    return Calls(kernel, lambda turn: [part(turn) for part in parts], [(turn,) for turn in range(len(parts[0].inputs))])


def elementwise_calls(torch: Any, case: Case, device: str = "cuda") -> Calls:
    """Calls that negate bf16 numbers which are in the cache, as the kernel before left them."""
    numbers = torch.randn(case.size("bytes") // 4, dtype=torch.bfloat16, device=device)
    out = torch.empty_like(numbers)
    return Calls("torch_neg", lambda: torch.neg(numbers, out=out), [()])


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
    """PyTorch with a GPU. Raises InputError, in one line, if either is missing."""
    try:
        torch = import_module("torch")
    except ImportError as error:
        raise InputError(
            f"the micro-benchmark needs PyTorch with CUDA ({error}): install it with this project on a machine with"
            " a GPU (pytorch.org), or add list to see what would be measured"
        ) from None
    if not torch.cuda.is_available():
        raise InputError(
            f"PyTorch {torch.__version__} sees no CUDA GPU: run this on a machine with one, or add list to see what"
            " would be measured"
        )
    return torch


def _attention_library(name: str) -> str:
    """The attention library of that name; for auto, the first that is installed."""
    found = [library for library in ATTENTION if util.find_spec(library) is not None]
    if name != "auto" and name not in found:
        raise InputError(f"attention={name}: is not installed; choose one of {', '.join(found)}")
    return found[0] if name == "auto" else name


def _version(library: str) -> str:
    """The version of an attention library. Raises InputError if it does not load."""
    try:
        return str(getattr(import_module(library), "__version__", "unknown"))
    except (ImportError, OSError, RuntimeError) as error:  # for example, built for another torch
        raise InputError(f"{library} does not load ({error}); fix it or choose another with attention=") from None


def refused(error: Exception) -> Exception:
    """The exception for an error during preparation: no memory, an unsupported case, or a fault of the GPU.

    After a fault of the GPU nothing more can be measured, so it is an InputError.
    """
    text = " ".join(str(error).split())
    if "out of memory" in text:
        return OutOfMemoryError()
    if "CUDA error" in text:  # the context is lost, and with it all further cases
        return InputError(f"the GPU failed: {text[:REASON_LETTERS]}; what was measured is kept, run this again")
    return UnsupportedError(text)


def _nvidia_smi(gpu: str, fields: list[str]) -> list[str]:
    """Values of fields of nvidia-smi, none if it cannot be asked."""
    command = ["nvidia-smi", f"--id={gpu}", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        line = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [value.strip() for value in line.strip().split(",")]
