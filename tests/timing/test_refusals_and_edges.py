"""What sources of step times refuse, and where their limits lie, to the number."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from framework.errors import InputError
from framework.system.parallelism import Parallelism
from framework.timing.curves import Curve, Surface
from framework.timing.expert_parallel import ExpertLoad, _most, expert_load, popularity, with_expert_load
from framework.timing.fit_domain import Domain, Place
from framework.timing.joint_attention import joint_kernel
from framework.timing.kernels.attention_mla import MlaKernels
from framework.timing.kernels.checks import _rates, named, require_consistent, require_even, sized
from framework.timing.kernels.decode_imbalance import imbalance_s
from framework.timing.kernels.interpolate import Interpolated, _place
from framework.timing.kernels.read_aiconfigurator import package_root
from framework.timing.kernels.read_csv import read_text
from framework.timing.kernels.step_cost import _SEND_LATENCY_S, StepCost
from framework.timing.profile import _slower
from framework.timing.published import PublishedFit
from framework.timing.server import Server
from framework.timing.shipped.profile_entry import _numbers, decoded, encoded
from framework.timing.shipped.scale import Gains, _Ratios
from framework.timing.shipped.shipped_setups import Types, typed
from framework.timing.step_row import StepRow
from tests.helpers.parts import load, made_up
from tests.timing.test_decode_imbalance import tables
from tests.timing.test_kernel_formulas import GPU, LATENT, latent_tables, measured
from tests.timing.test_tabulate import DENSE, MIXTURE, kernels


def test_a_surface_has_as_many_values_as_knots() -> None:
    with pytest.raises(ValueError, match="2 knots but 3 values"):
        Surface((1.0, 2.0), (1.0, 2.0), ((1.0, 2.0), (1.0, 2.0, 3.0)))


def test_the_least_of_a_row_is_what_it_has() -> None:
    assert StepRow(base_s=1.0, host_s=0.5, linear=Curve((1.0, 2.0), (0.25, 1.0))).least_s == 1.75


def test_all_settings_of_experts_may_be_given_at_once() -> None:
    assert expert_load({"skew": 0.5, "redundant": 4, "seed": 3}) == ExpertLoad(0.5, 4, 3)


def test_the_load_without_copies_is_the_mean_over_64_orders() -> None:
    rng = np.random.default_rng(7)
    most = [rng.permutation(popularity(16, 1.0)).reshape(4, 4).sum(axis=1).max() for _ in range(64)]
    assert _most.__wrapped__(1.0, 0, 7, 16, 4) == pytest.approx(4 * np.mean(most))


@pytest.mark.parametrize(("dp", "ep", "factor"), [(8, 8, 1.0), (16, 16, 2.0), (1, 16, 1.0)])
def test_dispatch_is_as_uneven_as_experts_are_where_it_crosses_nodes(dp: int, ep: int, factor: float) -> None:
    parts = made_up(
        parallelism=Parallelism(tp=16 if dp == 1 else 1, dp=dp, ep=ep), experts_s=np.array([1.0, 1.0, 2.0, 3.0])
    )
    uneven = with_expert_load(parts, 2.0)
    assert uneven["experts"] == parts["experts"].times(2.0)
    assert uneven["communication"] == parts["communication"].times(factor)


def test_a_place_lies_outside_by_more_than_a_tenth_or_a_hundredth_of_its_prompts() -> None:
    known = Domain(
        prompt_tokens=(100.0, 200.0), output_tokens=(10.0, 20.0), cached_share=(0.25, 0.5), rate_rps=(1.0, 4.0)
    )
    inside = Place(prompt_tokens=150.0, output_tokens=15.0, cached_share=0.5, rate_rps=2.0)
    assert known.distance(inside) == ""
    assert "more cached" in known.distance(replace(inside, cached_share=0.75))
    assert "less cached" in known.distance(replace(inside, cached_share=0.125))
    assert known.distance(replace(inside, cached_share=0.505)) == ""


def test_heads_share_keys_as_the_model_has_it() -> None:
    found = joint_kernel(GPU, DENSE, Parallelism(tp=2), "vllm", joint=True)
    assert found.head_group == 4
    assert joint_kernel(GPU, replace(LATENT, kv_heads=2), Parallelism(), "vllm", joint=True).head_group == 1


@pytest.mark.parametrize(("capability", "shared_kb"), [(8.0, 164), (8.6, 100), (8.9, 100), (12.0, 100)])
def test_tiles_at_once_are_those_that_shared_memory_holds(capability: float, shared_kb: int) -> None:
    """On 11 multiprocessors of each of six GPUs; a tile takes 80 KB."""
    gpu = replace(GPU, compute_capability=capability, multiprocessors=11)
    found = joint_kernel(gpu, DENSE, Parallelism(dp=2, pp=3), "vllm", joint=True)
    assert found.decodes_at_once == shared_kb // 80 * 11 * 6


def test_latent_attention_needs_heads_that_tp_divides_and_counts_those_of_queries() -> None:
    with pytest.raises(InputError, match="tp = 3 does not divide"):
        MlaKernels(measured(), LATENT, 3)
    few = replace(LATENT, kv_heads=2)
    at = np.asarray(16.0)
    wide, own = (MlaKernels(measured(**latent_tables(0)), model, 2).decode_s(at, at) for model in (LATENT, few))
    assert wide == own
    narrow = MlaKernels(measured(**latent_tables(0)), replace(LATENT, dtype="fp8"), 2)
    assert narrow._absorb("pre").seconds(16.0) == pytest.approx(1e-5 + 16e-7)


# --- tables -----------------------------------------------------------------------------------------------------------


def rows(**columns: Any) -> pl.DataFrame:
    return pl.DataFrame({"row": [2, 3], "latency_s": [1e-4, 1e-4], **columns})


def test_names_and_sizes_are_read_without_blanks_and_in_their_range() -> None:
    assert named("gemm", rows(dtype=[" bf16", "fp8 "]), "here", "dtype")["dtype"].to_list() == ["bf16", "fp8"]
    assert sized("gemm", rows(m=["1", str(2**53 - 1)]), "here", "m")["m"].to_list() == [1, 2**53 - 1]
    with pytest.raises(InputError, match=r"row 3: m = .*9007199254740992"):
        sized("gemm", rows(m=["1", str(2**53)]), "here", "m")


def test_tables_without_kernels_may_be_inconsistent_too() -> None:
    same = rows(dtype="bf16", m=[1, 1], n=8, k=8)
    require_consistent("gemm", same, "here")
    with pytest.raises(
        InputError, match=r"here, gemm, row 3: dtype=bf16 m=1 n=8 k=8 took 0.0002 s and in row 2 0.0001 s"
    ):
        require_consistent("gemm", same.with_columns(latency_s=pl.Series([1e-4, 2e-4])), "here")


def test_a_size_may_take_a_hundred_times_what_those_next_to_it_do() -> None:
    two = rows(dtype="bf16", m=[1, 2], n=8, k=8)
    for times in ([100, 1], [1, 99]):
        require_even("gemm", two.with_columns(latency_s=pl.Series([2.0**-8 * each for each in times])), "here", GPU)
    for times in ([101, 1], [1, 101]):
        uneven = two.with_columns(latency_s=pl.Series([2.0**-8 * each for each in times]))
        with pytest.raises(InputError, match="over 100 times slower than the next m"):
            require_even("gemm", uneven, "here", GPU)


def test_rates_of_nothing_are_not_told() -> None:
    assert _rates({"flops": 0.0, "moved": 10.0, "latency_s": 2.0}) == "5 B/s"
    assert _rates({"flops": 8.0, "moved": 10.0, "latency_s": 2.0}) == "4 FLOP/s and 5 B/s"


def test_four_uneven_batches_are_enough() -> None:
    even, uneven = tables(skew_s=1e-9)
    even = even.with_columns(heads=8, kv_heads=2, head_dim=64)
    uneven = uneven.with_columns(heads=8, kv_heads=2, head_dim=64)
    own = {count: kernels(decode_attention=even, uneven_decode=uneven.head(count)) for count in (3, 4)}
    assert imbalance_s(own[3], DENSE, 1) == 0.0
    assert imbalance_s(own[4], DENSE, 1) == pytest.approx(2 * 1e-9, rel=1e-3)
    assert imbalance_s(own[4], replace(DENSE, window=128, windowed_layers=1), 1) == pytest.approx(1e-9, rel=1e-3)


def test_a_column_stands_once_in_a_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("op,m,m\ngemm,1,2\n")
    with pytest.raises(InputError, match="column m stands twice in the header"):
        read_text(tmp_path / "a.csv")


def test_a_table_has_at_most_a_thousand_columns(tmp_path: Path) -> None:
    for count in (1000, 1001):
        (tmp_path / f"{count}.csv").write_text(f"{','.join(f'c{k}' for k in range(count))}\n{',' * (count - 1)}1\n")
    assert read_text(tmp_path / "1000.csv").width == 1001  # and the number of the row
    with pytest.raises(InputError, match="has 1,001 columns, a table of kernel times has at most 1000"):
        read_text(tmp_path / "1001.csv")


@pytest.mark.parametrize("stretch", [0.5, 1.0, 1.5, 3.0])
def test_of_a_share_as_much_is_known_as_was_measured_of_the_whole(stretch: float) -> None:
    axes = (np.array([1.0, 3.0]), np.array([0.0, 4.0]))
    limits = np.array([16.0, 8.0])
    fit = Interpolated(
        axes, np.array([[-3.0, -2.0], [-2.0, -1.0]]), limits, lambda a, b: a * b, stretch, saturates=True
    )
    for size in (1.0, 2.0, 4.0, 8.0, 32.0):
        asked = size * min(stretch, 1.0)
        product = 64.0 if asked >= 8.0 else 32.0
        assert fit.limit_together(size) == max(fit.limit(size), product / max(asked, 2.0))
    held = max(1.0, 2.0 / min(stretch, 1.0))
    assert fit.seconds(1.0, 1.0) == fit.seconds(held, 1.0)
    assert fit.seconds(0.5 * held, 4.0) == fit.seconds(held, 4.0)
    assert fit.seconds(1.5 * held, 4.0) > fit.seconds(held, 4.0)


# --- files ------------------------------------------------------------------------------------------------------------


def test_numbers_of_laws_and_servers_are_not_negative() -> None:
    with pytest.raises(InputError, match=r"timing\.laws: m on 1 g: decode_s must be .*-1"):
        PublishedFit("m", "g", 1, 0.0, [[1, 0.5, -1.0]])
    with pytest.raises(InputError, match="prefill_curve_s must have rows of 2 numbers"):
        PublishedFit("m", "g", 1, 0.0, [[1, 0.5, 0.0]], prefill_curve_s=[[1, 2, 3]])
    with pytest.raises(InputError, match=r"server\.host_by_tp: tp 2 must be .*-1"):
        Server(host_by_tp={2: (0.5, -1.0)})
    with pytest.raises(InputError, match=r"server\.host_by_tp: tp 2 must have seconds"):
        Server(host_by_tp={2: (0.5,)})


def test_an_entry_has_its_columns_and_no_others() -> None:
    entry = encoded(made_up())
    assert decoded(entry).rows.keys() == made_up().rows.keys()
    with pytest.raises(ValueError, match="an entry lacks, or has too many: more"):
        decoded({**entry, "more": 1})
    assert _numbers("limits", [None, 3]).tolist() == [np.inf, 3.0]
    assert _numbers("limit", None) == np.inf
    assert _numbers("a_us", [1, 2]).tolist() == pytest.approx([1e-6, 2e-6])


def test_types_of_a_model_and_of_its_experts() -> None:
    model = load("model", "mixtral_8x7b")
    both = typed(model, Types("fp8", "bf16", "nvfp4"))
    assert (both.dtype, both.kv_dtype, both.expert_dtype) == ("fp8", "bf16", "nvfp4")
    assert typed(model, Types("fp8", "bf16")).expert_dtype == "fp8"


def test_columns_over_one_axis_have_the_same_knots() -> None:
    parts = made_up()
    other = StepRow(linear=Curve((1.0, 64.0), (1.0, 2.0)))
    with pytest.raises(ValueError, match="elementwise_us has other tokens than the columns before it"):
        encoded(replace(parts, rows={**parts.rows, "elementwise": other}))


def test_parts_without_a_curve_over_tokens_have_none_and_no_bumps() -> None:
    parts = made_up()
    assert set(parts.over_tokens) == {"gemm", "experts", "elementwise", "communication"}
    assert parts.over_tokens["gemm"] is parts["gemm"].linear
    bare = replace(parts, rows={**parts.rows, "experts": StepRow()})
    assert "experts" not in bare.over_tokens
    assert bare.without_bumps is bare


def test_two_domains_together_hold_both() -> None:
    one = Domain((10, 20), (1, 2), (0.1, 0.2), in_flight=(4, 8))
    other = Domain((15, 40), (3, 4), (0.0, 0.15), rate_rps=(1, 2))
    assert one | other == Domain((10, 40), (1, 4), (0.0, 0.2), in_flight=(4, 8), rate_rps=(1, 2))
    assert one | one == one


def test_an_axis_of_one_knot_is_the_same_everywhere() -> None:
    at, share = _place(np.array([3.0]), np.array([0.0, 3.0, 9.0]))
    assert (at.tolist(), share.tolist()) == ([0, 0, 0], [0.0, 0.0, 0.0])
    at, share = _place(np.array([1.0, 3.0, 7.0]), np.array([0.0, 1.0, 2.0, 3.0, 6.0, 9.0]))
    assert (at.tolist(), share.tolist()) == ([0, 0, 0, 1, 1, 1], [0.0, 0.0, 0.5, 0.0, 0.75, 1.0])


def test_tables_of_the_package_lie_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found: Any = SimpleNamespace(origin="/site/aiconfigurator_core/__init__.py")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: found)
    assert package_root() == Path("/site/aiconfigurator_core/systems")
    found.origin = None
    with pytest.raises(InputError, match="measured kernel times need aiconfigurator-core"):
        package_root()


@pytest.mark.parametrize("x", [1.0, 3.0, 40.0])
def test_what_only_counts_on_one_gpu_and_only_reads_on_another_takes_bytes_for_flops(x: float) -> None:
    """1e14 FLOP/s and no time to read; 1e6 bytes/s and no time to count. Two layers of 8 and 2 heads of 64; experts 2
    of 8.
    """
    counts = replace(GPU, bandwidth_bytes_s=1e15)
    reads = replace(GPU, bandwidth_bytes_s=1e6)
    ratios, at = _Ratios(made_up(), MIXTURE, counts, reads, Gains()), np.array([x])
    found = [*(of(at)[0] for of in (ratios.gemm, ratios.experts, ratios.prefill, ratios.logits)), ratios.decode]
    moved = [2.0, 2 * (1 - 0.75**x), 2 * 2 * (8 + 2) * 64 * x * 2, 2.0, 2 * 2 * 2 * 64 * 2]
    flops = [2 * x, 2 * x / 4, 2 * 8 * 2 * 128 * x**2 / 2, 2 * x, 2 * 8 * 2 * 128]
    assert found == pytest.approx([1e8 * of / each for of, each in zip(moved, flops, strict=True)])


def test_times_of_experts_are_those_of_a_model_that_has_some() -> None:
    dense = _Ratios(made_up(), replace(MIXTURE, name="dense", experts=None), GPU, GPU, Gains())
    with pytest.raises(InputError, match=r"^model dense has no experts, but its profile has times for them$"):
        dense.experts(np.ones(1))


def test_stages_send_over_the_network_between_nodes() -> None:
    def sent_s(gpus: int) -> float:
        own: Any = SimpleNamespace(operations=SimpleNamespace(gpu=GPU), parallelism=Parallelism(pp=gpus))
        return float(StepCost._send_s(own, np.asarray(1e6)))

    assert [sent_s(8), sent_s(9)] == pytest.approx([_SEND_LATENCY_S + 1e6 / 1e11, _SEND_LATENCY_S + 1e6 / 1e10])


def test_what_nothing_slows_is_left_as_it_is() -> None:
    gemm = made_up()["gemm"]
    assert _slower("gemm", gemm, 1.0) is gemm
