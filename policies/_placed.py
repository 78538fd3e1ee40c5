"""The memory of compiled placement during a run, in one array of floats: compiled rules have no objects.

Its first numbers are the policy's own settings. Then come a row for each instance, a note for each prompt that was sent
and is not known to be done (those of one instance are a linked list in the order of sending), and a row for each
request's placement.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from framework.compiler.decorators import either
from framework.policy.view import Floats

_SETTINGS = 16
_INSTANCES, _REQUESTS, _FREE, _LAST_PLACED, _HEAD = range(_SETTINGS, _SETTINGS + 5)
_FIRST, _LAST, _COUNT, _LEFT_S, _CACHED, _COPIED_S, _ROW = range(7)  # columns of an instance
_NEXT, _SENT_THERE_S, _SENT_PREFILL_S, _SENT_TOKENS, _SENT_LACKING, _NOTE = range(6)
_INSTANCE, _SOURCE, _TTFT_S, _PREFILL_S, _THERE_S, _LACKING, _PLACED = range(7)  # columns of a request


class Placement(NamedTuple):
    """Where a request is to be prefilled, the source of its prefix (-1: none), and what is expected: TTFT, prefill
    alone, its arrival in that queue, and the tokens of its prompt that are computed there.
    """

    instance: int
    source: int
    ttft_s: float
    prefill_s: float
    there_s: float
    lacking_tokens: int


def nothing_placed(settings: Mapping[int, float], instances: int, requests: int) -> Floats:
    """The numbers before the first request; `settings` by their position, up to 16."""
    rows, notes = np.zeros((instances, _ROW)), np.zeros((requests + 1, _NOTE))
    rows[:, [_FIRST, _LAST]] = -1.0
    notes[:, _NEXT] = [*range(1, requests + 1), -1]
    head = np.zeros(_HEAD)
    head[list(settings)] = list(settings.values())
    head[[_INSTANCES, _REQUESTS, _FREE, _LAST_PLACED]] = instances, requests, 0, -1
    return np.concatenate([head, rows.ravel(), notes.ravel(), np.zeros(requests * _PLACED)])


@either()
def instances_in(numbers: Floats) -> int:
    """The number of instances."""
    return int(numbers[_INSTANCES])


@either()
def _instance_at(numbers: Floats, i: int) -> int:
    return _HEAD + _ROW * i


@either()
def _note_at(numbers: Floats, note: float) -> int:
    return _HEAD + _ROW * int(numbers[_INSTANCES]) + _NOTE * int(note)


@either()
def _request_at(numbers: Floats, r: int) -> int:
    return _note_at(numbers, numbers[_REQUESTS] + 1.0) + _PLACED * r


# --- how requests were placed -----------------------------------------------------------------------------------------


@either()
def note_cached(numbers: Floats, i: int, tokens: int) -> None:
    """Note that i has `tokens` tokens of the prompt that is being placed."""
    numbers[_instance_at(numbers, i) + _CACHED] = tokens


@either()
def cached_on(numbers: Floats, i: int) -> int:
    """The tokens that `note_cached` noted."""
    return int(numbers[_instance_at(numbers, i) + _CACHED])


@either()
def remember(numbers: Floats, r: int, placement: Placement) -> None:
    """Remember how r would be placed."""
    at = _request_at(numbers, r)
    numbers[at + _INSTANCE], numbers[at + _SOURCE] = placement.instance, placement.source
    numbers[at + _TTFT_S], numbers[at + _PREFILL_S] = placement.ttft_s, placement.prefill_s
    numbers[at + _THERE_S], numbers[at + _LACKING] = placement.there_s, placement.lacking_tokens


@either()
def remembered(numbers: Floats, r: int) -> Placement:
    """The last placement given to `remember`."""
    at = _request_at(numbers, r)
    instance, source = int(numbers[at + _INSTANCE]), int(numbers[at + _SOURCE])
    expected = numbers[at + _TTFT_S], numbers[at + _PREFILL_S], numbers[at + _THERE_S]
    return Placement(instance, source, *expected, int(numbers[at + _LACKING]))


@either()
def confirm(numbers: Floats, r: int) -> None:
    """Confirm that r is placed as last remembered; nothing else was placed since."""
    numbers[_LAST_PLACED] = r


@either()
def last_confirmed(numbers: Floats) -> int:
    """The request confirmed last, -1: none."""
    return int(numbers[_LAST_PLACED])


@either()
def is_confirmed(numbers: Floats, r: int) -> bool:
    """Whether r is the request confirmed last."""
    confirmed: bool = numbers[_LAST_PLACED] == r
    return confirmed


# --- what was sent where ----------------------------------------------------------------------------------------------


@either()
def send(numbers: Floats, placement: Placement, prompt_tokens: int) -> None:
    """Note a prompt that was sent as placed: when it will be in the queue there, and what is to be computed of it.

    There must be a free note: see `keep`.
    """
    row, note = _instance_at(numbers, placement.instance), numbers[_FREE]
    at = _note_at(numbers, note)
    numbers[_FREE] = numbers[at + _NEXT]
    numbers[at + _NEXT], numbers[at + _SENT_THERE_S] = -1.0, placement.there_s
    numbers[at + _SENT_PREFILL_S] = placement.prefill_s
    numbers[at + _SENT_TOKENS], numbers[at + _SENT_LACKING] = prompt_tokens, placement.lacking_tokens
    if numbers[row + _COUNT] == 0.0:
        numbers[row + _FIRST] = note
    else:
        numbers[_note_at(numbers, numbers[row + _LAST]) + _NEXT] = note
    numbers[row + _LAST] = note
    numbers[row + _COUNT] += 1.0
    numbers[row + _LEFT_S] += placement.prefill_s
    if placement.source >= 0:
        numbers[_instance_at(numbers, placement.source) + _COPIED_S] = placement.there_s


@either()
def keep(numbers: Floats, i: int, left: int, now_s: float) -> None:
    """Forget all prompts sent to i except the last `left` on it, and those still on their way.

    There are never more of these than requests, so a note is free when all instances have forgotten.
    """
    row = _instance_at(numbers, i)
    count = int(numbers[row + _COUNT])
    if count > left:
        note = numbers[row + _FIRST]
        while note >= 0.0:
            at = _note_at(numbers, note)
            left += 1 if now_s < numbers[at + _SENT_THERE_S] else 0
            note = numbers[at + _NEXT]
    if count > left:
        while count > left:
            at = _note_at(numbers, numbers[row + _FIRST])
            note, numbers[row + _FIRST] = numbers[row + _FIRST], numbers[at + _NEXT]
            numbers[at + _NEXT], numbers[_FREE] = numbers[_FREE], note
            count -= 1
        numbers[row + _COUNT] = float(count)
        numbers[row + _LEFT_S] = _sum_s(numbers, i)


@either()
def _sum_s(numbers: Floats, i: int) -> float:
    """Seconds of the prompts sent to i, summed from the first on: a sum with subtractions would drift."""
    seconds, note = 0.0, numbers[_instance_at(numbers, i) + _FIRST]
    while note >= 0.0:
        at = _note_at(numbers, note)
        seconds += numbers[at + _SENT_PREFILL_S]
        note = numbers[at + _NEXT]
    return seconds


@either()
def left_s(numbers: Floats, i: int) -> float:
    """Seconds of the prompts sent to i and not forgotten."""
    seconds: float = numbers[_instance_at(numbers, i) + _LEFT_S]
    return seconds


@either()
def copied_s(numbers: Floats, i: int) -> float:
    """When i will have sent all prefixes that were to be copied from it."""
    time_s: float = numbers[_instance_at(numbers, i) + _COPIED_S]
    return time_s


@either()
def done_s(numbers: Floats, i: int, under_way: int, tokens: int, now_s: float) -> float:
    """Seconds of the first `under_way` prompts sent to i that are over, if `tokens` are left of all that are there.

    What waits is left whole. So much of the tokens that the others were to compute is done.
    """
    lacking, waiting, seconds, k = 0.0, 0.0, 0.0, 0
    note = numbers[_instance_at(numbers, i) + _FIRST]
    while note >= 0.0:
        at = _note_at(numbers, note)
        if k < under_way:
            lacking, seconds = lacking + numbers[at + _SENT_LACKING], seconds + numbers[at + _SENT_PREFILL_S]
        elif numbers[at + _SENT_THERE_S] <= now_s:
            waiting += numbers[at + _SENT_TOKENS]
        note, k = numbers[at + _NEXT], k + 1
    share = min(max((tokens - waiting) / lacking, 0.0), 1.0) if lacking > 0.0 else 1.0
    return seconds * (1.0 - share)


@either()
def is_full(numbers: Floats) -> bool:
    """Whether no note is free."""
    full: bool = numbers[_FREE] < 0.0
    return full
