"""Every file of every config group composes and makes what it says; a policy's cluster gives way to an explicit one."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from hydra import compose as compose_config
from hydra.errors import HydraException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from framework.cli.explain import explain
from framework.engine.durations.attention_overlap import Attention
from framework.engine.durations.speculation import Speculation
from framework.engine.kv.kv_compression import KvFormat
from framework.engine.kv.output_reserve import OutputReserve
from framework.engine.kv.prefix_tiers import PrefixStores
from framework.engine.parallel.sm_sharing import Sharing
from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.metrics.slo import Slo
from framework.objective.goodput import Objective
from framework.policy import Policy
from framework.policy.predictor import Predictor
from framework.run.compose import compose
from framework.system.cluster import ClusterSpec
from framework.system.faults import Faults, FaultSchedule
from framework.system.gateway import Gateway
from framework.system.gpu import Gpu
from framework.system.model import Model, kv_capacity_tokens
from framework.system.parallelism import Parallelism
from framework.system.random_faults import RandomFaults
from framework.system.start_cost import StartCost
from framework.timing.table import StepRow
from framework.workload import Workload
from tests.conftest import ROOT
from tests.helpers.composing import composing
from tests.helpers.quick import every_second, marks

GROUPS = ("policy", "predictor", "trace", "model", "gpu", "cluster", "timing", "engine", "load", "slo", "objective")
KINDS: dict[str, tuple[type, ...]] = {
    "policy": (Policy,),
    "predictor": (Predictor, type(None)),
    "trace": (Workload,),
    "model": (Model,),
    "gpu": (Gpu,),
    "cluster": (ClusterSpec,),
    "engine": (EngineConfig,),
    "gateway": (Gateway,),
    "slo": (Slo,),
    "objective": (Objective,),
    "engine/attention": (Attention,),
    "engine/faults": (Faults, FaultSchedule, RandomFaults),
    "engine/kv_compression": (KvFormat,),
    "engine/output_reserve": (OutputReserve,),
    "engine/sharing": (Sharing,),
    "engine/speculation": (Speculation,),
    "engine/start": (StartCost,),
    "engine/prefix_stores": (PrefixStores,),
}
SMALL = ("trace=synthetic", "trace.limit=20")


def names(group: str) -> list[str]:
    return sorted(path.stem for path in (ROOT / "conf" / group).glob("*.yaml") if not path.stem.startswith("_"))


def choices(count: int, *groups: str) -> list[ParameterSet]:
    """Each choice of each group, of which one in `count` is quick."""
    every = [(group, name) for group in groups for name in names(group)]
    return [
        pytest.param(group, name, id=f"{group}={name}", marks=marks(i % count == 0))
        for i, (group, name) in enumerate(every)
    ]


@pytest.fixture(autouse=True)
def config_directory() -> Iterator[None]:
    with composing():
        yield


def configured(*overrides: str) -> DictConfig:
    return compose_config("config", overrides=list(overrides))


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_has_choices(group: str) -> None:
    assert names(group)
    assert group in configured()


@pytest.mark.parametrize(("group", "name"), choices(5, *(group for group in KINDS if group != "trace")))
def test_a_choice_makes_what_its_group_says(group: str, name: str) -> None:
    node = OmegaConf.select(configured(f"{group}={name}"), group.replace("/", "."))
    assert isinstance(instantiate(node, _convert_="all"), KINDS[group])


def test_no_group_is_left_out() -> None:
    folders = {path.parent.relative_to(ROOT / "conf").as_posix() for path in (ROOT / "conf/engine").rglob("*.yaml")}
    assert folders <= set(KINDS)


@pytest.mark.parametrize("name", every_second(names("trace")))
def test_a_trace_is_loaded_or_says_how_to_get_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACES_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    try:
        workload = instantiate(configured(f"trace={name}", "trace.limit=20").trace, _convert_="all")
    except HydraException as error:
        line = explain(error)
        assert line is not None
        assert f"traces.fetch {name}" in line
    else:
        assert isinstance(workload, Workload)
        assert len(workload) == 20


@pytest.mark.parametrize(("group", "name"), choices(4, "timing"))
def test_a_timing_source_times_steps(group: str, name: str) -> None:
    config = configured(f"timing={name}")
    anything = {"model": "llama3_8b", "gpu": "h100", "tp": 1}
    one = config.timing if "model" in config.timing else anything
    for fit in config.timing.get("laws", [one]):  # of what they name
        config = configured(f"timing={name}", f"model={fit['model']}", f"gpu={fit['gpu']}")
        timing, model, gpu = (instantiate(config[part], _convert_="all") for part in ("timing", "model", "gpu"))
        assert isinstance(timing.source, str)
        assert isinstance(timing.row(model, gpu, Parallelism(fit["tp"])), StepRow)


@pytest.mark.parametrize("name", names("model"))
def test_a_model_fits_on_enough_gpus(name: str) -> None:
    config = configured(f"model={name}")
    model, gpu = (instantiate(config[part], _convert_="all") for part in ("model", "gpu"))
    assert kv_capacity_tokens(model, gpu, Parallelism(16), 0.9) > 0


@pytest.mark.slow  # its conformance suite lays out the same cluster
@pytest.mark.parametrize("name", names("policy"))
def test_a_policy_can_use_the_cluster_that_its_file_names(name: str) -> None:
    assert compose(configured(f"policy={name}", *SMALL)).cluster.instances > 1


@pytest.mark.parametrize("override", ["policy=ares", "policy=distserve"])
def test_a_policys_cluster_gives_way_to_an_explicit_one(override: str) -> None:
    assert configured(override).cluster._target_ == "framework.system.cluster.disaggregated"
    for overrides in ((override, "cluster=mixed"), ("cluster=mixed", override)):
        config = configured(*overrides)
        assert config.cluster._target_ == "framework.system.cluster.mixed"
        with pytest.raises(InputError, match="cluster=disaggregated"):
            compose(configured(*overrides, *SMALL))


def test_names_that_others_rely_on() -> None:
    config = configured(
        *("policy=chunked", "cluster=mixed", "cluster.instances=3", "engine.token_budget=512", "engine.max_batch=8"),
        *("engine.block_tokens=32", "engine.preemption=swap", "engine.prefix_cache=true", "slo.ttft_s=1"),
        *("slo.tpot_s=0.1", "trace.path=a", "trace.format=mooncake", "trace.limit=5", "trace.rate=2"),
        *("trace.rate_scale=1", "trace.tile=2", "trace.window_s=[0,5]", "trace.poisson=true", "trace.jitter_s=1"),
        *("seed=7", "timing=affine", "timing.base_s=0.01", "timing.per_prefill_token_s=1e-5"),
        *("timing.prefill_quadratic_s=0", "timing.per_sequence_s=0", "timing.per_context_token_s=0"),
    )
    assert config.cluster.instances == 3
    config = configured("policy=distserve", "cluster=disaggregated", "cluster.prefill=3", "cluster.decode=5")
    assert (config.cluster.prefill, config.cluster.decode) == (3, 5)


def test_the_seed_reaches_the_run_and_its_trace() -> None:
    experiment = compose(configured(*SMALL, "seed=5"))
    other = compose(configured(*SMALL, "seed=6"))
    assert experiment.seed == 5
    assert not (experiment.workload.input_tokens == other.workload.input_tokens).all()


@pytest.mark.parametrize("seed", ["-1", "1.5", "many", "true"])
def test_a_seed_is_a_whole_number(seed: str) -> None:
    with pytest.raises(InputError, match="seed"):
        compose(configured(*SMALL, f"seed={seed}"))


def test_a_part_of_the_wrong_kind_is_refused() -> None:
    with pytest.raises(InputError, match="policy: _target_ must make a Policy"):
        compose(configured(*SMALL, "policy=chunked", "policy._target_=builtins.dict"))


def test_a_batching_that_no_pool_has_is_refused() -> None:
    with pytest.raises(InputError, match=r"engine.batching=static has no effect: policy \w+ batches decode_first"):
        compose(configured(*SMALL, "policy=chunked", "engine.batching=static"))
    compose(configured(*SMALL, "policy=chunked", "cluster=mixed", "engine.batching=decode_first"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["output.steps=true", "engine.log=reduced"], "engine.log=full"),
        (["output.timeline=maybe"], "output.timeline"),
        (["output.series_s=0"], "output.series_s"),
        (["output.series_s=often"], "output.series_s"),
        (["output.phases=maybe"], "output.phases"),
        (["output.gaps=2"], "output.gaps"),
        (["output.sensitivity=true"], "output.sensitivity"),
        (["output.sensitivity=0"], "output.sensitivity"),
        (["output.sensitivity=1"], "output.sensitivity"),
        (["output.sensitivity=much"], "output.sensitivity"),
        (["output.gaps=true", "engine.log=reduced"], "output.gaps"),
        *(
            (["output.timeline=true", f"output.window_s={window}"], "output.window_s must be two rising numbers")
            for window in (
                "5",
                "[]",
                "[5]",
                "[5,5]",
                "[5,1]",
                "[-1,5]",
                "[1,2,3]",
                "[1,inf]",
                "[a,b]",
                "true",
                "{a: 1}",
            )
        ),
        (["output.window_s=[1,5]"], "add output.timeline=true"),
    ],
)
def test_outputs_that_cannot_be_are_refused_before_the_run(overrides: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        compose(configured(*SMALL, *overrides))


@pytest.mark.parametrize("word", ["gpu.bandwidth_bytes_s=1e9", "gpu.peak_flops.bf16=1e-30"])
def test_a_gpu_too_slow_for_a_step_is_refused(word: str) -> None:
    with pytest.raises(InputError, match=r"raise gpu\.bandwidth_bytes_s and gpu\.peak_flops"):
        compose(configured(*SMALL, word))
    with pytest.raises(InputError, match=r"gpu\.nic_bytes_s must be a finite number of at least 1e\+06"):
        compose(configured(*SMALL, "gpu.nic_bytes_s=1e-30"))
    compose(configured(*SMALL, "gpu.bandwidth_bytes_s=1e10", "gpu.peak_flops.bf16=1e10", "gpu.nic_bytes_s=1e6"))


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("timing.base_s=11", "a step of one token would take 11"),
        ("timing.per_sequence_s=1e5", "a step of one token would take"),
        ("cluster.link_bandwidth_bytes_s=1e-30", "cluster: the bandwidth of links must be"),
        ("engine/prefix_stores=dram engine.prefix_stores.tiers.dram.bandwidth_bytes_s=1", "bandwidth_bytes_s must be"),
        ("engine/prefix_stores=dram engine.prefix_stores.tiers.dram.latency_s=11", "latency_s must lie"),
    ],
)
def test_steps_that_hardly_end_are_refused(word: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        compose(configured(*SMALL, "timing=affine", "engine.prefix_cache=true", *word.split()))


def test_an_efficiency_of_nearly_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="a step of one token would take"):
        compose(configured(*SMALL, "timing=roofline", "timing.mfu=1e-30"))


SHIPPED = {  # a user's own files with these may leave defaults out, or change them
    "policy": ("ares", "chunked", "continuous", "distserve"),
    "predictor": ("bucket", "empirical", "lognormal", "none", "oracle"),
}


@pytest.mark.parametrize("group", SHIPPED)
def test_a_shipped_file_names_every_parameter_with_its_default(group: str) -> None:
    for name in SHIPPED[group]:
        node = configured(f"{group}={name}")[group]
        target = get_object(node["_target_"])
        parameters = inspect.signature(target).parameters.values()
        written = {key: value for key, value in node.items() if not str(key).startswith("_")}
        assert written == {parameter.name: parameter.default for parameter in parameters}, name


MISTAKES = {
    "unknown trace": (["trace=nonesuch"], ["trace=nonesuch", "mooncake", "azure_conv"]),
    "unknown key": (["engine.tokens=5"], ["engine.tokens: there is no such setting", "did you mean engine.kv_tokens?"]),
    "no override": (["policy=["], ["policy=["]),
    "no policy": (["policy=null"], ["group"]),
    "a word for a number": (["engine.token_budget=many"], ["engine.token_budget", "many"]),
    "model that does not fit": (["model=llama3_70b"], ["141.1 GB", "80.0 GB", "cluster.tp"]),
    "missing value": (["seed=???"], ["seed"]),
    "reference to nothing": (["seed=${nothing}"], ["seed", "nothing"]),
    "argument that a class does not take": (["+policy.colour=red"], ["policy", "colour"]),
    "class that is not there": (["policy._target_=policies.ares.Mars"], ["policies.ares.Mars", "_target_"]),
    "unknown format": ([f"trace.path={ROOT / 'run.py'}", "trace.format=odd"], ["odd", "mooncake"]),
}


def mistake_in(*overrides: str) -> str:
    """The line that the user would see."""
    with pytest.raises((InputError, HydraException, OmegaConfBaseException, ValueError)) as caught:
        compose(configured(*overrides))
    line = explain(caught.value)
    assert line is not None
    assert "\n" not in line
    return line


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_explained_in_one_line(mistake: str) -> None:
    overrides, fragments = MISTAKES[mistake]
    line = mistake_in("trace.limit=20", *overrides)
    assert [word for word in fragments if word not in line] == []


GOOD_ROW = {"timestamp": 0, "input_length": 600, "output_length": 20, "hash_ids": [0, 1]}
BAD_ROWS = {
    "negative length": (GOOD_ROW | {"input_length": -5}, ["line 2", "input_length", "-5"]),
    "length that is no number": (GOOD_ROW | {"output_length": float("nan")}, ["line 2", "output_length"]),
    "missing column": ({"timestamp": 0, "input_length": 10, "hash_ids": [0]}, ["output_length"]),
    "hash_ids that do not fit": (GOOD_ROW | {"hash_ids": [0, 1, 2, 3]}, ["line 2", "hash_ids"]),
}


@pytest.mark.parametrize("kind", BAD_ROWS)
def test_a_bad_row_is_named(kind: str, tmp_path: Path) -> None:
    row, fragments = BAD_ROWS[kind]
    path = tmp_path / "trace.jsonl"
    path.write_text(f"{json.dumps(GOOD_ROW)}\n{json.dumps(row)}\n")
    line = mistake_in(f"trace.path={path}", "trace.format=mooncake")
    assert [word for word in ("trace.jsonl", *fragments) if word not in line] == []


def test_a_row_without_tokens_is_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(f"{json.dumps(GOOD_ROW)}\n{json.dumps(GOOD_ROW | {'output_length': 0})}\n")
    assert len(compose(configured(f"trace.path={path}", "trace.format=mooncake")).workload) == 1
    assert "1 of 2 requests have 0 tokens; they are left out" in capsys.readouterr().err


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").touch()
    assert "trace.jsonl" in mistake_in(f"trace.path={tmp_path / 'trace.jsonl'}", "trace.format=mooncake")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("slo.classes={batch:{ttft_s:30}}",), "its requests have no classes"),
        (
            ("trace.slo_classes={chat:1,code:1}", "slo.classes={chat:{ttft_s:1},batch:{ttft_s:30}}"),
            "its classes are chat, code",
        ),
    ],
)
def test_limits_of_a_class_that_the_trace_lacks_are_refused(arguments: tuple[str, ...], line: str) -> None:
    with pytest.raises(InputError, match=rf"slo\.classes\.batch: no request of trace \w+ has this class; {line}"):
        compose(configured("trace=synthetic", "trace.requests=50", *arguments))
