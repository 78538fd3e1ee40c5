"""Two checkouts compared: pairs become a ratio with an interval, and one script drives old and new layouts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console
from scipy.stats import binom

from experiments.validation.bench import against
from experiments.validation.bench.against import Comparison
from experiments.validation.bench.one_run import SHORT, OneRun
from experiments.validation.bench.paired import LEVEL, order_interval, ratio
from experiments.validation.bench.rows import ROWS
from framework.errors import InputError
from tests.helpers.launcher import typed

BAR = 1.03


def runs(times_s: Sequence[float], digest: str = "same") -> list[OneRun]:
    return [OneRun(time_s, 100, 1000, digest) for time_s in times_s]


def compared(ratios: Sequence[float], name: str = "azure-1", digest: str = "same") -> Comparison:
    return Comparison(ROWS[name], runs([0.2 * one for one in ratios], digest), runs([0.2] * len(ratios)))


# --- arithmetic -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 5, 6, 9, 15, 16, 40])
def test_the_interval_leaves_out_as_many_as_the_binomial_law_allows(count: int) -> None:
    left_out, coverage = order_interval(count)
    assert coverage == pytest.approx(1 - 2 * binom.cdf(left_out, count, 0.5))
    assert left_out < count / 2
    if left_out:
        assert coverage >= LEVEL
    if 1 - 2 * binom.cdf(0, count, 0.5) >= LEVEL:
        assert 1 - 2 * binom.cdf(left_out + 1, count, 0.5) < LEVEL <= coverage


def test_fifteen_pairs_have_the_interval_of_the_tables() -> None:
    """The 4th and the 12th of 15, which hold the median with 96.5 %."""
    found = ratio([float(value) for value in range(1, 16)], [1.0] * 15)
    assert (found.low, found.median, found.high) == (4, 8, 12)
    assert found.coverage == pytest.approx(0.9648, abs=1e-4)


def test_ratios_are_those_of_pairs() -> None:
    """A machine that slows down for a while slows both of a pair."""
    found = ratio([1.0, 8.0, 2.2], [1.0, 8.0, 2.0])
    assert found.median == 1.0
    assert (found.low, found.high) == pytest.approx((1.0, 1.1))


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([1.04, 1.05, 1.06, 1.05, 1.04, 1.07], "broken"),
        ([1.02, 1.05, 1.06, 1.05, 1.04, 1.07], "slower"),
        ([0.99, 1.05, 1.06, 1.05, 1.04, 1.07], "no difference"),
        ([0.99, 0.98, 0.99, 0.97, 0.9, 0.95], "faster"),
    ],
)
def test_a_row_is_broken_where_its_whole_interval_is_above_the_bar(ratios: list[float], verdict: str) -> None:
    assert compared(ratios).verdict(BAR) == verdict
    assert compared(ratios).verdict(2.0) != "broken"


# --- what is shown ----------------------------------------------------------------------------------------------------


def test_a_line_and_the_notes_say_what_was_found() -> None:
    failed = Comparison(ROWS["azure-4"], failure="no room")
    found = [compared([1.1, 1.2, 1.3]), failed, compared([1.0] * 3, "mooncake-8", digest="other")]
    line = dict(zip(against.HEADINGS, against.cells(found[0], BAR), strict=True))
    assert (line["pairs"], line["ms"], line["ms before"]) == ("3", "240.0", "200.0")
    assert (line["ratio"], line["interval"], line["verdict"]) == ("1.200", "1.100 to 1.300", "broken")
    notes = list(against.notes(found, "main", BAR))
    assert "here over main" in notes[0]
    assert "75 % interval" in notes[0]
    assert [note.split(":")[0] for note in notes[1:]] == [ROWS["azure-4"].title, ROWS["mooncake-8"].title]
    assert "no room" in notes[1]
    assert "results differ" in notes[2]
    console = Console(width=150, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(against.as_table(found, BAR))
    assert "broken" in console.export_text()
    written = json.loads(against.as_json(found, "main", BAR))["rows"]
    assert [row["verdict"] for row in written] == ["broken", None, "no difference"]
    assert written[0]["median"] == pytest.approx(1.2)
    assert not written[2]["same_work"]


def test_growth_with_instances_is_told_of_both_checkouts() -> None:
    fewer, more = compared([1.0] * 3, "least-loaded-8"), compared([1.0] * 3, "least-loaded-4096")
    more = replace(more, ours=runs([1.0] * 3), theirs=runs([3.4] * 3))
    (note,) = [note for note in against.notes([fewer, more], "main", BAR) if "4,096" in note]
    assert note.endswith("5.0 times the CPU time of 8 instances here, 17.0 times before; at most 6 is wanted.")


# --- checkouts --------------------------------------------------------------------------------------------------------


def test_a_folder_is_a_checkout(tmp_path: Path) -> None:
    assert against.checkout(str(tmp_path)) == tmp_path.resolve()


def test_a_commit_becomes_a_folder_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "project"
    root.mkdir()

    def git(*words: str) -> None:
        own = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
        subprocess.run(["git", *own, *words], cwd=root, check=True, capture_output=True)

    git("init")
    for text in ("one", "two"):
        (root / "file").write_text(text)
        git("add", "file")
        git("commit", "-m", text)
    folder = against.checkout("HEAD~1", root)
    assert (folder / "file").read_text() == "one"
    assert folder == against.checkout("HEAD~1", root)
    assert (against.checkout("HEAD", root) / "file").read_text() == "two"
    assert [path.name for path in folder.parent.glob(".*")] == []
    with pytest.raises(InputError, match="against=nonsense: neither a folder nor a commit"):
        against.checkout("nonsense", root)


FAKE = {
    "rows.py": """
        class Row:
            timing = predictor = None
            def __init__(self, name, title, trace, instances, policy, engine=None):
                self.trace, self.instances, self.policy = trace, instances, policy
            def cluster(self): return sum(self.instances)
            def engine_config(self): return None
        def model(): return None
        ROWS = {"azure-1": Row("azure-1", "", {"name": "known", "tile": 3}, (1,), object)}
    """,
    "framework/simulate.py": """
        import numpy as np
        class Result: pass
        def simulate(workload, cluster, model, timing, engine, policy, predictor):
            result = Result()
            result.steps = 7 * cluster
            result.requests = {"end_s": np.zeros(workload)}
            for _ in range(200_000): pass
            return result
    """,
    "framework/workload.py": "def Workload(arrival_s, input_tokens, output_tokens): return len(arrival_s)\n",
    "policies/chunked.py": "class Chunked:\n    def __init__(self, routing): pass\n",
    "traces/load.py": "def load(name, tile=1, limit=50): return tile * limit\n",
}


def write_checkout(directory: Path, rows: str) -> None:
    for name, content in FAKE.items():
        path = directory / (rows if name == "rows.py" else name)
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = content.strip("\n").splitlines()
        margin = len(lines[0]) - len(lines[0].lstrip())
        path.write_text("\n".join(line[margin:] for line in lines) + "\n")


@pytest.mark.slow
def test_the_script_runs_rows_of_either_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkout(tmp_path / "new", "experiments/validation/bench/rows.py")
    write_checkout(tmp_path / "old", "experiments/bench/rows.py")
    monkeypatch.setattr(against, "ROOT", tmp_path / "new")
    found = against.compare(ROWS["azure-1"], tmp_path / "old", 1, str)
    assert found.failure == ""
    assert [(run.requests, run.steps) for run in (*found.ours, *found.theirs)] == [(150, 7)] * 2
    assert min(found.ours_s) > 0
    assert found.is_same_work


def test_a_short_row_is_made_and_one_that_is_missing_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkout(tmp_path, "experiments/validation/bench/rows.py")
    monkeypatch.setattr(against, "ROOT", tmp_path)
    with against._measuring(tmp_path, "round-robin-4096") as measure:
        made = vars(measure())
    assert (made["requests"], made["steps"]) == (SHORT["round-robin-4096"].requests, 7 * 4096)
    missing = against.compare(ROWS["mooncake-8"], tmp_path, 1, str)
    assert missing.failure.endswith("has no row mooncake-8")


def test_the_two_of_a_pair_change_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def note(what: str, place: Path, row: str) -> float:
        done.append(f"{what} {'theirs' if place == tmp_path else 'ours'} {row}")
        return float(len(done))

    @contextmanager
    def measuring(place: Path, row: str) -> Iterator[Callable[[], OneRun]]:
        note("start", place, row)
        yield lambda: OneRun(note("run", place, row), 1, 1, "")

    monkeypatch.setattr(against, "_compile", partial(note, "compile"))
    monkeypatch.setattr(against, "_measuring", measuring)
    monkeypatch.setattr(against, "_PAIRS_OF_A_PROCESS", 2)
    progress: list[str] = []
    found = against.compare(ROWS["azure-1"], tmp_path, 3, progress.append)
    both, pairs = ("ours", "theirs"), (("ours", "theirs"), ("theirs", "ours"), ("ours", "theirs"))
    words = [("compile", both), ("start", both), ("run", pairs[0] + pairs[1]), ("start", both), ("run", pairs[2])]
    assert done == [f"{what} {side} azure-1" for what, sides in words for side in sides]
    assert (found.ours_s, found.theirs_s) == ([5, 8, 11], [6, 7, 12])
    assert progress[-1].endswith("pair 3 of 3")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pairs=0"], "pairs must be a whole number from 1"),
        (["bar=0.5"], "bar must be a finite number of at least 1"),
        (["bar=nan"], "bar must be a number"),
        (["against=no-such-commit"], "neither a folder nor a commit"),
        (["against=.", "markdown=table.md"], "json= alone"),
    ],
)
def test_user_mistakes_end_with_code_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("validation", "bench")(arguments) == 2
    message = capsys.readouterr().err.strip()
    assert words in message
    assert "\n" not in message


def test_short_rows_are_the_same_requests_on_more_instances() -> None:
    for name in ("round-robin", "least-loaded"):
        fewer, more = ROWS[f"{name}-8"], ROWS[f"{name}-4096"]
        assert more.compared_with == fewer.name
        assert (sum(fewer.instances), sum(more.instances)) == (8, 4096)
        one, other = fewer.workload(50), more.workload(50)
        assert len(one) == 50
        assert one.arrival_s.tolist() == other.arrival_s.tolist()
    assert [ROWS[f"{name}-4096"].most_times for name in ("round-robin", "least-loaded")] == [3, 6]
