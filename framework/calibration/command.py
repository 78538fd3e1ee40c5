"""Calibration to a server of one's own: observe, replay, fit.

    python -m framework.calibration FILE... model=llama3_8b gpu=h100 tp=1 backend=vllm

FILE: the JSON of `vllm bench serve --save-result --save-detailed`, or a CSV (framework/calibration/benchmark_files.py);
    all files are of one deployment, and several loads tell the terms apart better than one.
Of the deployment: model=, gpu=, tp= pp= dp= ep=, dtype= kv_dtype=, backend=, instances=1, policy=chunked, and further
    keys as in run.py: engine.max_batch=128, timing.profiles=DIR
Of the replay: load=recorded, closed or drawn (by default what the file tells), concurrency= and rate= where the file
    does not say, seed=
out=DIR: where to write, by default the user's cache, where runs find it; dry=true: nothing is written. The file holds a
    calibration for each model and data type that was fitted; only this one's is replaced.

How: framework/calibration/fit.py. The last third of the requests checks a fit to the first two.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from framework.calibration.apply import calibrations_of
from framework.calibration.benchmark_files import read_benchmark
from framework.calibration.fit import Observed, calibrate, calibration_of, observe
from framework.calibration.optimise import Fitted
from framework.calibration.replay import Deployment, replay
from framework.calibration.tables import Replayed, report
from framework.cli.arguments import configured, split_arguments, truth, whole
from framework.errors import InputError
from framework.policy.base import Decision, Policy
from framework.timing.calibration_terms import Calibration, Fit, Selector, calibration_path, replace_calibration
from framework.timing.measured import Measured
from framework.timing.profile_files import cache_directory

_DEFAULTS = {"policy": "chunked", "cluster": "mixed", "cluster.instances": "1"}
_SET = {
    **{name: f"cluster.{name}" for name in ("tp", "pp", "dp", "ep", "instances")},
    **{name: f"model.{name}" for name in ("dtype", "kv_dtype")},
    "backend": "timing.backend",
}
_OWN = (*_SET, "load", "concurrency", "rate", "seed", "out", "dry")
_GROUPS = ("model", "gpu", "timing", "engine", "cluster", "policy")
_HELD_OUT = 1 / 3
_FARTHEST = 20.0  # times that a measured TPOT may be off the kernels'


@dataclass(frozen=True)
class _Command:
    """What a command line asks for."""

    files: tuple[str, ...]
    parts: Mapping[str, Any]
    backend: str | None  # of measured profiles; None: step times of another source
    by: str | None
    known: Mapping[str, Any]  # of the benchmarks, where the files do not say
    seed: int
    out: Path | None  # None: nothing is written


def main(words: Sequence[str]) -> None:
    """Run the command line. Raises InputError, or an error of Hydra's, for what cannot be."""
    if {"-h", "--help"} & set(words):
        print(__doc__)
        return
    command = _understood(words)
    model, gpu, timing = (command.parts[name] for name in ("model", "gpu", "timing"))
    policy = command.parts["policy"]
    deployment = Deployment(
        model=model,
        cluster=command.parts["cluster"],
        engine=command.parts["engine"],
        timing=calibrations_of(timing),
        policy=lambda: _another(policy),
    )
    observed = [
        observe(replace(read_benchmark(file), **command.known), command.by, command.seed) for file in command.files
    ]
    for each in observed:
        _require_same_unit(each, deployment)
    checked = calibrate(observed, deployment, until=1 - _HELD_OUT)
    fitted = calibrate(observed, deployment)
    calibration = calibration_of(fitted.values)
    replays = [_replayed(each, deployment, calibration, calibration_of(checked.values)) for each in observed]
    Console(highlight=False).print(report(replays, fitted))
    if command.out is not None and command.backend is not None:
        path = calibration_path(command.out, gpu.name, command.backend)
        selector, note = Selector.of(model), _note(observed, deployment, fitted)
        fit = Fit(calibration, selector, _rows(observed), note, source="benchmarks of one's own")
        replaced = " (replaced)" if replace_calibration(path, fit) else ""
        print(f"calibration of {selector} on {gpu.name}, {command.backend} in {path}{replaced}")


