"""Every reader of files that a user may give, small files that it reads, and hostile cases made of them."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.tune.space_file import read_space
from framework.calibration.benchmark_files import read_benchmark
from framework.run.store import Store
from framework.system.gpu import Gpu
from framework.timing.calibration_terms import read_calibrations
from framework.timing.kernels.read_csv import load_csv
from framework.timing.kernels.read_vidur import load_vidur
from framework.timing.shipped.profile_files import read_profile, shipped_directory
from framework.workload import Workload
from tests.hostile.damage import Damaged, damaged_bytes, damaged_csv, damaged_json, given
from tests.hostile.outcomes import NonsenseError
from traces.fitted.fitted_trace import FittedTrace
from traces.frame import to_workload
from traces.load import from_file, load

_LONGEST_S = 1e10  # three centuries
_GPU = Gpu(
    name="h100",
    peak_flops={"bf16": 989e12, "fp8": 1979e12},
    memory_bytes=80e9,
    bandwidth_bytes_s=3.35e12,
    link_bytes_s=450e9,
    pcie_bytes_s=64e9,
    nic_bytes_s=50e9,
    tdp_w=700.0,
    idle_w=70.0,
    usd_per_hour=3.0,
)


@dataclass(frozen=True)
class Reader:
    """A reader of one file (`read`), and how its damaged files are made from good ones (`damages`)."""

    file: str
    read: Callable[[Path], object]
    damages: Callable[[], Iterator[Damaged]]

    def play(self, folder: Path, content: bytes) -> None:
        """Read `content` as a file of its own."""
        path = folder / self.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        self.read(path)


@dataclass(frozen=True)
class Case:
    """One hostile file for one reader."""

    reader: str
    damage: Damaged

    def __str__(self) -> str:
        return f"{self.reader}: {self.damage.name}"


def cases(reader: str) -> list[Case]:
    """All cases of a reader."""
    return [Case(reader, damage) for damage in READERS[reader].damages()]


def some(each: int, seed: int = 0) -> list[Case]:
    """At most `each` cases of each reader, drawn."""
    rng = random.Random(seed)
    found: list[Case] = []
    for name in READERS:
        own = cases(name)
        found += rng.sample(own, min(each, len(own)))
    return found


# --- what is read, and whether what came out can be -------------------------------------------------------------------


def sane(workload: Workload) -> None:
    """Raise NonsenseError for requests that no file can mean."""
    for name in ("input_tokens", "output_tokens"):
        tokens = getattr(workload, name)
        if tokens.min() < 1 or tokens.max() > 10**9:
            raise NonsenseError(f"{name} from {tokens.min()} to {tokens.max()}")
    if not np.isfinite(workload.arrival_s).all() or workload.arrival_s[-1] > _LONGEST_S:
        raise NonsenseError(f"the last request arrives at {workload.arrival_s[-1]} s")


def _trace(path: Path, format_name: str | None = None) -> None:
    sane(to_workload(from_file(str(path), format_name)))


def _columns(path: Path, **columns: str) -> None:
    sane(load(path=str(path), columns=columns, block_tokens=512 if "hash_ids" in columns else None))


def _twin(path: Path) -> None:
    fitted = FittedTrace.load(path)
    sane(to_workload(fitted.sample(min(fitted.requests, 300))))


def _store(path: Path) -> None:
    store = Store(path.parents[1])
    for record in (*store.read(), store.get(path.stem)):
        if record is None or not isinstance(record.version, str):
            raise NonsenseError(f"a record that is none: {record!r}")


# --- small files that are good ----------------------------------------------------------------------------------------

_MOONCAKE = [
    {"timestamp": 1000 * k, "input_length": 700 + k, "output_length": 9, "hash_ids": [0, k + 1]} for k in range(4)
]
_BAILIAN = [
    {
        "chat_id": k,
        "parent_chat_id": -1,
        "timestamp": float(k),
        "input_length": 20 + k,
        "output_length": 9,
        "type": "text",
        "turn": 1,
        "hash_ids": [5, k + 7],
    }
    for k in range(4)
]
_AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:4{k}.6805900,{374 + k},{44 + k}\n" for k in range(4)
)
_BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n" + "".join(
    f"{5 * k},ChatGPT,{472 + k},18,{490 + k},Conversation log\n" for k in range(4)
)
_VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n" + "".join(
    f"{0.5 * k},{100 + k},{7 + k}\n" for k in range(4)
)
_BENCHMARK = {
    "model_id": "some/model",
    "request_rate": 2.0,
    "burstiness": 1.0,
    "max_concurrency": 8,
    "duration": 10.0,
    "input_lens": [10, 20, 30],
    "output_lens": [3, 2, 1],
    "ttfts": [0.1, 0.2, 0.3],
    "itls": [[0.01, 0.02], [0.01], []],
    "errors": ["", "", ""],
    "start_times": [5.0, 6.0, 7.0],
}
_BENCHMARK_ROWS = [
    {"input_tokens": 10 + k, "output_tokens": 3, "ttft_s": 0.1, "tpot_s": 0.02, "start_s": 0.5 * k, "hash_ids": [0, k]}
    for k in range(4)
]
_BENCHMARK_CSV = "input_tokens,output_tokens,ttft_s,e2e_s,start_s,error\n" + "".join(
    f"{10 + k},{3 + k},0.1,{0.2 + k},{k},\n" for k in range(4)
)
_AIPERF = [
    {
        "metadata": {
            "request_start_ns": 10**18 + k * 10**9,
            "request_end_ns": 10**18 + k * 10**9 + 5 * 10**8,
            "benchmark_phase": "profiling",
            "conversation_id": "a",
            "was_cancelled": False,
        },
        "metrics": {"input_sequence_length": {"value": 10 + k}, "output_sequence_length": {"value": 5}},
        "error": None,
    }
    for k in range(4)
]
_OPENAI = [
    {"response": {"body": {"created": 1_700_000_000 + k, "usage": {"prompt_tokens": 9, "completion_tokens": 4}}}}
    for k in range(4)
]
_NESTED = [{"at": f"2024-05-0{k + 1}T10:00:00Z", "usage": {"in": 9 + k, "out": 4}, "turn": 0} for k in range(4)]
_OWN = "time,prompt,answer,session_id,turn,think_s,priority,hash_ids,slo_class\n" + "".join(
    f"{500 * k},{100 + k},{7 + k},1,{k},0.5,0,,a\n" for k in range(4)
)
_RECORD = {
    "key": "0123456789abcdef",
    "config": {"seed": 0, "trace.limit": 20},
    "choices": {"policy": "chunked"},
    "summary": {"goodput_rps": 1.0, "versions": {"servelab": "0.2.0"}},
    "value": 1.0,
}
_KERNELS = "op,dtype,m,n,k,latency_us,kernel\n" + "".join(
    f"gemm,bf16,{m},4096,4096,{14.8 + m / 16},k\n" for m in (16, 32, 64, 128)
)
_VIDUR_PROFILE = "num_workers,size,devices_per_node,time_stats.all_reduce.median\n" + "".join(
    f"2,{size},8,{0.02 + size * 1e-8}\n" for size in (1024, 65536, 1048576)
)
_SPACE = """space: 1
gpus: 8
search:
  cluster.prefill: {low: 1, high: gpus - 1}
  engine.token_budget: {powers_of_two: [256, 4096]}
