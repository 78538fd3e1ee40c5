"""What was run, and its settings, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from framework.cli.suggest import MADE_OF_A_FILE, OF_A_FILE

_KNOWN = {
    "trace.rate": "request rate (requests/s)",
    "trace.rate_scale": "rate, times that of the trace",
    "trace.limit": "requests of the trace",
    "trace.arrivals.rate": "request rate (requests/s)",
    "load.concurrency": "clients",
    "cluster.instances": "instances",
    "cluster.prefill": "prefill instances",
    "cluster.decode": "decode instances",
    "cluster.tp": "GPUs of an instance (tensor parallel)",
    "cluster.pp": "stages of an instance (pipeline parallel)",
    "engine.token_budget": "token budget of a step (tokens)",
    "engine.max_batch": "seats of a batch (requests)",
    "slo.ttft_s": "limit of TTFT (s)",
    "slo.tpot_s": "limit of TPOT (s)",
}
_UNITS = {  # last word of a setting's name, and the unit that it stands for
    "rps": "requests/s",
    "s": "s",
    "ms": "ms",
    "tokens": "tokens",
    "bytes": "bytes",
    "bytes/s": "bytes/s",
    "w": "W",
    "percent": "%",
    "usd": "USD",
}
_KIND = "._target_"
PARTS = ("model", "gpu", "server")  # those of a run's set-up
_SOURCE = {  # keys of a summary that say where its figures came from
    "trace": "trace",
    "trace_source": "kind of trace",
    "trace_sha256": "SHA-256 of the trace",
    "timing_source": "step times",
    "load": "load",
    "seed": "seed",
    "predictor": "predictor",
    "versions": "versions",
    "git_revision": "revision of the code",
}


def axis_words(setting: str) -> str:
    """A setting as the name of an axis, with its unit if it has one."""
    if setting in _KNOWN:
        return _KNOWN[setting]
    words = setting.replace("_bytes_s", " bytes/s").replace(".", " ").replace("_", " ").split()
    if len(words) > 1 and words[-1] in _UNITS:
        return f"{' '.join(words[:-1])} ({_UNITS[words[-1]]})"
    return " ".join(words) or setting


def in_words(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without what only the program reads: `policy._target_=policies.chunked.Chunked` is `policy=Chunked`.

    A class of a file is `FILE.py:CLASS`, with the beginning of the hash of its code.
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        part, _, last = name.rpartition(".")
        is_of_a_file = settings.get(f"{part}{_KIND}") == MADE_OF_A_FILE
        if last == "_target_" and is_of_a_file:
            file, kind, source = (str(settings.get(f"{part}.{key}")) for key in OF_A_FILE)
            found[part] = f"{Path(file).name}:{kind} ({source[:8]})"
        elif name.endswith(_KIND):
            found.setdefault(part, str(value).rpartition(".")[2])
        elif last != "_convert_" and not (is_of_a_file and last in OF_A_FILE):
            found[name] = value
    return found


def setup(runs: Iterable[Mapping[str, Any]], gpus: Iterable[int]) -> str:
    """Model, GPUs and server of these flat settings, as `llama3_8b on 5 h100, server vllm_v1`; "" if unknown."""
    every, counts = list(runs), sorted(set(gpus))
    names = {part: list(dict.fromkeys(str(one[f"{part}.name"]) for one in every if one.get(f"{part}.name")))
             for part in PARTS}  # fmt: skip
    said = {part: " or ".join(found) for part, found in names.items()}
    number = f"{counts[0]} " if len(counts) == 1 else f"{counts[0]} to {counts[-1]} " if counts else ""
    texts = [said["model"], f"on {number}{said['gpu']}" if said["gpu"] else ""]
    texts = [" ".join(filter(None, texts)), f"server {said['server']}" if said["server"] else ""]
    return ", ".join(filter(None, texts))


def sources(summaries: Sequence[Mapping[str, Any]], keys: Iterable[str]) -> list[list[str]]:
    """Rows of where the figures of these summaries came from: the name of each key in words, and its values."""
    return [[_SOURCE[key], *(_source(one.get(key)) for one in summaries)] for key in keys]


def _source(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {version}" for name, version in value.items())
    return "–" if value is None else str(value)
