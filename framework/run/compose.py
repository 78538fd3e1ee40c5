"""A configuration to the objects of one experiment."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from omegaconf import DictConfig, OmegaConf

from framework.checks import is_number, require_at_least, require_count, require_name, require_number, require_positive
from framework.engine.setup.config import EngineConfig
from framework.errors import InputError, instead_of, is_of_a_library, note_method, shown
from framework.load import Load
from framework.metrics.slo import Slo
from framework.objective.experiment import Experiment
from framework.policy.base import Policy, overrides
from framework.policy.laying_out import lay_out
from framework.policy.predictor import Predictor
from framework.run.building import build
from framework.system.cluster import ClusterSpec, PoolSpec
from framework.system.gateway import Gateway
from framework.system.model import Model, kv_capacity_tokens
from framework.timing.step_row import StepRow
from framework.workload import Workload

_MAKING = {"<module>": "import", "__init__": "__init__"}  # frames of a user's module and class, and what they do
_LONGEST_STEP_S = 10.0  # about a thousand times a decode step
_LEAST_LINK_BYTES_S = 1e6
AUTO = "auto"  # output.sensitivity: the width of the class of deployments
_SHARES = (0.001, 0.9)  # of step times
_MOST_REPLAYS = 10_000  # of output.decisions
Given = Mapping[str, Callable[[], Any]]  # makers of parts that replace those of a configuration, by name
NOTHING: Given = MappingProxyType({})
_KINDS: tuple[tuple[str, type | None], ...] = (
    ("model", Model),
    ("timing", None),
    ("engine", EngineConfig),
    ("gateway", Gateway),
    ("load", Load),
    ("slo", Slo),
    ("cluster", ClusterSpec),
    ("policy", Policy),
    ("predictor", None),  # It may be null.
)


def compose(config: DictConfig, given: Given = NOTHING) -> Experiment:
    """Build each part that `config` names by `_target_`, except those that are `given`.

    Raises InputError for an invalid seed or output, and Hydra's InstantiationException around the refusal of a part."""
    if isinstance(config.seed, bool) or not isinstance(config.seed, int) or config.seed < 0:
        raise InputError(f"seed must be a whole number of at least 0, got {config.seed!r}")
    _require_outputs(config)
    # The trace comes last: it takes the longest, and a mistake elsewhere should show at once.
    parts = fitting_parts(config, given)
    workload = _part(config, given, "trace", Workload)
    _require_classes(parts["slo"], workload)
    parts["engine"] = parts["engine"].on(workload, parts["model"])
    experiment = Experiment(
        workload=workload,
        seed=config.seed,
        renew=partial(_deciders, config, given),
        sample=_no_sample if "trace" in given else partial(_sample, config, workload.source),
        **parts,
    ).placed()
    return experiment.sized().placed() if experiment.cluster.auto else experiment


def compose_on(config: DictConfig, workload: Workload) -> Experiment:
    """The experiment that `config` describes, on these requests instead of its trace; errors as of `compose`."""
    return compose(config, {"trace": lambda: workload})


def _require_classes(slo: Slo, workload: Workload) -> None:
    """Raise InputError for limits of a class that no request of the trace has."""
    known = sorted(set(workload.slo_class or ()))
    unknown = sorted(set(slo.classes or {}) - set(known))
    if unknown:
        there = f"its classes are {', '.join(known)}" if known else "its requests have no classes (column slo_class)"
        raise InputError(f"slo.classes.{unknown[0]}: no request of trace {workload.name} has this class; {there}")


