"""Old names of modules, which go on working until version 0.3: one table, and a finder that reads it.

`install` puts the finder before Python's own. An import, a `_target_` of a configuration or a `python -m` that uses an
old name then gets the very module that has the new one, and a line on stderr says what to write instead.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, spec_from_loader
from types import CodeType, ModuleType
from typing import Any

# Old module -> new module; of a package, all modules in it that are not listed themselves.
MODULES = {
    "experiments.ablation_report": "experiments.ablation.report",
    "experiments.benchmarks": "experiments.bench",
    "experiments.curves": "experiments.curve",
    "experiments.curves.style": "experiments.plot.style",
    "experiments.deployments": "experiments.fidelity",
    "experiments.headlines": "experiments.claims",
    "experiments.optimum_report": "experiments.optimum.report",
    "experiments.statistics": "framework.metrics.statistics",
    "experiments.tables": "experiments.table",
    "experiments.tuning": "experiments.tune",
    "framework.arguments": "framework.cli.arguments",
    "framework.binding": "framework.engine.binding",
    "framework.bounds": "framework.bound",
    "framework.bounds.windows": "framework.bound.demand",
    "framework.buckets": "framework.metrics.by_length",
    "framework.capacity": "framework.objective.capacity",
    "framework.choices": "framework.cli.arguments",
    "framework.cluster": "framework.system.cluster",
    "framework.compose": "framework.run.compose",
    "framework.engine.arena": "framework.engine.mechanisms.prefix_layout",
    "framework.engine.asking": "framework.engine.ask",
    "framework.engine.attention": "framework.engine.mechanisms.attention_overlap",
    "framework.engine.codes": "framework.codes",
    "framework.engine.cutting": "framework.engine.step_end",
    "framework.engine.drafts": "framework.engine.mechanisms.speculation",
    "framework.engine.ending": "framework.engine.step_end",
    "framework.engine.forming": "framework.engine.scheduler",
    "framework.engine.hooks": "framework.policy.hooks",
    "framework.engine.kv_format": "framework.engine.mechanisms.kv_compression",
    "framework.engine.kvcache": "framework.engine.kv_cache",
    "framework.engine.lists": "framework.engine.requests",
    "framework.engine.loading": "framework.engine.arrivals",
    "framework.engine.lookup": "framework.engine.inspect",
    "framework.engine.memory": "framework.engine.allocate",
    "framework.engine.network": "framework.engine.transfers",
    "framework.engine.pipeline": "framework.engine.mechanisms.pipeline_parallel",
    "framework.engine.pointer": "framework.compiler.pointer",
    "framework.engine.prefills": "framework.engine.prefill",
    "framework.engine.prefix_memory": "framework.engine.mechanisms.prefix_layout",
    "framework.engine.prefix_stores": "framework.engine.mechanisms.prefix_tiers",
    "framework.engine.ranks": "framework.engine.mechanisms.data_parallel",
    "framework.engine.roles": "framework.engine.mechanisms.roles",
    "framework.engine.sharing": "framework.engine.mechanisms.sm_sharing",
    "framework.engine.speculation": "framework.engine.mechanisms.speculation",
    "framework.engine.stores": "framework.engine.mechanisms.prefix_tiers",
    "framework.engine.streams": "framework.engine.mechanisms.sm_sharing",
    "framework.engine.tiles": "framework.engine.mechanisms.attention_overlap",
    "framework.experiment": "framework.objective.experiment",
    "framework.files": "framework.cli.files",
    "framework.gap_kernels": "framework.metrics.token_gaps_compiled",
    "framework.gaps": "framework.metrics.token_gaps",
    "framework.identity": "framework.run.run_key",
    "framework.invariants": "framework.metrics.invariants",
    "framework.jit": "framework.compiler.decorators",
    "framework.job": "framework.run.job",
    "framework.kv_capacity": "framework.system.model",
    "framework.launch": "framework.cli.launch",
    "framework.launchers": "framework.run.launchers",
    "framework.launchers.composition": "framework.cli.composition",
    "framework.load": "framework.workload",
    "framework.memo": "framework.cli.files",
    "framework.names": "framework.policy.predictor",
    "framework.output": "framework.run.output",
    "framework.predictor": "framework.policy.predictor",
    "framework.probe": "framework.objective.probe",
    "framework.report.calibration": "framework.calibration.tables",
    "framework.report.capacity": "framework.report.capacity_table",
    "framework.report.step": "framework.report.step_table",
    "framework.report.table": "framework.report.run_table",
    "framework.run_limits": "framework.objective.run_limits",
    "framework.runs": "framework.run.callback",
    "framework.scorers": "framework.metrics.paper_scores",
    "framework.slo": "framework.metrics.slo",
    "framework.slowdown": "framework.metrics.slowdown",
    "framework.sources": "framework.compiler.sources",
    "framework.stability": "framework.objective.stability",
    "framework.states": "framework.result",
    "framework.store": "framework.run.store",
    "framework.sweep": "framework.run.sweep",
    "framework.terminal": "framework.cli.terminal",
    "framework.timing.attention": "framework.timing.kernels.attention_gqa",
    "framework.timing.benchmark_files": "framework.calibration.benchmark_files",
    "framework.timing.build": "framework.timing.kernels.build",
    "framework.timing.calibrate": "framework.calibration.command",
    "framework.timing.calibrated": "framework.calibration.apply",
    "framework.timing.calibration": "framework.timing.calibration_terms",
    "framework.timing.calibration_fit": "framework.calibration.fit",
    "framework.timing.expert_load": "framework.timing.expert_parallel",
    "framework.timing.fitting": "framework.calibration.optimise",
    "framework.timing.interpolate": "framework.timing.kernels.interpolate",
    "framework.timing.kernel_checks": "framework.timing.kernels.checks",
    "framework.timing.kernel_files": "framework.timing.kernels.aiconfigurator_files",
    "framework.timing.kernel_package": "framework.timing.kernels.read_aiconfigurator",
    "framework.timing.kernel_text": "framework.timing.kernels.read_csv",
    "framework.timing.kernel_vidur": "framework.timing.kernels.read_vidur",
    "framework.timing.knots": "framework.timing.kernels.tabulate",
    "framework.timing.measure": "framework.timing.microbench.command",
    "framework.timing.measure_attention": "framework.timing.microbench.attention",
    "framework.timing.measure_cases": "framework.timing.microbench.cases",
    "framework.timing.measure_cuda": "framework.timing.microbench.cuda",
    "framework.timing.measure_device": "framework.timing.microbench.device",
    "framework.timing.measure_options": "framework.timing.microbench.options",
    "framework.timing.measure_reduce": "framework.timing.microbench.all_reduce",
    "framework.timing.measure_table": "framework.timing.microbench.journal",
    "framework.timing.micro_batches": "framework.timing.two_batch_overlap",
    "framework.timing.operations": "framework.timing.kernels.operations",
    "framework.timing.replay": "framework.calibration.replay",
    "framework.timing.shipped": "framework.timing.shipped_setups",
    "framework.timing.show": "framework.report.show_step",
    "framework.timing.surfaces": "framework.calibration.surfaces",
    "framework.timing.work": "framework.timing.flops",
    "framework.usage": "framework.metrics.usage",
    "framework.validate": "framework.errors",
    "framework.views": "framework.policy.view",
    "policies.cuts": "policies.dynaserve",
    "policies.overload": "policies.mooncake",
    "policies.planning": "policies._scaling",
    "policies.rules": "framework.policy.rules",
    "policies.workers": "policies.dynamo",
}

# Old module -> the modules that have its names now: it was divided, what is in it was renamed, or a package of the same
# name took its place.
NAMES = {
    "experiments.ablation": tuple(f"experiments.ablation.{name}" for name in ("command", "file", "run")),
    "experiments.bench": ("experiments.bench.command", "experiments.bench.report"),
    "experiments.claims": ("experiments.claims.command",),
    "experiments.curve": ("experiments.curve.command",),
    "experiments.fidelity": ("experiments.fidelity.command",),
    "experiments.optimum": tuple(f"experiments.optimum.{name}" for name in ("command", "file", "solve")),
    "experiments.placement": ("experiments.placement.command",),
    "experiments.table": ("experiments.table.command",),
    "experiments.textbook": ("experiments.textbook.command",),
    "experiments.tune": ("experiments.tune.command",),
    "framework.bound": ("framework.bound.bound",),
    "framework.engine.state": ("framework.policy.view", "framework.engine.records"),
    "framework.hardware": ("framework.system.gpu", "framework.system.model", "framework.system.parallelism"),
    "framework.metrics": ("framework.metrics.summary",),
    "framework.objective": ("framework.objective.goodput",),
    "framework.policy": ("framework.policy.base", "framework.policy.actions"),
    "framework.simulate": ("framework.result",),
    "framework.timing.anchored": ("framework.timing.published",),
    "framework.timing.composition": ("framework.timing.kernels.tabulate",),
    "framework.timing.exact": ("framework.timing.kernels.step_cost",),
    "framework.timing.exchange": ("framework.timing.kernels.all_to_all",),
    "framework.timing.fitted": ("framework.timing.published",),
    "framework.timing.host": ("framework.timing.overheads",),
    "framework.timing.kernel_formats": ("framework.timing.kernels.read_csv", "framework.timing.kernels.build"),
    "framework.timing.kernels": ("framework.timing.kernels.table",),
    "framework.timing.latent": ("framework.timing.kernels.attention_mla",),
    "framework.timing.neighbour": ("framework.timing.scale",),
    "framework.timing.profile": ("framework.timing.curves",),
    "framework.timing.skew": ("framework.timing.kernels.decode_imbalance",),
    "framework.timing.step": ("framework.timing.table", "framework.timing.step_row", "framework.timing.curves"),
    "framework.timing.waves": ("framework.timing.overheads",),
}

# Old name in a module of NAMES -> the name that it has now.
RENAMED = {
    "framework.timing.anchored.Anchored": "framework.timing.published.PublishedPrompts",
    "framework.timing.composition.compose": "framework.timing.kernels.tabulate.tabulate",
    "framework.timing.exact.ExactTimes": "framework.timing.kernels.step_cost.StepCost",
    "framework.timing.exact.exact_times": "framework.timing.kernels.step_cost.step_cost",
    "framework.timing.exchange.exchange_s": "framework.timing.kernels.all_to_all.all_to_all_s",
    "framework.timing.fitted.Fitted": "framework.timing.published.Published",
    "framework.timing.host.WithHost": "framework.timing.overheads.CpuOverhead",
    "framework.timing.kernel_formats.load": "framework.timing.kernels.build.load_kernels",
    "framework.timing.latent.LatentKernels": "framework.timing.kernels.attention_mla.MlaKernels",
    "framework.timing.latent.LatentModule": "framework.timing.kernels.attention_mla.MlaModule",
    "framework.timing.latent.latent_attention": "framework.timing.kernels.attention_mla.mla_attention",
    "framework.timing.profile.Parts": "framework.timing.profile.StepParts",
    "framework.timing.skew.Skew": "framework.timing.kernels.decode_imbalance.DecodeImbalance",
    "framework.timing.skew.fit_skew": "framework.timing.kernels.decode_imbalance.fit_imbalance",
    "framework.timing.skew.skew_step_s": "framework.timing.kernels.decode_imbalance.imbalance_s",
    "framework.timing.waves.InWaves": "framework.timing.overheads.WaveQuantization",
}

_LAST = "0.3"
_NOTED = "SERVELAB_NOTED"  # what this process, or the one that started it, has told already


def install() -> None:
    """Let old names be found, by this process; once is enough."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def present_name(name: str) -> str | None:
    """The module that has taken the place of module `name`; None where `name` is not old."""
    if name in MODULES:
        return MODULES[name]
    parent, _, leaf = name.rpartition(".")
    above = present_name(parent) if parent else None
    return f"{above}.{leaf}" if above else None


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in NAMES:
            return _with_old_names(fullname, path)
        name = present_name(fullname)
        if name is None or (fullname in MODULES and _file_spec(fullname, path)):  # a user's own module of that name
            return None
        found = find_spec(name)
        return found and spec_from_loader(fullname, _Alias(name), origin=found.origin)


