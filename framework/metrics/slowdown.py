"""How much longer requests take than alone on a reference machine."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from framework.checks import Positive, check_fields
from framework.compiler.decorators import compiled
from framework.result import FINISHED, Result
from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.table import StepRow, StepTables, Timing, base_s, chunk_s, decode_s, stack

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Slowdown:
    """Limits on a request's TTFT, TPOT and latency (`e2e`) as multiples of their values alone; None: not in force.

    Alone means on an instance of `tp` GPUs, with the prompt in one step and each further token in its own step. Raises
    InputError for a limit that is not positive.
    """

    model: Model
    timing: Timing
    gpu: Gpu
    tp: int = 1
    ttft: Positive | None = None
    tpot: Positive | None = None
    e2e: Positive | None = None

    def __post_init__(self) -> None:
        check_fields(self, "slo.slowdown.")

    def scaled(self, factor: float) -> Slowdown:
        """With every limit `factor` times as large."""
        ttft, tpot, e2e = (None if one is None else factor * one for one in (self.ttft, self.tpot, self.e2e))
        return replace(self, ttft=ttft, tpot=tpot, e2e=e2e)

    def kept(self, result: Result) -> NDArray[np.bool_]:
        """Which requests of a run keep all limits, (N,); those that did not finish do not."""
        kept = np.asarray(result.requests["state"] == FINISHED)
        for name, factors in self.factors(result).items():
            limit = getattr(self, name)
            if limit is not None:
                kept &= np.nan_to_num(factors) <= limit
        return kept

    def factors(self, result: Result) -> dict[str, Floats]:
        """Each request's `ttft`, `tpot` and `e2e` divided by those alone, (N,); NaN if it has none."""
        rows, workload = result.requests, result.workload
        ttft_s, later_s = self.alone_s(workload.input_tokens, workload.output_tokens)
        end_s = np.where(rows["state"] == FINISHED, rows["end_s"], np.nan)
        return {
            "ttft": (rows["first_token_s"] - rows["arrival_s"]) / ttft_s,
            "tpot": (end_s - rows["first_token_s"]) / np.where(later_s > 0, later_s, np.nan),  # over as many tokens
            "e2e": (end_s - rows["arrival_s"]) / (ttft_s + later_s),
        }

    def alone_s(self, prompts: Integers, outputs: Integers) -> tuple[Floats, Floats]:
        """Seconds to the first token, and from there to the last, of requests that are alone; both (N,)."""
        return alone_s(self.timing.row(self.model, self.gpu, Parallelism(tp=self.tp)), prompts, outputs)


def alone_s(row: StepRow, prompts: Integers, outputs: Integers) -> tuple[Floats, Floats]:
    """These seconds by the step times of one instance: the prompt in one step, each further token in its own."""
    tables = stack([row])
    lengths, which = np.unique(prompts, return_inverse=True)
    low, high = int(lengths[0]), int((prompts + outputs).max())
    ttft_s, steps_s = _steps_s(tables, np.ascontiguousarray(lengths), low + 1, high)
    until_s = np.concatenate([[0.0], np.cumsum(steps_s)])  # ends of the steps with contexts low + 1, low + 2, ...
    return ttft_s[which], until_s[prompts + outputs - 1 - low] - until_s[prompts - low]


@compiled
def _steps_s(tables: StepTables, prompts: Integers, low: int, high: int) -> tuple[Floats, Floats]:
    """Seconds of a step of each prompt, and of a decode step with each context from `low` to `high` - 1."""
    prompts_s, decodes_s = np.empty(len(prompts)), np.empty(max(high - low, 0))
    for k in range(len(prompts)):
        prompts_s[k] = base_s(tables, 0, prompts[k], 0, 1) + chunk_s(tables, 0, 0, prompts[k])
    token_s = base_s(tables, 0, 0, 1, 1)
    for context in range(low, high):
        decodes_s[context - low] = token_s + decode_s(tables, 0, 1, context)[0]
    return prompts_s, decodes_s
