"""Scores that single papers report, separate from the project's own metrics.

Each gives one value a request, shape (N,), NaN if the request did not finish.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from framework.errors import InputError
from framework.metrics.token_gaps import recover, slowest_mean
from framework.result import FINISHED, Gaps, Result

Floats = NDArray[np.float64]


def gaps_of(result: Result) -> Gaps:
    """Token gaps: those reduced during the run, else those recovered from its step log."""
    if result.gaps is not None:
        return result.gaps
    workload = result.workload
    return recover(result.step_log, result.token_log, workload.output_tokens, len(result.instances))


def slowest_tbt_s(result: Result, fraction: float) -> Floats:
    """Mean of the slowest `fraction` (at least one) of a request's gaps between tokens; NaN for one token.

    Raises InputError if the run kept no step log.
    """
    if result.engine.log == "reduced":
        raise InputError("the slowest gaps between tokens need the step log of the run: set engine.log=full")
    workload = result.workload
    gaps_s = slowest_mean(result.step_log, result.token_log, workload.output_tokens, len(result.instances), fraction)
    return _of_finished(result, gaps_s)


def normalized_latency_s(result: Result) -> Floats:
    """End-to-end latency per output token, in seconds.

    Yu et al., "Orca", OSDI 2022; Kwon et al., "PagedAttention", SOSP 2023 (arXiv 2309.06180).
    """
    return job_completion_time_s(result) / result.workload.output_tokens


def job_completion_time_s(result: Result) -> Floats:
    """JCT: arrival to last token, in seconds. Zhang et al., "HACK", SIGCOMM 2025 (arXiv 2502.03589)."""
    return _of_finished(result, result.requests["end_s"] - result.requests["arrival_s"])


def _of_finished(result: Result, values: Floats) -> Floats:
    return np.where(result.requests["state"] == FINISHED, values, np.nan)
