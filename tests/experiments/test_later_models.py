"""The commands for models with linear and sparse attention: what they print of rows that are made up."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import polars as pl
import pytest

from experiments.validation.fidelity.replay import Replay, Replayed
from experiments.validation.given import later_models
from experiments.validation.steps import prefixes


def test_errors_are_told_by_model_gpu_and_type(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        SimpleNamespace(model=model, gpu="b300", dtype="fp8_block", ttft_s=ttft_s, tpot_s=0.01)
        for model, ttft_s in (("glm_5", 0.2), ("glm_5", 0.4), ("qwen35_397b", 0.1), ("no_kernels", 9.0))
    ]

    def replayed(task: Replay) -> Replayed:
        return Replayed(0.1, 0.008, 0.0)

    monkeypatch.setattr(later_models, "read_rows", lambda models: SimpleNamespace(rows=rows))
    monkeypatch.setattr(later_models, "unsupported", lambda row: "none" * (row.model == "no_kernels"))
    monkeypatch.setattr(later_models, "assumed", lambda row: None)
    monkeypatch.setattr(later_models, "replay", replayed)
    later_models.main([])
    told = capsys.readouterr()
    lines = (told.out + told.err).splitlines()
    assert lines[0].startswith("3 of 4 deployments")
    assert "glm_5: 2 deployments, TTFT -62 (62), TPOT -20 (20), TTFT +200 ms longer than predicted" in lines
    assert (
        "qwen35_397b, b300, fp8_block: 1 deployments, TTFT +0 (0), TPOT -20 (20), TTFT +0 ms longer than predicted"
        in lines
    )


def test_chunks_are_told_by_their_ends(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def compared(gpu: str, name: str) -> Iterator[pl.DataFrame]:
        ends = [8192.0, 16_384.0, 16_385.0, 1e6]
        yield pl.DataFrame({"gpu": gpu, "model": name, "end": ends, "difference": [0.9, 1.1, 1.5, 9.0], "share": 2.0})

    monkeypatch.setattr(prefixes, "compared", compared)
    prefixes.main([])
    told = capsys.readouterr()
    lines = (told.out + told.err).splitlines()
    all_of = "chunks, median error (mean absolute)"
    assert lines[0] == f"up to 16,384: 20 {all_of}: difference +0.0 % (10.0), share +100.0 % (100.0)"
    assert lines[1] == f"up to 65,536: 10 {all_of}: difference +50.0 % (50.0), share +100.0 % (100.0)"
    assert f"h200, glm_5, up to 65,536: 1 {all_of}: difference +50.0 % (50.0), share +100.0 % (100.0)" in lines