class _Alias(Loader):
    """Gives the module `name`, whatever name it is asked for."""

    def __init__(self, name: str) -> None:
        self.name = name

    def exec_module(self, module: ModuleType) -> None:
        """Put the present module where Python looks for the one that was imported."""
        present = importlib.import_module(self.name)
        if not hasattr(present, "__path__"):  # of a package, its modules are noted
            note(module.__name__, self.name)
        sys.modules[module.__name__] = present

    def get_code(self, fullname: str) -> CodeType | None:
        """The code that `python -m fullname` runs."""
        package, _, leaf = self.name.rpartition(".")
        command = package if leaf == "command" else self.name
        note(f"python -m {fullname}", f"python -m {command}")
        found = find_spec(f"{package}.__main__" if leaf == "command" else self.name)
        code = getattr(found.loader, "get_code", None) if found else None
        return code(found.name) if found and code else None


class _Divided(Loader):
    """Makes a module that has nothing but names of other modules."""

    def exec_module(self, module: ModuleType) -> None:
        module.__doc__ = f"What {module.__name__} held until it was divided."
        _lend(module)


def _with_old_names(fullname: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """The spec of a module that also answers to names which were its own once."""
    spec = _file_spec(fullname, path)
    if spec is None:
        return spec_from_loader(fullname, _Divided())
    loader: Any = spec.loader
    execute = loader.exec_module

    def execute_and_lend(module: ModuleType) -> None:
        execute(module)
        _lend(module)

    loader.exec_module = execute_and_lend
    return spec


def _lend(module: ModuleType) -> None:
    attributes: dict[str, Callable[[str], Any]] = vars(module)
    attributes["__getattr__"] = lambda name: _borrowed(module.__name__, name)


def _borrowed(module: str, name: str) -> Any:
    """What `name` stood for in `module`. Raises AttributeError if it stood for nothing."""
    old = f"{module}.{name}"
    if not name.startswith("__") and not _is_module(old):
        renamed = RENAMED.get(old)
        for new in [renamed] if renamed else [f"{place}.{name}" for place in NAMES[module]]:
            place, _, leaf = new.rpartition(".")
            holder = importlib.import_module(place)
            if hasattr(holder, leaf):
                note(old, new)
                return getattr(holder, leaf)
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


def _is_module(name: str) -> bool:
    path = getattr(sys.modules[name.rpartition(".")[0]], "__path__", None)
    return path is not None and _file_spec(name, path) is not None


def _file_spec(fullname: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """The spec of a module that has a file; a folder alone, perhaps left over from an old checkout, is none."""
    spec = PathFinder.find_spec(fullname, path)
    return spec if spec is not None and spec.origin is not None else None


def note(old: str, new: str) -> None:
    """Say on stderr, once for this process and those that it starts, what is to be written instead of `old`."""
    noted = os.environ.get(_NOTED, "").split(",")
    if old not in noted:
        os.environ[_NOTED] = ",".join([*filter(None, noted), old])
        print(f"note: {old} is {new} from version {_LAST} on", file=sys.stderr)
