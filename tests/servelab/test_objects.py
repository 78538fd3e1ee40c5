"""`servelab.run`, `sweep` and `capacity` take objects in the place of names."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest

import servelab
from framework.engine.setup.config import EngineConfig
from framework.load import Open
from framework.system.cluster import ClusterSpec
from predictors.oracle import Oracle

SMALL: dict[str, Any] = {"trace": "synthetic", "limit": 60, "rate": 20}
FRAME = pl.DataFrame({"arrival_s": [0.0, 0.5, 1.0], "input_tokens": [600, 700, 800], "output_tokens": [3, 4, 5]})


class Columns:
    """What pandas' DataFrame is to a reader: columns that can be iterated over, and asked for by name."""

    columns = ("time", "prompt", "answer")

    def __getitem__(self, name: str) -> np.ndarray:
        return FRAME.to_numpy()[:, self.columns.index(name)]


class Fullest(servelab.Aggregated):
    """All to the first instance."""

    def route_prefill(self, request: servelab.Request, cluster: servelab.Cluster) -> int:
        return 0


@pytest.fixture(scope="module")
def plain() -> servelab.Run:
    return servelab.run("chunked", **SMALL)


@pytest.mark.parametrize("frame", [FRAME, FRAME.lazy()], ids=["frame", "lazy frame"])
def test_a_frame_is_a_trace(frame: Any) -> None:
    one = servelab.run("chunked", frame)
    assert one.requests.select("arrival_s", "input_tokens", "output_tokens").equals(
        FRAME.with_columns(pl.col("input_tokens", "output_tokens").cast(pl.Int64)), null_equal=True
    )


def test_columns_of_other_names_are_named() -> None:
    names = {"arrival_s": "time", "input_tokens": "prompt", "output_tokens": "answer"}
    one = servelab.run("chunked", Columns(), trace__columns=names)
    assert one.requests["input_tokens"].to_list() == [600, 700, 800]


@pytest.mark.parametrize("since", [timedelta(0), datetime(2024, 5, 1)], ids=["durations", "times"])
def test_times_of_a_frame_are_seconds(since: Any) -> None:
    arrivals = [since + timedelta(seconds=one) for one in FRAME["arrival_s"]]
    one = servelab.run("chunked", FRAME.with_columns(arrival_s=pl.Series(arrivals)))
    assert one.requests["arrival_s"].to_list() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("column", "line"),
    [
        ([600.0, float("nan"), 800.0], "row 2: input_tokens is missing"),
        (["many", "few", "none"], "row 1: input_tokens is missing or not a number"),
        ([600, {}, 800], "input_tokens is missing or not a number"),
    ],
)
def test_a_column_that_cannot_be_read_is_named(column: list[Any], line: str) -> None:
    class Table:
        columns = tuple(FRAME.columns)

        def __getitem__(self, name: str) -> list[Any]:
            return column if name == "input_tokens" else FRAME[name].to_list()

    with pytest.raises(servelab.InputError, match=line):
        servelab.run("chunked", Table())


def test_a_column_that_is_there_twice_is_named() -> None:
    class Twice(Columns):
        columns = ("time", "prompt", "prompt")

    with pytest.raises(servelab.InputError, match="more than one column prompt"):
        servelab.run("chunked", Twice())


def test_a_frame_is_cut_as_a_trace_is() -> None:
    assert len(servelab.run("chunked", FRAME, limit=2).requests) == 2


def parts(run: servelab.Run) -> Iterator[tuple[str, Any]]:
    """Objects that a run was made of, by the names of the arguments that take them."""
    yield "model", run.result.model
    yield "gpu", run.result.cluster.pools[0].gpu
    yield "slo", servelab.Slo()
    yield "predictor", Oracle()
    yield "engine", EngineConfig()
    yield "load", Open()


