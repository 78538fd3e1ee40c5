"""When tokens were emitted, recovered from the logs of a run as spans of decode steps, not token by token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framework.result import Result

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class TokenTimes:
    """The tokens of a run. A span is a run of decode steps of one instance, each of which gives one request a token.

    `ends_s`: for each instance the ends of its decode steps, (steps,), ascending. `request`, `instance`, `first`,
    `last` (K,): steps `first` to `last - 1` of `instance` are a span of `request`; spans of a request are in order of
    time. `per_step` (K,): its tokens in each of these steps on average, more than 1 if drafts were accepted. `index`
    (K,): the number of the first token of each span within its request, from 0. `single_request`, `single_s`,
    `single_index` (L,): tokens that no decode step gave, such as first tokens.
    """

    ends_s: tuple[Floats, ...]
    request: Ints
    instance: Ints
    first: Ints
    last: Ints
    per_step: Floats
    index: Ints
    single_request: Ints
    single_s: Floats
    single_index: Ints

    def spans(self) -> Iterator[tuple[int, int, float, Floats]]:
        """The request of each span, the number of its first token, its tokens in a step, and the ends of its steps."""
        rows = zip(self.request.tolist(), self.instance.tolist(), self.first.tolist(), self.last.tolist(), strict=True)
        for k, (r, i, first, last) in enumerate(rows):
            yield r, int(self.index[k]), float(self.per_step[k]), self.ends_s[i][first:last]


def token_times(result: Result) -> TokenTimes:
    """The times of a run that kept its logs (`engine.log=full`)."""
    ends_s = step_ends_s(result)
    log = result.token_log[np.argsort(result.token_log["request"], kind="stable")]
    request, instance = log["request"].astype(np.int64), log["instance"].astype(np.int64)
    in_steps = instance >= 0
    # If the token before is not known, the first step of the span gives token 1; `first_token_s` is its time.
    first = log["first_step"] + (in_steps & np.isnan(log["previous_token_s"]))
    last = log["last_step"]
    steps = np.where(in_steps, last - first, 1)
    tokens = steps + np.where(in_steps, log["accepted"], 0)
    emitted_first = np.flatnonzero(~np.isnan(result.requests["first_token_s"]))
    before = np.cumsum(tokens) - tokens
    opens = np.searchsorted(request, request)  # the first row of the same request
    index = 1 + before - before[opens]
    single = np.flatnonzero(~in_steps)
    kept = in_steps & (steps > 0)
    return TokenTimes(
        ends_s,
        request[kept],
        instance[kept],
        first[kept],
        last[kept],
        tokens[kept] / steps[kept],
        index[kept],
        np.concatenate([emitted_first, request[single]]),
        np.concatenate([result.requests["first_token_s"][emitted_first], _single_s(result, log, ends_s)]),
        np.concatenate([np.zeros(len(emitted_first), np.int64), index[single]]),
    )


def step_ends_s(result: Result) -> tuple[Floats, ...]:
    """The ends of the decode steps of each instance, seconds, from its step log; ascending."""
    log = result.step_log[result.step_log["batch"] > 0]
    found = []
    for i in range(len(result.instances)):
        leaps = log[log["instance"] == i]
        steps = leaps["steps"].astype(np.int64)
        leap = np.repeat(np.arange(len(leaps)), steps)
        j = np.arange(len(leap)) - np.repeat(np.cumsum(steps) - steps, steps)
        first_s, increment_s = leaps["first_s"][leap], leaps["increment_s"][leap]
        found.append(leaps["start_s"][leap] + (j + 1) * first_s + increment_s * (j * (j + 1) / 2))
    return tuple(found)


def _single_s(result: Result, log: NDArray[np.void], ends_s: tuple[Floats, ...]) -> Floats:
    """The times of rows that are single gaps, in order: each is a gap after its request's previous token."""
    found, latest_s, of = [], np.nan, -1
    first_s = result.requests["first_token_s"]
    names = ("request", "instance", "last_step", "previous_token_s")
    has_single = np.isin(log["request"], log["request"][log["instance"] < 0])
    for r, i, last, previous_s in zip(*(log[has_single][name].tolist() for name in names), strict=True):
        latest_s, of = (float(first_s[r]), r) if r != of else (latest_s, of)
        if i < 0:
            latest_s += previous_s
            found.append(latest_s)
        else:
            latest_s = float(ends_s[i][last - 1])
    return np.array(found, np.float64)
