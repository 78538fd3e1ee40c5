"""Sessions of coding agents drawn from distributions: rounds that users and tools set off, on a context that grows.

A session is a chain of calls (rounds). A user's request sets off the first of some; each further one is set off by the
tools that the call before it called. The context of a round is that of the round before, its output, and what the user
or the tools append, until it would pass the agent's window: then it is compacted, and of the context only the trunk
(system prompt and tools) and a summary are left. Figures of such sessions: TraceLab (arXiv 2606.30560), of which
conf/trace/coding_agents.yaml has the distributions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.checks import NotNegative, check_fields, require_count, require_whole, up_to
from framework.errors import InputError
from framework.workload import Workload
from traces.drawn.distributions import Arrivals, Distribution
from traces.drawn.prefix_blocks import Trunks, prefix_blocks
from traces.drawn.synthetic import drawn_tokens, running_sum
from traces.frame import Trace, to_workload
from traces.load import Transforms
from traces.settings import MAX_TOKENS, MOST_REQUESTS

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_MOST_APPENDED = 0.25  # largest share of its window that a round appends, or that a summary takes


@dataclass(frozen=True, kw_only=True)
class Agents:
    """The distributions of a session, its requests and its rounds; counts are rounded to whole numbers.

    `requests`: requests of the user in a session, at least 1. `rounds`: rounds of a request that tools set off, from 0;
    `lone_rounds`: the same in a session of one request. Sessions of several differ by a factor of their rounds, drawn
    with a mean of 1 and a coefficient of variation `rounds_cv`, and times (requests / 30) ^ `rounds_growth`.
    `tools`: tools that a round calls, which run at the same time; each takes `tool_s`. `user_s`: the time that a user
    takes for the next request. `first`: tokens of the first prompt behind the trunk; `appended`: those that a later
    round adds to the context besides the output of the round before; `output`: those that a round generates.
    `window_tokens`: the window of each session's agent, at most `most_tokens` (null: no limit); `summary`: the tokens
    behind the trunk after a compaction. A first prompt, what a round appends, its output and a summary have at most a
    quarter of the window. The trunk is one of `prefixes` of `prefix_tokens` tokens, each equally likely. Prompts are
    cut into prefix blocks of `block_tokens` tokens.
    """

    requests: Distribution
    rounds: Distribution
    lone_rounds: Distribution
    rounds_cv: NotNegative
    rounds_growth: NotNegative
    tools: Distribution
    tool_s: Distribution
    user_s: Distribution
    first: Distribution
    appended: Distribution
    output: Distribution
    window_tokens: Distribution
    summary: Distribution
    most_tokens: Annotated[int, up_to(MAX_TOKENS)] | None = None
    prefix_tokens: Annotated[int, up_to(MAX_TOKENS, 0)] = 0
    prefixes: Annotated[int, up_to(MAX_TOKENS)] = 1
    block_tokens: Annotated[int, up_to(MAX_TOKENS)] = 512

    def __post_init__(self) -> None:
        check_fields(self, "trace.agents.")
        if self.most_tokens is not None and self.most_tokens < 4 * max(1, self.prefix_tokens):
            raise InputError(
                f"trace.agents.most_tokens is {self.most_tokens}, must be at least four times prefix_tokens,"
                f" {self.prefix_tokens}"
            )


def load(
    requests: int, arrivals: Arrivals, agents: Agents, name: str = "coding_agents", seed: int = 0, **transforms: Any
) -> Workload:
    """The workload of a config node `trace`: sessions drawn, then transformed (the fields of `Transforms`)."""
    steps = Transforms(**transforms)
    require_whole("trace.seed", seed)
    trace = agent_sessions(requests, arrivals, agents, seed)
    return to_workload(steps.apply(Trace(trace.frame, name, "synthetic", "", trace.hash_block_tokens), seed))


def agent_sessions(requests: int, arrivals: Arrivals, agents: Agents, seed: int) -> Trace:
    """The first `requests` rounds, by arrival, of as many sessions as needed; `arrivals` are those of sessions.

    A later round's `arrival_s` contains the times of users and tools alone; a run replays it `think_s` after the round
    before has ended. Raises InputError for a count or a distribution out of range.
    """
    require_count("trace.requests", requests, MOST_REQUESTS)
    rng = np.random.default_rng([seed, 14])
    session, is_users = _rounds(requests, agents, rng)
    rows, sessions = len(session), int(session[-1]) + 1
    opens = np.concatenate(([True], np.diff(session) > 0))
    first = np.flatnonzero(opens)
    think_s = np.where(is_users, agents.user_s.sample(rows, rng), _tools_s(agents, rows, rng))
    think_s[opens] = 0.0
    window = np.rint(agents.window_tokens.sample(sessions, rng)).astype(np.int64)
    window = np.minimum(window, MAX_TOKENS if agents.most_tokens is None else agents.most_tokens)
    window = np.maximum(window, 4 * max(1, agents.prefix_tokens))
    quarter = np.maximum(1, (_MOST_APPENDED * window).astype(np.int64))[session]
    output = np.minimum(drawn_tokens(agents.output, rows, rng), quarter)
    added = np.where(opens, drawn_tokens(agents.first, rows, rng), drawn_tokens(agents.appended, rows, rng))
    added = np.minimum(added, quarter)
    summary = np.minimum(drawn_tokens(agents.summary, rows, rng), quarter)
    grown = agents.prefix_tokens * opens + added + np.where(opens, 0, np.roll(output, 1))
    prompt, context = _prompts(grown, agents.prefix_tokens + summary, output, window[session], first)
    trunk = rng.integers(agents.prefixes, size=sessions)
    frame = pl.DataFrame(
        {
            "arrival_s": arrivals.sample(sessions, rng)[session] + running_sum(think_s, first, session),
            "input_tokens": prompt,
            "output_tokens": output,
            "session_id": session,
            "turn": np.arange(rows) - first[session],
            "think_s": think_s,
            "trigger": np.where(is_users, "user", "tool"),
        }
    )
    order = frame["arrival_s"].to_numpy().argsort(kind="stable")[:requests]
    begins = np.flatnonzero(np.concatenate(([True], np.diff(context) > 0)))
    trunks = Trunks(trunk[session[begins]], agents.prefix_tokens, agents.prefixes, agents.block_tokens)
    frame = frame[order].with_columns(hash_ids=prefix_blocks(prompt, context, trunks, order))
    return Trace(frame, "coding_agents", "synthetic", hash_block_tokens=agents.block_tokens)


def _rounds(requests: int, agents: Agents, rng: np.random.Generator) -> tuple[Ints, NDArray[np.bool_]]:
    """The session of each round, and whether a user set it off, of the fewest sessions with `requests` rounds."""
    asked = drawn_tokens(agents.requests, requests, rng)  # a session has a round at least
    sigma = np.sqrt(np.log1p(agents.rounds_cv**2))
    factor = np.exp(sigma * rng.standard_normal(requests) - sigma**2 / 2) * (asked / 30) ** agents.rounds_growth
    sessions = int(np.searchsorted(np.cumsum(asked), requests)) + 1
    asked, factor = asked[:sessions], factor[:sessions]
    session = np.repeat(np.arange(sessions), asked)
    by_tools = agents.rounds.sample(len(session), rng) * factor[session]
    alone = asked[session] == 1
    by_tools[alone] = agents.lone_rounds.sample(int(alone.sum()), rng)
    rounds = 1 + np.rint(by_tools).astype(np.int64)
    needed = int(np.searchsorted(np.cumsum(rounds), requests))
    needed = int(np.searchsorted(session, session[min(needed, len(session) - 1)], side="right"))  # whole sessions
    session, rounds = session[:needed], rounds[:needed]
    is_users = np.zeros(int(rounds.sum()), np.bool_)
    is_users[np.cumsum(rounds) - rounds] = True
    return np.repeat(session, rounds), is_users


def _tools_s(agents: Agents, rows: int, rng: np.random.Generator) -> Floats:
    """The time of the longest of the tools that the round before called, of each round."""
    called = drawn_tokens(agents.tools, rows, rng)
    longest: Floats = np.maximum.reduceat(
        agents.tool_s.sample(int(called.sum()), rng), np.concatenate(([0], np.cumsum(called)[:-1]))
    )
    return longest


def _prompts(grown: Ints, compacted: Ints, output: Ints, window: Ints, first: Ints) -> tuple[Ints, Ints]:
    """The prompt of each round, and the number of its context: a new one begins with a session and a compaction.

    `grown` is what each round adds to the prompt before it, `compacted` its prompt where that and its output would
    pass the window. All are (rows,) but `first` (sessions,), the first round of each session.
    """
    prompt, begins = np.cumsum(grown), []
    for at, end in zip(first, [*first[1:], len(grown)], strict=True):
        begin, base = int(at), int(prompt[at] - grown[at])
        while True:
            begins.append(begin)
            passes = prompt[begin:end] - base + output[begin:end] > window[begin:end]
            passes[0] = False
            upto = begin + int(passes.argmax()) if passes.any() else end
            prompt_before = prompt[begin:upto] - base
            prompt[begin:upto] = prompt_before
            if upto == end:
                break
            base = int(prompt[upto] - compacted[upto])
            begin = upto
    context = np.zeros(len(grown), np.int64)
    context[begins[1:]] = 1
    return prompt, np.cumsum(context)
