"""Requests that no instance can hold: two figures, and a sentence in a run's table that says what would serve them."""

from __future__ import annotations

import numpy as np

from framework.engine.setup.config import EngineConfig
from framework.metrics.slo import Slo
from framework.metrics.summary import summarize
from framework.report.load_words import too_large
from framework.simulate import simulate
from framework.system.cluster import mixed
from framework.timing.table import StepRow
from framework.workload import Workload
from tests.engine.test_spans import GPU, LONG
from tests.helpers.scenarios import RowTiming


def summary_of(*prompts: int, **options: object) -> dict[str, object]:
    workload = Workload(np.zeros(len(prompts)), np.array(prompts), np.full(len(prompts), 5))
    config = EngineConfig(kv_tokens=101, block_tokens=4, implementation="reference", **options)  # type: ignore[arg-type]
    result = simulate(workload, mixed(2, GPU), LONG, RowTiming({"g": StepRow(base_s=1.0)}), config)
    return summarize(result, Slo())


def test_the_largest_that_was_refused_and_the_largest_that_fits() -> None:
    figures = summary_of(150, 97, 20, watermark=0.1)
    # 25 blocks, of which 2 stay free; 97 + 5 - 1 tokens take 26
    assert (figures["refused_kv_tokens"], figures["largest_kv_tokens"]) == (154, 92)
    words = too_large(figures)
    assert words.startswith("requests of up to 154 KV tokens were refused: an instance holds 92 of one request.")
    assert "cluster.tp" in words
    assert "docs/spans.md" in words


def test_nothing_is_said_where_all_fit() -> None:
    figures = summary_of(60, 20, watermark=0.0)
    assert "refused_kv_tokens" not in figures
    assert too_large(figures) == ""
