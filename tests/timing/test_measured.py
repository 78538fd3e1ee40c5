"""Measured step times: what is found, what is scaled from another GPU, what a miss says."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framework.errors import InputError
from framework.metrics.invariants import check_result
from framework.simulate import simulate
from framework.system.cluster import mixed
from framework.system.model import Experts
from framework.system.parallelism import Parallelism
from framework.timing.calibration_terms import Calibration, Fit, Selector, calibration_path, write_calibrations
from framework.timing.measured import Measured
from framework.timing.profile import Setup, StepParts
from framework.timing.roofline import Roofline
from framework.timing.server import Server
from framework.timing.shipped.profile_files import directories, find, read_profile, shipped_directory
from framework.timing.shipped.scale import Gains, scaled
from framework.timing.table import StepRow, stack, step_s
from framework.workload import Workload
from tests.conftest import ROOT
from tests.helpers.parts import load, made_up, put, seconds_of

TP1 = Parallelism()
SCALED = sorted(path.stem for path in (ROOT / "conf/gpu").glob("*.yaml") if load("gpu", path.stem).neighbour)
ANY = Selector()


@pytest.fixture(autouse=True)
def _no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Made-up profiles of a model that does not ship, so that none of those that do is found."""
    directory = tmp_path / "own"
    for gpu in ("h100", "l40s", "a100", "rtx_pro_6000"):
        put(directory, "llama3_8b", gpu, "own", made_up(), made_up(parallelism=Parallelism(tp=2)))
    return directory


def calibrate(own: Path, gpu_name: str, selector: Selector = ANY, **terms: float) -> None:
    write_calibrations(calibration_path(own, gpu_name, "own"), [Fit(Calibration(**terms), selector)])


def measured(own: Path, **more: Any) -> Measured:
    return Measured(**({"backend": "own", "profiles": str(own)} | more))


def model(**changes: Any) -> Any:
    return replace(load("model", "llama3_8b"), **changes)


def gpu(name: str, **changes: Any) -> Any:
    return replace(load("gpu", name), **changes)


def prefill_s(row: StepRow, tokens: int) -> float:
    return step_s(stack([row]), 0, [0], [tokens], 0, 0)


# --- what is found --------------------------------------------------------------------------------------------------


def test_the_row_is_the_profile_s(own: Path) -> None:
    row = measured(own).row(model(), gpu("h100"), TP1)
    expected = made_up().row(Calibration())
    assert row.linear is not None
    assert expected.linear is not None
    np.testing.assert_allclose(row.linear.values, expected.linear.values, rtol=1e-3)
    assert row.decode_limits == expected.decode_limits


def test_source_names_what_was_given_out(own: Path) -> None:
    calibrate(own, "h100", kernel=0.9)
    timing = measured(own)
    assert timing.source == "measured (own)"
    timing.row(model(), gpu("h100"), TP1)
    assert timing.source == "measured (h100, own 0.1, calibrated)"
    timing.row(model(), gpu("h100"), Parallelism(tp=2))
    timing.row(model(), gpu("l20"), TP1)
    assert timing.source == "measured (h100, own 0.1, calibrated; l20 scaled from l40s, own 0.1)"


def test_a_run_names_its_profiles(own: Path) -> None:
    workload = Workload(
        arrival_s=np.zeros(2), input_tokens=np.array([100, 200]), output_tokens=np.array([3, 4]), name="two"
    )
    result = simulate(workload, mixed(1, gpu("h100")), model(), measured(own))
    check_result(result)
    assert result.timing_source == "measured (h100, own 0.1)"


def test_a_server_is_named_and_its_terms_count_where_nothing_was_fitted(own: Path) -> None:
    timing = measured(own, server=Server("quick", request_s=0.25))
    assert timing.row(model(), gpu("h100"), TP1).request_s == 0.25
    assert timing.source == "measured (h100, own 0.1; server quick)"
    calibrate(own, "h100", request_s=0.5)
    assert measured(own, server=Server("quick", request_s=0.25)).row(model(), gpu("h100"), TP1).request_s == 0.5


