"""docs/columns.md has a row for every key and every column that a run can write, and for nothing else."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from framework.engine.durations.speculation import Speculation
from framework.engine.setup.config import EngineConfig
from framework.load import Window
from framework.metrics.figures import METRICS
from framework.metrics.phases import phase_table
from framework.metrics.series import time_series
from framework.metrics.slo import Slo
from framework.metrics.summary import evaluate
from framework.run.output import gap_table, step_table
from tests.conftest import ROOT
from tests.helpers.results import HandMade, small_result

PAGE = (ROOT / "docs" / "columns.md").read_text()


def explained(file: str) -> list[str]:
    """What the rows of the section of a file name, in their order."""
    (section,) = re.findall(rf"^## {re.escape(file)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def full_result() -> HandMade:
    """A run whose tables have every column: a trace with classes, priorities and sessions, drafts, and two streams."""
    plain = small_result()
    turns, chat = np.arange(5), ("chat",) * 5
    plain.step_log["stream"][0] = 1
    return replace(
        plain,
        workload=replace(
            plain.workload,
            slo_class=chat,
            tenant=chat,
            priority=turns,
            session_id=turns,
            turn=turns,
            trigger=np.zeros(5, np.int8),
        ),
        engine=EngineConfig(speculation=Speculation(depth=2, acceptance=0.5)),
        window=Window(0.5, 100.0, "of arrivals"),
        counted=turns > 0,
        attempts=turns,
        marks=(),
    )


def written(file: str) -> pl.DataFrame:
    """The table that a run writes to a file."""
    result = full_result()
    if file == "requests.parquet":
        return evaluate(result, Slo(reader_wait_s=1.0)).requests
    if file == "steps.parquet":
        return step_table(result)
    if file == "phases.parquet":
        return phase_table(small_result())
    if file == "gaps.parquet":
        return gap_table(small_result())
    return time_series(small_result(), np.ones(5, np.bool_), 1.0)


@pytest.mark.parametrize("table", ["requests", "steps", "series", "phases", "gaps"])
def test_every_column_is_explained(table: str) -> None:
    file = f"{table}.parquet"
    assert sorted(explained(file)) == sorted(written(file).columns)


def test_every_key_of_the_summary_is_explained() -> None:
    """All that runs write are in METRICS, which test_figures holds; the page says of each what METRICS says."""
    assert explained("summary.json") == list(METRICS)
    for key, known in METRICS.items():
        assert f"\n| `{key}` | {known.meaning} |\n" in PAGE
