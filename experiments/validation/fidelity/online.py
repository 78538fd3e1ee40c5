"""Load tests of servers in open loop, replayed stage by stage: the rows of online.csv.

A stage sends requests at a constant rate, as the measuring client does (kubernetes-sigs/inference-perf): gaps are
exponential, scaled to the length of the stage (`ConstantLoadTimer`), and a few prompts, each a system prompt and a
question, come in turn (`SharedPrefixDataGenerator`). So a prompt is computed at its first use in the first stage of a
run, and from then on the prefix cache has it except its last block. The published figures are aggregates of a stage, so
prompts are drawn: their lengths are normal, with the published tenth and ninetieth percentiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from framework.calibration.apply import calibrations_of
from framework.calibration.replay import Deployment, Sent, replay
from framework.cli.arguments import configured
from framework.errors import InputError
from framework.load import Open
from framework.timing.calibration_terms import Calibration
from framework.timing.fit_domain import Place
from framework.timing.measured import placed
from framework.timing.step_row import Timing
from framework.workload import Workload, consecutive

STAGES = Path(__file__).with_name("online.csv")
_MOE = ("mixtral_8x7b",)
_BLOCK = 16  # tokens of a block of the prefix cache
_BETWEEN_S = 60.0  # seconds from the last prompt of an earlier stage to a later one
_TENTH = 1.2816  # standard deviations from the median of a normal distribution to its tenth percentile
# Groups of conf that describe a server.
GROUPS = ("model", "gpu", "timing", "engine", "cluster", "policy")


@dataclass(frozen=True)
class Stage:
    """One stage of one load test; the columns of online.csv."""

    run: str
    stage: int
    model: str
    gpu: str
    tp: int
    backend: str
    version: str
    max_batch: int
    token_budget: int
    rate_rps: float
    requests: int
    system_prompts: int
    users: int
    system_tokens: int
    prompt_tokens_p10: int
    prompt_tokens_p50: int
    prompt_tokens_p90: int
    output_tokens: int
    ttft_ms_mean: float
    ttft_ms_p50: float
    ttft_ms_p90: float
    ttft_ms_p99: float
    e2e_ms_mean: float
    e2e_ms_p50: float
    e2e_ms_p90: float
    e2e_ms_p99: float

    @property
    def tpot_ms_mean(self) -> float:
        """Mean time between tokens after the first."""
        return (self.e2e_ms_mean - self.ttft_ms_mean) / (self.output_tokens - 1)

    @property
    def kind(self) -> str:
        """Dense or moe."""
        return "moe" if self.model in _MOE else "dense"

    @property
    def prompts(self) -> int:
        """The number of prompts."""
        return self.system_prompts * self.users

    @property
    def earlier(self) -> int:
        """Requests of earlier stages that are sent before it, so that its prompts are cached: one of each."""
        return self.prompts if self.stage > 0 else 0

    def __str__(self) -> str:
        return f"{self.model} tp{self.tp} {self.rate_rps:g}/s"


@dataclass(frozen=True)
class Figures:
    """The results of a stage, in milliseconds."""

    ttft_ms_mean: float
    ttft_ms_p50: float
    ttft_ms_p90: float
    ttft_ms_p99: float
    tpot_ms_mean: float
    e2e_ms_mean: float

    @classmethod
    def measured(cls, stage: Stage) -> Figures:
        """As published."""
        return cls(*(getattr(stage, one.name) for one in fields(cls)))


def read_stages(path: Path = STAGES) -> tuple[Stage, ...]:
    """All stages in a file with the columns of `Stage`. Raises InputError for another file."""
    try:
        table = pl.read_csv(path, comment_prefix="#", schema_overrides={"version": pl.String, "run": pl.String})
        return tuple(Stage(**line) for line in table.iter_rows(named=True))
    except (OSError, TypeError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{path}: not a table of stages ({error})") from error


def workload(stage: Stage, most: int | None = None, draw: int = 0) -> Workload:
    """The stage's requests, or the first `most`, behind those of earlier stages; each `draw` has gaps of its own."""
    rng = np.random.default_rng([stage.requests, stage.prompt_tokens_p50, *([draw] if draw else [])])
    spread = (stage.prompt_tokens_p90 - stage.prompt_tokens_p10) / (2 * _TENTH)
    lengths = np.rint(rng.normal(stage.prompt_tokens_p50, spread, stage.prompts)).astype(np.int64)
    gaps = rng.exponential(size=stage.requests)
    own_s = np.cumsum(gaps)[:most] * (stage.requests / stage.rate_rps / gaps.sum())
    earlier_s = np.arange(stage.earlier) / stage.rate_rps
    count = stage.earlier + len(own_s)
    chosen = rng.permutation(stage.prompts)[np.arange(count) % stage.prompts]
    blocks = np.maximum(lengths, 1) // _BLOCK
    ids = [_ids(prompt, int(blocks[prompt]), stage) for prompt in range(stage.prompts)]
    return Workload(
        arrival_s=np.concatenate([earlier_s, own_s + (earlier_s[-1] + _BETWEEN_S if stage.earlier else 0.0)]),
        input_tokens=np.maximum(lengths, 1)[chosen],
        output_tokens=np.full(count, stage.output_tokens),
        hash_ids=np.concatenate([ids[prompt] for prompt in chosen]),
        hash_spans=consecutive(blocks[chosen]),
        hash_block_tokens=_BLOCK,
        name=f"{stage.run} stage {stage.stage}",
    )