def test_calibration_is_used_unless_turned_off(own: Path) -> None:
    calibrate(own, "h100", kernel=0.5, request_s=0.01)
    calibrated = measured(own).row(model(), gpu("h100"), TP1)
    plain = measured(own, calibrated=False).row(model(), gpu("h100"), TP1)
    assert plain.request_s == 0.0
    assert calibrated.request_s == 0.01
    assert calibrated.prefill_step_s == pytest.approx(plain.prefill_step_s / 2)


def test_only_models_that_a_calibration_is_for_are_calibrated(own: Path) -> None:
    put(own, "llama3_8b", "h100", "own", made_up(), made_up(dtype="fp8", expert_dtype="fp8"))
    calibrate(own, "h100", Selector(dtype="fp8"), step_s=1.0)
    timing = measured(own)
    assert timing.row(model(), gpu("h100"), TP1).base_s < 1.0
    assert timing.source == "measured (h100, own 0.1)"
    assert timing.row(model(dtype="fp8"), gpu("h100"), TP1).base_s > 1.0
    assert timing.source == "measured (h100, own 0.1; h100, own 0.1, calibrated)"


def test_a_calibration_counts_for_its_own_gpu_and_for_others_when_asked(own: Path) -> None:
    calibrate(own, "l40s", step_s=1.0)
    alone = measured(own)
    assert alone.row(model(), gpu("l20"), TP1).base_s < 1.0
    assert alone.source == "measured (l20 scaled from l40s, own 0.1)"
    asked = measured(own, calibrated_as="l40s")
    assert asked.row(model(), gpu("l20"), TP1).base_s > 1.0
    assert asked.source == "measured (l20 scaled from l40s, own 0.1, calibrated as l40s was)"
    calibrate(own, "l20", step_s=2.0)
    timing = measured(own)
    assert timing.row(model(), gpu("l20"), TP1).base_s > 2.0
    assert timing.source == "measured (l20 scaled from l40s, own 0.1, calibrated)"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (
            {"parallelism": Parallelism(tp=16)},
            ["llama3_8b on h100, own, tp16, bf16", "there are tp1 tp2 (bf16, bf16 KV)", "pip install '.[kernels]'"],
        ),
        ({"parallelism": Parallelism(tp=4, pp=2)}, ["tp=4 pp=2 dtype=bf16 kv_dtype=bf16"]),
        ({"model": {"dtype": "fp8"}}, ["tp1, fp8, bf16 KV", "model=llama3_8b gpu=h100 backend=own tp=1 dtype=fp8"]),
        ({"gpu": "b200"}, ["on b200", "h100 (own sglang trtllm vllm)", "timing=roofline"]),
        ({"gpu": "mine"}, ["on mine", "l40s (own", "timing.neighbour=GPU scales"]),
        (
            {"model": {"experts": Experts(count=8, per_token=2, intermediate=4096, dtype="int4")}},
            ["bf16, int4 experts, bf16 KV", "dtype=bf16 expert_dtype=int4 kv_dtype=bf16"],
        ),
        ({"gpu": "l20", "parallelism": Parallelism(tp=8)}, ["on l20", "(scaled from l40s) tp1 tp2", "gpu=l40s"]),
        ({"model": {"name": "unheard_of"}}, ["unheard_of", "no profile at all"]),
    ],
)
def test_a_miss_says_what_there_is_and_what_to_do(own: Path, asked: dict[str, Any], words: list[str]) -> None:
    name = asked.get("gpu", "h100")
    on = replace(gpu("h100"), name="mine") if name == "mine" else gpu(name)
    with pytest.raises(InputError) as caught:
        measured(own).row(model(**asked.get("model", {})), on, asked.get("parallelism", TP1))
    message = str(caught.value)
    assert "\n" not in message
    assert "python -m framework.timing.kernels.build" in message
    for word in words:
        assert word in message


