"""Names of version 0.1 go on working: modules, their names, `_target_`s, policies and commands that use them."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hydra.utils import get_object

from framework import moved
from framework.moved import MODULES, NAMES, RENAMED, present_name
from tests.conftest import ROOT
from tests.helpers.readme import environment

# Every module of version 0.1 that can be imported from outside, by package.
MODULES_THEN = {
    "experiments": """
        ablation ablation_report bench benchmarks claims curve curves deployments fidelity headlines optimum
        optimum_report placement statistics table tables textbook tune tuning
    """,
    "experiments.benchmarks": "bare disaggregated measure mixed parts peer rows",
    "experiments.curves": "axis figures plots style table words",
    "experiments.deployments": "calibrations csv_file fit replay report rows score scripts server study vendor",
    "experiments.headlines": "file run sheet",
    "experiments.tables": "cells csv_file formats metrics notes replicates select sheet",
    "experiments.tuning": """
        base candidates expression feasible files goals gp plots pruner report result sampler space space_file
        storage study surrogate
    """,
    "framework": """
        arguments binding bound bounds buckets capacity choices cluster compose engine errors experiment files
        gap_kernels gaps hardware identity invariants jit job kv_capacity launch launchers load memo metrics
        names objective output policy predictor probe report run_limits runs scorers simulate slo slowdown
        sources stability states store sweep terminal timing usage validate views workload
    """,
    "framework.bounds": "demand fluid prefills program requests steps tables windows",
    "framework.engine": """
        arena asking attention codes config cutting drafts ending forming hooks kv_format kvcache leap lists
        loading lookup loop memory network pipeline pointer prefills prefix_memory prefix_stores queues ranks
        roles sharing speculation state stores streams tiles
    """,
    "framework.launchers": "composition jobs pool ray slurm",
    "framework.report": "calibration capacity perfetto step table",
    "framework.timing": """
        affine anchored attention benchmark_files build calibrate calibrated calibration calibration_fit
        composition estimate exact exchange expert_load fitted fitting host interpolate kernel_checks
        kernel_files kernel_formats kernel_package kernel_text kernel_vidur kernels knots latent measure
        measure_attention measure_cases measure_cuda measure_device measure_options measure_reduce measure_table
        measured micro_batches neighbour operations profile profile_files replay roofline shipped show skew step
        surfaces waves work
    """,
    "policies": """
        ares arrow chunked continuous cuts deepseek distserve dopd dynamo dynaserve ecoserve mooncake nexus orca
        overload planning rules splitwise static taichi vllm_v1 workers
    """,
}
# What users import of them.
NAMES_THEN = {
    "framework.policy": """
        Action Aggregated Decision Disaggregated Migrate Plan Policy SetRole SetTokenBudget decision decode_least_kv
        decode_round_robin lay_out overrides prefill_least_queued prefill_round_robin
    """,
    "framework.views": "Cluster Finished Floats Instances Integers Request Requests",
    "framework.predictor": "Floats Integers Predictions Predictor",
    "framework.names": "given_name",
    "framework.errors": "InputError InvariantError JobError PolicyError",
    "framework.validate": "require_at_least require_choice require_count require_positive require_share require_whole",
    "framework.engine.config": "Batching EngineConfig",
    "framework.engine.codes": "DECODE MIXED MODES OFF PREFILL REASONS ROLES",
    "framework.engine.state": "State View",
    "framework.cluster": "ChunkSchedule ClusterSpec LinkSpec PoolSpec disaggregated mixed",
    "framework.hardware": "DTYPE_BYTES Experts Gpu LatentAttention Model Parallelism",
    "framework.workload": "Workload",
    "framework.load": "Closed Load Open",
    "framework.simulate": "OUTCOME Result simulate",
    "framework.states": "FINISHED STATES",
    "framework.metrics": "Evaluation evaluate git_revision request_table summarize",
    "framework.slo": "Judged Slo judge",
    "framework.slowdown": "Slowdown",
    "framework.gaps": "GapReducer Gaps recover slowest_mean",
    "framework.output": "step_table write write_summary",
    "framework.objective": "Goodput Measurement Objective Progress",
    "framework.capacity": "Capacity",
    "framework.bound": "Bound bound",
    "framework.experiment": "Experiment",
    "framework.jit": "compiled",
    "framework.timing.step": "Curve ROW StepRow StepTables Surface Timing step_s",
    "framework.timing.estimate": "StepTimes estimate_s estimates_s",
    "framework.timing.affine": "Affine",
    "framework.timing.neighbour": "same_speed scaled",
    "framework.timing.profile": "Parts Setup",
    "framework.timing.kernels": "Kernels Provenance",
    "framework.timing.kernel_formats": "load load_csv",
    "policies.rules": "DECODE_RULES ORDERS PREFILL_RULES highest_priority reserving rule set_order shortest_prompt",
    "policies.planning": "change forecast is_remote largest_batch prefill_only resize with_local_prefills",
}
TARGETS_THEN = """
    framework.capacity.Capacity framework.cluster.disaggregated framework.cluster.mixed
    framework.engine.attention.Attention framework.engine.config.EngineConfig
    framework.engine.drafts.Speculation framework.engine.kv_format.KvFormat
    framework.engine.prefix_stores.PrefixStores framework.engine.prefix_stores.Tier framework.engine.sharing.Sharing
    framework.hardware.Experts framework.hardware.Gpu framework.hardware.LatentAttention framework.hardware.Model
    framework.load.Closed framework.load.Open framework.objective.Goodput framework.runs.Runs framework.slo.Slo
    framework.slowdown.Slowdown framework.timing.affine.Affine framework.timing.anchored.Anchored
    framework.timing.fitted.Fitted framework.timing.host.WithHost framework.timing.measured.Measured
    framework.timing.roofline.Roofline framework.timing.waves.InWaves policies.ares.Ares policies.arrow.Arrow
    policies.chunked.Chunked policies.continuous.Continuous policies.deepseek.DeepSeek policies.distserve.DistServe
    policies.dopd.Dopd policies.dynamo.Dynamo policies.dynaserve.DynaServe policies.ecoserve.EcoServe
    policies.mooncake.Mooncake policies.nexus.Nexus policies.orca.Orca policies.splitwise.Splitwise
    policies.static.Static policies.taichi.TaiChi policies.vllm_v1.VllmV1 predictors.bucket.Bucket
    predictors.empirical.Empirical predictors.lognormal.LogNormal predictors.none.none predictors.oracle.Oracle
    traces.laws.Arrivals traces.laws.Law traces.load.load traces.load.load_mix traces.synthetic.Sessions
    traces.synthetic.load
