"""Every policy has the same costs of host and steps, one router and one cache, but for what its YAML names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from framework.run.sweep import Sweep
from tests.conftest import ROOT
from tests.helpers.composing import configured

POLICIES = sorted(path.stem for path in (ROOT / "conf" / "policy").glob("*.yaml"))
COSTS = ("graph_tokens", "step_s", "message_s", "host_s", "host_sequence_s", "host_by_tp", "eager_layer_s")
COMPARED = (
    *(f"server.{name}" for name in (*COSTS, "request_s", "token_s", "name")),
    *(f"engine.{name}" for name in ("asynchronous", "first_token", "transfers", "prefix_cache")),
    *("policy.routing", "policy.placement"),
)
SMALL = ("trace.requests=3",)

# What a policy has otherwise, with words of the comment in its YAML that gives the reason.
ON_PREFIXES: Mapping[tuple[str, str], str] = {
    ("deepseek", "server.host_sequence_s"): "each rank of a unit has its own host",
    ("mooncake", "policy.routing"): "choice of a prefill instance",
    ("static", "policy.routing"): "instances take batches from one queue",
    ("sglang", "server.name"): "its costs are those of all current servers",
    ("sglang", "engine.first_token"): "for its first token",
    ("sglang", "engine.transfers"): "for its first token",
}
WITHOUT_PREFIXES = {
    **ON_PREFIXES,
    ("deepseek", "engine.prefix_cache"): "below the cache in each prefill unit's own memory",
    ("mooncake", "engine.prefix_cache"): "below the cache in GPU memory",
    ("sglang", "engine.prefix_cache"): "on by default in SGLang",
    ("vllm_v1", "engine.prefix_cache"): "on by default in vLLM",
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def launched(directory: Path, *words: str) -> dict[str, dict[str, Any]]:
    """The settings that each policy ran with, by its name, as the launcher of a sweep runs it."""
    outcomes = Sweep([*SMALL, *words], directory).run([[f"policy={policy}"] for policy in POLICIES])
    assert [outcome.refusal for outcome in outcomes] == [None] * len(POLICIES)
    records = [outcome.record for outcome in outcomes if outcome.record is not None]
    return {policy: record.config for policy, record in zip(POLICIES, records, strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trace", "named"), [("synthetic_sessions", ON_PREFIXES), ("synthetic", WITHOUT_PREFIXES)], ids=["shared", "alone"]
)
def test_policies_differ_in_what_their_yamls_name_alone(
    tmp_path: Path, trace: str, named: Mapping[tuple[str, str], str]
) -> None:
    settings = launched(tmp_path / "study", f"trace={trace}")
    found = set()
    for key in COMPARED:
        values = {policy: repr(own[key]) for policy, own in settings.items() if key in own}
        usual, _ = Counter(values.values()).most_common(1)[0]
        found |= {(policy, key) for policy, value in values.items() if value != usual}
    assert found == set(named)
    usual_cache = Counter(own["engine.prefix_cache"] for own in settings.values()).most_common(1)[0][0]
    assert usual_cache == (trace == "synthetic_sessions")


def test_each_reason_stands_in_the_yaml() -> None:
    for (policy, key), reason in WITHOUT_PREFIXES.items():
        text = (ROOT / "conf" / "policy" / f"{policy}.yaml").read_text()
        comments = " ".join(line.partition("#")[2].strip() for line in text.splitlines())
        assert reason in comments, (policy, key)


def test_servers_of_today_cost_the_same() -> None:
    costs = [
        {name: configured(f"server={server}").server[name] for name in (*COSTS, "request_s", "token_s")}
        for server in ("vllm_v1", "sglang", "trtllm", "vllm_v0")
    ]
    assert costs == [costs[0]] * len(costs)


def test_the_user_has_the_last_word() -> None:
    config = configured("policy=nexus", "server=none", "engine.prefix_cache=false", "policy.routing=round_robin")
    assert (config.server.name, config.engine.prefix_cache, config.policy.routing) == ("none", False, "round_robin")