def place_of(stage: Stage) -> Place:
    """The place of its requests, on the one instance."""
    return Place.of(workload(stage), Open(), 1, prefix_cache=True)


def _ids(kind: int, blocks: int, stage: Stage) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The blocks of one prompt: those of its system prompt, which its users share, then its own."""
    shared = stage.system_tokens // _BLOCK
    system, most = kind // stage.users, 1 << 20
    at = np.arange(blocks, dtype=np.int64)
    return np.where(at < shared, system * most + at, (stage.system_prompts + kind) * most + at)


def parts_of(stage: Stage, *overrides: str) -> Mapping[str, Any]:
    """The parts of run.py's configuration for the stage's server; unstated ones are run.py's defaults."""
    return configured(
        [
            *(f"model={stage.model}", f"gpu={stage.gpu}", f"timing.backend={stage.backend}", "policy=vllm_v1"),
            *("cluster=mixed", "cluster.instances=1", f"cluster.tp={stage.tp}"),
            *(f"engine.max_batch={stage.max_batch}", f"engine.token_budget={stage.token_budget}"),
            *overrides,
        ],
        GROUPS,
    )


def replayed(
    stage: Stage,
    calibration: Calibration | None,
    overrides: Sequence[str] = (),
    most: int | None = None,
    draw: int = 0,
) -> Figures:
    """The stage on the simulated server, as in a run with `overrides`. `calibration` None: the one that a run finds.

    `most` and `draw` are those of `workload`.
    """
    parts = parts_of(stage, *overrides)
    timing: Timing = placed(parts["timing"], place_of(stage))
    times = (lambda _: timing) if calibration is None else calibrations_of(timing)
    deployment = Deployment(parts["model"], parts["cluster"], parts["engine"], times, lambda: parts["policy"])
    served = replay(Sent(workload(stage, most, draw), Open(), "recorded"), deployment, calibration or Calibration())
    own = slice(stage.earlier, None)
    ttft_ms = 1e3 * served.ttft_s[own]
    return Figures(
        ttft_ms_mean=float(ttft_ms.mean()),
        ttft_ms_p50=float(np.median(ttft_ms)),
        ttft_ms_p90=float(np.percentile(ttft_ms, 90)),
        ttft_ms_p99=float(np.percentile(ttft_ms, 99)),
        tpot_ms_mean=float(1e3 * served.tpot_s[own].mean()),
        e2e_ms_mean=float(1e3 * served.e2e_s[own].mean()),
    )
