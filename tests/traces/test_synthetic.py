"""Distributions, synthetic traces, and the config nodes of all traces."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from scipy import stats

from framework.errors import InputError
from framework.workload import Workload
from traces.drawn.distributions import Arrivals, Distribution
from traces.drawn.names import with_tenants
from traces.drawn.synthetic import Lengths, Sessions, conversations, independent, load, with_classes

CONF = Path(__file__).resolve().parents[2] / "conf"
N = 20_000
FIXED = Lengths(Distribution("fixed", mean=100), Distribution("fixed", mean=10))


def draws(**parameters: Any) -> np.ndarray:
    return Distribution(**parameters).sample(N, np.random.default_rng(0))


def node(*overrides: str) -> Workload:
    with initialize_config_dir(str(CONF), version_base=None):
        config = compose(overrides=[f"+{overrides[0]}", *overrides[1:]])
    return instantiate(config.trace, _convert_="all")


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"law": "uniform", "low": 5, "high": 9}, stats.uniform(5, 4)),
        ({"law": "exponential", "mean": 3}, stats.expon(scale=3)),
        ({"law": "pareto", "mean": 6, "shape": 3}, stats.pareto(3, scale=4)),
        (
            {"law": "lognormal", "mean": 1000, "cv": 1.5},
            stats.lognorm(np.sqrt(np.log(3.25)), scale=1000 / np.sqrt(3.25)),
        ),
    ],
)
def test_draws_have_their_distribution(parameters, expected):
    assert stats.kstest(draws(**parameters), expected.cdf).pvalue > 0.01


@pytest.mark.parametrize(
    "parameters",
    [
        {"law": "exponential", "mean": 3},
        {"law": "pareto", "mean": 6, "shape": 3},
        {"law": "lognormal", "mean": 5, "cv": 1.5},
    ],
)
def test_truncation_is_the_distribution_given_the_bounds(parameters):
    free = Distribution(**parameters).sample(10 * N, np.random.default_rng(1))
    inside = free[(free >= 4.5) & (free <= 9)]
    bounded = draws(**parameters, low=4.5, high=9)
    assert bounded.min() >= 4.5
    assert bounded.max() <= 9
    assert stats.ks_2samp(inside, bounded).pvalue > 0.01


def test_fixed_and_degenerate():
    assert set(draws(law="fixed", mean=7.0)) == {7.0}
    assert set(draws(law="lognormal", mean=7.0, cv=0.0)) == {7.0}


def test_empirical_with_weights():
    drawn = draws(law="empirical", values=[1, 5, 9], weights=[1, 0, 3])
    assert set(drawn) == {1.0, 9.0}
    assert np.mean(drawn == 9) == pytest.approx(0.75, abs=0.02)
    assert np.mean(draws(law="empirical", values=[1, 5]) == 5) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"law": "normal"}, "law='normal' is not a known distribution; choose fixed, uniform"),
        ({"law": "lognormal", "mean": 5}, "distribution lognormal needs mean, cv: cv is not set"),
        ({"law": "fixed", "mean": "x"}, "distribution fixed: mean must be a finite number of at least 0, got 'x'"),
        ({"law": "fixed", "mean": -1}, "distribution fixed: mean must be a finite number of at least 0, got -1"),
        ({"law": "exponential", "mean": 0}, "mean is 0, must be positive"),
        ({"law": "pareto", "mean": 5, "shape": 1.0}, "shape is 1"),
        ({"law": "uniform", "low": 3, "high": 2}, "low is 3, more than high, 2"),
        ({"law": "empirical", "values": []}, "must be a list of numbers"),
        ({"law": "empirical", "values": [1, float("nan")]}, "a value must be a finite number of at least 0, got nan"),
        ({"law": "empirical", "values": [1], "weights": [1, 2]}, "a list of 1 numbers"),
        ({"law": "empirical", "values": [1], "weights": [0]}, "sum of weights must be a finite number above 0, got 0"),
        ({"law": "pareto", "mean": 6, "shape": 3, "high": 2}, "no mass between low 0 and high 2"),
    ],
)
def test_bad_distributions(parameters, reason):
    with pytest.raises(InputError, match=reason):
        draws(**parameters)


@pytest.mark.parametrize(
    ("name", "cv", "gap"),
    [("poisson", 9.0, stats.expon(scale=0.25)), ("gamma", 2.0, stats.gamma(0.25, scale=1.0))],
)
def test_arrivals(name, cv, gap):
    arrival = Arrivals(name, rate=4.0, cv=cv).sample(N, np.random.default_rng(3))
    assert arrival[0] == 0
    assert stats.kstest(np.diff(arrival), gap.cdf).pvalue > 0.01


def test_fixed_arrivals_and_mistakes():
    assert Arrivals("fixed", rate=4.0).sample(3, np.random.default_rng(0)).tolist() == [0.0, 0.25, 0.5]
    with pytest.raises(InputError, match="arrivals: law='weibull' is not a known distribution"):
        Arrivals("weibull", rate=4.0)
    with pytest.raises(InputError, match="arrivals: rate must be a finite number above 0, got 0"):
        Arrivals("poisson", rate=0)


def test_independent_requests():
    trace = independent(500, FIXED, Arrivals("poisson", 5.0), seed=1)
    assert (len(trace), trace.source) == (500, "synthetic")
    assert set(trace.frame["input_tokens"]) == {100}
    assert trace.frame.equals(independent(500, FIXED, Arrivals("poisson", 5.0), seed=1).frame)
    assert not trace.frame.equals(independent(500, FIXED, Arrivals("poisson", 5.0), seed=2).frame)


def test_prompts_of_too_many_blocks_are_refused():
    turns, think_s = Distribution("fixed", mean=3), Distribution("exponential", mean=10)
    sessions = Sessions(turns, think_s, prefix_tokens=10**9, block_tokens=1)
    with pytest.raises(InputError, match="prefix blocks, at most 500,000,000 are drawn"):
        conversations(30, FIXED, Arrivals("fixed", 1.0), sessions, seed=0)
    with pytest.raises(InputError, match=r"must be at most 1e\+09, got"):
        Sessions(turns, think_s, prefixes=10**9 + 1)


def test_conversations_grow_and_share_prefixes():
    sessions = Sessions(
        Distribution("fixed", mean=3),
        Distribution("exponential", mean=10),
        prefix_tokens=40,
        prefixes=2,
        block_tokens=16,
    )
    trace = conversations(300, FIXED, Arrivals("fixed", 1.0), sessions, seed=0)
    rows = trace.frame.sort("session_id", "turn").to_dicts()
    assert len(rows) == 300
    assert [row["input_tokens"] for row in rows[:3]] == [140, 250, 360]  # prefix + 100, then + 10 + 100 a turn
    for row in rows:
        assert len(row["hash_ids"]) == row["input_tokens"] // 16  # a partial block has no id
    for first, second in pairwise(rows):
        shared = [a == b for a, b in zip(first["hash_ids"], second["hash_ids"], strict=False)]
        if first["session_id"] == second["session_id"]:
            assert all(shared)
            assert second["arrival_s"] == pytest.approx(first["arrival_s"] + second["think_s"])
        else:
            assert sum(shared) in (0, 2)  # the two full blocks of a system prompt, if it is the same
    begins = {tuple(row["hash_ids"][:2]) for row in rows}
    assert len(begins) == 2


def test_conversations_become_closed_loop_workloads():
    sessions = Sessions(Distribution("uniform", low=1, high=6), Distribution("fixed", mean=5))
    lengths = Distribution("lognormal", mean=50, cv=1.0)
    workload = load(400, lengths, lengths, Arrivals("poisson", 2.0), sessions, slo_classes={"a": 1, "b": 3}, rate=50.0)
    assert len(workload) == 400
    assert workload.previous is not None
    assert workload.session_id is not None
    assert workload.think_s is not None
    assert workload.slo_class is not None
    later = np.flatnonzero(workload.previous >= 0)
    assert len(later) > 200
    assert set(workload.think_s[later]) == {5.0}  # think times are not stretched with the arrivals
    np.testing.assert_array_equal(workload.session_id[later], workload.session_id[workload.previous[later]])
    assert all(workload.slo_class[r] == workload.slo_class[workload.previous[r]] for r in later)
    assert np.all(workload.input_tokens[later] > workload.input_tokens[workload.previous[later]])


def test_classes_have_their_shares():
    trace = with_classes(independent(N, FIXED, Arrivals("fixed", 1.0), 0), {"gold": 1, "iron": 4, "none": 0}, seed=0)
    counts = dict(trace.frame["slo_class"].value_counts().iter_rows())
    assert set(counts) == {"gold", "iron"}
    assert counts["gold"] / N == pytest.approx(0.2, abs=0.02)
    with pytest.raises(InputError, match=r"trace.slo_classes.gold must be a finite number of at least 0, got -1"):
        with_classes(trace, {"gold": -1}, seed=0)


def test_tenants_are_drawn_by_shares_or_evenly_for_whole_sessions():
    sessions = Sessions(Distribution("uniform", low=1, high=6), Distribution("fixed", mean=5))
    lengths = Distribution("lognormal", mean=50, cv=1.0)
    workload = load(2000, lengths, lengths, Arrivals("poisson", 2.0), sessions, tenants={"a": 1, "b": 3})
    assert workload.previous is not None
    assert workload.tenant is not None
    later = np.flatnonzero(workload.previous >= 0)
    assert all(workload.tenant[r] == workload.tenant[workload.previous[r]] for r in later)
    assert workload.tenant.count("b") / 2000 == pytest.approx(0.75, abs=0.08)
    assert "2 tenants drawn" in workload.notes[-1]
    even = load(N, lengths, lengths, Arrivals("poisson", 2.0), tenants=12)
    assert even.tenant is not None
    assert sorted(set(even.tenant)) == [f"t{number:02}" for number in range(12)]
    with pytest.raises(InputError, match=r"trace.tenants must be a whole number of at least 1, got 0"):
        load(5, lengths, lengths, Arrivals("poisson", 2.0), tenants=0)
    with pytest.raises(InputError, match=r"trace synthetic has tenants of its own"):
        with_tenants(with_tenants(independent(5, Lengths(lengths, lengths), Arrivals("fixed", 1.0), 0), 2, 0), 2, 0)


def test_config_of_synthetic_traces():
    workload = node("trace=synthetic", "trace.requests=3000", "trace.input.mean=500", "trace.output.law=fixed")
    assert (len(workload), workload.name, workload.source) == (3000, "synthetic", "synthetic")
    assert workload.input_tokens.mean() == pytest.approx(500, rel=0.1)
    assert set(workload.output_tokens) == {250}
    workload = node("trace=synthetic", "trace.slo_classes={a: 0.5, b: 0.5}", "trace.arrivals.law=gamma", "trace.rate=3")
    assert workload.slo_class is not None
    assert set(workload.slo_class) == {"a", "b"}
    assert (len(workload) - 1) / workload.arrival_s[-1] == pytest.approx(3.0)
    workload = node("trace=synthetic_sessions", "trace.requests=200", "trace.sessions.turns.law=fixed")
    assert workload.previous is not None
    assert workload.has_prefixes
    with pytest.raises(InstantiationException, match="law='levy' is not a known distribution"):
        node("trace=synthetic", "trace.input.law=levy")


def test_config_of_traces_from_files(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,6\n2,7,8\n6,9,10\n")
    workload = node("trace=mooncake", f"trace.path={path}", "trace.limit=2", "trace.rate=4")
    assert (workload.name, workload.source, len(workload)) == ("mine", "real", 2)
    assert workload.arrival_s.tolist() == [0.0, 0.25]


@pytest.mark.parametrize("name", ["mooncake", "azure_conv", "azure_code", "reasoning", "mix"])
def test_config_of_known_traces(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TRACES_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    workload = node(f"trace={name}", "trace.limit=40", "trace.jitter_s=1")
    assert (workload.source, len(workload)) == ("twin", 40)
    assert any("moved by uniform times" in note for note in workload.notes)


def test_every_config_of_a_trace_has_the_transforms():
    for path in CONF.glob("trace/[!_]*.yaml"):
        with initialize_config_dir(str(CONF), version_base=None):
            config = compose(overrides=[f"+trace={path.stem}"]).trace
        assert {"limit", "rate", "rate_scale", "tile", "window_s", "poisson", "jitter_s", "seed"} <= config.keys()
