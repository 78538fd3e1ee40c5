"""Models and GPUs: parameter arithmetic, KV capacity, and every shipped YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from framework.errors import InputError
from framework.system.gpu import Gpu
from framework.system.model import Experts, Model, kv_capacity_tokens
from framework.system.parallelism import Parallelism
from tests.conftest import ROOT

PUBLISHED_BILLIONS = {
    "llama3_8b": 8.03,
    "llama3_70b": 70.6,
    "llama2_7b": 6.74,
    "qwen25_7b": 7.62,
    "qwen25_14b": 14.8,
    "qwen25_32b": 32.8,
    "opt_13b": 12.9,
    "opt_66b": 65.7,
    "bloom_176b": 176,
    "opt_175b": 175,
    "mistral_7b": 7.25,
    "yi_34b": 34.4,
    "codellama_34b": 33.7,
    "falcon_180b": 180,
    "qwen3_32b": 32.8,
    "mixtral_8x7b": 46.7,
    "gpt_oss_120b": 116.8,
    "deepseek_v3": 671,
    "qwen3_30b": 30.5,
    "qwen3_235b": 235,
    "minimax_m25": 229,
    "kimi_k25": 1026,
}
ACTIVE_BILLIONS = {  # embedding and output projection included, as their papers count
    "mixtral_8x7b": 12.9,
    "deepseek_v3": 37,
    "qwen3_30b": 3.3,
    "qwen3_235b": 22,
    "kimi_k25": 32.6,
}
GPUS = ("a100", "h100", "h200", "b200", "l20", "l40s", "a10g")


def load(group: str, name: str) -> Any:
    return instantiate(OmegaConf.load(ROOT / "conf" / group / f"{name}.yaml"))


def names(group: str) -> set[str]:
    return {Path(file).stem for file in (ROOT / "conf" / group).glob("*.yaml")}


def test_all_models_and_gpus_are_shipped() -> None:
    assert names("model") >= set(PUBLISHED_BILLIONS)
    assert names("gpu") >= set(GPUS)


@pytest.mark.parametrize(("name", "billions"), PUBLISHED_BILLIONS.items())
def test_parameters_are_the_published_ones(name: str, billions: float) -> None:
    model = load("model", name)
    assert model.name == name
    assert model.parameters / 1e9 == pytest.approx(billions, rel=5e-3)


@pytest.mark.parametrize(("name", "billions"), ACTIVE_BILLIONS.items())
def test_active_parameters_are_the_published_ones(name: str, billions: float) -> None:
    model = load("model", name)
    assert (model.active_parameters + 2 * model.output_parameters) / 1e9 == pytest.approx(billions, rel=0.02)


def test_qwen_publishes_its_parameters_without_embeddings() -> None:
    assert load("model", "qwen25_7b").active_parameters / 1e9 == pytest.approx(6.53, rel=2e-3)
    assert load("model", "qwen25_14b").active_parameters / 1e9 == pytest.approx(13.1, rel=1e-2)
    assert load("model", "qwen25_32b").active_parameters / 1e9 == pytest.approx(31.0, rel=1e-2)


def test_kv_bytes_per_token() -> None:
    assert load("model", "llama2_7b").kv_bytes_per_token * 4096 == 2 * 2**30
    assert load("model", "llama3_8b").kv_bytes_per_token == 128 * 2**10
    assert load("model", "llama3_8b").kv_bytes_per_token * 4096 == 512 * 2**20


def test_opt_has_a_short_context() -> None:
    assert load("model", "opt_13b").max_context == load("model", "opt_66b").max_context == 2048


@pytest.mark.parametrize("name", GPUS)
def test_gpu_figures_are_of_a_plausible_size(name: str) -> None:
    gpu = load("gpu", name)
    assert gpu.name == name
    assert type(gpu.peak_flops) is dict
    assert 50 < gpu.peak(2) / gpu.bandwidth_bytes_s < 500  # FLOP/byte: a unit slip shows here
    assert 24e9 <= gpu.memory_bytes <= 192e9
    assert gpu.pcie_bytes_s <= gpu.link_bytes_s
    assert gpu.nic_bytes_s <= gpu.link_bytes_s < gpu.bandwidth_bytes_s
    assert 0 < gpu.idle_w < gpu.tdp_w <= 1000


def test_peak_is_the_one_of_the_operands() -> None:
    h100 = load("gpu", "h100")
    assert (h100.peak("bf16"), h100.peak("fp8"), h100.peak("int4")) == (989e12, 1979e12, 989e12)
    with pytest.raises(InputError, match=r"gpu a100 states no peak for fp8 \(it has bf16, int8\)"):
        load("gpu", "a100").peak("fp8")


def test_kv_capacity_is_what_the_weights_leave() -> None:
    model, gpu = load("model", "llama3_8b"), load("gpu", "h100")
    assert kv_capacity_tokens(model, gpu, Parallelism(1), 0.9) == int((72e9 - 16_060_522_496) // 131072)
    # two GPUs: half the weights and half the KV heads on each
    assert kv_capacity_tokens(model, gpu, Parallelism(2), 0.9) == int((72e9 - 8_030_261_248) // 65536)


def test_kv_heads_are_copied_where_there_are_more_gpus() -> None:
    model, gpu = load("model", "llama3_8b"), load("gpu", "h100")
    eight, sixteen = (kv_capacity_tokens(model, gpu, Parallelism(tp), 0.9) for tp in (8, 16))
    assert eight < sixteen < 1.02 * eight  # only the weights get thinner


def test_model_that_does_not_fit_is_refused_with_the_arithmetic() -> None:
    model, gpu = load("model", "llama3_70b"), load("gpu", "h100")
    with pytest.raises(InputError) as caught:
        kv_capacity_tokens(model, gpu, Parallelism(1), 0.9)
    line = str(caught.value)
    assert "\n" not in line
    for part in ("llama3_70b", "h100", "141.1 GB on 1 GPU (tp1)", "80.0 GB x kv_fraction 0.9 = 72.0 GB", "cluster.tp"):
        assert part in line
    assert kv_capacity_tokens(model, gpu, Parallelism(4), 0.9) > 100_000


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("layers", 0, "model.layers must be a whole number of at least 1, got 0"),
        ("hidden", 4096.5, "model.hidden must be a whole number of at least 1, got 4096.5"),
        ("kv_heads", 3, "model.heads = 8 is not a multiple of model.kv_heads = 3"),
    ],
)
def test_impossible_models_are_refused(field: str, value: float, message: str) -> None:
    sizes = ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab", "max_context")
    fields: dict[str, Any] = {**dict.fromkeys(sizes, 8), field: value}
    with pytest.raises(InputError) as caught:
        Model("m", **fields)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("window", "windowed_layers", "message"),
    [
        (0, 1, "model.windowed_layers = 1 with model.window = 0: give both or neither"),
        (4, 0, "model.windowed_layers = 0 with model.window = 4: give both or neither"),
        (4, 2, "model.windowed_layers = 2 of 2 layers: at least one must attend to the whole context"),
        (4, 3, "model.windowed_layers = 3 of 2 layers: at least one must attend to the whole context"),
    ],
)
def test_impossible_windows_are_refused(window: int, windowed_layers: int, message: str) -> None:
    with pytest.raises(InputError) as caught:
        Model("m", 2, 8, 8, 8, 8, 8, 8, 8, window=window, windowed_layers=windowed_layers)
    assert str(caught.value) == message


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), "fast"])
def test_impossible_gpus_are_refused(value: Any) -> None:
    with pytest.raises(InputError, match=r"^gpu.bandwidth_bytes_s must be a finite number above 0, got "):
        Gpu("g", {"bf16": 1e12}, 1e9, value, 1e9, 1e9, 1e9, 100.0, 10.0, 1.0)


def test_fp4_is_nvfp4() -> None:
    experts = Experts(8, 2, 64, dtype="fp4")
    model = Model("own", 2, 64, 4, 4, 16, 64, 128, max_context=128, dtype="fp4", experts=experts)
    assert (model.dtype, model.expert_dtype) == ("nvfp4", "nvfp4")
