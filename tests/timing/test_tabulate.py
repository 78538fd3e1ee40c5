"""Measured kernel times between their shapes, steps made of them, and the few knots that stand for them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from framework.errors import InputError
from framework.system.gpu import Gpu
from framework.system.model import Experts, LatentAttention, Model
from framework.system.parallelism import Parallelism
from framework.timing.calibration_terms import Calibration
from framework.timing.curves import FloatArray
from framework.timing.kernels.interpolate import interpolate, nearest
from framework.timing.kernels.measured_rows import _LEAST_PRODUCT, Shard, _with_fixed_scales, distribution_of
from framework.timing.kernels.operations import Operations
from framework.timing.kernels.step_cost import StepCost, step_cost
from framework.timing.kernels.table import Kernels, Provenance
from framework.timing.kernels.tabulate import _above, _decodes, _prompts, _tiles, choose_knots, samples, tabulate
from framework.timing.profile import Setup
from framework.timing.shipped.profile_entry import encoded
from framework.timing.table import stack, step_s
from tests.conftest import ROOT
from tests.helpers.exact_steps import exact_step_s
from tests.helpers.parts import seconds_of

GPU = Gpu("toy", {"bf16": 1e14, "fp8": 2e14}, 80e9, 1e12, 1e11, 1e10, 1e10, 500.0, 50.0, 1.0)
ONE = Parallelism()
DENSE = Model("toy", 2, 512, 8, 2, 64, 1024, 4096, 8192)
MIXTURE = replace(DENSE, experts=Experts(8, 2, 512))
SHARED = replace(DENSE, experts=Experts(8, 2, 512, shared_intermediate=512, dense_layers=1))
LATENT = replace(DENSE, kv_heads=8, latent=LatentAttention(128, 64, 64, 32, 64))
TOKENS = [1, 2, 16, 17, 256, 257, 1024, 4096]
BATCHES, LENGTHS, CONTEXTS = ([2**power for power in range(stop)] for stop in (7, 13, 14))


def grid(time_s: Callable[..., float], **columns: Any) -> pl.DataFrame:
    """A table of all combinations of the columns, with the time that the function of their values gives."""
    values = [value if isinstance(value, list) else [value] for value in columns.values()]
    rows = [(*row, time_s(**dict(zip(columns, row, strict=True)))) for row in itertools.product(*values)]
    return pl.DataFrame(rows, schema=[*columns, "latency_s"], orient="row")


def heads(**columns: Any) -> dict[str, Any]:
    return {"kv_dtype": "bf16", "heads": 8, "kv_heads": 2, "head_dim": 64, "window": 0} | columns


def gemm_s(m: float, n: float, k: float, **_: Any) -> float:
    return 2e-6 + 2 * m * n * k / 5e13 + n * k * 2 / 8e11


def attend_s(batch: float, tokens: float = 1, context: float = 0, **_: Any) -> float:
    return 1e-5 + 2e-8 * batch * tokens * tokens / 16 + 3e-9 * batch * context


SHARDS = heads(heads=[4, 8], kv_heads=[1, 2])
TABLES: Mapping[str, pl.DataFrame] = {
    "gemm": grid(gemm_s, dtype="bf16", m=TOKENS, n=[64, 512, 4096], k=[64, 512, 4096]),
    "prefill_attention": grid(attend_s, **SHARDS, batch=BATCHES, tokens=LENGTHS, prefix=0),
    "decode_attention": grid(attend_s, **SHARDS, batch=BATCHES, context=CONTEXTS),
    "experts": grid(
        lambda tokens, tp, ep, **_: 1e-5 + 1e-7 * tokens / (tp * ep),
        dtype="bf16",
        tokens=TOKENS,
        hidden=512,
        intermediate=512,
        experts=8,
        per_token=2,
        tp=[1, 2],
        ep=[1, 2],
        distribution=["balanced", "power_law_1.2"],
    ),
    **{
        name: grid(
            lambda bytes, **_: 4e-6 + bytes / 5e10, dtype="bf16", gpus=[2, 4], bytes=[2**k for k in range(8, 26)]
        )
        for name in ("all_reduce", "all_gather", "reduce_scatter")
    },
}
LATENT_KEYS = {"kv_dtype": "bf16", "dtype": "bf16", "heads": [4, 8], "prefix": 0}
LATENT_TABLES = {
    "latent_prefill": grid(attend_s, **LATENT_KEYS, batch=BATCHES, tokens=LENGTHS, module=0),
    "latent_decode": grid(attend_s, **LATENT_KEYS, batch=BATCHES, context=CONTEXTS, module=0),
    "latent_bmm": grid(
        lambda tokens, **_: 3e-6 + 1e-8 * tokens, dtype="bf16", heads=8, tokens=TOKENS, phase=["pre", "post"]
    ),
}


def kernels(**tables: pl.DataFrame) -> Kernels:
    return Kernels(Provenance("toy", "vllm", "1", "a test", "none", {}), dict(TABLES) | tables)


def exact(model: Model, parallelism: Parallelism = ONE, tables: Mapping[str, pl.DataFrame] = TABLES) -> StepCost:
    return step_cost(kernels(**tables), model, GPU, parallelism)


def load_conf(group: str, name: str) -> Any:
    return instantiate(OmegaConf.load(ROOT / "conf" / group / f"{name}.yaml"))


def at(value: float) -> FloatArray:
    return np.asarray(float(value))


class TestInterpolation:
    def ideal(self, m: FloatArray) -> FloatArray:
        return np.maximum(m, 64.0) * 1e-6

    def curve(self, **rows: float) -> Any:
        table = pl.DataFrame({"m": [int(m[1:]) for m in rows], "latency_s": list(rows.values())})
        return interpolate(table, ("m",), self.ideal)

    def test_measured_points_and_plateaus_are_exact(self) -> None:
        curve = self.curve(_16=1e-3, _17=2e-3, _64=2e-3, _128=4e-3)
        times_s = curve.seconds(np.array([16.0, 17.0, 30.0, 64.0, 100.0, 128.0]))
        assert times_s == pytest.approx([1e-3, 2e-3, 2e-3, 2e-3, 3.125e-3, 4e-3])

    def test_power_laws_are_exact(self) -> None:
        curve = self.curve(_64=1e-3, _4096=64e-3 * 8)
        assert curve.seconds(512.0) == pytest.approx(np.sqrt(1e-3 * 512e-3))

    def test_utilisation_holds_beyond_and_time_below(self) -> None:
        curve = self.curve(_64=1e-3, _128=3e-3)
        assert curve.seconds(np.array([1.0, 64.0, 128.0, 1280.0])) == pytest.approx([1e-3, 1e-3, 3e-3, 30e-3])

    def test_a_fixed_cost_counts_less_and_less_beyond(self) -> None:
        """t = 1e-3 + n 1e-6 at 1,024 and 2,048 is known from there on, whatever the ideal, which is linear."""

        def time_s(n: FloatArray) -> FloatArray:
            return 1e-3 + n * 1e-6

        table = grid(lambda n: float(time_s(np.asarray(n))), n=[512, 1024, 2048])
        longer = interpolate(table, ("n",), lambda n: n * 1e-7, saturates=True)
        sizes = np.array([2048.0, 4096.0, 65536.0])
        np.testing.assert_allclose(longer.seconds(sizes), time_s(sizes))
        held = interpolate(table, ("n",), lambda n: n * 1e-7)
        assert held.seconds(65536.0) > 1.4 * time_s(np.asarray(65536.0))

    def test_a_shorter_row_goes_on_by_its_own_law(self) -> None:
        def time_s(b: float, n: float) -> float:
            return b * (1e-3 + n * 1e-6)

        table = grid(time_s, b=[1, 4], n=[512, 1024, 2048, 8192]).filter(~((pl.col("b") == 4) & (pl.col("n") > 2048)))
        stairs = interpolate(table, ("b", "n"), lambda b, n: b * n * 1e-7, saturates=True)
        assert stairs.seconds(4.0, 8192.0) == pytest.approx(time_s(4, 8192))
        assert list(stairs.limit_together(np.array([1.0, 2.0, 4.0, 8.0]))) == [8192, 4096, 2048, 2048]
        is_last = (pl.col("b") == 4) & (pl.col("n") == 2048)
        slow = table.with_columns(pl.col("latency_s") * pl.when(is_last).then(1.1).otherwise(1.0))
        stairs = interpolate(slow, ("b", "n"), lambda b, n: b * n * 1e-7, saturates=True)
        assert stairs.seconds(4.0, 2048.0) == pytest.approx(1.1 * time_s(4, 2048))
        two = table.filter(~((pl.col("b") == 4) & (pl.col("n") > 1024)))  # its last octave tells all of the law
        stairs = interpolate(two, ("b", "n"), lambda b, n: b * n * 1e-7, saturates=True)
        assert stairs.seconds(4.0, 8192.0) == pytest.approx(time_s(4, 8192))

    def test_what_is_read_together_is_known_from_fewer_longer_ones(self) -> None:
        """Time is that of b n bytes, and bends at 16,384 of them, which a row of 8 has and one of 16 has not."""

        def time_s(b: float, n: float) -> float:
            return 1e-5 + min(b * n, 16384) * 1e-8 + max(b * n - 16384, 0) * 5e-9

        table = grid(time_s, b=[8, 16], n=[512, 1024, 2048, 4096, 8192])
        short = table.filter((pl.col("b") == 8) | (pl.col("n") <= 1024))
        fit = interpolate(short, ("b", "n"), lambda b, n: b * n * 1e-9, saturates=True, together=True)
        assert fit.seconds(16.0, 4096.0) == pytest.approx(time_s(16, 4096))
        assert fit.seconds(16.0, 8192.0) == pytest.approx(time_s(16, 8192), rel=0.05)

    def test_nothing_is_faster_than_light(self) -> None:
        assert self.curve(_64=1e-6, _128=1e-3).seconds(64.0) == pytest.approx(64e-6)

    def test_a_gap_takes_the_utilisation_before_it(self) -> None:
        table = grid(lambda b, c: b * c * 1e-6, b=[1, 4], c=[16, 64, 256]).filter(
            ~((pl.col("b") == 4) & (pl.col("c") > 16))
        )
        stairs = interpolate(table, ("b", "c"), lambda b, c: b * c * 1e-7)
        assert stairs.seconds(4.0, 256.0) == pytest.approx(4 * 256e-6)
        assert list(stairs.limit(np.array([1.0, 2.0, 4.0, 8.0]))) == [256, 16, 16, 16]

    def test_a_limit_is_that_of_the_sizes_before_the_last(self) -> None:
        is_short = (pl.col("a") == 4) & (pl.col("b") == 2)
        table = grid(lambda a, b, n: a * b * n * 1e-6, a=[1, 4], b=[1, 2], n=[16, 64]).filter(
            ~(is_short & (pl.col("n") == 64))
        )
        fit = interpolate(table, ("a", "b", "n"), lambda a, b, n: a * b * n * 1e-7)
        assert [float(fit.limit(a, b)) for a, b in ((4.0, 2.0), (4.0, 1.0), (1.0, 2.0))] == [16, 64, 64]

    def test_the_nearest_rows_are_of_one_combination(self) -> None:
        table = pl.DataFrame({"heads": [8, 8, 32], "kv": [1, 8, 8], "latency_s": [1.0, 2.0, 3.0]})
        assert nearest(table, {"heads": 10.0, "kv": 6.0})["latency_s"].to_list() == [2.0]

    def test_empty_and_impossible_tables_are_refused(self) -> None:
        with pytest.raises(InputError, match="no measured time to interpolate over m"):
            self.curve()
        with pytest.raises(InputError, match="must be positive"):
            self.curve(_16=0.0)
        rows = pl.DataFrame({"m": [1, 2], "n": [0, 0], "latency_s": [1.0, 1.0]})
        with pytest.raises(InputError, match="sizes m, n and latency_s must be positive"):
            interpolate(rows, ("m", "n"), lambda m, n: m * n)


class TestOperations:
    def test_a_gemm_of_constant_utilisation_is_known_everywhere(self) -> None:
        table = grid(
            lambda m, n, k, **_: 2 * m * n * k / 4e13, dtype="bf16", m=[2**16, 2**18], n=[512, 4096], k=[512, 4096]
        )
        gemm = Operations(kernels(gemm=table), GPU).gemm("bf16")
        n, k, m = 3000.0, 9000.0, 100_000.0
        assert gemm.seconds(n, k, m) == pytest.approx(2 * n * k * m / 4e13)

    def test_heads_that_were_not_measured_scale_with_the_roofline(self) -> None:
        operations = Operations(kernels(), GPU)
        one = operations.decode_attention(Shard(8, 2, 64, "bf16")).seconds(64.0, 8192.0)
        twice = operations.decode_attention(Shard(16, 4, 64, "bf16")).seconds(64.0, 8192.0)
        assert twice == pytest.approx(2 * one)
        assert operations.decode_attention(Shard(16, 4, 64, "bf16")).seconds(4.0, 64.0) == pytest.approx(
            attend_s(8, context=64)
        )

    def test_the_missing_operation_is_named(self) -> None:
        with pytest.raises(InputError, match="no gemm times with dtype fp8 for gpu toy, backend vllm in a test"):
            Operations(kernels(), GPU).gemm("fp8")
        with pytest.raises(InputError, match="no experts times with dtype bf16, hidden 512, intermediate 77"):
            Operations(kernels(), GPU).experts("bf16", 512, Experts(8, 2, 77), 1, 1)
        with pytest.raises(InputError, match="no latent_prefill times"):
            exact(LATENT)
        with pytest.raises(InputError, match="no prefill_attention times with kv_dtype bf16, window 128"):
            tabulate(kernels(), replace(DENSE, window=128, windowed_layers=1), GPU, Parallelism())

    def test_more_gpus_than_were_measured_share_the_network(self) -> None:
        operations = Operations(kernels(), GPU)
        four, eight, sixteen = (operations.collective_s("all_reduce", gpus, at(2**25)) for gpus in (4, 8, 16))
        assert eight == pytest.approx(four * (7 / 8) / (3 / 4))  # the same links
        # each GPU of a node sends its eighth to its like of the other node, there and back
        assert sixteen == pytest.approx(eight + 2 * (2**25 / 8 / 2 / GPU.nic_bytes_s + 15e-6))

    def test_times_of_launches_give_way_to_those_of_fp8(self) -> None:
        sizes = {"m": [1, 4096], "n": [64, 4096], "k": [64, 4096]}
        block = grid(lambda m, n, k, **_: max(8e-5, 1.1 * gemm_s(m, n, k)), dtype="fp8_block", **sizes)
        both = pl.concat([block, grid(gemm_s, dtype="fp8", **sizes)])
        gemm = Operations(kernels(gemm=both), GPU).gemm("fp8_block")
        assert gemm.seconds(64.0, 64.0, 1.0) == pytest.approx(gemm_s(1, 64, 64))
        assert gemm.seconds(4096.0, 4096.0, 4096.0) == pytest.approx(1.1 * gemm_s(4096, 4096, 4096))


class TestSteps:
    def test_a_dense_step_is_the_sum_of_its_kernels(self) -> None:
        matrices = [(768, 512), (512, 512), (2048, 512), (512, 1024)]
        operations = Operations(kernels(), GPU)
        expected_s = sum(2 * float(operations.gemm("bf16").seconds(float(n), float(k), 64.0)) for n, k in matrices)
        assert exact(DENSE).gemm_s(at(64)) == pytest.approx(expected_s)
        values = 2 * 64 * (2 * 8 * 512 + 2 * 3 * 1024 + 2 * 512 + 2 * 2 * (8 + 2 + 4) * 64)
        assert exact(DENSE).elementwise_s(at(64)) == pytest.approx(6 * 3e-6 + values / 0.8e12)
        assert exact(DENSE).decode_s(at(8), at(8 * 1024)) == pytest.approx(2 * attend_s(8, context=1024))
        assert exact(DENSE).prefill_s(at(8), at(256)) == pytest.approx(2 * attend_s(8, 256))

    def test_sampling_joins_the_projection_where_it_was_measured(self) -> None:
        sampler = grid(lambda batch, **_: 1e-5 + batch * 1e-6, vocab=DENSE.vocab, batch=[1, 8, 64])
        plain, sampling = exact(DENSE), exact(DENSE, tables={**TABLES, "sampler": sampler})
        assert sampling.logits_s(at(8)) - plain.logits_s(at(8)) == pytest.approx(18e-6)

    def test_elementwise_kernels_are_those_that_were_measured(self) -> None:
        """Of ten kernels a launch of 5 us each, and all bytes at 2 TB/s."""
        measured = grid(lambda bytes: 5e-6 + bytes / 2e12, bytes=[2**power for power in range(10, 32)])
        values = 2 * 64 * (2 * 8 * 512 + 2 * 3 * 1024 + 2 * 512 + 2 * 2 * (8 + 2 + 4) * 64)
        cost = exact(DENSE, tables={**TABLES, "elementwise": measured})
        assert cost.elementwise_s(at(64)) == pytest.approx(10 * 5e-6 + values / 2e12, rel=0.05)
        assert cost.copies_s == 0.0  # all ten are in every step

    def test_two_gpus_reduce_after_embedding_attention_and_mlp(self) -> None:
        message = 64 * 512 * 2
        reduce_s = 4e-6 + message / 5e10
        assert exact(DENSE, Parallelism(tp=2)).communication_s(at(64)) == pytest.approx(5 * reduce_s, rel=0.02)
        assert exact(DENSE).communication_s(at(64)) == 0
        assert exact(DENSE, Parallelism(tp=2)).gemm_s(at(4096)) < 0.6 * exact(DENSE).gemm_s(at(4096))

    @pytest.mark.parametrize("parallelism", [Parallelism(dp=2), Parallelism(pp=2)])
    def test_groups_and_stages_share_a_step(self, parallelism: Parallelism) -> None:
        one, two = exact(DENSE), exact(DENSE, parallelism)
        assert two.gemm_s(at(128)) == pytest.approx(one.gemm_s(at(64)))
        assert two.decode_s(at(16), at(16 * 1024)) == pytest.approx(one.decode_s(at(8), at(8 * 1024)))
        assert two.prefill_s(at(16), at(256)) == pytest.approx(one.prefill_s(at(8), at(256)))
        assert (two.communication_s(at(128)) > 0) == (parallelism.pp > 1)

    def test_experts(self) -> None:
        assert exact(MIXTURE).experts_s(at(256)) == pytest.approx(2 * (1e-5 + 1e-7 * 256))
        assert exact(MIXTURE, Parallelism(tp=2)).experts_s(at(256)) == pytest.approx(2 * (1e-5 + 1e-7 * 128))
        spread = exact(MIXTURE, Parallelism(dp=2, ep=2))
        assert spread.experts_s(at(256)) == pytest.approx(2 * (1e-5 + 1e-7 * 128))
        assert spread.communication_s(at(256)) == pytest.approx(4 * (4e-6 + 256 * 1024 / 5e10))

    def test_shared_experts_hide_behind_routed_ones_in_small_steps(self) -> None:
        shared, routed = exact(SHARED), replace(SHARED, experts=Experts(8, 2, 512, dense_layers=1))
        assert shared.experts_s(at(256)) == pytest.approx(exact(routed).experts_s(at(256)))
        gemm = Operations(kernels(), GPU).gemm("bf16")
        shared_s = gemm.seconds(1024.0, 512.0, 257.0) + gemm.seconds(512.0, 512.0, 257.0)
        assert shared.experts_s(at(257)) == pytest.approx(exact(routed).experts_s(at(257)) + shared_s)

    def test_windowed_layers_stop_growing(self) -> None:
        windowed = {
            "prefill_attention": pl.concat(
                [
                    TABLES["prefill_attention"],
                    grid(attend_s, **heads(batch=[1, 64], tokens=[1, 4096], prefix=0, window=128)),
                ]
            ),
            "decode_attention": pl.concat(
                [
                    TABLES["decode_attention"],
                    grid(lambda **_: 2e-5, **heads(batch=[1, 64], context=[1, 128, 8192], window=128)),
                ]
            ),
        }
        times = exact(replace(DENSE, window=128, windowed_layers=1), tables=windowed)
        grown_s = times.decode_s(at(64), at(64 * 8192)) - times.decode_s(at(64), at(64 * 1024))
        assert grown_s == pytest.approx(attend_s(64, context=8192) - attend_s(64, context=1024))

    def test_latent_attention_from_kernels(self) -> None:
        times = exact(LATENT, tables=LATENT_TABLES)
        assert times.decode_s(at(8), at(8 * 1024)) == pytest.approx(
            2 * (attend_s(8, context=1024) + 2 * (3e-6 + 8e-8)), rel=0.02
        )
        assert float(times.prefill_s(at(1), at(256))) > 2 * attend_s(1, 256)  # and the up-projection
        tabulate(kernels(**LATENT_TABLES), LATENT, GPU, Parallelism(tp=2))

    def test_latent_attention_as_a_module_is_what_was_measured(self) -> None:
        module = {
            "latent_prefill": LATENT_TABLES["latent_prefill"].with_columns(
                module=1, latency_s=pl.col("latency_s") + 5e-5
            ),
            "latent_decode": LATENT_TABLES["latent_decode"].with_columns(
                module=1, latency_s=pl.col("latency_s") + 5e-5
            ),
        }
        times = exact(LATENT, tables=module)
        attention_s = times.attention.projections_s(at(8)) + times.decode_s(at(8), at(8 * 1024))
        assert attention_s == pytest.approx(2 * (5e-5 + attend_s(8, context=1024)))
        attention_s = times.attention.projections_s(at(4096)) + times.prefill_s(at(1), at(4096))
        assert attention_s == pytest.approx(2 * (5e-5 + attend_s(1, 4096)))

    def test_heads_that_tp_does_not_divide_are_refused(self) -> None:
        with pytest.raises(InputError, match="tp = 3 does not divide the 8 heads of toy"):
            exact(DENSE, Parallelism(tp=3))


class TestKnots:
    def test_they_are_few_and_keep_within_the_slack(self) -> None:
        xs = samples(1.0, 8192.0, 1.01, also=[512.0])
        stairs = np.ceil(xs / 256) * 256 + 0.2 * xs
        curves = np.stack([stairs, np.sqrt(xs), xs**2])
        slack = 0.02 * curves
        knots = choose_knots(xs, curves, slack, keep=[1000.0, 512.0])
        between = np.stack([np.interp(xs, xs[knots], curve[knots]) for curve in curves])
        assert np.all(np.abs(between - curves) <= slack * (1 + 1e-9))
        assert 512.0 in xs[knots]
        assert len(knots) < len(xs) / 4
        assert (knots[0], knots[-1]) == (0, len(xs) - 1)

    def test_an_affine_curve_needs_none_between(self) -> None:
        xs = samples(1.0, 1000.0, 1.1)
        assert list(choose_knots(xs, 3.0 + xs[None], np.full((1, len(xs)), 1e-9))) == [0, len(xs) - 1]

    def test_samples_are_whole_and_increasing(self) -> None:
        points = samples(1.0, 100.0, 1.3, also=[7.0, 200.0])
        assert np.all(np.diff(points) >= 1)
        assert {1.0, 2.0, 7.0, 100.0} <= set(points)
        assert points[-1] == 100.0


def deviations(times: StepCost, tables: Any, largest: float, length: float) -> list[float]:
    """Relative errors of the resampled steps: random prefills, decodes and both."""
    rng = np.random.default_rng(7)
    errors = []
    for _ in range(300):
        batch, tokens = (int(2 ** rng.uniform(0, np.log2(top))) for top in (largest, length))
        context = batch * int(2 ** rng.uniform(4, np.log2(length)))
        kind = rng.integers(3)
        chunks = [(0, tokens)] if kind != 1 else []
        decodes = batch if kind != 0 else 0
        exact_s = exact_step_s(times, chunks, decodes, context * (decodes > 0), decodes + len(chunks))
        resampled_s = step_s(tables, 0, [0] * len(chunks), [tokens] * len(chunks), decodes, context * (decodes > 0))
        errors.append(resampled_s / exact_s - 1)
    return errors


@pytest.mark.parametrize(
    ("model", "parallelism"),
    [
        (DENSE, Parallelism()),
        (DENSE, Parallelism(tp=2, pp=2)),
        (MIXTURE, Parallelism(dp=2, ep=2)),
        (SHARED, Parallelism(tp=2)),
    ],
)
def test_parts_reproduce_the_tables(model: Model, parallelism: Parallelism) -> None:
    parts = tabulate(kernels(), model, GPU, parallelism)
    times = step_cost(kernels(), model, GPU, parallelism)
    groups = parallelism.dp * parallelism.pp
    if groups == 1:  # a step of one prompt keeps one group busy, while parts spread all prompts
        errors = np.abs(deviations(times, stack([parts.row(Calibration())]), 64, 4096))
        assert np.median(errors) < 0.01
        assert np.max(errors) < 0.05
    assert parts["gemm"].tokens_limit == 4096 * (parallelism.pp if model.experts else groups)
    assert parts["prefill_attention"].length_limit == 4096
    limits = parts["decode_attention"].decode_limits
    assert limits is not None
    assert limits.values[0] == 8192
    assert parts.setup == Setup(parallelism, "bf16", "bf16", "bf16")
    assert np.all(seconds_of(parts, "experts") > 0) == (model.experts is not None)


def test_beyond_measurement_time_grows_in_proportion() -> None:
    tables = stack([tabulate(kernels(), DENSE, GPU, Parallelism()).row(Calibration())])
    short_s, long_s = (step_s(tables, 0, [], [], 64, context) for context in (2**22, 2**23))
    slope_s = (long_s - short_s) / 2**22
    assert slope_s == pytest.approx(2 * attend_s(64, context=8192) / (64 * 8192), rel=0.05)


# The reference points of docs/KERNELS.md, section 2: two independent compositions of these tables agree on them.
REFERENCES = {
    ("llama3_8b", 1): (43.3, (6.2, 7.0, 8.9, 14.8), (6.3, 10.1, 18.0, 54.2)),
    ("llama3_8b", 4): (19.5, (2.7, 3.0, 3.5, 6.0), (2.8, 3.7, 6.2, 15.2)),
    ("llama3_70b", 4): (129.9, (14.9, 16.3, 17.5, 27.2), (15.1, 18.1, 24.1, 52.2)),
}


@pytest.mark.parametrize(("capability", "row_s", "pair_s"), [(8.9, 3e-7, 2e-10), (9.0, 0.0, 0.0)])
def test_tiles_are_taken_from_prompts_that_fill_the_gpu(capability: float, row_s: float, pair_s: float) -> None:
    """Rows of 0.3 us and 0.2 ns for each of l / 2 keys; GPUs with a kernel for decodes alone have none."""

    def attend_s(batch: int, tokens: int, **_: Any) -> float:
        return batch * tokens * (3e-7 + 2e-10 * tokens / 2)

    table = grid(attend_s, **SHARDS, batch=[1, 4, 16, 32], tokens=[2**k for k in range(15)], prefix=0)
    gpu = replace(GPU, compute_capability=capability)
    parts = tabulate(kernels(prefill_attention=table), DENSE, gpu, ONE)
    row = parts["prefill_attention"]
    assert (row.tile_row_s, row.tile_pair_s) == pytest.approx(
        (DENSE.layers * row_s, DENSE.layers * pair_s), rel=1e-6, abs=0.0
    )
    assert ("tile_row_us" in encoded(parts)) == (row_s > 0.0)


@pytest.fixture(scope="module")
def h100() -> Kernels:
    pytest.importorskip("aiconfigurator_core", reason="needs the extra `kernels`: pip install '.[kernels]'")
    from framework.timing.kernels.read_aiconfigurator import load_package

    return load_package("h100", "vllm")


@pytest.mark.parametrize(("name", "tp"), REFERENCES)
def test_reference_points(h100: Kernels, name: str, tp: int) -> None:
    gpu, model = load_conf("gpu", "h100"), load_conf("model", name)
    times = step_cost(h100, model, gpu, Parallelism(tp=tp))
    start = time.perf_counter()
    parts = tabulate(h100, model, gpu, Parallelism(tp=tp))
    assert time.perf_counter() - start < 1
    tables = stack([parts.row(Calibration())])
    prefill_ms, short_ms, long_ms = REFERENCES[name, tp]
    steps = [([2048], 0, 0, prefill_ms)]
    for context, expected in ((512, short_ms), (4096, long_ms)):
        steps += [([], b, b * context, ms) for b, ms in zip((1, 16, 64, 256), expected, strict=True)]
    for chunks, decodes, context, expected_ms in steps:
        exact_s = exact_step_s(times, [(0, tokens) for tokens in chunks], decodes, context, decodes + len(chunks))
        beyond = decodes == 256 and context == 256 * 4096  # of its batch's contexts: the other one holds utilisation
        assert exact_s * 1e3 == pytest.approx(expected_ms, rel=0.04 if beyond else 0.03)
        assert step_s(tables, 0, [0] * len(chunks), chunks, decodes, context) == pytest.approx(exact_s, rel=0.02)
    errors = np.abs(deviations(times, tables, 512, 16384))
    assert np.median(errors) < 0.01
    assert np.max(errors) < 0.05
    assert len(seconds_of(parts, "gemm")) < 80
    assert seconds_of(parts, "decode_attention").size < 1500


def test_every_architecture_composes_from_measured_kernels(h100: Kernels) -> None:
    gpu = load_conf("gpu", "h100")
    for name, parallelism in (
        ("qwen3_32b", Parallelism(tp=2)),
        ("mixtral_8x7b", Parallelism(tp=4)),
        ("gpt_oss_120b", Parallelism(tp=2)),
        ("deepseek_v3", Parallelism(dp=8, ep=8)),
    ):
        times = step_cost(h100, load_conf("model", name), gpu, parallelism)
        batch = 64 * parallelism.gpus
        decode_s = exact_step_s(times, [], batch, batch * 4096, batch)
        read = times.model.weight_bytes + batch * 4096 * times.model.kv_bytes_per_token * times.model.kv_share(1)
        assert 0.3 < read / (decode_s * parallelism.gpus * gpu.bandwidth_bytes_s) < 0.95
        tabulate(h100, times.model, gpu, parallelism)


def test_a_line_below_zero_leaves_the_time_of_pairs_alone() -> None:
    """Prompts of l tokens take l^3: no line through them begins above 0."""
    cost: Any = SimpleNamespace(groups=1, prefill_s=lambda batch, tokens: batch * tokens**3 * 1e-12)
    alone_s, pair_s = _tiles(cost)
    assert alone_s == 0.0
    assert pair_s == pytest.approx(2e-12 * (1024 + 2048 + 4096) / 3)


def test_the_time_of_one_prompt_counts_three_times() -> None:
    """Batches of 1 and 2 take 1 and 4 s: 1 s each is off by 2 for two, 2 s each by 1 for one, which weighs 3."""
    together_s, step_s = np.zeros((7, 1)), np.ones((7, 1))
    together_s[:2, 0] = 1.0, 4.0
    fits = np.zeros((7, 1), bool)
    fits[:2] = True
    each_s, error = _above(0.0, together_s, step_s, fits)
    assert (each_s.tolist(), error.tolist()) == ([1.0], [2.0])


def test_a_search_for_a_scale_is_no_part_of_a_product() -> None:
    """A product of 5 us holds a search of 2 us; one without a measured search stays; a quarter is left at least."""
    rows = pl.DataFrame({"m": [1, 2, 4], "k": [8, 8, 8], "latency_s": [5e-6, 5e-6, 5e-6]})
    searches = pl.DataFrame(
        {
            "m": [1, 1, 4],
            "k": [8, 8, 8],
            "phase": ["scale", "other", "scale"],
            "dtype": ["fp8", "fp8", "fp8"],
            "latency_s": [2e-6, 4e-6, 9e-6],
        }
    )
    kernels: Any = SimpleNamespace(tables={"quantize": searches}, table=lambda name: searches)
    left = _with_fixed_scales(kernels, rows)["latency_s"].to_list()
    assert left == pytest.approx([3e-6, 5e-6, _LEAST_PRODUCT * 5e-6])
    kernels.tables = {}
    assert _with_fixed_scales(kernels, rows) is rows


def test_the_first_distribution_stands_in_where_no_preferred_one_was_measured() -> None:
    rows = pl.DataFrame({"distribution": ["own"], "latency_s": [1.0]})
    assert distribution_of(rows, ("balanced",)).equals(rows)
    several = pl.DataFrame({"distribution": ["own", "even", "skewed"], "latency_s": [1.0, 2.0, 3.0]})
    found = [
        distribution_of(several, preferred)["latency_s"].to_list() for preferred in (("x", "skewed", "own"), ("x",))
    ]
    assert found == [[3.0], [1.0]]


def test_as_much_is_read_by_more_shorter_ones_as_was_by_fewer_longer_ones() -> None:
    """Batches of 8 were measured up to 8,192, those of 16 up to 512 alone: as much as 8 of 8,192 is 16 of 4,096."""
    table = grid(lambda b, n: b * n * 1e-6, b=[8, 16], n=[512, 1024, 8192])
    short = table.filter((pl.col("b") == 8) | (pl.col("n") <= 512))
    fit = interpolate(short, ("b", "n"), lambda b, n: b * n * 1e-7, saturates=True, together=True)
    assert list(fit.limit_together(np.array([8.0, 16.0, 32.0]))) == [8192, 4096, 2048]


def made_up(**own: Any) -> Any:
    """Times of steps of a model with one group of ranks, of which a test states those that it needs."""
    own.setdefault("attention", SimpleNamespace()).bounded_share = np.zeros_like
    return SimpleNamespace(groups=1, copies_s=0.0, linear_s=lambda tokens: 0 * tokens + 10.0, **own)


@pytest.mark.parametrize(("tokens", "attention_s"), [(0, 0.0256), (2**14, 0.0256 + 4 / 64), (2**14 + 64, 0.0256)])
def test_prompts_that_just_fill_the_largest_step_count(tokens: int, attention_s: float) -> None:
    """64 prompts take 4 s longer if they have so many tokens together; the error is less if each takes a 64th of it."""

    def prefill_s(batch: FloatArray, lengths: FloatArray) -> FloatArray:
        return 1e-4 * batch * lengths + 4.0 * ((batch == 64) & (batch * lengths == tokens))

    limits = {"attention": SimpleNamespace(length_limit=lambda: 1024.0), "model": SimpleNamespace(max_context=1024)}
    lengths, above_s, _, floor_s = _prompts(made_up(prefill_s=prefill_s, token_steps=np.array([256.0]), **limits))
    assert floor_s + np.interp(256.0, lengths, above_s) == pytest.approx(attention_s)


def test_sequences_that_read_one_token_each_count() -> None:
    def decode_s(batches: FloatArray, contexts: FloatArray) -> FloatArray:
        return 1.0 * ((batches == 8) & (contexts == 8))

    batches, contexts, _ = _decodes(made_up(decode_s=decode_s, model=SimpleNamespace(max_context=100, local=None)))
    assert {7, 8} < set(batches.tolist())
    assert {8, 9} < set(contexts.tolist())
