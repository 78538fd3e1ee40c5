"""Scores of single papers, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from framework.engine.memory.records import STEP_LOG, TOKEN_LOG
from framework.errors import InputError
from framework.metrics.paper_scores import gaps_of, job_completion_time_s, normalized_latency_s, slowest_tbt_s
from tests.helpers.results import reduced_result, small_result


def test_job_completion_time_and_normalized_latency() -> None:
    np.testing.assert_array_equal(job_completion_time_s(small_result()), [1.5, 1.0, np.nan, np.nan, 2.5])
    np.testing.assert_array_equal(normalized_latency_s(small_result()), [0.5, 1.0, np.nan, np.nan, 0.625])


def test_slowest_tenth_of_the_gaps() -> None:
    """20 gaps of 1, 2, ... 20 s: the slowest two."""
    leaps = np.array([(0.0, 1.0, 1.0, 0, 0, 1, 20, 1, 0, 0, 0)], STEP_LOG)
    memberships = np.array([(0, 20, 0.0, 0, 1, 0)], TOKEN_LOG)
    workload = replace(small_result().workload, output_tokens=np.array([21, 1, 10, 5, 4]))
    result = small_result(step_log=leaps, token_log=memberships, workload=workload)
    np.testing.assert_array_equal(slowest_tbt_s(result, 0.1), [19.5, np.nan, np.nan, np.nan, np.nan])


def test_reduced_run_cannot_be_scored_by_gaps() -> None:
    with pytest.raises(InputError, match=r"engine\.log=full"):
        slowest_tbt_s(reduced_result(gaps_of(small_result())), 0.1)
