"""Step times that papers measured of real servers, in the same regime; nothing is fitted to them."""

from __future__ import annotations

import numpy as np
import pytest
from hydra.utils import instantiate

from framework.engine.durations.attention_overlap import Attention
from framework.engine.setup.config import EngineConfig
from framework.simulate import simulate
from framework.system.cluster import mixed
from framework.system.parallelism import Parallelism
from framework.timing.roofline import Roofline
from framework.timing.table import StepTables, stack, step_s
from framework.workload import Workload
from policies.vllm_v1 import VllmV1
from tests.helpers.composing import configured
from tests.helpers.parts import load as part

# Ten equally likely lengths through the mean and percentiles of Long Data Collections (arXiv 2507.06608, section 6)
PROMPTS = (3000, 3800, 4400, 4900, 5250, 5650, 6200, 7000, 8300, 9500)
OUTPUTS = (60, 90, 115, 135, 152, 170, 192, 220, 270, 390)


def mean_steps_s(attention: Attention) -> dict[str, float]:
    """Qwen2.5-3B on an L20 at 2.5 requests/s: seconds of a step of decodes alone and of a mixed one."""
    rng, count = np.random.default_rng(0), 1000
    arrival_s = np.cumsum(rng.exponential(1 / 2.5, count))
    workload = Workload(arrival_s - arrival_s[0], rng.choice(PROMPTS, count), rng.choice(OUTPUTS, count))
    engine = EngineConfig(token_budget=2048, attention=attention)
    leaps = simulate(
        workload, mixed(1, part("gpu", "l20")), part("model", "qwen25_3b"), Roofline(), engine, VllmV1()
    ).step_log
    steps = leaps["steps"].astype(float)
    total_s = steps * leaps["first_s"] + leaps["increment_s"] * steps * (steps - 1) / 2
    prefills, decodes = leaps["prefill_tokens"] > 0, leaps["batch"] > 0
    return {
        name: float(total_s[kind].sum() / steps[kind].sum())
        for name, kind in (("decode", ~prefills), ("mixed", prefills & decodes))
    }


def test_steps_of_vllm_on_an_l20() -> None:
    """arXiv 2507.06608, section 2: decodes alone take 0.015 s, mixed steps 0.251 s."""
    steps_s = mean_steps_s(Attention(decode_rows=64))
    assert steps_s["decode"] == pytest.approx(0.015, rel=0.1)
    assert steps_s["mixed"] == pytest.approx(0.251, rel=0.1)


def test_without_tiles_mixed_steps_would_be_too_fast() -> None:
    assert mean_steps_s(Attention(decode_rows=0))["mixed"] < 0.8 * 0.251


# Seconds of prefills of Yi-34B on a pair of A100 PCIe in chunks of 512, 1,024 and 2,048 tokens (Agrawal et al., OSDI
# 2024; microsoft/sarathi-serve, osdi-experiments/figure-9/chunking-overhead.csv), and of a chunk of 1,021 with three
# decodes (table-2/results.csv). The timing knows of prompts that are one chunk only, of 1,024 tokens from the same run.
CHUNKED_S = {
    4095: (0.9220, 0.9323, 0.7939),
    8191: (1.9585, 1.9462, 1.6434),
    16383: (4.5128, 4.3576, 3.6516),
}
HYBRID_S = 0.2176


@pytest.fixture(scope="module")
def sarathi() -> StepTables:
    timing = instantiate(configured("timing=sarathi").timing)
    model, gpu = part("model", "yi_34b"), part("gpu", "a100_pcie")
    return stack([timing.row(model, gpu, Parallelism(tp=2))])


@pytest.mark.parametrize("tokens", CHUNKED_S)
def test_prefills_in_chunks(sarathi: StepTables, tokens: int) -> None:
    for chunk, measured in zip((512, 1024, 2048), CHUNKED_S[tokens], strict=True):
        starts = range(0, tokens, chunk)
        total_s = sum(step_s(sarathi, 0, [start], [min(chunk, tokens - start)], 0, 0) for start in starts)
        assert total_s == pytest.approx(measured, rel=0.065)


def test_a_chunk_with_decodes(sarathi: StepTables) -> None:
    assert step_s(sarathi, 0, [0], [1021], 3, 3 * 1030) == pytest.approx(HYBRID_S, rel=0.01)
