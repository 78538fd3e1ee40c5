"""Step times that papers measured of real servers, in runs of the same regime; nothing is fitted to them."""

from __future__ import annotations

import numpy as np
import pytest

from framework.cluster import mixed
from framework.engine.attention import Attention
from framework.engine.config import EngineConfig
from framework.simulate import simulate
from framework.timing.roofline import Roofline
from framework.workload import Workload
from policies.vllm_v1 import VllmV1
from tests.parts import load as part

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
    ).leaps
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
    assert mean_steps_s(Attention())["mixed"] < 0.8 * 0.251
