"""Routing as a Gymnasium environment: it is the run that `servelab.run` makes, decided by an agent."""

from __future__ import annotations

import gc
import runpy
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import SyncVectorEnv

import servelab
from framework.errors import PolicyError
from servelab.learning import RoutingEnv
from tests.conftest import ROOT

FEW: dict[str, Any] = {"limit": 60, "rate": 20}


def episode(env: RoutingEnv, seed: int, rule: Any) -> tuple[list[Any], float, dict[str, Any]]:
    """What was seen, the return and the last info."""
    seen, info = env.reset(seed=seed)
    looks, returned, ended = [], 0.0, False
    while not ended:
        looks.append((seen.copy(), info["own"], info["action_mask"]))
        seen, reward, ended, truncated, info = env.step(rule(seen, info))
        returned += reward
        assert not truncated
    return looks, returned, info


def own(seen: Any, info: dict[str, Any]) -> int:
    return int(info["own"])


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_it_keeps_the_contract_of_gymnasium() -> None:
    check_env(RoutingEnv("chunked", "synthetic", **FEW), skip_render_check=True)


def test_the_policys_own_answers_are_the_policys_own_run() -> None:
    env = RoutingEnv("chunked", "synthetic", slo__ttft_s=0.03, **FEW)
    looks, returned, info = episode(env, 3, own)
    requests = info["run"].requests
    assert len(looks) == len(requests) == 60
    again = servelab.run("chunked", info["run"].result.workload, slo__ttft_s=0.03)
    assert again.requests.equals(requests)
    assert 0.0 < returned < 1.0
    assert returned == pytest.approx(again.summary["slo_attainment"])


def test_the_agent_decides() -> None:
    env = RoutingEnv("chunked", "synthetic", **FEW)
    _, _, info = episode(env, 3, lambda seen, info: 2)
    assert info["run"].requests["prefill_instance"].unique().to_list() == [2]


def test_a_seed_draws_the_requests() -> None:
    env = RoutingEnv("chunked", "synthetic", **FEW)
    first, again, other = (episode(env, seed, own)[2]["run"].requests for seed in (3, 3, 4))
    assert first.equals(again)
    assert not first["input_tokens"].equals(other["input_tokens"])
    following, _ = env.reset()
    assert following.shape == (5, len(env.features))


def test_features_are_those_of_the_instances() -> None:
    """No instance has the prompt of the first request; all tokens that wait are where prompts were sent."""
    env = RoutingEnv("chunked", "synthetic", rate=2000, limit=20, server="none")
    looks, _, info = episode(env, 3, lambda seen, info: 1)
    at = {name: column for column, name in enumerate(env.features)}
    tokens = info["run"].result.workload.input_tokens
    first, last = looks[0][0], looks[-1][0]
    assert len(set(first[:, at["lacking_tokens"]]) & set(tokens.tolist())) == 1
    assert (first[:, at["free_kv"]] == 1.0).all()
    assert first[:, at["queued_tokens"]].sum() == first[:, at["prefills"]].sum() == first[:, at["step_s"]].sum() == 0.0
    assert 0 < last[1, at["queued_tokens"]] <= tokens[:-1].sum()
    assert last[[0, 2, 3, 4]][:, at["queued_tokens"]].sum() == 0.0
    assert last[1, at["free_kv"]] < 1.0


def test_an_instance_that_only_decodes_is_masked() -> None:
    env = RoutingEnv("distserve", "synthetic", cluster__instances=5, cluster__prefill=2, **FEW)
    looks, _, _ = episode(env, 3, own)
    assert all(mask.tolist() == [1, 1, 0, 0, 0] for _, _, mask in looks)
    assert all((seen[2:] == 0.0).all() for seen, _, _ in looks)
    env.reset(seed=3)
    with pytest.raises(PolicyError, match="instance 4"):
        env.step(4)


def test_a_run_that_is_left_ends() -> None:
    before = threading.active_count()
    env = RoutingEnv("chunked", "synthetic", **FEW)
    for _ in range(3):
        env.reset(seed=1)
        env.step(0)
    env.close()
    assert threading.active_count() == before
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(0)


def test_several_play_at_once() -> None:
    envs = SyncVectorEnv([lambda: RoutingEnv("chunked", "synthetic", **FEW) for _ in range(3)])
    seen, _ = envs.reset(seed=7)
    alone, _ = RoutingEnv("chunked", "synthetic", **FEW).reset(seed=8)
    assert seen.shape == (3, *alone.shape)
    assert (seen[1] == alone).all()
    for _ in range(70):
        _, _, ended, _, _ = envs.step(np.array([0, 1, 2]))
        if ended.any():
            break
    assert ended.all()
    envs.close()


def test_the_example_learns(capsys: pytest.CaptureFixture[str]) -> None:
    """Weights that keep at least as much as those that it begins with, on the requests of its rounds."""
    example = runpy.run_path(str(ROOT / "examples" / "learn_router.py"))
    env = RoutingEnv("chunked", "synthetic", cluster__instances=2, limit=60, rate=60, slo__ttft_s=0.06)
    weights = example["learned"](env, rounds=1)
    assert weights.shape == (6,)
    assert "round 1 of 1: best" in capsys.readouterr().err
    assert not np.array_equal(weights, example["FEWEST_WAITING"])


def test_nothing_of_an_episode_waits_for_the_collector() -> None:
    env = RoutingEnv("chunked", "synthetic", **FEW)
    gc.collect()
    gc.disable()
    try:
        _, _, info = episode(env, 3, own)
        left = weakref.ref(info["run"].result)
        del info
        assert left() is None
    finally:
        gc.enable()