def fitting_parts(config: DictConfig, given: Given = NOTHING) -> dict[str, Any]:
    """All parts of an experiment but its requests, by name: each is built or given, and the model fits every instance.

    Raises what `compose` raises for them.
    """
    parts = {name: _part(config, given, name, kind) for name, kind in _KINDS}
    parts["engine"] = replace(parts["engine"], gateway=parts.pop("gateway"))
    model, engine = parts["model"], parts["engine"]
    cluster = lay_out(parts["policy"], parts["cluster"])  # refuses a cluster that it cannot use
    _require_batching(parts["policy"], engine, cluster.pools)
    for pool in cluster.pools:
        model.require_split(pool.parallelism)
        fitting = engine.kv_fraction, engine.memory_share(model)
        kv_capacity_tokens(model, pool.gpu, pool.parallelism, *fitting)  # refuses a model that does not fit
        _require_speed(pool, model)
        _require_short_steps(pool, parts["timing"].row(model, pool.gpu, pool.parallelism))  # It may have no times.
    _require_links(cluster, engine)
    if overrides(parts["policy"], "fetch_prefix") and not engine.prefix_stores.tiers:
        raise InputError(
            f"policy {parts['policy'].name}: fetch_prefix copies prefixes to the first of engine.prefix_stores, and "
            "there are none; choose engine.prefix_stores=dram"
        )
    return parts


def _require_speed(pool: PoolSpec, model: Model) -> None:
    """Raise InputError for GPUs so slow that a step or a copy hardly ever ends while a policy's ticks continue."""
    gpu, gpus = pool.gpu, pool.parallelism.gpus
    for name in ("link_bytes_s", "pcie_bytes_s", "nic_bytes_s"):
        require_at_least(f"gpu.{name}", getattr(gpu, name), _LEAST_LINK_BYTES_S)
    slowest = min(gpu.bandwidth_bytes_s, *gpu.peak_flops.values())
    if model.weight_bytes / gpus / slowest > _LONGEST_STEP_S:
        raise InputError(
            f"gpu {gpu.name} would read {model.weight_bytes / gpus:.3g} bytes of weights, or multiply by them, in over"
            f" {_LONGEST_STEP_S:g} s; raise gpu.bandwidth_bytes_s and gpu.peak_flops"
        )


def _require_links(cluster: ClusterSpec, engine: EngineConfig) -> None:
    """Raise InputError for copies, loads and packing that hardly ever end."""
    for name in ("pack_bytes_s", "unpack_bytes_s"):
        bytes_s = getattr(engine.kv_compression, name)
        if bytes_s is not None:
            require_at_least(f"engine.kv_compression.{name}", bytes_s, _LEAST_LINK_BYTES_S)
    link, fabric = cluster.link.bandwidth_bytes_s, cluster.link.fabric_bytes_s
    require_at_least("cluster: the bandwidth of links", min(link, fabric or link), _LEAST_LINK_BYTES_S)
    for tier in engine.prefix_stores.tiers.values():
        if tier.bandwidth_bytes_s is not None:
            require_at_least("engine.prefix_stores: bandwidth_bytes_s", tier.bandwidth_bytes_s, _LEAST_LINK_BYTES_S)
        require_number("engine.prefix_stores: latency_s", tier.latency_s, 0, _LONGEST_STEP_S)


def _require_short_steps(pool: PoolSpec, row: StepRow) -> None:
    """Raise InputError for step times with which even the smallest step hardly ever ends."""
    if row.least_s > _LONGEST_STEP_S:
        raise InputError(
            f"a step of one token would take {row.least_s:.3g} s on gpu {pool.gpu.name}, more than "
            f"{_LONGEST_STEP_S:g} s; change what timing sets, or take another timing"
        )


def _require_batching(policy: Policy, engine: EngineConfig, pools: Sequence[PoolSpec]) -> None:
    """Raise InputError for a requested batching that no pool has."""
    modes = sorted({engine.batching_of(pool) for pool in pools})
    if engine.batching not in (*modes, EngineConfig().batching):
        raise InputError(
            f"engine.batching={engine.batching} has no effect: policy {policy.name} batches {' and '.join(modes)}; "
            "leave it out"
        )


def _deciders(config: DictConfig, given: Given) -> tuple[Policy, Predictor | None]:
    return _part(config, given, "policy", Policy), _part(config, given, "predictor", None)