def test_what_cannot_be_is_not_told_to_be_made(own: Path) -> None:
    with pytest.raises(InputError, match="tp = 3 does not divide the 32 heads of llama3_8b"):
        measured(own).row(model(), gpu("h100"), Parallelism(tp=3))
    with pytest.raises(InputError, match="gpu a100 states no peak for fp8"):
        measured(own).row(model(dtype="fp8"), gpu("a100"), TP1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"backend": None},
        {"backend": 3},
        {"calibrated": "yes"},
        {"profiles": 1},
        {"neighbour": 2},
        {"joint_attention": "maybe"},
        {"missing": "guess"},
    ],
)
def test_bad_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"timing.{next(iter(wrong))}"):
        Measured(**wrong)


# --- GPUs that nobody measured ----------------------------------------------------------------------------------------


def test_a_slower_gpu_is_slower_by_what_limits_the_part() -> None:
    parts, slow = made_up(), gpu("h100", bandwidth_bytes_s=3.35e12 / 2)
    to = scaled(parts, model(), gpu("h100"), slow)
    assert to.scaled_from == "h100"
    assert seconds_of(to, "gemm")[0] == pytest.approx(2 * seconds_of(parts, "gemm")[0])  # one row: bandwidth
    assert seconds_of(to, "gemm")[-1] == seconds_of(parts, "gemm")[-1]  # thousands: compute
    assert seconds_of(to, "elementwise")[0] == seconds_of(parts, "elementwise")[0]  # launches
    assert seconds_of(to, "elementwise")[-1] == pytest.approx(2 * seconds_of(parts, "elementwise")[-1], rel=0.1)
    np.testing.assert_allclose(
        seconds_of(to, "decode_attention") - seconds_of(to, "decode_attention")[0, 0],
        2 * (seconds_of(parts, "decode_attention") - seconds_of(parts, "decode_attention")[0, 0]),
    )
    assert to["prefill_attention"].prefill_step_s == parts["prefill_attention"].prefill_step_s
    np.testing.assert_array_equal(seconds_of(to, "communication"), seconds_of(parts, "communication"))


def test_the_same_gpu_is_the_same() -> None:
    parts = made_up(experts_s=np.array([1e-3, 1e-3, 2e-3, 4e-3]))
    mixture = model(experts=Experts(count=8, per_token=2, intermediate=4096))
    same = scaled(parts, mixture, gpu("h100"), gpu("h100"))
    for part in ("gemm", "experts", "elementwise", "prefill_attention", "decode_attention", "logits"):
        np.testing.assert_allclose(seconds_of(same, part), seconds_of(parts, part), rtol=1e-15)


def test_compute_that_doubles_halves_what_it_limits() -> None:
    parts = made_up(lengths=np.array([1.0, 8192.0, 65536.0]), experts_s=np.array([1e-3, 1e-3, 2e-3, 4e-3]))
    mixture = model(experts=Experts(count=8, per_token=2, intermediate=4096))
    fast = gpu("h100", peak_flops={"bf16": 2 * 989e12})
    to = scaled(parts, mixture, gpu("h100"), fast)
    assert seconds_of(to, "gemm")[-1] == pytest.approx(seconds_of(parts, "gemm")[-1] / 2)
    assert seconds_of(to, "experts")[-1] == pytest.approx(seconds_of(parts, "experts")[-1] / 2)
    assert seconds_of(to, "prefill_attention")[-1] == pytest.approx(seconds_of(parts, "prefill_attention")[-1] / 2)
    np.testing.assert_array_equal(seconds_of(to, "decode_attention"), seconds_of(parts, "decode_attention"))
    assert seconds_of(scaled(parts, mixture, gpu("h100"), gpu("h100"), Gains(2.0)), "gemm")[-1] == pytest.approx(
        seconds_of(parts, "gemm")[-1] / 2
    )


