"""StepParts and profiles made up for tests."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hydra.utils import instantiate
from omegaconf import OmegaConf

from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.curves import Curve, FloatArray, Surface
from framework.timing.profile import Setup, StepParts, limits_of_decodes
from framework.timing.shipped.profile_files import Origin, Profile, shape_of, write_profile
from framework.timing.step_row import StepRow
from tests.conftest import ROOT


@functools.cache
def load(group: str, name: str) -> Any:
    """The part of conf/ that this file makes; parts never change."""
    return instantiate(OmegaConf.load(ROOT / "conf" / group / f"{name}.yaml"))


def made_up(**changes: Any) -> StepParts:
    """Plausible times of an 8B model; all multiples of 2**-40 s, so that sums are exact. `changes` are of columns."""
    tokens = np.array([1.0, 64.0, 2048.0, 4096.0])
    batches = np.array([1.0, 16.0, 256.0])
    contexts = np.array([1.0, 4096.0, 131072.0, 262144.0])
    unit = 2.0**-40
    parts: dict[str, Any] = {
        "parallelism": Parallelism(),
        "dtype": "bf16",
        "expert_dtype": "bf16",
        "kv_dtype": "bf16",
        "tokens": tokens,
        "gemm_s": unit * np.array([6e9, 6.5e9, 4e10, 8e10]),
        "experts_s": np.zeros(4),
        "elementwise_s": unit * np.array([3e8, 3.5e8, 3e9, 6e9]),
        "communication_s": unit * np.array([1e8, 1e8, 1e9, 2e9]),
        "lengths": np.array([1.0, 2048.0, 16384.0]),
        "attention_s": unit * np.array([0, 1e9, 5e10]),
        "attention_floor_s": unit * 2e8,
        "batches": batches,
        "contexts": contexts,
        "decode_s": unit * np.outer([1, 2, 8], [2e8, 4e8, 5e9, 1e10]),
        "sampled": np.array([1.0, 256.0]),
        "logits_s": unit * np.array([4e8, 6e8]),
        "base_s": unit * 1e7,
        "tokens_limit": 4096.0,
        "length_limit": 16384.0,
        "sampled_limit": 256.0,
        "context_limits": np.array([131072.0, 1048576.0, 262144.0]),
    }
    return _of_columns(**(parts | changes))


def _of_columns(**of: Any) -> StepParts:
    setup = Setup(of["parallelism"], of["dtype"], of["expert_dtype"], of["kv_dtype"])
    names = ("gemm", "experts", "elementwise", "communication")
    rows = {name: StepRow(linear=Curve.of(of["tokens"], of[f"{name}_s"])) for name in names}
    rows["gemm"] = replace(rows["gemm"], tokens_limit=of["tokens_limit"])
    rows["prefill_attention"] = StepRow(
        attention=Curve.of(of["lengths"], of["attention_s"]),
        prefill_step_s=of["attention_floor_s"],
        length_limit=of["length_limit"],
    )
    rows["decode_attention"] = StepRow(
        decode=Surface.of(of["batches"], of["contexts"], of["decode_s"]),
        skew_s=of.get("skew_s", 0.0),
        decode_limits=limits_of_decodes(of["batches"], of["context_limits"]),
    )
    rows["logits"] = StepRow(logits=Curve.of(of["sampled"], of["logits_s"]), sampled_limit=of["sampled_limit"])
    rows["overhead"] = StepRow(base_s=of["base_s"])
    return StepParts(setup, rows, of.get("scaled_from", ""))


def seconds_of(parts: StepParts, part: str) -> FloatArray:
    """The seconds at the knots of a part's curve or surface."""
    row = parts[part]
    tables: list[Curve | Surface | None] = [row.linear, row.attention, row.bounded, row.decode, row.logits]
    (values,) = [np.asarray(table.values) for table in tables if table is not None]
    return values


def origin(model: Model, gpu: Gpu, backend: str = "vllm") -> Origin:
    return Origin(
        model=model.name,
        backend=backend,
        version="0.1",
        versions={"gemm": "0.1"},
        device=gpu,
        shape=shape_of(model),
        source="made up",
        licence="CC0",
        citation="tests/helpers/parts.py",
        command="none",
        project="0",
    )


def put(
    directory: Path, model: str = "llama3_8b", gpu: str = "h100", backend: str = "vllm", *entries: StepParts
) -> Path:
    """Write a profile of made-up entries (one, with tp = 1, by default) for shipped names."""
    profile = Profile(origin(load("model", model), load("gpu", gpu), backend), entries or (made_up(),))
    return write_profile(directory, profile)