@pytest.mark.parametrize("name", ["model", "gpu", "slo", "predictor", "engine", "load"])
def test_a_part_is_an_object(plain: servelab.Run, name: str) -> None:
    part = dict(parts(plain))[name]
    one = servelab.run("chunked", **{name: part}, **SMALL)
    assert one.summary["completed"] == 60


def test_the_object_counts_and_not_the_default(plain: servelab.Run) -> None:
    model = replace(plain.result.model, name="deep", layers=2 * plain.result.model.layers)
    one = servelab.run("chunked", model=model, timing="roofline", **SMALL)
    assert one.result.model == model
    assert (
        one.summary["mean_ttft_ms"] > 1.5 * servelab.run("chunked", timing="roofline", **SMALL).summary["mean_ttft_ms"]
    )
    assert servelab.run("chunked", slo=servelab.Slo(ttft_s=1e-9), **SMALL).summary["slo_attainment"] == 0
    assert servelab.run("chunked", engine=EngineConfig(max_batch=1), **SMALL).result.engine.max_batch == 1


def test_a_cluster_is_an_object(plain: servelab.Run) -> None:
    cluster = servelab.run("chunked", cluster__instances=2, **SMALL).result.cluster
    assert isinstance(cluster, ClusterSpec)
    assert servelab.run("chunked", cluster=cluster, **SMALL).pools["instances"].sum() == 2


def test_a_sweep_of_objects_tells_them_apart() -> None:
    table = servelab.sweep(policy=[Fullest(), Fullest()], seed=range(2), **SMALL)
    assert len(set(table["policy"])) == 2
    assert table["completed"].to_list() == [60] * 4


def test_a_capacity_of_objects(plain: servelab.Run) -> None:
    search = servelab.capacity(Fullest(), plain.result.workload, cluster__instances=1)
    assert search.value > 0


def test_threads_find_what_runs_one_after_another_find(plain: servelab.Run) -> None:
    found: list[float] = []

    def run() -> None:
        found.append(servelab.run("chunked", **SMALL).summary["mean_ttft_ms"])

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [plain.summary["mean_ttft_ms"]] * 3


def test_a_run_within_a_run(plain: servelab.Run) -> None:
    found: list[float] = []

    class Asks(servelab.Aggregated):
        def prepare(self, *_: Any) -> None:
            found.append(servelab.run("chunked", **SMALL).summary["mean_ttft_ms"])

    assert servelab.run(Asks(), **SMALL).summary["completed"] == 60
    assert set(found) == {plain.summary["mean_ttft_ms"]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"trace": FRAME.clear()}, "the DataFrame has no rows"),
        ({"trace": 3}, "a name of conf/trace, a file .* a DataFrame or a Workload; got 3"),
        ({"model": 3}, "model must be a name or a Model, got 3"),
        ({"slo": Oracle()}, "slo must be a name or a Slo"),
        ({"policy": Fullest}, r"policy is the class Fullest; give an object of it: Fullest\(\)"),
        ({"trace": FRAME.drop("arrival_s")}, "the DataFrame"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(servelab.InputError, match=words) as raised:
        servelab.run(**{"policy": "chunked", **arguments})
    assert "\n" not in str(raised.value)


def test_a_setting_of_the_trace_beside_a_workload_is_refused(plain: servelab.Run) -> None:
    with pytest.raises(servelab.InputError, match="rate: a Workload is played as it is"):
        servelab.run("chunked", plain.result.workload, rate=3)


def test_workers_are_refused_for_objects() -> None:
    with pytest.raises(servelab.InputError, match=r"jobs=2: runs with an object \(policy\)"):
        servelab.sweep(jobs=2, policy=[Fullest()], **SMALL)


def test_a_list_without_a_name_is_no_axis() -> None:
    with pytest.raises(servelab.InputError, match=r"jobs is \['chunked', 'orca'\], .* the axes are named, as policy="):
        servelab.sweep(["chunked", "orca"], trace="synthetic")  # type: ignore[arg-type]
