"""Sessions of coding agents, and roll-outs, drawn from their published figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hydra.utils import instantiate
from scipy import stats

from framework.errors import InputError
from framework.workload import Workload
from framework.workload.programs import TRIGGERS
from tests.helpers.composing import configured
from traces.drawn.agents import Agents, agent_sessions
from traces.drawn.distributions import Arrivals, Distribution
from traces.drawn.roll_outs import roll_outs

ROUNDS = 120_000


def published(name: str) -> Any:
    """The settings of a trace as it is shipped, and no model's context."""
    more = ["trace.agents.most_tokens=null"] if name == "coding_agents" else []
    return configured(f"trace={name}", *more).trace


@pytest.fixture(scope="module")
def rounds() -> pl.DataFrame:
    """In the order of sessions, with what each gains over the prompt before it."""
    trace = published("coding_agents")
    small = replace(instantiate(trace.agents), block_tokens=1_000_000)  # no ids
    frame = agent_sessions(ROUNDS, instantiate(trace.arrivals), small, 0).frame.drop("hash_ids")
    before = pl.col("input_tokens").shift(1).over("session_id")
    return frame.sort("session_id", "turn").with_columns(
        gained=pl.col("input_tokens") - before,
        before=before,
        spoken=pl.col("output_tokens").shift(1).over("session_id"),
    )


def within(found: float, expected: float, share: float = 0.05) -> bool:
    return abs(found - expected) <= share * expected


def test_counts_are_those_of_tracelab() -> None:
    """Of so many sessions that the sample shows no chance."""
    trace = published("coding_agents")
    frame = agent_sessions(700_000, Arrivals("fixed", 1.0), without_contexts(instantiate(trace.agents)), 1).frame
    is_users = frame["trigger"] == "user"
    by = frame.group_by("session_id").agg(
        asked=(pl.col("trigger") == "user").sum(), tools=(pl.col("trigger") == "tool").sum()
    )
    asked, tools = (by[name].to_numpy() for name in ("asked", "tools"))
    assert within(asked.mean(), 9.2)
    assert np.percentile(asked, [50, 90]) == pytest.approx([1, 18], rel=0.05)
    assert within(np.percentile(asked, 99), 137)
    assert within(tools.mean(), 73.6)
    assert within(np.percentile(tools, 90), 135)
    assert within(np.percentile(tools, 99), 1107, 0.15)  # by chance, of TraceLab's 4,265 sessions
    assert np.percentile(tools, [25, 50]) == pytest.approx([4, 15], abs=1)
    assert within(len(frame) / int(is_users.to_numpy().sum()) - 1, 7.8)


def without_contexts(agents: Agents) -> Agents:
    one = Distribution("fixed", mean=1.0)
    return replace(agents, first=one, appended=one, output=one, summary=one, block_tokens=1_000_000)


def test_tokens_are_those_of_tracelab(rounds: pl.DataFrame) -> None:
    output = rounds["output_tokens"].to_numpy()
    assert 184 <= np.median(output) <= 252  # of Codex, of Claude Code
    assert within(output.mean(), 523)
    goes_on = rounds.filter(pl.col("gained") > 0)
    appended = (goes_on["gained"] - goes_on["spoken"]).to_numpy()
    assert within(np.median(appended), 870)  # 886 and 857
    assert within(np.percentile(appended, 90), 1000)


def test_times_are_those_of_tracelab(rounds: pl.DataFrame) -> None:
    later = rounds.filter(pl.col("turn") > 0)
    user_s = later.filter(pl.col("trigger") == "user")["think_s"].to_numpy()
    assert 79 <= np.median(user_s) <= 95
    assert within(np.percentile(user_s, 90), 20.6 * 60, 0.1)
    assert within(np.percentile(user_s, 99), 13.9 * 3600, 0.1)
    assert 0.698 <= (user_s <= 300).mean() <= 0.796
    tool = instantiate(published("coding_agents").agents).tool_s
    level = (np.arange(100_000) + 0.5) / 100_000
    assert tool.quantile(np.array([0.5, 0.9])) == pytest.approx([0.3, 13.6], rel=0.01)
    assert within(tool.quantile(level).mean(), 16.8)


def test_contexts_are_compacted_as_often_as_those_of_tracelab(rounds: pl.DataFrame) -> None:
    dropped = rounds.filter(pl.col("gained") <= -64_000)
    sessions = dropped["session_id"].n_unique()
    assert within(sessions / rounds["session_id"].n_unique(), 0.097, 0.15)
    assert within(len(dropped) / sessions, 3.7, 0.15)
    assert within((dropped["trigger"] == "tool").to_numpy().mean(), 0.865)


