"""With a warm-up the terminal, the page and the diagnosis count the requests that summary.json counts."""

from __future__ import annotations

import io
import re

import polars as pl
import pytest
from rich.console import Console

from framework.diagnosis.findings import diagnose
from framework.objective.goodput import Goodput, Measurement
from framework.report.page.run_page import run_page
from framework.report.run_table import run_table
from framework.run.compose import compose
from tests.helpers.composing import configured


@pytest.fixture(scope="module")
def measured() -> Measurement:
    """A server whose queue grows: early requests keep the SLO, and later ones, which alone count, do not."""
    given = ("policy=chunked", "cluster.instances=1", "trace=synthetic", "trace.limit=900", "trace.rate=30")
    return Goodput().measure(compose(configured(*given, "load.warmup_s=10", "slo.ttft_s=0.5")))


def test_the_run_counts_fewer_requests_than_it_serves(measured: Measurement) -> None:
    requests, summary = measured.evaluation.requests, measured.evaluation.summary
    assert summary["offered"] < len(requests)
    assert requests["good"].sum() > summary["offered"] * summary["slo_attainment"] + 1


def test_the_terminal_counts_them(measured: Measurement) -> None:
    assert measured.slo is not None
    file = io.StringIO()
    Console(file=file, width=100).print(run_table(measured.evaluation, measured.slo))
    text, summary = " ".join(file.getvalue().split()), measured.evaluation.summary
    good = round(summary["offered"] * summary["slo_attainment"])
    assert f"% {good:,} of {summary['offered']:,}" in text
    kept = measured.evaluation.requests.filter(pl.col("counted"))["ttft_ok"].mean()
    assert isinstance(kept, float)
    assert re.search(rf"TTFT m?s [\d. ,]+ {100 * kept:.1f} %", text)


def test_the_page_counts_them(measured: Measurement) -> None:
    summary = measured.evaluation.summary
    good = round(summary["offered"] * summary["slo_attainment"])
    page = run_page(measured, {"slo.ttft_s": 0.5, "slo.tpot_s": 0.05}, "python run.py")
    assert f"{good:,} of {summary['offered']:,} requests" in page


def test_the_diagnosis_counts_them(measured: Measurement) -> None:
    evaluation, summary = measured.evaluation, measured.evaluation.summary
    diagnosis = diagnose(measured.result, evaluation, measured.slo)
    requests = evaluation.requests.filter(pl.col("counted"))
    assert diagnosis.offered == summary["offered"]
    assert diagnosis.lost == summary["offered"] - requests["good"].sum()
    assert sum(finding.lost for finding in diagnosis.findings) <= diagnosis.lost
    assert [finding.share for finding in diagnosis.findings] == [
        finding.lost / summary["offered"] for finding in diagnosis.findings
    ]
    missed = requests.filter(pl.col("state") == "finished", ~pl.col("ttft_ok"))
    assert diagnosis.losses.ttft_missed.sum() == len(missed)
    assert (diagnosis.losses.cause[~evaluation.requests["counted"].to_numpy()] == -1).all()


def test_the_signature_is_of_the_counted_requests_that_finished(measured: Measurement) -> None:
    requests = measured.evaluation.requests.filter(pl.col("counted"), pl.col("state") == "finished")
    share = 100 * (1 - requests["ttft_ok"].sum() / len(requests))
    signature = diagnose(measured.result, measured.evaluation, measured.slo).signature
    assert f"{share:.1f} % miss TTFT" in signature
