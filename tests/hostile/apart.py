"""Hostile cases in a process of their own, which is replaced where it hangs in compiled code, dies, or takes too much.

A signal interrupts Python and not what is compiled; a process can be killed.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import TypeVar

from tests.hostile.outcomes import HANG, LIMIT_S, TRACEBACK, Outcome, outcome_of

Case = TypeVar("Case", bound=Hashable)

_PATIENCE = 1.25  # times the limit of one case
_MOST_BYTES = 8 << 30  # of memory that a process may ask for


def outcomes_apart(
    cases: Sequence[Case], play: Callable[[Case], object], prepare: Callable[[], object], limit_s: float = LIMIT_S
) -> dict[Case, Outcome]:
    """What becomes of each case, played one after another. `play` and `prepare` are functions of modules."""
    found: dict[Case, Outcome] = {}
    while len(found) < len(cases):
        found |= _until_stuck(cases[len(found) :], play, prepare, limit_s)
    return found


def _until_stuck(
    cases: Sequence[Case], play: Callable[[Case], object], prepare: Callable[[], object], limit_s: float
) -> dict[Case, Outcome]:
    """The outcomes of the first of these cases, up to one with which their process hung or died."""
    found: dict[Case, Outcome] = {}
    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=_play_all, args=(theirs, cases, play, prepare, limit_s))
    process.start()
    theirs.close()
    try:
        ours.recv()  # it is prepared
        for case in cases:
            if not ours.poll(_PATIENCE * limit_s):
                found[case] = Outcome(HANG, "killed from outside")
                break
            found[case] = ours.recv()
    except EOFError:
        found[cases[len(found)]] = Outcome(TRACEBACK, "its process died")
    finally:
        process.kill()
        process.join()
    return found


def _play_all(
    to: Connection, cases: Sequence[Case], play: Callable[[Case], object], prepare: Callable[[], object], limit_s: float
) -> None:
    prepare()
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    to.send(None)
    for case in cases:
        to.send(outcome_of(partial(play, case), limit_s))
