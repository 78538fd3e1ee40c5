"""How evenly tenants were served, and how long readers waited, in plain Python from the times of single tokens."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from framework.metrics.slo import Slo
from tests.helpers.reported import Row, Run, Summary


def reader_wait_s(token_s: Sequence[float], slo: Slo) -> float:
    """Token by token: the reader takes 1 / speed seconds for each, and waits where the next is not there yet."""
    waited_s, ready_s = 0.0, -math.inf
    for time_s in token_s:
        if ready_s > -math.inf:
            waited_s += max(0.0, time_s - ready_s)
        ready_s = max(time_s, ready_s) + 1 / slo.reading_tokens_s
    return waited_s


def fairness(run: Run) -> tuple[Summary, dict[str, Summary]]:
    """Of the run, and of each tenant; but for slowdowns."""
    rows, tokens = run.requests, run.unreported.token_s
    came = [row for row in rows if row["arrival_s"] is not None]
    names = sorted({row["tenant"] for row in rows})
    until_s = max(row["arrival_s"] for row in came)
    served = {name: service(rows, tokens, name, until_s) for name in names}
    worth = [(row["tenant"], row["input_tokens"] + 2 * row["output_tokens"]) for row in came]
    asked = {name: sum(tokens for whose, tokens in worth if whose == name) for name in names}
    known = run.scenario.engine.log == "full"
    of_all = {
        "jain_index": jain(list(served.values()), list(asked.values())) if known else None,
        "service_difference": difference(run, names) if known else None,
    }
    return of_all, {name: {"served_tokens": served[name], "asked_tokens": asked[name]} for name in names}


def service(rows: Sequence[Row], tokens: Sequence[Sequence[float]], name: str, time_s: float) -> float:
    """Prompt tokens of what has begun, and twice the output tokens that were emitted, up to that time."""
    found = 0.0
    for row, token_s in zip(rows, tokens, strict=True):
        if row["tenant"] == name:
            begun = row["queue_s"] is not None and row["arrival_s"] + row["queue_s"] <= time_s
            found += row["input_tokens"] * begun + 2 * sum(one_s <= time_s for one_s in token_s)
    return found


def jain(served: list[float], asked: list[float]) -> float | None:
    """With max-min fair shares found by pouring what was served into all vessels alike, until each is full."""
    left, full, shares = sum(served), [False] * len(asked), [0.0] * len(asked)
    if left <= 0:
        return None
    while left > 1e-9 * sum(served) and not all(full):
        lacking = [k for k in range(len(asked)) if not full[k]]
        each = min(left / len(lacking), min(asked[k] - shares[k] for k in lacking))
        for k in lacking:
            shares[k] += each
            full[k] = shares[k] >= asked[k] * (1 - 1e-12)
        left -= each * len(lacking)
    ratios = [got / share for got, share in zip(served, shares, strict=True)]
    return sum(ratios) ** 2 / (len(ratios) * sum(ratio**2 for ratio in ratios))


def difference(run: Run, names: Sequence[str]) -> float:
    """The widest range, over all pairs, of the difference of their service within a window in which both wait."""
    spans = {name: waits(run, name) for name in names}
    begins = [row["arrival_s"] + row["queue_s"] for row in run.requests if row["queue_s"] is not None]
    arrivals = [row["arrival_s"] for row in run.requests if row["arrival_s"] is not None]
    moments = {*itertools.chain(*run.unreported.token_s), *begins, *arrivals}
    times = sorted(moments | {end_s for own in spans.values() for _, end_s in own})
    most = 0.0
    for one, other in itertools.combinations(names, 2):
        window: list[float] = []
        for time_s in times:
            if all(any(begin_s <= time_s < end_s for begin_s, end_s in spans[name]) for name in (one, other)):
                got = [service(run.requests, run.unreported.token_s, name, time_s) for name in (one, other)]
                window.append(got[0] - got[1])
                most = max(most, max(window) - min(window))
            else:
                window = []
    return most


def waits(run: Run, name: str) -> list[tuple[float, float]]:
    """From when to when each of its requests waits for its first step."""
    return [
        (row["arrival_s"], row["arrival_s"] + row["queue_s"] if row["queue_s"] is not None else end_s)
        for row, end_s in zip(run.requests, run.unreported.end_s, strict=True)
        if row["tenant"] == name and row["arrival_s"] is not None
    ]
