"""Calibration to a user's own server: observe, replay, fit.

    python -m framework.calibration FILE... model=llama3_8b gpu=h100 tp=1 backend=vllm

FILE: the JSON of `vllm bench serve --save-result --save-detailed`, a CSV or JSONL, which also names the blocks of
    prompts where a prefix cache was on (framework/calibration/benchmark_files.py); all files are of one deployment, and
    several loads distinguish the terms better than one. What a file does not say of its run follows its name:
    low.csv,concurrency=4 high.csv,concurrency=64 even.csv,rate=8 cached.jsonl,hash_block_tokens=512
Settings of run.py describe the deployment: model= and gpu=, policy=, server=, engine.max_batch=128, ...
The file that is written holds a calibration for each model and data type that was fitted; only this one's is replaced.

How: framework/calibration/fit.py. With several runs, each is predicted by a fit to the others; with a single one, its
last third by a fit to the rest. The last lines name the loads for which nothing was held out, so that the fit is
untested there.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from framework.calibration.apply import calibrations_of
from framework.calibration.benchmark_files import read_benchmark
from framework.calibration.fit import Observed, calibrate, observe
from framework.calibration.held_out import HeldOut, held_out, place_of, untested
from framework.calibration.optimise import Fitted
from framework.calibration.prior import calibration_of
from framework.calibration.replay import Deployment, replay
from framework.calibration.tables import Replayed, report
from framework.cli.arguments import configured, split_arguments, whole
from framework.cli.command import Arguments, command
from framework.cli.terminal import results_console
from framework.errors import InputError
from framework.policy.base import Policy
from framework.policy.decision import Decision
from framework.policy.laying_out import lay_out
from framework.timing.calibration_terms import Calibration, Fit, Selector, calibration_path, replace_calibration
from framework.timing.fit_domain import Domain
from framework.timing.measured import Measured
from framework.timing.shipped.profile_files import cache_directory

_DEFAULTS = {"policy": "vllm_v1", "cluster": "mixed", "cluster.instances": "1"}
_SERVERS = {"trtllm": "trtllm", "sglang": "sglang"}  # servers of backends that do not use the default
_SET = {
    **{name: f"cluster.{name}" for name in ("tp", "pp", "dp", "ep", "instances")},
    **{name: f"model.{name}" for name in ("dtype", "kv_dtype")},
    "backend": "timing.backend",
}
_OF_A_RUN = ("concurrency", "rate", "hash_block_tokens")
_KEYS = {
    **dict.fromkeys(_SET, "of the deployment"),
    "load": "recorded, closed or drawn; what the file tells by default",
    "concurrency": "requests in flight, of all files that do not say",
    "rate": "requests/s, of all files that do not say",
    "hash_block_tokens": "tokens of a block of a prompt, of all files that do not say",
    "seed": "of drawn arrivals, 0 by default",
    "out": "a directory, the user's cache, where runs find it, by default",
    "dry": "true: nothing is written",
}
_GROUPS = ("model", "gpu", "timing", "engine", "server", "cluster", "policy", "predictor")
_FARTHEST = 20.0  # times by which a measured TPOT may differ from the kernels'


@dataclass(frozen=True)
class _Command:
    """The content of a command line; `known` has, by file, what its benchmark does not state."""

    files: Mapping[str, Mapping[str, Any]]
    parts: Mapping[str, Any]
    backend: str | None  # backend of measured profiles; None: step times of another source
    by: str | None
    seed: int
    out: Path | None  # None: nothing is written


@command(__doc__, operands="FILE ...", keys=_KEYS, settings=_GROUPS)
def main(arguments: Arguments) -> None:
    """Run the command line. Raises InputError, or an error of Hydra's, for wrong arguments."""
    command = _understood(arguments)
    deployment = _deployment(command.parts)
    observed = [
        observe(replace(read_benchmark(file), **known), command.by, command.seed)
        for file, known in command.files.items()
    ]
    for each in observed:
        _require_same_unit(each, deployment)
    fitted = calibrate(observed, deployment)
    calibration = calibration_of(fitted.values, deployment.server)
    replays = [_replayed(check, deployment, calibration) for check in held_out(observed, deployment)]
    places = [place_of(each, deployment) for each in observed]
    results_console().print(report(replays, fitted, untested(places)), highlight=False)
    if command.out is not None and command.backend is not None:
        gpu_name = command.parts["gpu"].name
        path = calibration_path(command.out, gpu_name, command.backend)
        selector, note = Selector.of(deployment.model), _note(observed, deployment, fitted)
        own = "benchmarks of one's own"
        fit = Fit(calibration, selector, _rows(observed), note, source=own, domain=Domain.around(places))
        replaced = " (replaced)" if replace_calibration(path, fit) else ""
        print(f"calibration of {selector} on {gpu_name}, {command.backend} in {path}{replaced}")