def test_a_gpu_that_uses_more_of_its_bandwidth_is_faster_where_memory_limits() -> None:
    parts = made_up()
    to = scaled(parts, model(), gpu("h100"), gpu("h100"), Gains(bandwidth=2.0))
    assert seconds_of(to, "gemm")[0] == pytest.approx(seconds_of(parts, "gemm")[0] / 2)
    assert seconds_of(to, "gemm")[-1] == seconds_of(parts, "gemm")[-1]
    above, least = seconds_of(parts, "decode_attention"), seconds_of(parts, "decode_attention")[0, 0]
    np.testing.assert_allclose(seconds_of(to, "decode_attention") - least, (above - least) / 2)


def test_of_a_tile_products_follow_the_peak_and_the_rest_the_multiprocessors() -> None:
    """Half of the time of a key is products on a GPU whose clock reaches half; the other has half the units of that."""
    plain, measured_on = made_up(), gpu("l40s", multiprocessors=142)
    products_s = 2 * model().attention_flops_per_pair / measured_on.peak("bf16")
    tiles = {"tile_row_s": 1.0, "tile_pair_s": 2 * products_s}
    parts = replace(plain, rows=dict(plain.rows) | {"prefill_attention": replace(plain["prefill_attention"], **tiles)})
    slow = gpu("l40s", peak_flops={"bf16": 362.05e12 / 4}, multiprocessors=71)
    to = scaled(parts, model(), measured_on, slow, Gains(tensor=2.0))["prefill_attention"]
    assert (to.tile_row_s, to.tile_pair_s) == pytest.approx((2.0, 2 * products_s + products_s), abs=0.0, rel=1e-9)
    to = scaled(parts, model(), measured_on, replace(slow, multiprocessors=None))["prefill_attention"]
    assert (to.tile_row_s, to.tile_pair_s) == pytest.approx((4.0, 8 * products_s), abs=0.0, rel=1e-9)
    fast = scaled(parts, model(), measured_on, replace(slow, multiprocessors=None), Gains(tensor=2.0))
    tile = fast["prefill_attention"]
    assert (tile.tile_row_s, tile.tile_pair_s) == pytest.approx((2.0, 4 * products_s), abs=0.0, rel=1e-9)


@pytest.mark.parametrize("name", SCALED)
def test_unmeasured_gpus_are_scaled_from_a_measured_one(own: Path, name: str) -> None:
    timing = measured(own)
    row = timing.row(model(), gpu(name), TP1)
    assert f"{name} scaled from {gpu(name).neighbour}" in timing.source
    measured_row = measured(own).row(model(), gpu(gpu(name).neighbour), TP1)
    if name != "rtx_pro_6000_workstation":  # all others compute less
        assert prefill_s(row, 4096) > prefill_s(measured_row, 4096)
    else:
        assert prefill_s(row, 4096) < prefill_s(measured_row, 4096)


def test_a_type_that_the_gpu_cannot_compute_is_refused(own: Path) -> None:
    put(own, "llama3_8b", "l40s", "own", made_up(dtype="fp8", expert_dtype="fp8"))
    assert measured(own).row(model(dtype="fp8"), gpu("l40s"), TP1)
    with pytest.raises(InputError, match="gpu a10g states no peak for fp8"):
        measured(own).row(model(dtype="fp8"), gpu("a10g"), TP1)


def test_a_gpu_of_one_s_own_has_the_neighbour_that_is_named(own: Path) -> None:
    mine = replace(gpu("h100", bandwidth_bytes_s=2e12), name="mine")
    with pytest.raises(InputError, match="on mine"):
        measured(own).row(model(), mine, TP1)
    timing = measured(own, neighbour="h100")
    timing.row(model(), mine, TP1)
    assert timing.source == "measured (mine scaled from h100, own 0.1)"


