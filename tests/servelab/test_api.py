"""`import servelab`: a run, its tables, comparisons and sweeps from Python."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import servelab
from framework.policy.view import Cluster, Request
from framework.run.sweep import Sweep
from framework.workload import Workload, consecutive
from tests.conftest import ROOT

SMALL: dict[str, Any] = {"trace": "synthetic", "limit": 60, "rate": 20}


class Fullest(servelab.Aggregated):
    """All to the first instance."""

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        return 0


class FirstPair(servelab.Disaggregated):
    """The first of each pool."""


IN_A_FILE = """
from servelab import Aggregated


class Chosen(Aggregated):
    def __init__(self, instance: int = 0) -> None:
        self.instance = instance

    def route_prefill(self, request, cluster):
        return self.instance
"""


@pytest.fixture(scope="module")
def chunked() -> servelab.Run:
    return servelab.run("chunked", **SMALL)


def test_a_run_has_what_the_command_writes(chunked: servelab.Run, tmp_path: Path) -> None:
    files = chunked.save(tmp_path, steps=True)
    assert {file.name for file in files} == {"summary.json", "requests.parquet", "steps.parquet"}
    assert json.loads((tmp_path / "summary.json").read_text())["goodput_rps"] == chunked.summary["goodput_rps"]
    assert pl.read_parquet(tmp_path / "requests.parquet").equals(chunked.requests)
    assert pl.read_parquet(tmp_path / "steps.parquet").equals(chunked.steps)
    assert len(chunked.requests) == 60
    assert chunked.pools["instances"].sum() == 5


def test_it_is_the_run_that_the_command_line_describes(chunked: servelab.Run, tmp_path: Path) -> None:
    words = ["policy=chunked", "trace=synthetic", "trace.limit=60", "trace.rate=20"]
    (outcome,) = Sweep([*words, f"store={tmp_path}"], tmp_path).run([["seed=0"]])
    assert outcome.record is not None
    same = {key: value for key, value in chunked.summary.items() if key not in ("versions", "git_revision")}
    assert same.items() <= outcome.record.summary.items()


def test_a_class_of_a_file_and_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "mine.py").write_text(IN_A_FILE)
    one = servelab.run(f"{tmp_path / 'mine.py'}:Chosen", policy__instance=2, **SMALL)
    assert one.requests["prefill_instance"].unique().to_list() == [2]
    assert one.summary["policy"] == "Chosen"
    with pytest.raises(
        servelab.InputError, match=r"mine\.py: there is no class Chosn; did you mean Chosen\? it has Chosen"
    ):
        servelab.run(f"{tmp_path / 'mine.py'}:Chosn", **SMALL)


def test_a_policy_of_ones_own(chunked: servelab.Run) -> None:
    one = servelab.run(Fullest(), **SMALL)
    assert one.requests["prefill_instance"].unique().to_list() == [0]
    assert one.summary["policy"] == "Fullest"
    apart = servelab.run(FirstPair(), cluster__prefill=1, **SMALL)
    assert apart.requests["decode_instance"].null_count() == 0
    table = one.compare(chunked)
    row = table.row(by_predicate=pl.col("metric") == "mean_ttft_ms", named=True)
    assert row["this"] == one.summary["mean_ttft_ms"] > row["other"] == chunked.summary["mean_ttft_ms"]
    assert row["difference"] == row["this"] - row["other"]
    assert row["ratio"] == row["this"] / row["other"]


def test_another_slo_needs_no_other_run(chunked: servelab.Run) -> None:
    assert chunked.judged_by(servelab.Slo(ttft_s=1e-9)).summary["slo_attainment"] == 0
    assert chunked.summary["slo_attainment"] > 0


def test_requests_of_ones_own(chunked: servelab.Run) -> None:
    workload = chunked.result.workload
    again = servelab.run("chunked", workload)
    assert again.requests.equals(chunked.requests)


def test_prefixes_of_ones_own_requests_are_cached() -> None:
    ids: dict[str, Any] = {"hash_ids": np.array([7, 7]), "hash_spans": consecutive([1, 1]), "hash_block_tokens": 512}
    lengths: dict[str, Any] = {"input_tokens": np.array([600, 600]), "output_tokens": np.array([2, 2])}
    workload = Workload(arrival_s=np.array([0.0, 5.0]), **lengths, **ids)
    one = servelab.run("chunked", workload)
    assert one.summary["prefix_cache"] is True
    assert one.requests["cached_tokens"].to_list() == [0, 512]
    assert servelab.run("chunked", workload, engine__prefix_cache=False).summary["prefix_cache"] is False
    assert servelab.run("chunked", Workload(workload.arrival_s, **lengths)).summary["prefix_cache"] is False


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    line = '{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [0, 1]}\n'
    file.write_text(line * 3)
    assert len(servelab.run("chunked", file).requests) == len(servelab.run("chunked", str(file)).requests) == 3


def test_settings_of_any_kind() -> None:
    one = servelab.run("chunked", engine__prefix_cache=True, cluster={"instances": 2}, model="qwen25_7b", **SMALL)
    assert one.result.engine.prefix_cache
    assert (one.pools["instances"].sum(), one.result.model.name) == (2, "qwen25_7b")


def test_a_sweep_is_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = servelab.sweep(policy=["chunked", "continuous"], seed=range(2), **SMALL)
    assert table.select("policy", "seed").rows() == [
        ("chunked", 0),
        ("chunked", 1),
        ("continuous", 0),
        ("continuous", 1),
    ]
    assert table["goodput_rps"].null_count() == 0


def test_a_capacity() -> None:
    search = servelab.capacity("chunked", cluster__instances=1, trace="synthetic", limit=60)
    assert search.value > 0
    assert search.probes is not None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"policy": "chunkd"}, "choose one of"),
        ({"trace": "nonesuch"}, "choose one of"),
        ({"bogus": 1}, "bogus"),
        ({"policy": 3}, "a name or a Policy"),
        ({"policy": "chunked", "limit": -1}, "limit"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(servelab.InputError, match=words) as raised:
        servelab.run(**arguments)
    assert "\n" not in str(raised.value)


def test_the_stub_lists_what_there_is() -> None:
    stub = ast.parse((ROOT / "servelab" / "__init__.pyi").read_text())
    (listed,) = (node.value for node in stub.body if isinstance(node, ast.Assign))
    assert set(ast.literal_eval(listed)) == set(servelab.__all__)
    for name in dir(servelab):
        assert getattr(servelab, name) is not None
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        servelab.nothing_of_the_kind  # type: ignore[attr-defined] # noqa: B018
