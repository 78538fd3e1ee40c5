"""The key of a run changes with everything that can change its bytes, and with nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra import compose as compose_config

from framework.run import run_key as identity
from framework.run.compose import compose
from framework.run.job import flattened, settings_of
from framework.run.run_key import code_hash, run_key, workload_hash
from framework.workload import Workload, consecutive
from tests.conftest import ROOT
from tests.helpers.composing import composing

SMALL = ("policy=chunked", "trace=synthetic", "trace.limit=20")


@pytest.fixture(autouse=True)
def config_directory() -> Iterator[None]:
    with composing():
        yield


def key(*overrides: str) -> str:
    config = compose_config("config", [*SMALL, *overrides])
    experiment = compose(config)
    return run_key(settings_of(config, experiment), experiment)


def test_equal_runs_have_equal_keys() -> None:
    assert key() == key()
    assert len(key()) == 32


@pytest.mark.parametrize("override", ["output.steps=true", "store=elsewhere", "force=true"])
def test_where_results_go_is_not_part_of_it(override: str) -> None:
    assert key(override) == key()


@pytest.mark.parametrize(
    "override",
    [
        *("seed=1", "policy=continuous", "policy.order=shortest_prompt", "engine.token_budget=512", "slo.ttft_s=1"),
        *("cluster.instances=2", "gpu=h200", "model=qwen25_7b", "timing=roofline", "timing.calibrated=false"),
        *("trace.rate=2", "trace.limit=19", "predictor=oracle", "load=closed", "slo.normalized_s=0.5"),
    ],
)
def test_every_setting_is_part_of_it(override: str) -> None:
    assert key(override) != key()


def test_a_cache_that_the_trace_decides_is_the_same_run_as_one_that_is_set() -> None:
    sessions = ("trace=synthetic_sessions",)
    assert key(*sessions) == key(*sessions, "engine.prefix_cache=true") != key(*sessions, "engine.prefix_cache=false")
    assert key() == key("engine.prefix_cache=false") != key("engine.prefix_cache=true")


def test_a_changed_profile_is_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose_config("config", list(SMALL))
    experiment = compose(config)
    before = run_key(flattened(config), experiment)
    row = type(experiment.timing).row
    monkeypatch.setattr(type(experiment.timing), "row", lambda *parts: replace(row(*parts), base_s=1e-9))
    assert run_key(flattened(config), experiment) != before


def test_a_changed_trace_of_the_same_name_is_another_run(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.680590,374,44\n"
    settings = ("trace=azure_conv", f"trace.path={trace}", "trace.format=azure", "trace.limit=null")
    trace.write_text(rows)
    before = key(*settings)
    trace.write_text(rows.replace("374", "375"))
    assert key(*settings) != before


def test_changed_code_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_rule.py").write_text("WEIGHT = 1\n")
    policy = "import own_rule\nfrom policies.chunked import Chunked\nclass Own(Chunked): weight = own_rule.WEIGHT\n"
    (tmp_path / "own_policy.py").write_text(policy)
    targets = frozenset({"own_policy.Own"})
    hashes = [code_hash.__wrapped__(targets), code_hash.__wrapped__(targets)]
    from framework.compiler import sources

    for file, text in (("own_rule.py", "WEIGHT = 2\n"), ("own_policy.py", f"{policy}# said\n")):
        (tmp_path / file).write_text(text)
        sources._imported.cache_clear()
        hashes.append(code_hash.__wrapped__(targets))
    assert len(set(hashes)) == 3
    assert code_hash(frozenset({"policies.ares.Ares"})) != code_hash(frozenset({"policies.chunked.Chunked"}))


def test_what_has_no_source_counts_by_its_library() -> None:
    assert code_hash.__wrapped__(frozenset({"numpy._core._multiarray_umath"})) == code_hash.__wrapped__(frozenset())


def test_a_checkout_elsewhere_has_the_same_key(monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[bytes] = []
    digest = identity._digest

    def spy(parts: Iterable[bytes]) -> str:
        places.extend(parts)
        return ""

    monkeypatch.setattr(identity, "_digest", spy)
    code_hash.__wrapped__(frozenset({"policies.ares.Ares"}))
    assert b"policies/ares.py" in places
    assert b"framework/engine/loop.py" in places
    assert not [part for part in places if len(part) < 200 and str(ROOT).encode() in part]
    assert digest([b"a", b"bc"]) != digest([b"ab", b"c"])


@pytest.mark.parametrize(
    "change",
    [
        {"arrival_s": np.array([0.0, 1.5])},
        {"input_tokens": np.array([4, 6])},
        {"output_tokens": np.array([2, 3])},
        {"priority": np.array([0, 1])},
        {"slo_class": ("a", "b")},
        {"hash_ids": np.array([1, 2]), "hash_spans": consecutive([1, 1]), "hash_block_tokens": 4},
    ],
)
def test_requests_are_told_apart(change: dict[str, Any]) -> None:
    one = Workload(np.array([0.0, 1.0]), np.array([4, 5]), np.array([2, 2]))
    assert workload_hash(replace(one, **change)) != workload_hash(one)
    assert workload_hash(replace(one, name="other", notes=("said",))) == workload_hash(one)


@pytest.mark.parametrize("library", ["numpy", "numba", "polars", "scipy"])
def test_another_release_of_a_library_is_another_run(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    targets = frozenset({"policies.chunked.Chunked"})
    before = code_hash.__wrapped__(targets)
    assert code_hash.__wrapped__(targets) == before
    monkeypatch.setattr(identity, "version", lambda name: "0.0.1" if name == library else version(name))
    assert code_hash.__wrapped__(targets) != before


def test_requests_of_long_traces_are_told_apart_one_by_one() -> None:
    one = Workload(np.arange(5000.0), np.full(5000, 4), np.full(5000, 2))
    inputs = one.input_tokens.copy()
    inputs[2500] += 1
    assert workload_hash(replace(one, input_tokens=inputs)) != workload_hash(one)
