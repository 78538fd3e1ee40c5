"""Hostile settings: refused in one clear line, or accepted and run to an end with figures that are numbers."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

import pytest
from omegaconf import OmegaConf

from framework.checks import (
    require_at_least,
    require_choice,
    require_count,
    require_name,
    require_number,
    require_positive,
    require_share,
    require_whole,
)
from framework.cli.terminal import warn_once
from framework.cli.typed_settings import require_types
from framework.errors import InputError, shown
from framework.run.job import parts_of
from tests.helpers.composing import configured
from tests.helpers.quick import one_in
from tests.hostile.apart import outcomes_apart
from tests.hostile.outcomes import HANG, REFUSED, SUCCESS, TRACEBACK, Outcome, outcome_of
from tests.hostile.settings import CONFIGURATIONS, SMALL, Case, cases, some, warm

_QUICK_CONFIGURATIONS = (("policy=chunked",), ("policy=ares",))
_QUICK = 60
_SLOW = 3_000

# Settings that are right one by one and make no sense together.
CONTRADICTIONS: tuple[tuple[str, ...], ...] = (
    ("trace.rate=5", "trace.rate_scale=2"),
    ("engine.kv_tokens=1", "engine.block_tokens=16"),
    ("engine.kv_tokens=15", "engine.block_tokens=16"),
    ("engine.block_tokens=1000000",),
    ("engine.log=reduced", "output.steps=true"),
    ("engine.log=reduced", "output.timeline=true"),
    ("engine.implementation=reference", "engine.log=reduced"),
    ("engine/prefix_stores=dram", "engine.prefix_cache=false"),
    ("cluster.link_sharing=fifo", "cluster.fabric_bandwidth_bytes_s=1e9"),
    ("cluster.ep=3", "cluster.tp=2"),
    ("cluster.tp=3",),
    ("cluster.pp=2", "cluster.dp=2", "cluster.rank_choice=kv"),
    ("engine.batching=concurrent", "engine.asynchronous=true"),
    ("engine.batching=concurrent", "cluster.pp=2"),
    ("engine.batching=static", "policy=nexus"),
    ("trace.min_input_tokens=500", "trace.max_input_tokens=10"),
    ("trace.min_input_tokens=1000000",),
    ("trace.window_s=[5,1]",),
    ("trace.window_s=[1e8,2e8]",),
    ("trace.path=/dev/null", "trace=mooncake"),
    ("trace=mooncake", "trace.format=azure"),
    ("trace=mooncake", "trace.requests=5", "trace.path=x.csv"),
    ("model=llama3_70b", "cluster.tp=1"),
    ("model=deepseek_v3", "cluster.tp=1"),
    ("model.max_context=1",),
    ("model.heads=32", "model.kv_heads=5"),
    ("model.windowed_layers=4",),
    ("policy=distserve", "cluster=mixed"),
    ("policy=distserve", "cluster=mixed", "cluster.spare=2"),
    ("policy=chunked", "policy.order=shortest_predicted"),
    ("objective=capacity", "objective.replicates=1"),
    ("objective=capacity", "objective.run_limits={p99_tbt_s: 0}"),
    ("objective=capacity", "objective.run_limits={p99_nonsense: 1}"),
    ("slo.ttft_s=1e-9", "slo.tpot_s=1e-9"),
    ("engine.kv_fraction=0.01",),
    ("gpu.memory_bytes=1",),
    ("seed=-1",),
    ("load=closed", "load.concurrency=1000000"),
    ("trace.tile=100000000",),
)


def wrong(outcomes: Mapping[Case, Outcome]) -> list[str]:
    """What is neither a run nor one line."""
    assert {SUCCESS, REFUSED} <= {outcome.kind for outcome in outcomes.values()}
    return [f"{case}: {outcome.kind}, {outcome.detail}" for case, outcome in outcomes.items() if not outcome.is_good]


def test_some_hostile_settings() -> None:
    warm(_QUICK_CONFIGURATIONS)
    assert wrong({case: outcome_of(case.play) for case in some(cases(_QUICK_CONFIGURATIONS), _QUICK)}) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_many_hostile_settings(part: int) -> None:
    every = cases()
    assert len(every) >= 2 * _SLOW
    assert wrong(outcomes_apart(some(every, _SLOW)[part::4], Case.play, warm)) == []


def _odd(case: str) -> None:
    """Plays `hang` in code that no signal interrupts, `die`, `memory`, and anything else as a refusal."""
    if case == "hang":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        while True:
            pass
    if case == "die":
        os._exit(1)
    if case == "memory":
        bytearray(1 << 40)
    raise InputError(case)


def _nothing() -> None:
    """What needs no preparation."""


@pytest.mark.slow
def test_what_hangs_or_dies_in_compiled_code_does_not_stop_the_others() -> None:
    outcomes = outcomes_apart(("a", "die", "b", "memory", "hang", "c"), _odd, _nothing, limit_s=2.0)
    kinds = [outcome.kind for outcome in outcomes.values()]
    assert kinds == [REFUSED, TRACEBACK, REFUSED, TRACEBACK, HANG, REFUSED]


@pytest.mark.parametrize("words", one_in(4, CONTRADICTIONS), ids=" ".join)
def test_contradictions_are_refused_or_run(words: tuple[str, ...]) -> None:
    def play() -> None:
        own = SMALL if not any(word.startswith("trace=") for word in words) else ()
        objective, experiment = parts_of(configured("policy=chunked", *own, *words))
        if len(experiment.workload) <= 100:
            objective.measure(experiment)

    warm(_QUICK_CONFIGURATIONS)
    outcome = outcome_of(play)
    assert outcome.is_good, outcome.detail


def test_every_policy_is_among_them() -> None:
    named = {word for words in CONFIGURATIONS for word in words if word.startswith("policy=")}
    assert len(named) >= 17


@pytest.mark.parametrize("word", ["slo.ttft_s=1000", "slo.tpot_s=601"])
def test_a_limit_of_many_minutes_is_reported(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    warn_once.cache_clear()
    parts_of(configured("policy=chunked", *SMALL, word))
    assert word.partition("=")[0] in capsys.readouterr().err
    parts_of(configured("policy=chunked", *SMALL, "slo.ttft_s=600"))
    assert not capsys.readouterr().err


# --- one check for one kind of value ----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, "5", [5], {}, float("nan"), float("inf"), True, 10**400, 1e30, -1])
def test_numbers_are_checked(value: object) -> None:
    for check in (require_count, require_whole, require_positive, require_share):
        with pytest.raises(InputError, match=r"a\.b must be"):
            check("a.b", value)
    with pytest.raises(InputError, match=r"a\.b must be"):
        require_at_least("a.b", value, 0)
    with pytest.raises(InputError, match=r"a\.b must"):
        require_number("a.b", value, 0, 1)


def test_seconds_are_bounded_and_rates_are_not() -> None:
    require_positive("gpu.bandwidth_bytes_s", 1e12)
    with pytest.raises(InputError, match="at most 1e"):
        require_positive("slo.ttft_s", 1e12)
    require_count("tokens", 10**15)
    with pytest.raises(InputError, match="at most"):
        require_count("tokens", 10**15 + 1)


@pytest.mark.parametrize("value", [None, 5, "", "  ", "a\nb", "\x1b[31m", ["a"]])
def test_names_are_checked(value: object) -> None:
    with pytest.raises(InputError):
        require_name("name", value)
    with pytest.raises(InputError):
        require_choice("name", value, ("a", "b"))


def test_a_value_is_shown_shortened() -> None:
    assert shown("x" * 1000).endswith("…")
    assert len(shown("x" * 1000)) == 80
    assert shown(10**5000) == "a number of too many digits"


class _Part:
    """What a user's class may declare."""

    def __init__(self, count: int, share: float, name: str, flag: bool, limit: float | None, sizes: list[int]) -> None:
        self.all = (count, share, name, flag, limit, sizes)


WRONG: dict[str, tuple[object, ...]] = {
    "count": (None, "1", 1.0, True, [1]),
    "share": (None, "1", True, float("nan"), float("inf"), {}),
    "name": (None, 1, "", "a\x1b"),
    "flag": (None, 0, "true"),
    "limit": ("1", float("nan"), []),
    "sizes": (None, 1, "12", ["1"], [True]),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_annotations_are_kept(name: str, value: object) -> None:
    good = {"count": 1, "share": 1, "name": "a", "flag": True, "limit": None, "sizes": [1]}
    require_types("part", _Part, good)
    with pytest.raises(InputError, match=rf"part\.{name} must be"):
        require_types("part", _Part, good | {name: value})


def test_types_are_checked_where_a_part_is_built() -> None:
    config = configured("policy=chunked", *SMALL)
    OmegaConf.update(config, "policy.order", ["fcfs"])
    with pytest.raises(InputError, match=r"policy\.order"):
        parts_of(config)