def _no_sample(number: int, block_s: float) -> Workload:
    raise InputError("other samples of the trace are to be drawn, and a Workload has none; give a trace by its name")


def _sample(config: DictConfig, source: str, number: int, block_s: float) -> Workload:
    trace = config.trace.copy()
    if not isinstance(trace.get("seed"), int):
        raise InputError("trace.seed must be a whole number where other samples of the trace are to be drawn")
    trace.seed += number
    if source == "real":
        trace.resample_s = block_s
    return _build(OmegaConf.create({"trace": trace}), "trace", Workload)


def _part(config: DictConfig, given: Given, name: str, kind: type | None) -> Any:
    """The part given under that name, else the one that `config` describes."""
    return given[name]() if name in given else _build(config, name, kind)


def _build(config: DictConfig, name: str, kind: type | None) -> Any:
    if not OmegaConf.is_dict(config[name]) and (kind is not None or config[name] is not None):
        raise InputError(
            f"{name} must be settings with a _target_, got {shown(config[name])}; choose one, as {name}=NAME"
        )
    try:
        part = build(config, name)
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as raised:
        error = instead_of(raised)
        if name in ("policy", "predictor"):
            _note_making(f"{name} {config[name].get('name', name)}", error)
        if error is raised:
            raise
        raise error from None
    if kind is not None and not isinstance(part, kind):
        advice = "; inherit servelab.Policy, Aggregated or Disaggregated" if kind is Policy else ""
        raise InputError(f"{name}: _target_ must make a {kind.__name__}, it made a {type(part).__name__}{advice}")
    if name == "timing" and not callable(getattr(part, "row", None)):
        raise InputError(f"timing: _target_ must make a timing, which has a row of step times, not {shown(part)}")
    if name == "predictor" and not isinstance(part, Predictor | None):
        made = type(part).__name__
        raise InputError(f"predictor: _target_ must make a Predictor, it made a {made}; inherit servelab.Predictor")
    if isinstance(part, Policy):
        require_name(f"the name of policy {type(part).__name__}", part.name)
    return part


def _note_making(whose: str, raised: BaseException) -> None:
    """Note if a user's own module or class raised this, on import or while an object was made."""
    inner = raised.__cause__ or raised.__context__
    if inner is not None:
        _note_making(whose, inner)
    own = [
        frame.name
        for frame in traceback.extract_tb(raised.__traceback__)
        if frame.name in _MAKING and not is_of_a_library(frame.filename)
    ]
    if own and not isinstance(raised, InputError):
        note_method(raised, whose, _MAKING[own[0]])


def _require_outputs(config: DictConfig) -> None:
    if not OmegaConf.is_dict(config.output):
        raise InputError(f"output must be settings, as output.steps=true; got {shown(config.output)}")
    for name, value in config.output.items():
        if name == "series_s":
            if value is not None:
                require_positive("output.series_s", value)
        elif name == "sensitivity":
            if value is not None and value != AUTO:
                require_number("output.sensitivity", value, *_SHARES)
        elif name == "decisions" and not isinstance(value, bool):
            require_count("output.decisions", value, _MOST_REPLAYS)
        elif name == "window_s":
            if value is not None:
                _require_window(value, config.output.timeline)
        elif not isinstance(value, bool):
            raise InputError(f"output.{name} must be true or false, got {value!r}")
        elif value and name in ("steps", "timeline", "gaps") and config.engine.get("log") == "reduced":
            raise InputError(
                f"output.{name} needs the step log, which engine.log=reduced does not keep; set engine.log=full"
            )


def _require_window(value: Any, timeline: Any) -> None:
    bounds = list(value) if OmegaConf.is_list(value) else []
    if len(bounds) != 2 or not all(is_number(bound) for bound in bounds) or not 0 <= bounds[0] < bounds[1]:
        raise InputError(f"output.window_s must be two rising numbers of seconds, as [100,160]; got {shown(value)}")
    if timeline is False:
        raise InputError("output.window_s bounds the timeline, which is off; add output.timeline=true")
