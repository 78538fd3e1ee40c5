"""The benchmark's parts: the bare loop decides as the engine does, and the table stands without the peer."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.validation.bench import peer as bench_peer
from experiments.validation.bench import report as bench
from experiments.validation.bench.bare import CannotStepError, step_every_iteration
from experiments.validation.bench.measure import Measured
from experiments.validation.bench.rows import LINK_LATENCY_S, ROWS, TIMING, LeastQueuedInPython, model
from framework.engine.setup.config import EngineConfig
from framework.policy import Policy
from framework.simulate import simulate
from framework.system.cluster import disaggregated, mixed
from framework.workload import Workload
from policies.chunked import Chunked
from policies.distserve import DistServe
from tests.helpers.interpreted import printed_interpreted
from tests.helpers.launcher import typed

GPU = ROWS["azure-1"].cluster().pools[0].gpu
MIXED = mixed(3, GPU, link_latency_s=LINK_LATENCY_S)
SPLIT = disaggregated(2, 3, GPU, link_latency_s=LINK_LATENCY_S, link_sharing="fifo")


def workload(count: int = 300, seed: int = 3) -> Workload:
    """Bursts of long prompts, some requests of a single token."""
    rng = np.random.default_rng(seed)
    arrival_s = np.floor(np.cumsum(rng.exponential(0.03, count)) * 4) / 4
    return Workload(arrival_s - arrival_s[0], rng.integers(1, 6000, count), rng.integers(1, 80, count))


def turned() -> Policy:
    return DistServe(routing="round_robin", placement="round_robin")


CASES: dict[str, tuple[Any, Callable[[], Policy], str]] = {
    "round robin": (MIXED, lambda: Chunked(routing="round_robin"), "round_robin"),
    "least queued": (MIXED, LeastQueuedInPython, "least_queued"),
    "disaggregated": (SPLIT, turned, "round_robin"),
}
LIMITS: dict[str, dict[str, Any]] = {"ample": {}, "tight": {"kv_tokens": 30_000, "max_batch": 6}}
PRINTED = "import json; from tests.experiments.test_bench import bare_runs; print(json.dumps(bare_runs()))"


def bare_runs() -> dict[str, Any]:
    """Steps and ends of each case, and what is said where memory runs short, by `kv_tokens`."""
    made: dict[str, Any] = {}
    for name, (cluster, _, routing) in CASES.items():
        for limit, limits in LIMITS.items():
            run = step_every_iteration(workload(), cluster, model(), TIMING, EngineConfig(**limits), routing)
            made[f"{limit}, {name}"] = run.steps, run.end_s.tolist()
    rng = np.random.default_rng(0)
    requests = Workload(np.zeros(60), rng.integers(100, 1900, 60), np.full(60, 900))
    for kv_tokens in (2_000, 8_000):
        with pytest.raises(CannotStepError) as refusal:
            step_every_iteration(requests, MIXED, model(), TIMING, EngineConfig(kv_tokens=kv_tokens))
        made[f"{kv_tokens}"] = str(refusal.value)
    return made


@pytest.fixture(scope="module", params=["plain", pytest.param("compiled", marks=pytest.mark.slow)])
def bare(request: pytest.FixtureRequest) -> dict[str, Any]:
    """In plain Python, for to compile the two loops takes three times as long as to run them so."""
    if request.param == "compiled":
        return bare_runs()
    made: dict[str, Any] = json.loads(printed_interpreted(PRINTED))
    return made


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("limit", LIMITS)
def test_bare_loop_ends_each_request_when_the_engine_does(bare: dict[str, Any], name: str, limit: str) -> None:
    cluster, policy, _ = CASES[name]
    result = simulate(workload(), cluster, model(), TIMING, EngineConfig(**LIMITS[limit]), policy())
    steps, end_s = bare[f"{limit}, {name}"]
    assert result.requests["preemptions"].sum() == 0
    assert steps == result.steps
    np.testing.assert_allclose(end_s, result.requests["end_s"], rtol=0, atol=1e-6)
    assert len(np.unique(end_s)) > 100


def test_bare_loop_says_what_it_cannot_do(bare: dict[str, Any]) -> None:
    assert "too long" in bare["2000"]
    assert "KV memory" in bare["8000"]


def test_peer_trace_holds_the_requests() -> None:
    file = io.StringIO()
    requests = workload(40)
    bench_peer.write_mooncake(requests, file)
    rows = [json.loads(line) for line in file.getvalue().splitlines()]
    np.testing.assert_allclose([row["timestamp"] / 1e3 for row in rows], requests.arrival_s)
    assert [row["input_length"] for row in rows] == requests.input_tokens.tolist()
    assert [row["output_length"] for row in rows] == requests.output_tokens.tolist()
    ids = [hash_id for row in rows for hash_id in row["hash_ids"]]
    assert [len(row["hash_ids"]) for row in rows] == (-(-requests.input_tokens // 512)).tolist()
    assert len(set(ids)) == len(ids)


def test_absent_peer_is_no_error(tmp_path: Path) -> None:
    missing = tmp_path / "python"
    assert bench_peer.version(missing) is None
    with pytest.raises(bench_peer.PeerError, match="make bench"), bench_peer.peer(missing, _job()):
        pass


def test_a_peer_that_ends_early_is_reported(tmp_path: Path) -> None:
    dying = tmp_path / "python"
    dying.write_text("#!/bin/sh\nexit 3\n")
    dying.chmod(0o755)
    with bench_peer.peer(dying, _job()) as peer, pytest.raises(bench_peer.PeerError, match="ended"):
        peer.replay()


def test_answers_and_errors_of_a_peer(tmp_path: Path) -> None:
    talking = tmp_path / "python"
    answers = ["log line", '{"cpu_s": 1.5, "peak_bytes": 2, "completed": 3}', '{"error": "no blocks"}']
    talking.write_text("#!/bin/sh\n" + "".join(f"echo '{answer}'\n" for answer in answers) + "cat > /dev/null\n")
    talking.chmod(0o755)
    with bench_peer.peer(talking, _job()) as peer:
        assert peer.replay() == bench_peer.PeerRun(cpu_s=1.5, peak_bytes=2, completed=3)
        with pytest.raises(bench_peer.PeerError, match="no blocks"):
            peer.replay()


def test_ratios_are_those_within_a_repetition() -> None:
    entry = bench.Entry(ROWS["mooncake-8"], measured(simulate_s=[0.1, 0.2, 0.4], peer_s=[1.0, 2.0, 8.0]), 20.0)
    line = dict(zip(bench.HEADINGS, bench.cells(entry), strict=True))
    assert line["req / CPU-s"] == "5,000"
    assert line["steps / CPU-s"] == "25,000"
    assert line["Dynamo req / CPU-s"] == "500"
    assert line["× Dynamo"] == "10"
    assert line["bare loop req / CPU-s"] == line["× bare"] == ""
    assert any("short of its target of 200,000" in note for note in bench.notes([entry], "1.0"))


def test_one_row_has_measured_step_times() -> None:
    row = ROWS["azure-4-measured"]
    assert [other for other in ROWS.values() if other.timing is not TIMING] == [row]
    result = simulate(workload(40), row.cluster(), model(), row.timing)
    assert result.timing_source.startswith("measured (h100, vllm")
    figures = measured(simulate_s=[0.1], timing_source=result.timing_source)
    said = list(
        bench.notes(
            [bench.Entry(row, figures, None), bench.Entry(ROWS["azure-4"], measured(simulate_s=[0.1]), None)], None
        )
    )
    assert [note for note in said if result.timing_source in note] == [
        f"{row.title}: timing={result.timing_source}, whose tables are read before the warm runs."
    ]


def test_markdown_without_peer_and_with_a_failed_row() -> None:
    entries = [
        bench.Entry(ROWS["azure-1"], measured(simulate_s=[0.1], trace_source="twin"), 20.0),
        bench.Entry(ROWS["azure-4"], None, None, "no room"),
    ]
    text = bench.as_markdown(entries, list(bench.notes(entries, None)))
    lines = text.splitlines()
    assert len({line.count("|") for line in lines[:4]}) == 1
    assert "(fitted)" in lines[2]
    assert "not installed" in text
    assert "could not be measured (no room)" in text
    assert json.loads(bench.as_json(entries, None))["rows"][1]["failure"] == "no room"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["rows=nope"], "azure-1"),
        (["repeats=0"], "repeats"),
        (["json=/no/such/x.json"], "folder"),
        (["--rows=x"], "rows=VALUE"),
    ],
)
def test_user_mistakes_end_with_code_2(arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("validation", "bench")(arguments) == 2
    message = capsys.readouterr().err.strip()
    assert word in message
    assert "\n" not in message


@pytest.mark.slow
def test_a_row_from_start_to_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # in a narrow place the table breaks its figures over lines
    code = typed("validation", "bench")(["rows=azure-1", "repeats=1", f"peer={tmp_path / 'python'}"])
    assert code == 0
    assert "19,366" in capsys.readouterr().out


def _job() -> bench_peer.Job:
    return bench_peer.Job("trace.jsonl", (1,), {})


def measured(**figures: Any) -> Measured:
    known: dict[str, Any] = dict.fromkeys(("parse_s", "metrics_s", "output_s"), 0.1)
    known |= {"requests": 1000, "finished": 1000, "steps": 5000, "events": 2000, "peak_bytes": 1 << 28}
    return Measured(**{**known, "trace_source": "real", "timing_source": TIMING.source, **figures})


def test_rows_can_be_built() -> None:
    for row in ROWS.values():
        assert row.cluster().instances == sum(row.instances)
        assert row.engine_config().token_budget == 2048
        assert isinstance(row.policy(), Policy)