def _require_same_unit(observed: Observed, deployment: Deployment) -> None:
    """Raise InputError where tokens came so much slower or faster than kernels allow that something is mixed up."""
    measured_s, replayed_s = observed.times.tpot_s, replay(observed.sent, deployment, Calibration()).tpot_s
    told = np.isfinite(measured_s) & np.isfinite(replayed_s)
    if not told.any():
        return
    found_s, expected_s = float(np.median(measured_s[told])), float(np.median(replayed_s[told]))
    if not expected_s / _FARTHEST < found_s < expected_s * _FARTHEST:
        raise InputError(
            f"{observed.benchmark.name}: a median TPOT of {found_s:.3g} s, where kernels take {expected_s:.3g} s:"
            " milliseconds given as seconds, or another model, gpu or tp?"
        )


def _another(policy: Policy) -> Policy:
    """A policy like one that has not run; compiled hooks, which keep nothing, are shared, for they copy slowly."""
    return copy.deepcopy(policy, {id(part): part for part in vars(policy).values() if isinstance(part, Decision)})


def _replayed(observed: Observed, deployment: Deployment, fitted: Calibration, checked: Calibration) -> Replayed:
    benchmark, sent = observed.benchmark, observed.sent
    after = replay(sent, deployment, fitted)
    notes = sent.workload.notes
    if after.extrapolated > 0:
        notes += (f"{after.extrapolated:.1%} of the simulated time lies in steps larger than what was measured",)
    pool = deployment.cluster.pools[0]
    model = f" (file: {benchmark.model})" if benchmark.model else ""
    return Replayed(
        title=f"{benchmark.name}: {len(benchmark)} requests, {sent.by}; {deployment.model.name}{model} on"
        f" {pool.instances} x {pool.gpu.name} {pool.parallelism}",
        output_tokens=benchmark.output_tokens,
        measured=observed.times,
        before=replay(sent, deployment, Calibration()),
        after=after,
        checked=replay(sent, deployment, checked),
        held_out=np.arange(round((1 - _HELD_OUT) * len(benchmark)), len(benchmark)),
        notes=notes,
    )


def _rows(observed: Sequence[Observed]) -> tuple[str, ...]:
    benchmarks = [each.benchmark for each in observed]
    return tuple(f"{b.name} sha256={b.sha256} requests={len(b)} failed={b.failed}" for b in benchmarks)


def _note(observed: Sequence[Observed], deployment: Deployment, fitted: Fitted) -> str:
    model, pool = deployment.model, deployment.cluster.pools[0]
    told = [f"{name} {fitted.errors[name]:.2g}" for name, known in fitted.known.items() if known]
    loads = ", ".join(dict.fromkeys(each.sent.by for each in observed))
    return (
        f"{model.name} {model.dtype} on {pool.gpu.name} {pool.parallelism}, arrivals {loads};"
        f" standard errors: {', '.join(told) or 'nothing was told'}"
    )


def _understood(words: Sequence[str]) -> _Command:
    files = tuple(word for word in words if "=" not in word or Path(word).expanduser().is_file())
    if not files:
        raise InputError("no file of measured requests; python -m framework.calibration FILE model=... gpu=...")
    values, overrides = split_arguments([word for word in words if word not in files], _OWN, _GROUPS)
    chosen = dict(override.split("=", 1) for override in overrides)
    chosen |= {key: values[name] for name, key in _SET.items() if name in values}
    parts = configured([f"{key}={value}" for key, value in (_DEFAULTS | chosen).items()], _GROUPS)
    backend = parts["timing"].backend if isinstance(parts["timing"], Measured) else None
    dry = truth("dry", values.get("dry", "false"))
    if backend is None and not dry:
        raise InputError("only timing=measured keeps a calibration; add dry=true to see how far other step times are")
    known: dict[str, Any] = {}
    if "concurrency" in values:
        known["concurrency"] = whole("concurrency", values["concurrency"])
    if "rate" in values:
        known["rate"] = _rate(values["rate"])
    out = Path(values["out"]).expanduser() if "out" in values else cache_directory()
    seed = values.get("seed", "0")
    if not seed.isascii() or not seed.isdigit():
        raise InputError(f"seed must be a whole number of at least 0, got {seed!r}")
    return _Command(files, parts, backend, values.get("load"), known, int(seed), None if dry else out)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = np.nan
    if not rate > 0:
        raise InputError(f"rate must be a number of requests/s above 0, or inf; got {text!r}")
    return rate