def _deployment(parts: Mapping[str, Any]) -> Deployment:
    policy, predictor = parts["policy"], parts["predictor"]
    return Deployment(
        model=parts["model"],
        cluster=lay_out(policy, parts["cluster"]),
        engine=parts["engine"],
        timing=calibrations_of(parts["timing"], parts["server"]),
        policy=lambda: _another(policy),
        server=parts["server"],
        predictor=lambda: copy.deepcopy(predictor),
    )


def _require_same_unit(observed: Observed, deployment: Deployment) -> None:
    """Raise InputError if tokens came so much slower or faster than kernels allow that units must be wrong."""
    unfitted = calibration_of({}, deployment.server)
    measured_s, replayed_s = observed.times.tpot_s, replay(observed.sent, deployment, unfitted).tpot_s
    finite = np.isfinite(measured_s) & np.isfinite(replayed_s)
    if not finite.any():
        return
    found_s, expected_s = float(np.median(measured_s[finite])), float(np.median(replayed_s[finite]))
    if not expected_s / _FARTHEST < found_s < expected_s * _FARTHEST:
        raise InputError(
            f"{observed.benchmark.name}: a median TPOT of {found_s:.3g} s, where kernels take {expected_s:.3g} s:"
            " milliseconds given as seconds, or another model, gpu or tp?"
        )


def _another(policy: Policy) -> Policy:
    """A copy of a policy that has not run; compiled hooks, which keep nothing, are shared, because they copy slowly."""
    return copy.deepcopy(policy, {id(part): part for part in vars(policy).values() if isinstance(part, Decision)})


def _replayed(check: HeldOut, deployment: Deployment, fitted: Calibration) -> Replayed:
    observed = check.observed
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
        before=replay(sent, deployment, calibration_of({}, deployment.server)),
        after=after,
        checked=replay(sent, deployment, check.terms),
        held_out=check.requests,
        fitted_to=check.fitted_to,
        notes=notes,
    )


def _rows(observed: Sequence[Observed]) -> tuple[str, ...]:
    benchmarks = [each.benchmark for each in observed]
    return tuple(f"{b.name} sha256={b.sha256} requests={len(b)} failed={b.failed}" for b in benchmarks)


def _note(observed: Sequence[Observed], deployment: Deployment, fitted: Fitted) -> str:
    model, pool = deployment.model, deployment.cluster.pools[0]
    errors = [f"{name} {fitted.errors[name]:.2g}" for name, known in fitted.known.items() if known]
    loads = ", ".join(dict.fromkeys(each.sent.by for each in observed))
    return (
        f"{model.name} {model.dtype} on {pool.gpu.name} {pool.parallelism}, arrivals {loads};"
        f" standard errors: {', '.join(errors) or 'nothing was determined'}"
    )


def _understood(arguments: Arguments) -> _Command:
    values = arguments.own
    chosen = dict(override.split("=", 1) for override in arguments.settings)
    chosen |= {key: values[name] for name, key in _SET.items() if name in values}
    server = _SERVERS.get(chosen.get("timing.backend", ""))
    defaults = _DEFAULTS | ({"server": server} if server is not None else {})
    parts = configured([f"{key}={value}" for key, value in (defaults | chosen).items()], _GROUPS)
    backend = parts["timing"].backend if isinstance(parts["timing"], Measured) else None
    dry = arguments.truth("dry")
    if backend is None and not dry:
        raise InputError("only timing=measured keeps a calibration; add dry=true to see how far other step times are")
    out = arguments.path("out") or cache_directory()
    known = _known({name: values[name] for name in _OF_A_RUN if name in values})
    files = dict(_file(word, known) for word in arguments.operands)
    return _Command(
        files, parts, backend, values.get("load"), arguments.whole("seed", 0, least=0), None if dry else out
    )


def _file(word: str, known: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """A file, and what is known of its run: what follows its name, else what is known of all."""
    if Path(word).expanduser().is_file():
        return word, known
    path, *settings = word.split(",")
    own, _ = split_arguments(settings, _OF_A_RUN, ())
    return path, {**known, **_known(own)}


def _known(values: Mapping[str, str]) -> Mapping[str, Any]:
    known: dict[str, Any] = {}
    for name in ("concurrency", "hash_block_tokens"):
        if name in values:
            known[name] = whole(name, values[name])
    if "rate" in values:
        known["rate"] = _rate(values["rate"])
    return known


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = np.nan
    if not rate > 0:
        raise InputError(f"rate must be a number of requests/s above 0, or inf; got {text!r}")
    return rate
