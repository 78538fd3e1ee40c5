"""Workloads drawn for a comparison with vLLM's scheduler, each knob by itself, so that all combinations come up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from framework.reference.options import Drafts
from framework.timing.affine import Affine
from framework.workload import Workload, consecutive
from tests.helpers.drawing import Draw

BLOCK_TOKENS = 16
ACCEPTANCE = 0.625
CANCEL_TICK_S = 2.0**-8
REGIMES = (
    *("prefixes", "bursts", "memory", "seats", "budget", "sessions"),
    *("crowd", "long prompts", "first chunk", "watermark", "whole prompts", "priorities"),
    *("asynchronous", "drafts"),
)
REGIMES_OF_CANCELLATIONS = (*(name for name in REGIMES if name != "asynchronous"), "cancellations")
_TIMES = Affine(2.0**-7, 2.0**-16, 2.0**-31, 2.0**-16, 2.0**-24)


@dataclass(frozen=True)
class Request:
    """One request: its tokens, by number; the same number is the same token."""

    arrival_s: float
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    previous: int = -1  # the turn before, -1: it is the first of its session
    think_s: float = 0.0
    priority: int = 0  # the smaller the sooner
    cancel_s: float | None = None  # when its client gives it up, a multiple of `CANCEL_TICK_S`; None: never


@dataclass(frozen=True)
class Run:
    """What both schedulers play. `regimes`: the knobs that are not at rest."""

    requests: tuple[Request, ...]
    blocks: int
    token_budget: int = 2048
    max_batch: int = 256
    prefix_cache: bool = True
    chunked: bool = True
    watermark: float = 0.0
    reserve_whole_prompt: bool = True
    long_prefill_tokens: int = 0  # 0: no limit
    priorities: bool = False
    asynchronous: bool = False
    drafts: int = 0  # tokens drafted for each decode
    block_tokens: int = BLOCK_TOKENS
    times: Affine = _TIMES
    regimes: tuple[str, ...] = ()

    @property
    def gives_up(self) -> bool:
        """Whether any request is cancelled."""
        return any(r.cancel_s is not None for r in self.requests)

    def as_json(self) -> dict[str, Any]:
        """As `tests.oracle.vllm_scheduler` reads it."""
        lists = {"requests": [vars(r) for r in self.requests], "right": self._right(), "times": vars(self.times)}
        return {**vars(self), **lists}

    def _right(self) -> list[list[bool]]:
        """Of each request, whether the draft of each of its tokens is right."""
        draws = Drafts(ACCEPTANCE if self.drafts else 0.0)
        return [[draws.right(k, token) for token in range(len(r.output))] for k, r in enumerate(self.requests)]

    def workload(self) -> Workload:
        """The same for the simulator: blocks of prompts named by all tokens up to their ends."""
        names: dict[tuple[int, tuple[int, ...]], int] = {}
        ids: list[list[int]] = []
        for r in self.requests:
            chain, mine = -1, []
            for j in range(len(r.prompt) // self.block_tokens):
                block = r.prompt[j * self.block_tokens : (j + 1) * self.block_tokens]
                chain = names.setdefault((chain, block), len(names))
                mine.append(chain)
            ids.append(mine)
        return Workload(
            arrival_s=np.array([r.arrival_s for r in self.requests]),
            input_tokens=np.array([len(r.prompt) for r in self.requests]),
            output_tokens=np.array([len(r.output) for r in self.requests]),
            hash_ids=np.array([name for mine in ids for name in mine], np.int64),
            hash_spans=consecutive([len(own) for own in ids]),
            hash_block_tokens=self.block_tokens,
            previous=np.array([r.previous for r in self.requests]),
            think_s=np.array([r.think_s for r in self.requests]),
            priority=np.array([-r.priority for r in self.requests]),  # here the larger is the more urgent
        )


class _Tokens:
    """Gives out tokens that nobody else has, and shared documents."""

    def __init__(self, draw: Draw) -> None:
        self._next = 1000
        self.documents = [self.fresh(draw.one((48, 100, 256, 400, 800))) for _ in range(draw.integer(1, 4))]

    def fresh(self, count: int) -> tuple[int, ...]:
        self._next += count
        return tuple(range(self._next - count, self._next))


def drawn(seed: int) -> Run:
    """The run of a seed."""
    return _with_settings(Draw(seed, 1), usual(seed))


def given_up(seed: int) -> Run:
    """The run of a seed without asynchronous scheduling, some of whose requests are cancelled.

    At least half of these runs have priorities.
    """
    run, draw = drawn(seed), Draw(seed, 2)
    by_priority = draw.chance(0.5)
    last_s = max(r.arrival_s for r in run.requests) + draw.one((0.125, 0.5, 2.0))
    share = draw.one((0.1, 0.3, 0.6))
    requests = []
    for r in run.requests:
        tick = draw.integer(int(r.arrival_s / CANCEL_TICK_S), int(last_s / CANCEL_TICK_S))
        priority = draw.integer(0, 3)
        requests.append(
            replace(
                r,
                cancel_s=tick * CANCEL_TICK_S if draw.chance(share) else None,
                priority=priority if by_priority else r.priority,
            )
        )
    regimes = dict.fromkeys((*run.regimes, *["priorities"] * by_priority, "cancellations"))
    regimes.pop("asynchronous", None)
    return replace(
        run,
        requests=tuple(requests),
        priorities=run.priorities or by_priority,
        asynchronous=False,
        regimes=tuple(regimes),
    )


def usual(seed: int) -> Run:
    """A workload on a server with the settings that it has by itself, but for seats and budget."""
    draw = Draw(seed)
    odds = {"prefixes": 0.7, "bursts": 0.5, "memory": 0.5, "seats": 0.3, "budget": 0.4, "sessions": 0.4}
    on = {name: draw.chance(share) for name, share in odds.items()}
    on["sessions"] &= on["prefixes"]
    tokens = _Tokens(draw)
    requests = _first_turns(draw, tokens, on["prefixes"], on["bursts"])
    if on["sessions"]:
        requests = _with_turns(draw, tokens, requests)
    longest = max(len(r.prompt) + len(r.output) for r in requests)
    return Run(
        tuple(requests),
        -(-longest // BLOCK_TOKENS) + draw.integer(2, 60) if on["memory"] else 4000,
        token_budget=draw.one((64, 128, 200, 512)) if on["budget"] else 2048,
        max_batch=draw.integer(1, 8) if on["seats"] else 64,
        prefix_cache=on["prefixes"],
        regimes=tuple(name for name in on if on[name]),
    )


def _with_settings(draw: Draw, run: Run) -> Run:
    """The same with some of the settings that a server may be given."""
    odds = {"crowd": 0.2, "long prompts": 0.25, "first chunk": 0.25, "watermark": 0.25, "whole prompts": 0.15}
    odds |= {"priorities": 0.35, "asynchronous": 0.4, "drafts": 0.5}
    on = {name: draw.chance(share) for name, share in odds.items()}
    # Blocks of rejected drafts count otherwise there; vLLM cuts drafts to the budget.
    roomy = "memory" not in run.regimes
    on["drafts"] &= roomy and "budget" not in run.regimes
    for name in ("asynchronous", "crowd", "long prompts", "whole prompts"):
        on[name] &= not on["drafts"]
    budget = run.token_budget
    if on["crowd"]:  # more may decode than a step has tokens for
        budget = draw.one((3, 8, 17, 32))
    if on["whole prompts"]:
        budget = max(len(r.prompt) + len(r.output) for r in run.requests) + draw.integer(0, 300)
    on["crowd"] &= not on["whole prompts"]
    requests = run.requests
    if on["priorities"]:
        requests = tuple(replace(r, priority=draw.integer(0, 3)) for r in requests)
    return replace(
        run,
        requests=requests,
        priorities=on["priorities"],
        asynchronous=on["asynchronous"],
        drafts=draw.integer(1, 4) if on["drafts"] else 0,
        token_budget=budget,
        chunked=not on["whole prompts"],
        long_prefill_tokens=draw.one((5, 16, 40, 100, 250)) if on["long prompts"] else 0,
        reserve_whole_prompt=not on["first chunk"],
        watermark=draw.one((0.01, 0.05, 0.1, 0.2)) if on["watermark"] else 0.0,
        regimes=(*run.regimes, *(name for name in on if on[name])),
    )


def _first_turns(draw: Draw, tokens: _Tokens, shares: bool, bursts: bool) -> list[Request]:
    requests, now_s = [], 0.0
    gap_s = draw.one((2.0**-7, 2.0**-6, 2.0**-5, 2.0**-4))
    for _ in range(draw.integer(8, 40)):
        if not bursts or draw.chance(0.3):
            now_s += gap_s * draw.integer(0, 64) / 16
        prompt: tuple[int, ...] = ()
        if shares and draw.chance(0.7):
            document = draw.one(tokens.documents)
            prompt = document[: draw.one((len(document), len(document), draw.integer(1, len(document))))]
        if not prompt or draw.chance(0.7):
            prompt += tokens.fresh(draw.one((1, 7, 16, 33, 100, 300, 700)))
        output = tokens.fresh(draw.one((1, 2, 5, 17, 40, 90)))
        requests.append(Request(now_s, prompt, output))
    return requests


def _with_turns(draw: Draw, tokens: _Tokens, requests: list[Request]) -> list[Request]:
    """Later turns whose prompts go on from the prompts and outputs of the turns before."""
    grown = list(requests)
    for k, first in enumerate(requests):
        before, turn = k, first
        for _ in range(draw.one((0, 0, 1, 2))):
            prompt = turn.prompt + turn.output + tokens.fresh(draw.one((1, 20, 64, 150)))
            output = tokens.fresh(draw.one((1, 9, 30)))
            turn = Request(requests[-1].arrival_s, prompt, output, before, draw.integer(0, 32) / 64, first.priority)
            before = len(grown)
            grown.append(turn)
    return grown