def test_a_cache_of_five_minutes_reads_what_the_providers_read(rounds: pl.DataFrame) -> None:
    """Which nothing was fitted to: 95.8 % of all input, 97 to 98 % of what tools set off."""
    kept = (pl.col("think_s") <= 300) & (pl.col("gained") > 0)
    read = rounds.with_columns(found=pl.when(kept).then(pl.col("before")).otherwise(0))
    assert within(share(read), 0.958, 0.02)
    tools = read.filter(pl.col("trigger") == "tool")
    assert within(share(tools), 0.976, 0.01)


def share(read: pl.DataFrame) -> float:
    found, asked = (read[name].to_numpy().sum() for name in ("found", "input_tokens"))
    return float(found / asked)


def small(**changes: Any) -> Agents:
    fixed = {name: Distribution("fixed", mean=value) for name, value in (("one", 1.0), ("ten", 10.0))}
    plain = Agents(
        requests=Distribution("fixed", mean=2),
        rounds=Distribution("fixed", mean=3),
        lone_rounds=fixed["one"],
        rounds_cv=0.0,
        rounds_growth=0.0,
        tools=fixed["one"],
        tool_s=Distribution("fixed", mean=2.0),
        user_s=Distribution("fixed", mean=60.0),
        first=Distribution("fixed", mean=20),
        appended=fixed["ten"],
        output=Distribution("fixed", mean=5),
        window_tokens=Distribution("fixed", mean=160),
        summary=Distribution("fixed", mean=15),
        prefix_tokens=40,
        prefixes=1,
        block_tokens=10,
    )
    return replace(plain, **changes)


def test_a_session_is_what_its_distributions_say() -> None:
    """Two requests of a user with three rounds of tools each; the window holds 160 tokens."""
    frame = agent_sessions(16, Arrivals("fixed", 0.001), small(), 0).frame
    one = frame.filter(pl.col("session_id") == 0)
    assert one["trigger"].to_list() == ["user", "tool", "tool", "tool"] * 2
    assert one["think_s"].to_list() == [0.0, 2.0, 2.0, 2.0, 60.0, 2.0, 2.0, 2.0]
    # 60, then 15 more each; 165 and its output would pass the window
    assert one["input_tokens"].to_list() == [60, 75, 90, 105, 120, 135, 150, 55]
    ids = one["hash_ids"].to_list()
    assert all(later[: len(ids[0])] == ids[0] for later in ids[:7])
    assert ids[7][:4] == ids[0][:4]  # the trunk
    assert not set(ids[7][4:]) & set(ids[6])
    other = frame.filter(pl.col("session_id") == 1)["hash_ids"].to_list()
    assert other[0][:4] == ids[0][:4]
    assert not set(other[0][4:]) & set(ids[0])


def test_no_prompt_passes_the_context_of_the_model() -> None:
    workload = instantiate(configured("model=llama3_8b", "trace=coding_agents", "trace.requests=3000").trace)
    assert isinstance(workload, Workload)
    assert (workload.input_tokens + workload.output_tokens).max() <= 131_072
    assert workload.trigger is not None
    assert set(np.unique(workload.trigger)) == {TRIGGERS.index("user"), TRIGGERS.index("tool")}


def test_a_trunk_has_room_in_its_window() -> None:
    with pytest.raises(InputError, match=r"trace\.agents\.most_tokens is 100, must be at least four times"):
        small(most_tokens=100)


@pytest.mark.parametrize(("alike", "correlation"), [(0.0, 0.0), (0.7, 0.7), (1.0, 1.0)])
def test_samples_of_a_prompt_are_alike(alike: float, correlation: float) -> None:
    output = Distribution("cut_lognormal", mean=12000, cv=1.1, low=64, high=65536)
    frame = roll_outs(3000, 2, Distribution("uniform", low=20, high=60), output, alike, 16, 0).frame
    pairs = np.log(frame["output_tokens"].to_numpy().reshape(-1, 2))
    assert np.corrcoef(pairs.T)[0, 1] == pytest.approx(correlation, abs=0.05)
    assert within(frame["output_tokens"].to_numpy().mean(), 12000)
    assert stats.ks_2samp(*pairs.T).pvalue > 0.01
    ids = frame["hash_ids"].to_list()
    assert ids[0] == ids[1]
    assert not set(ids[0]) & set(ids[2])
    assert frame["arrival_s"].max() == 0.0
    assert frame["session_id"].to_list()[:4] == [0, 0, 1, 1]
    assert frame["wait_for"].list.len().max() == 0


def test_a_share_that_is_none_is_refused() -> None:
    one = Distribution("fixed", mean=10)
    with pytest.raises(InputError, match=r"trace\.alike"):
        roll_outs(2, 2, one, one, 1.5, 16, 0)
