"""The judge of policies that are given as text: scores, refusals, and what a text may not do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from experiments.judge import score as scoring
from experiments.judge.confined import Limits
from experiments.judge.scenarios import Judging, read_judging
from experiments.judge.score import evaluate, judge
from experiments.judge.source import checked_source
from framework.errors import InputError
from tests.helpers.launcher import typed

ROUTER = """
import servelab


class Mine(servelab.Aggregated):
    batching_mode = "unified"

    def route_prefill(self, request, cluster):
        {body}
"""
GOOD = ROUTER.format(body="return cluster.prefill.argmin(cluster.prefill.queued_tokens)")
SMALL = Limits(cpu_s=2.0)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One load of forty requests."""
    shipped = read_judging()
    tiers = {"quick": {"samples": 1, "cpu_s": 20, "loads": {"code": {"requests": 40, "rate": 25}}}}
    monkeypatch.setattr(scoring, "read_judging", lambda: Judging("vllm_v1", shipped.shared, tiers))


def test_a_policy_has_a_score_beside_that_of_the_baseline() -> None:
    verdict = judge(GOOD, seed=3)
    assert verdict.error == ""
    (one,) = verdict.scenarios
    assert 0 < verdict.score == one.goodput_rps / one.bound_rps <= 1
    assert verdict.baseline == one.baseline_rps / one.bound_rps
    assert json.loads(json.dumps(verdict.as_dict()))["scenarios"][0]["load"] == "code"


@pytest.mark.slow
def test_a_policy_that_turns_all_away_has_nothing() -> None:
    text = ROUTER.format(body="return 0") + "\n    def admit(self, request, cluster):\n        return False\n"
    verdict = judge(text, seed=3)
    assert (verdict.score, verdict.error) == (0.0, "")


def test_samples_are_new_unless_a_seed_names_them() -> None:
    judging = read_judging()
    one, same, other = (judging.scenarios("quick", seed) for seed in (1, 1, 2))
    assert one == same
    assert not {scenario.seed for scenario in one} & {scenario.seed for scenario in other}


def test_shipped_tiers_name_loads_that_there_are() -> None:
    judging = read_judging()
    assert list(judging.tiers) == ["quick", "minute", "long"]
    loads = {path.stem for path in (Path(__file__).parents[2] / "conf" / "league").glob("*.yaml")}
    assert {load for tier in judging.tiers.values() for load in tier["loads"]} <= loads
    assert not any("seed" in OmegaConf.to_yaml(dict(tier)) for tier in judging.tiers.values())


# --- what a text may not do: refused before it runs -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import os\n" + GOOD, "line 1: import os is not allowed"),
        ("import socket\n" + GOOD, "import socket is not allowed"),
        ("from framework.run import store\n" + GOOD, "import of framework.run is not allowed"),
        ("from servelab import load_trace\n" + GOOD, "a policy does not start runs or load traces"),
        (ROUTER.format(body="return servelab.run('chunked')"), "servelab.run is not allowed"),
        (
            ROUTER.format(body="return cluster._engine.requests['output_tokens'][request.id] % 4"),
            "._engine is not allowed",
        ),
        (ROUTER.format(body="return len('{0._engine}'.format(cluster))"), ".format is not allowed"),
        (ROUTER.format(body="return getattr(cluster, '_engine')"), "getattr is not allowed"),
        (ROUTER.format(body="return open('/etc/passwd')"), "open is not allowed"),
        (ROUTER.format(body="return eval('1')"), "eval is not allowed"),
        (ROUTER.format(body="return ().__class__.__base__"), "._?_?[a-z]+__ is not allowed"),
        ("import numpy as np\n" + ROUTER.format(body="np.zeros(3).tofile('x')"), ".tofile is not allowed"),
        (
            "import numpy as np\n" + ROUTER.format(body="return np.lib.format"),
            ".lib is not allowed|.format is not allowed",
        ),
        ("class Mine", "no Python: "),
        ("x = 1", "the text has no class"),
    ],
)
def test_what_a_policy_may_not_use_is_named_with_its_line(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        checked_source(text)
    verdict = judge(text, seed=3)
    assert verdict.score == 0.0
    assert verdict.scenarios == ()


def test_what_a_policy_needs_is_allowed() -> None:
    text = """
from __future__ import annotations
import math
from collections import deque
import numpy as np
import servelab
from policies.chunked import Chunked


class First(Chunked):
    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self._weight = weight


class Last(servelab.Aggregated):
    pass
"""
    assert checked_source(text)[1] == "Last"
    assert checked_source(text, "First")[1] == "First"
    with pytest.raises(InputError, match="no class Other; it has First, Last"):
        checked_source(text, "Other")


# --- what goes wrong as it runs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param(
            "return 1 // 0",
            "line 9, in route_prefill: return 1 // 0; .*ZeroDivisionError",
            marks=pytest.mark.slow,
        ),
        pytest.param("return 99", "route_prefill returned instance 99", marks=pytest.mark.slow),
        pytest.param("raise SystemExit(0)", "would end the process", marks=pytest.mark.slow),
        pytest.param("while True: pass", "took more than 2 s of CPU time", marks=pytest.mark.slow),
        pytest.param("return len([[0] * 10**8 for _ in range(99)])", "more memory", marks=pytest.mark.slow),
    ],
)
def test_an_error_is_a_line_that_its_author_can_act_on(body: str, words: str) -> None:
    verdict = judge(ROUTER.format(body=body), seed=3, limits=SMALL)
    assert verdict.score == 0.0
    assert verdict.baseline > 0.0
    assert re.search(words, verdict.error), verdict.error


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("open('left', 'w')", "left is not written by a policy"),
        pytest.param("__import__('os').fork()", "os.fork is not allowed", marks=pytest.mark.slow),
        pytest.param("__import__('os').remove('left')", "os.remove is not allowed", marks=pytest.mark.slow),
        pytest.param("__import__('socket').socket()", "socket.__new__ is not allowed", marks=pytest.mark.slow),
    ],
)
def test_a_text_that_passes_the_rules_by_a_trick_meets_the_process(
    body: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As if the rules had not seen it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scoring, "checked_source", lambda source, name: (None, "Mine"))
    verdict = judge(ROUTER.format(body=f"{body}; return 0"), seed=3)
    assert words in verdict.error, verdict.error
    assert verdict.score == 0.0
    assert not list(tmp_path.iterdir())


# --- other doors ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_evaluator_of_a_loop(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(GOOD)
    found: dict[str, Any] = evaluate(str(file))
    assert found["combined_score"] == found["code_share"] > 0


def test_the_command_says_mistakes_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import os\n" + GOOD)
    for words, told in (
        ((str(file),), "has no score: line 1: import os is not allowed"),
        ((str(file), "tier=slow"), "tier=slow is not known; choose quick, minute, long"),
        ((), "FILE[:CLASS] is missing"),
    ):
        assert typed("judge")(words) == 2
        said = capsys.readouterr().err
        assert told in said, said
        assert said.count("\n") == 1
