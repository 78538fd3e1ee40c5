"""Files of measured stages in open loop, one JSON object each.

`stages` is a list. A stage has `run`, `stage` (its number in the run, from 0), `model`, `gpu`, `tp`, `engine` (name and
version of the server), `max_num_seqs`, `max_num_batched_tokens`, `rate_per_s`, `requests`, `system_prompts`,
`users_per_system_prompt`, `system_prompt_tokens`, `output_tokens_asked`, and the quantiles `prompt_tokens` (p10,
median, p90; p95 and p99 if known), `ttft_s` and `e2e_s` (mean, median, p90, p99). Other keys are not read. Where the
quantiles of prompts contradict the stated number of prompts, the client's default counts (`distinct_prompts.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.validation.fidelity.online import Stage
from experiments.validation.given.distinct_prompts import SHARES, sent_prompts
from framework.cli.conf import CONF
from framework.cli.reading import parsed_json, read_text
from framework.cli.suggest import nearest
from framework.errors import InputError

_COUNTS = {
    "stage": "stage",
    "tp": "tp",
    "max_batch": "max_num_seqs",
    "token_budget": "max_num_batched_tokens",
    "requests": "requests",
    "system_tokens": "system_prompt_tokens",
    "output_tokens": "output_tokens_asked",
}
_QUANTILES = {"mean": "mean", "p50": "median", "p90": "p90", "p99": "p99"}
_BACKENDS = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm", "trtllm": "trtllm"}


def read_stage_file(path: Path, models: Mapping[str, str]) -> list[Stage]:
    """The stages of a file. `models`: names of models here by names in the file, if these differ.

    Raises InputError for another file.
    """
    try:
        content = parsed_json(read_text(path, "file of stages"))
        return [_stage(entry, models) for entry in content["stages"]]
    except KeyError as error:
        raise InputError(f"{path}: no file of stages: {error} is missing") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: no file of stages ({error})") from error


def _stage(entry: Mapping[str, Any], models: Mapping[str, str]) -> Stage:
    server, _, version = str(entry["engine"]).partition(" ")
    backend = _BACKENDS.get(server.lower())
    if backend is None:
        raise ValueError(f"engine {server!r} is none of {', '.join(_BACKENDS)}")
    prompts = entry["prompt_tokens"]
    counts: dict[str, Any] = {ours: _count(entry, theirs) for ours, theirs in _COUNTS.items()}
    stated = _count(entry, "system_prompts"), _count(entry, "users_per_system_prompt")
    lengths = {name: _positive(prompts, name) for name in SHARES if name in prompts}
    groups, users = sent_prompts(stated, counts["requests"], lengths)
    times_ms: dict[str, Any] = {
        f"{name}_ms_{ours}": 1e3 * _positive(entry[f"{name}_s"], theirs)
        for name in ("ttft", "e2e")
        for ours, theirs in _QUANTILES.items()
    }
    return Stage(
        run=str(entry["run"]),
        model=models.get(entry["model"]) or known_model(entry["model"]),
        gpu=str(entry["gpu"]).split()[0].lower(),
        backend=backend,
        version=version.split(" ")[0],
        rate_rps=_positive(entry, "rate_per_s"),
        system_prompts=groups,
        users=users,
        prompt_tokens_p10=round(lengths["p10"]),
        prompt_tokens_p50=round(lengths["median"]),
        prompt_tokens_p90=round(lengths["p90"]),
        **counts,
        **times_ms,
    )


def known_model(name: str) -> str:
    """The model of conf/model that a measurement calls `name`: its name begins like ours, except for case and
    punctuation.

    Raises ValueError if there is none.
    """
    known = {_letters(path.stem): path.stem for path in CONF.glob("model/*.yaml")}
    alike = [letters for letters in known if _letters(name).startswith(letters)]
    if not alike:
        near = nearest(name, known.values())
        raise ValueError(f"model {name!r} is none of conf/model{near} models={name}:NAME says which it is")
    return known[max(alike, key=len)]


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _count(entry: Mapping[str, Any], key: str) -> int:
    value, least = entry[key], 0 if key in ("stage", "system_prompt_tokens") else 1
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{key} must be a whole number of at least {least}, got {value!r}")
    return value


def _positive(entry: Mapping[str, Any], key: str) -> float:
    value = entry[key]
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise ValueError(f"{key} must be a positive number, got {value!r}")
    return float(value)
