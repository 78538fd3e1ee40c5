"""Step times against measured layers: what is compared with what, and how far off the shipped profiles are."""

from __future__ import annotations

import polars as pl
import pytest

from experiments.validation.steps.command import GPUS, kind, layers, main, one_kernel, slowdowns, spread, step_arguments


def test_a_row_asks_for_its_step() -> None:
    row = {"tokens": 512, "prefix": 4096, "decodes": 64, "context": 1024}
    assert step_arguments(row) == ["prefill=512@4096", "decode=64x1024"]
    assert step_arguments({**row, "tokens": 0, "prefix": 0}) == ["decode=64x1024"]
    kinds = [kind({**row, **part}) for part in ({}, {"decodes": 0}, {"decodes": 0, "prefix": 0}, {"tokens": 0})]
    assert kinds == ["mixed", "chunk behind prefix", "prompt", "decodes"]


def test_a_spread_counts_both_directions() -> None:
    line = spread("x", pl.Series([0.5, 1.0, 1.0, 1.5]))
    assert " ".join(line.split()) == "x 4 1.00 1.85x 2.00x 0.50 to 1.50"


@pytest.mark.slow  # the command below says it of one of them
@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_shipped_profiles_are_near_what_was_measured(gpu: str) -> None:
    steps = layers(gpu, "vllm", 32)
    assert len(steps) == 77
    medians = dict(steps.group_by("kind").agg(pl.col("ratio").median()).iter_rows())
    assert all(0.85 < median < 1.05 for median in medians.values()), medians
    assert steps["ratio"].is_between(0.7, 1.15).all()


@pytest.mark.parametrize("gpu", GPUS)
def test_parts_of_the_multiprocessors_slow_both_streams(gpu: str) -> None:
    found = slowdowns(gpu)
    assert found.filter(percent=100)["alone"].unique().to_list() == [1.0]
    concurrent = found.filter(pl.col("percent") < 100).drop_nulls("concurrent")
    assert len(concurrent) == 2 * 3 * 16
    assert (concurrent["ratio"] > 1).all()
    medians = one_kernel(gpu).group_by("kind").agg(pl.col("ratio").median())
    assert dict(medians.iter_rows())["fa3"] == pytest.approx(1.0, abs=0.05)


def test_the_command_says_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.finish(["gpu=h200"], "steps") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("llama3_8b on one h200")
    assert "chunk behind prefix" in printed
    assert "prefill         25   3.05 (3.01 to 3.34)     4.27 (3.79 to 4.86)" in printed
    assert main.finish(["gpu=a100"], "steps") == 2
    assert "gpu must be one of h100, h200; got 'a100'" in capsys.readouterr().err
