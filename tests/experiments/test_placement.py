"""The placement search: each phase alone, then as many instances as the rate asks for."""

from __future__ import annotations

import pytest
import yaml

from experiments.placement.command import Found, _best
from tests.conftest import ROOT
from tests.helpers.launcher import typed

WORDS = (
    *("timing=affine", "trace=synthetic", "trace.requests=100", "trace.input={law:fixed,mean:1000}"),
    *("trace.output={law:fixed,mean:20}", "slo.ttft_s=1.0", "objective.tolerance=0.2", "tp=1,3", "rate=80"),
)


def test_the_fewest_gpus_that_serve_the_rate_are_chosen() -> None:
    rows = [Found("decode", 1, 1, 2.0), Found("decode", 4, 1, 12.0), Found("decode", 8, 1, 20.0)]
    assert _best(rows, 2.0).tp == 1
    assert _best(rows, 10.0).tp == 4
    assert _best(rows, 120.0).tp == 4  # 40 GPUs, where TP 1 takes 60 and TP 8 takes 48


def test_what_is_found_serves_the_rate_and_can_be_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    """Step times are the same for any TP: one GPU an instance, two that prefill at up to 52 requests/s each."""
    path = ROOT / "conf" / "tuned" / "test_of_placement.yaml"
    try:
        assert typed("placement")([*WORDS, "name=test_of_placement"]) == 0
        cluster = yaml.safe_load(path.read_text())["cluster"]
    finally:
        path.unlink(missing_ok=True)
    printed = capsys.readouterr().out
    assert (cluster["prefill_tp"], cluster["decode_tp"], cluster["decode"]) == (1, 1, 1)
    assert cluster["prefill"] == 2
    assert "100 % meet the SLO" in printed
    assert "+tuned=test_of_placement" in printed


def test_a_phase_that_nothing_serves_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("placement")([*WORDS, "slo.ttft_s=0.001"]) == 2
    assert "no prefill instance can serve" in capsys.readouterr().err