def test_a_gpu_names_its_neighbour_and_the_gain_counts_for_that_one_alone(own: Path) -> None:
    mine = replace(gpu("h100"), name="mine", neighbour="l40s", tensor_gain=0.5)
    timing = measured(own)
    row = timing.row(model(), mine, TP1)
    assert timing.source == "measured (mine scaled from l40s, own 0.1)"
    plain = measured(own).row(model(), replace(mine, tensor_gain=1.0), TP1)
    assert prefill_s(row, 8192) > prefill_s(plain, 8192)
    other = measured(own, neighbour="a100").row(model(), mine, TP1)
    assert other == measured(own, neighbour="a100").row(model(), replace(mine, tensor_gain=1.0), TP1)


@pytest.mark.parametrize("by", ["timing", "gpu"])
def test_a_wrong_neighbour_is_answered_with_the_right_ones(own: Path, by: str) -> None:
    mine = replace(gpu("h100"), name="mine", neighbour="h1000" if by == "gpu" else None)
    timing = measured(own, neighbour="h1000" if by == "timing" else None)
    said = (
        f"{by}.neighbour=h1000: there are no measured times of llama3_8b with own on it;"
        " choose one of a100, h100, l40s, rtx_pro_6000"
    )
    with pytest.raises(InputError) as caught:
        timing.row(model(), mine, TP1)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("name", "settings", "changes", "rows"),
    [
        ("l40s", {}, {}, 64),
        ("l20", {}, {}, 64),  # scaled, but its own architecture counts
        ("a100", {}, {}, 64),
        ("h100", {}, {}, 0),
        ("l40s", {"joint_attention": False}, {}, 0),
        ("h100", {"joint_attention": True}, {}, 64),
        ("l40s", {}, {"kv_dtype": "fp8"}, 0),
    ],
)
def test_one_kernel_for_chunks_and_decodes_where_the_gpu_has_no_other(
    own: Path, name: str, settings: dict[str, Any], changes: dict[str, Any], rows: int
) -> None:
    put(own, "llama3_8b", "l40s", "own", made_up(), made_up(kv_dtype="fp8"))
    assert measured(own, **settings).row(model(**changes), gpu(name), TP1).decode_rows == rows


@pytest.mark.parametrize(("backend", "rows"), [("vllm", 64), ("trtllm", 0), ("sglang", 0)])
def test_other_servers_have_a_kernel_for_decodes(backend: str, rows: int) -> None:
    assert Measured(backend).row(model(), gpu("l40s"), TP1).decode_rows == rows


def test_a_gpu_that_nobody_measured_has_the_datasheet_s_times_and_says_so(own: Path) -> None:
    timing = measured(own, missing="roofline", server=Server(name="some", step_s=1.0))
    asked = model(), replace(gpu("h100"), name="mine"), TP1
    assert timing.estimates(asked[1])
    assert timing.row(*asked) == Roofline().row(*asked)
    assert timing.source == "measured (mine by roofline, as no kernel was measured on it, to a factor of 2)"
    assert not timing.estimates(gpu("h100"))
    timing.row(model(), gpu("h100"), TP1)
    assert timing.source.endswith("; h100, own 0.1; server some)")


@pytest.mark.parametrize("changes", [{"name": "mine", "neighbour": "h1000"}, {"dtype": "fp8"}])
def test_what_was_measured_of_another_kind_is_still_refused(own: Path, changes: dict[str, str]) -> None:
    """A reference GPU that is not there, or a type that was not measured on that GPU, is an error and no estimate."""
    dtype = changes.pop("dtype", "bf16")
    with pytest.raises(InputError, match="no measured times"):
        measured(own, missing="roofline").row(model(dtype=dtype), replace(gpu("h100"), **changes), TP1)