"""

# The example of that version's README, and settings that name parts as it did.
SOONEST = '''\
"""Prefill where the prompt is done soonest, decode where the least KV is held; turn away what would wait too long."""

from framework.policy import Disaggregated
from framework.views import Cluster, Floats, Request


class Soonest(Disaggregated):
    """`patience_s`: the longest wait that is admitted; `incoming_weight`: of KV that is still on its way."""

    def __init__(self, patience_s: float = 2.0, incoming_weight: float = 1.0) -> None:
        self.patience_s = patience_s
        self.incoming_weight = incoming_weight

    def waits_s(self, request: Request, cluster: Cluster) -> Floats:
        """Seconds until each prefill instance could be done with the prompt; shape (prefill instances,)."""
        pool = cluster.prefill
        prompts_ahead = pool.queued_tokens / request.input_tokens
        return (1.0 + prompts_ahead) * pool.prefill_s(request)

    def admit(self, request: Request, cluster: Cluster) -> bool | str:
        if self.waits_s(request, cluster).min() > self.patience_s:
            return "too busy"  # the reason that requests.parquet will show
        return True

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        return cluster.prefill.argmin(self.waits_s(request, cluster))

    def route_decode(self, request: Request, cluster: Cluster) -> int:
        pool = cluster.decode
        return pool.argmin(pool.kv_tokens + self.incoming_weight * pool.incoming_kv_tokens)
'''
SOONEST_YAML = """\
# @package _global_
defaults:
  - override /cluster: disaggregated

policy:
  _target_: policies.soonest.Soonest
  patience_s: 2.0
  incoming_weight: 1.0
