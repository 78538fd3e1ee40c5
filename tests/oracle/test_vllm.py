"""`policy=vllm_v1` against vLLM's own scheduler, every token of drawn workloads: skipped where vLLM is not at hand.

`answers.json` keeps digests of what vLLM answered to a few of these runs, so that the engine is held to them elsewhere.
`RENEW_PINNED=1`, with VLLM_PYTHON set, writes it anew.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from framework.result import STATES
from tests.helpers.recovery import token_times
from tests.oracle.comparison import VARIABLE, Oracle, compared, differing, interpreter, oracle, simulated
from tests.oracle.drawing import REGIMES, REGIMES_OF_CANCELLATIONS, drawn, given_up

RUNS = 300
_BLOCK = 25  # runs of one test
_ANSWERS = Path(__file__).with_name("answers.json")
_CANCELLED = STATES.index("cancelled")
_KEPT = 12  # runs of each kind whose answers are kept
DRAWN = {"usual": drawn, "cancellations": given_up}


@pytest.fixture(scope="module")
def vllm() -> Iterator[Oracle]:
    python = interpreter()
    if python is None:
        pytest.skip(f"{VARIABLE} is not set: no Python that has vLLM")
    with oracle(python) as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize("first", range(0, RUNS, _BLOCK))
def test_every_token_comes_at_the_same_time(vllm: Oracle, first: int, kind: str) -> None:
    assert not differing(vllm, DRAWN[kind], compared, range(first, first + _BLOCK))


@pytest.mark.slow
def test_the_kept_answers_are_those_of_vllm(vllm: Oracle) -> None:
    theirs = {}
    for kind, of in DRAWN.items():
        answers = [vllm.play(of(seed)) for seed in range(_KEPT)]
        theirs[kind] = [_digest(answer["tokens"], answer["preemptions"]) for answer in answers]
    if os.environ.get("RENEW_PINNED"):
        _ANSWERS.write_text(json.dumps(theirs, indent=1) + "\n")
    assert json.loads(_ANSWERS.read_text()) == theirs


@pytest.mark.parametrize("kind", DRAWN)
def test_runs_are_as_vllm_answered(kind: str) -> None:
    results = [simulated(DRAWN[kind](seed)) for seed in range(_KEPT)]
    ours = [_digest(token_times(result), result.requests["preemptions"].tolist()) for result in results]
    assert ours == json.loads(_ANSWERS.read_text())[kind]


def _digest(tokens: Any, preemptions: Any) -> str:
    """Of the time of every token, seconds, and the preemptions of each request."""
    return hashlib.sha256(json.dumps([tokens, preemptions]).encode()).hexdigest()[:16]


@pytest.mark.parametrize("kind", DRAWN)
def test_drawn_workloads_reach_each_regime(kind: str) -> None:
    """Of 300 drawn runs a tenth at least has each regime; some of the usual ones have none."""
    found = [DRAWN[kind](seed).regimes for seed in range(RUNS)]
    for regime in REGIMES if kind == "usual" else REGIMES_OF_CANCELLATIONS:
        assert sum(regime in regimes for regimes in found) >= RUNS // 10, regime
    assert kind == "cancellations" or any(not regimes for regimes in found)


def test_clients_give_up_before_and_behind_the_first_token() -> None:
    requests = [simulated(given_up(seed)).requests for seed in range(_KEPT)]
    cancelled = [own[own["state"] == _CANCELLED] for own in requests]
    begun = sum(int((own["first_token_s"] == own["first_token_s"]).sum()) for own in cancelled)
    assert begun >= 20
    assert sum(map(len, cancelled)) - begun >= 20
