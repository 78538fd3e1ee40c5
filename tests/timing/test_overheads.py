"""Wave quantization: the arithmetic of blocks, measured chunks, and what stays as it was."""

from __future__ import annotations

import numpy as np
import pytest

from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.simulate import simulate
from framework.system.cluster import mixed
from framework.system.parallelism import Parallelism
from framework.timing.affine import Affine
from framework.timing.overheads import WaveQuantization
from framework.timing.roofline import Roofline
from framework.timing.table import chunk_s, stack
from framework.workload import Workload
from policies.chunked import Chunked
from tests.helpers.parts import load as part

A100, YI = part("gpu", "a100"), part("model", "yi_6b")  # 32 heads
WAVES = WaveQuantization(Roofline(), 64, {"a100": 216})


@pytest.mark.parametrize(
    ("tokens", "waves", "filled"),
    [
        (512, 2, 8 * 32 / 216),  # 256 blocks, 216 at once
        (544, 2, 8.5 * 32 / 216),  # 288, half of the last tile unused
        (1152, 3, 18 * 32 / 216),
    ],
)
def test_blocks_run_in_waves(tokens: int, waves: int, filled: float) -> None:
    assert WAVES.waste_of(tokens, 32, 216) == pytest.approx(waves / filled)


@pytest.mark.parametrize(("heads", "waste"), [(7, 1.0), (8, 10 / 8), (9, 10 / 9)])
def test_keys_are_split_where_blocks_fill_less_than_four_fifths_of_a_wave(heads: int, waste: float) -> None:
    assert WAVES.waste_of(64, heads, 10) == pytest.approx(waste)


def test_few_blocks_split_their_keys() -> None:
    assert WAVES.waste_of(64, 32, 216) == 1.0
    assert WAVES.waste_of(32, 32, 216) == 2.0  # of half a tile


@pytest.mark.parametrize(("chunk", "measured"), [(544, 112.0), (1152, 176.0), (1216, 178.0)])
def test_rates_of_chunks_are_near_what_was_measured(chunk: int, measured: float) -> None:
    """TFLOP/s at which a chunk goes on as its prefix grows, of 174 in prompts of 16 K (timing=measured)."""
    assert 174.0 / WAVES.waste_of(chunk, 32, 216) == pytest.approx(measured, rel=0.13)


def test_a_chunk_takes_longer_and_a_whole_prompt_does_not() -> None:
    plain, waved = (stack([times.row(YI, A100, Parallelism())]) for times in (Roofline(), WAVES))
    assert chunk_s(waved, 0, 0, 4000) == chunk_s(plain, 0, 0, 4000)
    longer = chunk_s(waved, 0, 15872, 512) / chunk_s(plain, 0, 15872, 512)
    assert longer == pytest.approx(WAVES.waste_of(512, 32, 216) / WAVES.waste_of(16384, 32, 216))
    assert longer > 1.6


def test_heads_of_a_gpu_count() -> None:
    one, two = (stack([WAVES.row(YI, A100, Parallelism(tp=tp))]) for tp in (1, 2))
    assert chunk_s(two, 0, 15360, 1024) / chunk_s(one, 0, 15360, 1024) == pytest.approx(
        0.5 * WAVES.waste_of(1024, 16, 216) / WAVES.waste_of(1024, 32, 216), rel=0.01
    )


def test_a_cut_prompt_takes_longer_in_a_run() -> None:
    """The engine asks the same tables: a prompt of 15 K in chunks of 512 against the same without waves."""
    one = Workload(np.zeros(1), np.array([15360]), np.array([1]))
    engine = EngineConfig(token_budget=512)
    took = [
        simulate(one, mixed(1, A100), YI, times, engine, Chunked()).requests["end_s"][0]
        for times in (Roofline(), WAVES)
    ]
    tables = [stack([times.row(YI, A100, Parallelism())]) for times in (Roofline(), WAVES)]
    attention_s = [sum(chunk_s(table, 0, done, 512) for done in range(0, 15360, 512)) for table in tables]
    assert took[1] - took[0] == pytest.approx(attention_s[1] - attention_s[0])


def test_what_it_cannot_know_is_refused() -> None:
    with pytest.raises(InputError, match=r"timing.slots names a100, not gpu=v100"):
        WAVES.row(YI, part("gpu", "v100"), Parallelism())
    with pytest.raises(InputError, match=r"timing.tile_rows"):
        WaveQuantization(Affine(0.01), 0, {"a100": 216})