def test_no_calibration_of_a_neighbour_counts(own: Path) -> None:
    """Shipped calibrations of H100 leave scaled GPUs alone."""
    scaled_row = Measured().row(model(), gpu("h800"), TP1)
    assert scaled_row == Measured(calibrated=False).row(model(), gpu("h800"), TP1)
    assert scaled_row != Measured(calibrated_as="h100").row(model(), gpu("h800"), TP1)


def test_a_changed_datasheet_is_scaled_and_says_so(own: Path) -> None:
    timing = measured(own)
    timing.row(model(), gpu("h100", bandwidth_bytes_s=5e12), TP1)
    assert timing.source == "measured (h100 scaled from h100, own 0.1)"
    timing.row(model(), gpu("h100"), TP1)
    assert timing.source == "measured (h100 scaled from h100, own 0.1; h100, own 0.1)"
    timing = measured(own)
    timing.row(model(), gpu("h100", usd_per_hour=1.0), TP1)
    assert timing.source == "measured (h100, own 0.1)"


# --- what ships -----------------------------------------------------------------------------------------------------


def shipped(name: str, gpu_name: str, parallelism: Parallelism = TP1, backend: str = "vllm", **types: str) -> StepParts:
    asked = replace(load("model", name), **types)
    found = find((shipped_directory(),), asked, gpu_name, backend, Setup.of(asked, parallelism))
    assert found is not None
    return found.parts


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("tokens", [1, 64, 2048])
def test_scaled_times_lie_above_the_roofline_and_near_it(name: str, tokens: int) -> None:
    """No part is faster than the datasheet allows, none much slower than kernels usually are."""
    llama, target = model(), gpu(name)
    row = Measured(calibrated=False).row(llama, target, TP1)
    floor = Roofline(mfu=1.0, mbu=1.0, overhead_s=0.0, all_reduce_latency_s=0.0).row(llama, target, TP1)
    ratio = prefill_s(row, tokens) / prefill_s(floor, tokens)
    assert 1.0 < ratio < 2.5


def test_a_slower_network_in_a_node_slows_what_stays_in_it() -> None:
    """Between nodes an H800 has the ports of an H100."""
    timing, units = Measured("sglang", calibrated=False), Parallelism(dp=32, ep=32)
    for asked, parallelism, same in ((model(), Parallelism(8), False), (load("model", "deepseek_v3"), units, True)):
        h100, h800 = (timing.entry(asked, gpu(name), parallelism).parts for name in ("h100", "h800"))
        assert (
            np.allclose(seconds_of(h100, "communication"), seconds_of(h800, "communication"), rtol=1e-12, atol=0.0)
            is same
        )
        assert np.array_equal(seconds_of(h100, "gemm"), seconds_of(h800, "gemm"))


def test_a_row_is_made_in_no_time() -> None:
    started = time.perf_counter()
    for _ in range(5):
        Measured().row(model(), gpu("h100"), TP1)
    assert (time.perf_counter() - started) / 5 < 0.2


def test_the_default_needs_no_package() -> None:
    """A profile is read without the kernel tables, and without polars reading anything."""
    code = (
        "import sys; sys.modules['aiconfigurator_core'] = None\n"
        "from framework.timing.measured import Measured\n"
        "from tests.helpers.parts import load\n"
        "from framework.system.parallelism import Parallelism\n"
        "timing = Measured()\n"
        "timing.row(load('model', 'llama3_8b'), load('gpu', 'h100'), Parallelism())\n"
        "assert 'framework.timing.kernels.table' not in sys.modules\n"
        "print(timing.source)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("measured (h100, vllm 0.24.0")


def test_every_directory_is_searched_once_for_a_row_which_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    def spy(path: Path) -> Any:
        read.append(path)
        return read_profile(path)

    monkeypatch.setattr("framework.timing.shipped.profile_files.read_profile", spy)
    timing = Measured()
    row = timing.row(model(), gpu("h100"), TP1)
    assert timing.row(model(), gpu("h100"), TP1) is row
    assert len(read) == 1
    assert read[0].is_relative_to(directories()[-1])