set:
  cluster.decode: gpus - cluster.prefill
require: [cluster.prefill < gpus]
start: [{cluster.prefill: "4"}]
""".replace("space: 1\n", "")


def _lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[Damaged]:
    """JSON lines of which the second is damaged."""
    first, second, *rest = rows
    before, after = (b"".join(json.dumps(row).encode() + b"\n" for row in part) for part in ([first], rest))
    for damage in damaged_json(second):
        yield Damaged(damage.name, partial(_between, before, damage, after))
    yield from damaged_bytes(before + json.dumps(second).encode() + b"\n" + after, seed=1)


def _between(before: bytes, damage: Damaged, after: bytes) -> bytes:
    return before + damage.content + b"\n" + after


def _document(document: Any, entries: int = 2) -> Iterator[Damaged]:
    yield from damaged_json(document, entries)
    yield from damaged_bytes(json.dumps(document).encode(), seed=2)


def _table(text: str) -> Iterator[Damaged]:
    yield from damaged_csv(text)
    yield from damaged_bytes(text.encode(), seed=3)


def _text(text: str) -> Iterator[Damaged]:
    """A YAML: bytes, aliases, tags, and each scalar replaced."""
    yield from damaged_bytes(text.encode(), seed=4)
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for name, before in zip("bcdefghi", "abcdefgh", strict=True):
        bomb += f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n"
    yield given("aliases", (bomb + text).encode())
    yield given("an alias of itself", b"a: &a [*a]\n" + text.encode())
    yield given("a tag", b"a: !!python/object/apply:os.getcwd []\n" + text.encode())
    yield given("deep", b"a: " + b"[" * 20_000 + b"]" * 20_000)
    for line_number, line in enumerate(text.splitlines()):
        key, colon, _ = line.partition(": ")
        if colon:
            for hostile in (
                "null",
                "[]",
                "{}",
                "'text'",
                ".nan",
                ".inf",
                "-1",
                "1e30",
                "'1 +'",
                "'__import__(\"os\")'",
            ):
                lines = text.splitlines()
                lines[line_number] = f"{key}: {hostile}"
                yield given(f"{key.strip()}: {hostile}", "\n".join(lines).encode())


def _small_twin() -> Any:
    """The shipped fitted trace with prefixes, its tables cut to a few entries where that leaves it whole."""
    path = Path(__file__).resolve().parents[2] / "traces" / "twins" / "mooncake.json"
    fitted = json.loads(path.read_text())
    arrivals, windows = fitted["arrivals"], 3
    for table, name in ((arrivals, "cells"), (arrivals, "counts"), (fitted["lengths"], "drift")):
        table[name] = table[name][:windows]
    return fitted | {"requests": sum(arrivals["counts"])}


def _profile() -> Any:
    path = shipped_directory() / "h100" / "vllm" / "opt_13b.json.gz"
    content = json.loads(gzip.decompress(path.read_bytes()))
    return content | {"entries": content["entries"][:1]}


def _packed(document: Any) -> Iterator[Damaged]:
    for damage in damaged_json(document, entries=1):
        yield Damaged(damage.name, partial(_gzip, damage))
    yield from damaged_bytes(gzip.compress(json.dumps(document).encode(), mtime=0), seed=5)


def _gzip(damage: Damaged) -> bytes:
    return gzip.compress(damage.content, compresslevel=1, mtime=0)


def _calibrations() -> Any:
    content = json.loads((shipped_directory() / "h100" / "vllm" / "calibration.json").read_text())
    return content | {"entries": content["entries"][:1]}


def _servegen() -> Iterator[Damaged]:
    dataset = {
        "0": {"input_tokens": "{10: 0.5, 20: 0.5}", "output_tokens": "{5: 1.0}"},
        "600": {"input_tokens": "{30: 1.0}", "output_tokens": "{6: 1.0}"},
    }
    yield from _document(dataset)
    deep = "{1: " * 300 + "1" + "}" * 300
    for name, text in {"deep": deep, "call": "__import__('os').getcwd()", "long": "{1: " + "9" * 5001 + "}"}.items():
        yield given(
            f"a distribution as {name}", json.dumps({"0": {"input_tokens": text, "output_tokens": text}}).encode()
        )


def _servegen_dataset(path: Path) -> None:
    path.with_name("chunk-0-trace.csv").write_text("0,40,1,Gamma,1,1\n600,40,1,Gamma,1,1\n")
    _trace(path.parent)


def _servegen_windows(path: Path) -> None:
    lengths = {"0": {"input_tokens": "{10: 1.0}", "output_tokens": "{5: 1.0}"}}
    path.with_name("chunk-0-dataset.json").write_text(json.dumps(lengths))
    _trace(path.parent)


READERS: Mapping[str, Reader] = {
    "mooncake": Reader("trace.jsonl", _trace, partial(_lines, _MOONCAKE)),
    "bailian": Reader("trace.jsonl", partial(_trace, format_name="bailian"), partial(_lines, _BAILIAN)),
    "azure": Reader("trace.csv", _trace, partial(_table, _AZURE)),
    "burstgpt": Reader("trace.csv", _trace, partial(_table, _BURSTGPT)),
    "vidur": Reader("trace.csv", partial(_trace, format_name="vidur"), partial(_table, _VIDUR)),
    "vllm": Reader("trace.json", partial(_trace, format_name="vllm"), partial(_document, _BENCHMARK)),
    "aiperf": Reader("trace.jsonl", partial(_trace, format_name="aiperf"), partial(_lines, _AIPERF)),
    "openai": Reader("trace.jsonl", partial(_trace, format_name="openai"), partial(_lines, _OPENAI)),
    "columns of a table": Reader(
        "trace.csv",
        partial(_columns, arrival_ms="time", input_tokens="prompt", output_tokens="answer"),
        partial(_table, _OWN),
    ),
    "columns of lines": Reader(
        "trace.jsonl",
        partial(_columns, arrival_s="at", input_tokens="usage.in", output_tokens="usage.out"),
        partial(_lines, _NESTED),
    ),
    "hashes of lines": Reader(
        "trace.jsonl",
        partial(
            _columns,
            arrival_ms="timestamp",
            input_tokens="input_length",
            output_tokens="output_length",
            hash_ids="hash_ids",
        ),
        partial(_lines, _MOONCAKE),
    ),
    "unknown lines": Reader("trace.jsonl", _trace, partial(_lines, _NESTED)),
    "servegen lengths": Reader("clients/chunk-0-dataset.json", _servegen_dataset, _servegen),
    "servegen windows": Reader(
        "clients/chunk-0-trace.csv",
        _servegen_windows,
        partial(
            _table, "0,40,1.0,Gamma,1.0,1.0\n600,40,1.0,Gamma,1.0,1.0\n1200,0,0,,0,0\n1800,1,1.0,Weibull,1.0,1.0\n"
        ),
    ),
    "twin": Reader("twin.json", _twin, lambda: _document(_small_twin(), entries=1)),
    "benchmark": Reader("result.json", read_benchmark, partial(_document, _BENCHMARK)),
    "benchmark lines": Reader("result.jsonl", read_benchmark, partial(_lines, _BENCHMARK_ROWS)),
    "benchmark csv": Reader("result.csv", read_benchmark, partial(_table, _BENCHMARK_CSV)),
    "store": Reader("records/0123456789abcdef.json", _store, partial(_document, _RECORD)),
    "kernels": Reader("kernels.csv", lambda path: load_csv(path, _GPU), partial(_table, _KERNELS)),
    "vidur profile": Reader(
        "all_reduce.csv", lambda path: load_vidur([path], _GPU, "vllm"), partial(_table, _VIDUR_PROFILE)
    ),
    "profile": Reader("profile.json.gz", read_profile, lambda: _packed(_profile())),
    "calibrations": Reader("calibration.json", read_calibrations, lambda: _document(_calibrations())),
    "space": Reader(
        "own.yaml",
        lambda path: read_space(str(path), {"cluster.prefill": 1, "cluster.decode": 1, "engine.token_budget": 512}, ()),
        partial(_text, _SPACE),
    ),
}
