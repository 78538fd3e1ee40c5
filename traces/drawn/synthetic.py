"""Traces drawn from distributions: lengths, arrivals, and sessions whose prompts grow turn by turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.checks import check_fields, require_count, require_whole, up_to
from framework.errors import InputError
from framework.workload import Workload
from traces.drawn.distributions import Arrivals, Distribution
from traces.drawn.names import with_names
from traces.drawn.prefix_blocks import Trunks, prefix_blocks
from traces.frame import Trace, to_workload
from traces.load import Transforms
from traces.settings import MAX_TOKENS, MOST_REQUESTS

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Lengths:
    """Distributions of the tokens that a request adds to its prompt and of those that it generates, at least 1."""

    input: Distribution
    output: Distribution


@dataclass(frozen=True)
class Sessions:
    """Conversations: the number of turns, the user's thinking time between them, and what their prompts share.

    Each turn's prompt is the prompt and the output of the previous turn, then new input tokens. The first one begins
    with one of `prefixes` system prompts of `prefix_tokens` tokens, each equally likely. Prompts are cut into prefix
    blocks of `block_tokens` tokens.
    """

    turns: Distribution
    think_s: Distribution
    prefix_tokens: Annotated[int, up_to(MAX_TOKENS, 0)] = 0
    prefixes: Annotated[int, up_to(MAX_TOKENS)] = 1
    block_tokens: Annotated[int, up_to(MAX_TOKENS)] = 16

    def __post_init__(self) -> None:
        check_fields(self, "trace.sessions.")


def load(
    requests: int,
    input: Distribution,
    output: Distribution,
    arrivals: Arrivals,
    sessions: Sessions | None = None,
    slo_classes: Mapping[str, float] | None = None,
    name: str = "synthetic",
    seed: int = 0,
    **transforms: Any,
) -> Workload:
    """The workload of a config node `trace`: drawn from distributions, then transformed (the fields of `Transforms`).

    With `sessions`, `arrivals` are arrivals of sessions. `slo_classes` maps the names of classes to their shares.
    """
    steps = Transforms(**transforms)
    require_whole("trace.seed", seed)

    def drawn() -> Trace:
        lengths = Lengths(input, output)
        if sessions is None:
            trace = independent(requests, lengths, arrivals, seed)
        else:
            trace = conversations(requests, lengths, arrivals, sessions, seed)
        if slo_classes:
            trace = with_classes(trace, slo_classes, seed)
        return Trace(trace.frame, name, "synthetic", "", trace.hash_block_tokens)

    return to_workload(steps.apply(drawn(), seed))  # The result holds only the trace.


def independent(requests: int, lengths: Lengths, arrivals: Arrivals, seed: int) -> Trace:
    """`requests` independent requests."""
    require_count("trace.requests", requests, MOST_REQUESTS)
    rng = np.random.default_rng([seed, 10])
    frame = pl.DataFrame(
        {
            "arrival_s": arrivals.sample(requests, rng),
            "input_tokens": drawn_tokens(lengths.input, requests, rng),
            "output_tokens": drawn_tokens(lengths.output, requests, rng),
        }
    )
    return Trace(frame, "synthetic", "synthetic")


def conversations(requests: int, lengths: Lengths, arrivals: Arrivals, sessions: Sessions, seed: int) -> Trace:
    """The first `requests` turns, by arrival, of as many sessions as needed.

    A later turn's `arrival_s` contains think times alone; a run replays it `think_s` after the previous turn has ended.
    """
    require_count("trace.requests", requests)
    rng = np.random.default_rng([seed, 11])
    turns = _enough_sessions(requests, sessions.turns, rng)
    rows = int(turns.sum())
    first = np.cumsum(turns) - turns  # row of each session's first turn
    session = np.repeat(np.arange(len(turns)), turns)
    turn = np.arange(rows) - first[session]
    think_s = np.where(turn > 0, sessions.think_s.sample(rows, rng), 0.0)
    output = drawn_tokens(lengths.output, rows, rng)
    added = drawn_tokens(lengths.input, rows, rng) + np.where(turn > 0, np.roll(output, 1), sessions.prefix_tokens)
    prompt = running_sum(added, first, session)
    group = rng.integers(sessions.prefixes, size=len(turns))
    frame = pl.DataFrame(
        {
            "arrival_s": arrivals.sample(len(turns), rng)[session] + running_sum(think_s, first, session),
            "input_tokens": prompt,
            "output_tokens": output,
            "session_id": session,
            "turn": turn,
            "think_s": think_s,
        }
    )
    trunks = Trunks(group, sessions.prefix_tokens, sessions.prefixes, sessions.block_tokens)
    order = frame["arrival_s"].to_numpy().argsort(kind="stable")[:requests]
    frame = frame[order].with_columns(hash_ids=prefix_blocks(prompt, session, trunks, order))
    return Trace(frame, "synthetic", "synthetic", hash_block_tokens=sessions.block_tokens)


def with_classes(trace: Trace, shares: Mapping[str, float], seed: int) -> Trace:
    """The trace with a service class drawn for each request, or for each session if there are sessions."""
    return with_names(trace, "slo_class", "trace.slo_classes", shares, seed)


def drawn_tokens(lengths: Distribution, count: int, rng: np.random.Generator) -> Ints:
    """`count` draws as whole numbers, at least 1. Raises InputError for more than a request can have."""
    return tokens_at(lengths, rng.random(count))


def tokens_at(lengths: Distribution, uniform: NDArray[np.float64]) -> Ints:
    """The same at these shares of the distribution, (N,)."""
    drawn = np.maximum(1, np.rint(lengths.quantile(uniform)))
    if drawn.max() > MAX_TOKENS:
        raise InputError(
            f"distribution {lengths.law} draws {drawn.max():g} tokens, more than any request can have; set its high"
        )
    return drawn.astype(np.int64)


def _enough_sessions(requests: int, turns: Distribution, rng: np.random.Generator) -> Ints:
    """Turns of each session, of the fewest sessions that have `requests` turns together."""
    drawn = drawn_tokens(turns, requests, rng)
    return drawn[: int(np.searchsorted(np.cumsum(drawn), requests)) + 1]


def running_sum(values: NDArray[Any], first: Ints, session: Ints) -> NDArray[Any]:
    """Running sum of `values` within each session, (rows,)."""
    total = np.cumsum(values)
    return total - (total[first] - values[first])[session]
