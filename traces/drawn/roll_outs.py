"""Roll-outs of reinforcement learning: samples of each prompt, all offered at once, whose lengths are alike.

In a synchronous step of training (GRPO) an engine generates several responses to each prompt of a batch, and the step
ends with the last of them (Seer, arXiv 2511.14617, section 2).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from scipy.special import ndtr

from framework.checks import at_most, require_at_least, require_count, require_whole
from framework.errors import InputError
from framework.workload import Workload
from traces.drawn.distributions import Distribution
from traces.drawn.prefix_blocks import Trunks, prefix_blocks
from traces.drawn.synthetic import drawn_tokens, tokens_at
from traces.frame import Trace, to_workload
from traces.load import Transforms
from traces.settings import MOST_REQUESTS


def load(
    prompts: int,
    samples: int,
    input: Distribution,
    output: Distribution,
    alike: float,
    block_tokens: int = 16,
    name: str = "roll_out",
    seed: int = 0,
    **transforms: Any,
) -> Workload:
    """The workload of a config node `trace`: roll-outs drawn, then transformed (the fields of `Transforms`)."""
    steps = Transforms(**transforms)
    require_whole("trace.seed", seed)
    require_count("trace.block_tokens", block_tokens)
    trace = roll_outs(prompts, samples, input, output, alike, block_tokens, seed)
    return to_workload(steps.apply(Trace(trace.frame, name, "synthetic", "", block_tokens), seed))


def roll_outs(
    prompts: int, samples: int, input: Distribution, output: Distribution, alike: float, block_tokens: int, seed: int
) -> Trace:
    """`samples` requests of each of `prompts` prompts, prompt by prompt, all at 0 s. Those of a prompt are a session.

    `output` is the distribution of all outputs. `alike` is the correlation of the normal scores of two outputs of one
    prompt: at 0 they are independent, at 1 equal. Raises InputError for a value out of range.
    """
    require_count("trace.prompts", prompts, MOST_REQUESTS)
    require_count("trace.samples", samples, MOST_REQUESTS)
    require_at_least("trace.alike", alike, 0)
    at_most(1.0)("trace.alike", alike)
    if prompts * samples > MOST_REQUESTS:
        raise InputError(f"trace.prompts x trace.samples is {prompts * samples:,}, at most {MOST_REQUESTS:,} are drawn")
    rng = np.random.default_rng([seed, 15])
    group = np.repeat(np.arange(prompts), samples)
    prompt = drawn_tokens(input, prompts, rng)[group]
    of_prompt, of_sample = rng.standard_normal(prompts)[group], rng.standard_normal(len(group))
    score = np.sqrt(alike) * of_prompt + np.sqrt(1 - alike) * of_sample
    frame = pl.DataFrame(
        {
            "arrival_s": np.zeros(len(group)),
            "input_tokens": prompt,
            "output_tokens": tokens_at(output, ndtr(score)),
            "session_id": group,
            "turn": np.tile(np.arange(samples), prompts),
            "think_s": np.zeros(len(group)),
            "wait_for": pl.Series([[]] * len(group), dtype=pl.List(pl.Int64)),  # none waits for another
        }
    )
    trunks = Trunks(np.zeros(prompts, np.int64), 0, 1, block_tokens)
    ids = prefix_blocks(prompt, group, trunks, np.arange(len(group)))
    return Trace(frame.with_columns(hash_ids=ids), "roll_out", "synthetic", hash_block_tokens=block_tokens)