"""
SLO_YAML = """\
_target_: framework.slo.Slo
ttft_s: 1.0
tpot_s: 0.05
"""
NEED_MORE = ("framework.launchers.ray", "framework.launchers.slurm")  # packages that are not always installed


@pytest.fixture(autouse=True)
def nothing_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(moved._NOTED, "")


def modules_then() -> Iterator[str]:
    for package, names in MODULES_THEN.items():
        yield from (f"{package}.{name}" for name in names.split())


@pytest.mark.parametrize("package", MODULES_THEN)
def test_every_old_module_is_the_present_one(package: str) -> None:
    for name in (f"{package}.{leaf}" for leaf in MODULES_THEN[package].split()):
        assert find_spec(name) is not None, name
        new = present_name(name)
        if name not in NEED_MORE and new is not None:
            assert importlib.import_module(name) is importlib.import_module(new)


@pytest.mark.parametrize("module", NAMES_THEN)
def test_an_old_module_has_the_names_that_it_had(module: str) -> None:
    old = importlib.import_module(module)
    missing = [name for name in NAMES_THEN[module].split() if not hasattr(old, name)]
    assert not missing


def test_targets_of_old_configurations_are_found() -> None:
    targets = TARGETS_THEN.split()
    assert len(targets) > 50
    assert all(callable(get_object(target)) for target in targets)
    assert get_object("framework.hardware.Gpu") is get_object("framework.system.gpu.Gpu")
    assert get_object("framework.objective.Goodput") is get_object("framework.objective.goodput.Goodput")


def test_what_an_old_module_never_had_it_does_not_have_now() -> None:
    for module in ("framework.hardware", "framework.metrics", "framework.views"):
        with pytest.raises(AttributeError, match="nonsense"):
            importlib.import_module(module).nonsense  # noqa: B018
    assert find_spec("framework.nonsense") is None
    assert find_spec("framework.bounds.nonsense") is None


def test_modules_within_a_package_hide_its_old_names() -> None:
    """`from framework.bound import bound` was a function once, and is a module today."""
    from framework.bound import requests
    from framework.objective import goodput

    assert [requests.__name__, goodput.__name__] == ["framework.bound.requests", "framework.objective.goodput"]


def test_the_table_names_what_is_old_and_what_exists() -> None:
    then = set(modules_then())
    assert not (MODULES.keys() | NAMES.keys()) - then
    assert not MODULES.keys() & NAMES.keys()
    for name in (*MODULES.values(), *(place for places in NAMES.values() for place in places)):
        assert find_spec(name) is not None, name
    for old, new in RENAMED.items():
        assert old.rpartition(".")[0] in NAMES
        assert get_object(old) is get_object(new)


def test_the_project_uses_no_old_name() -> None:
    for top in ("framework", "policies", "predictors", "experiments", "traces", "tests", "run.py"):
        for path in [ROOT / top] if top.endswith(".py") else sorted((ROOT / top).rglob("*.py")):
            old = [name for name in imported(path) if name in RENAMED or present_name(name) or is_gone(name)]
            assert not old or path == Path(__file__), f"{path} imports {old}"


def is_gone(name: str) -> bool:
    return name in NAMES and not (ROOT / name.replace(".", "/")).is_dir() and not module_file(name).exists()


def module_file(name: str) -> Path:
    return ROOT / f"{name.replace('.', '/')}.py"


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def run(*arguments: str, directory: Path, **more: str) -> subprocess.CompletedProcess[str]:
    told = environment(directory) | {moved._NOTED: ""} | more
    return subprocess.run(
        [sys.executable, *arguments], cwd=directory, env=told, capture_output=True, text=True, timeout=300
    )


def test_each_old_name_is_noted_once(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys; import framework.validate, framework.errors; from framework.validate import JobError;"
        "import framework.states; assert framework.validate is framework.errors;"
        "subprocess.run([sys.executable, '-c', 'import framework.validate'], check=True)"
    )
    finished = run("-c", code, directory=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr.splitlines() == [
        "note: framework.validate is framework.errors from version 0.3 on",
        "note: framework.states is framework.result from version 0.3 on",
    ]


def test_a_policy_of_the_old_readme_runs_unchanged(tmp_path: Path) -> None:
    files = {
        "mine/policies/soonest.py": SOONEST,
        "conf/policy/soonest.yaml": SOONEST_YAML,
        "conf/slo/mine.yaml": SLO_YAML,
    }
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    start = (
        "import runpy, sys, policies; policies.__path__.append('mine/policies');"
        f"sys.argv[0] = {str(ROOT / 'run.py')!r}; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    settings = ("policy=soonest", "slo=mine", "policy.patience_s=0.5", "trace.limit=400")
    finished = run("-c", start, "--config-dir", str(tmp_path / "conf"), *settings, directory=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert "too busy" in finished.stdout
    notes = [line for line in finished.stderr.splitlines() if line.endswith("from version 0.3 on")]
    assert sorted(notes) == [
        "note: framework.slo is framework.metrics.slo from version 0.3 on",
        "note: framework.views is framework.policy.view from version 0.3 on",
    ]


@pytest.mark.parametrize(
    ("command", "new"),
    [
        ("framework.timing.show model=llama3_70b gpu=h100 tp=4 decode=64x4096", "framework.report.show_step"),
        ("framework.timing.measure model=llama3_8b gpu=h200 list", "framework.timing.microbench"),
        ("framework.timing.build --help", "framework.timing.kernels.build"),
        ("framework.timing.calibrate --help", "framework.calibration"),
    ],
)
def test_an_old_command_runs(command: str, new: str, tmp_path: Path) -> None:
    module, *arguments = command.split()
    finished = run("-m", module, *arguments, directory=tmp_path, NUMBA_DISABLE_JIT="1")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip()
    assert finished.stderr == f"note: python -m {module} is python -m {new} from version 0.3 on\n"
