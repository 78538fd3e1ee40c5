"""Bugs of numbers: what operators make of code, how bugs get into it, and the list of those that change nothing."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.mutants.engine_hunt import drawn_mutants
from tests.mutants.listed import EQUIVALENT, argued, no_longer_there
from tests.mutants.named import NAMED, Named
from tests.mutants.numbers import SAMPLE, SEED, Fates
from tests.mutants.operators import OPERATORS, Site, module_name, mutated, sites, statements
from tests.mutants.reach import Reach, _Reaching
from tests.mutants.rooms import ROOMS, Bug, Room, drawn_sites, key_of, quotas
from tests.mutants.seeding import is_outside_functions, runs_on_import
from tests.mutants.trial import LIVES, OVERLAY

TEXT = '''"""A module."""

from __future__ import annotations

LIMIT: int = 4


class Box:
    """A box."""

    def put(self, items: list[int], most: int = 2) -> int:
        """Put them in."""
        total = 0
        for item in items[1:most]:
            if item < LIMIT and item:
                total += min(item, 9)
        return total - 1 if total == 3 else total
'''


def found(operator: str) -> list[tuple[str, str]]:
    changes = [mutated(TEXT, site) for site in sites(TEXT) if site.operator == operator]
    return [(change.before, change.after) for change in changes]


def test_what_each_operator_does() -> None:
    assert [before.split("\n")[0][:12] for before, _ in found("drop")] == [
        "total = 0",
        "for item in ",
        "total += min",
        "return total",
    ]
    assert found("flip") == [("item < LIMIT", "item >= LIMIT"), ("total == 3", "total != 3")]
    assert found("edge") == [("item < LIMIT", "item <= LIMIT")]
    assert found("swap") == [("min", "max")]
    assert found("true") == [("item < LIMIT and item", "True"), ("total == 3", "True")]
    assert found("false") == [("item < LIMIT and item", "False"), ("total == 3", "False")]
    assert found("sign") == [("total += min(item, 9)", "total -= min(item, 9)"), ("total - 1", "total + 1")]
    assert found("shift") == [
        ("4", "5"),
        ("2", "3"),
        ("0", "1"),
        ("1", "2"),
        ("most", "most + 1"),
        ("9", "10"),
        ("3", "4"),
        ("1", "2"),
    ]
    assert {site.operator for site in sites(TEXT)} == set(OPERATORS)


def test_a_last_return_of_none_is_not_dropped() -> None:
    text = "def f(x):\n    if x:\n        return None\n    return None\n"
    assert [site.line for site in sites(text) if site.operator == "drop"] == [3]


def test_names_of_types_are_not_changed() -> None:
    assert sites("Floats = NDArray[np.float64]\nShortest = Callable[[Floats], float]\n") == []
    assert [site.name for site in sites("first = rows[1]\n")] == ["drop 1", "shift 1"]


def test_keys_outlive_what_is_moved() -> None:
    first, *_, last = sites(TEXT)
    assert (first.name, last.name) == ("shift 1", "Box.put shift 7")
    moved = TEXT.replace("class Box", "def before() -> int:\n    return 1\n\n\nclass Box")
    assert {site.name for site in sites(TEXT)} < {site.name for site in sites(moved)}
    assert key_of(Path("a", "b.py"), first) == "a.b shift 1"
    assert key_of(Path("a", "b.py"), last) == "a.b.Box.put shift 7"
    assert module_name(Path("a", "__init__.py")) == "a"


@pytest.mark.parametrize("site", sites(TEXT), ids=lambda site: site.name)
def test_a_bug_is_one_change(site: Site) -> None:
    before, after = ast.unparse(ast.parse(TEXT)), mutated(TEXT, site).text
    assert after.strip() != before.strip()
    assert sum(one != other for one, other in zip(before.splitlines(), after.splitlines(), strict=False)) >= 1
    assert is_outside_functions(TEXT, after) == (site.name in ("shift 1", "Box.put shift 1"))


def test_a_place_that_is_gone_is_reported() -> None:
    with pytest.raises(KeyError, match=r"Box\.put drop 9"):
        mutated(TEXT, Site("Box.put", "drop", 9, 1))


def test_statements_do_not_count_imports() -> None:
    assert statements("import os\nx = 1\nif x:\n    x = 2\n") == 3


@pytest.mark.slow
def test_the_sample_is_large_and_of_every_module() -> None:
    shares = quotas(ROOMS, SAMPLE)
    drawn = {room.name: drawn_sites(room, shares[room.name], SEED) for room in ROOMS}
    assert sum(map(len, drawn.values())) >= 300
    for room in ROOMS:
        keys = {key_of(file, site) for file, site in drawn[room.name]}
        assert len(keys) == len(drawn[room.name])
        assert {file for file, _ in drawn[room.name]} == set(room.modules)


def test_what_was_drawn_stays_drawn_where_more_is_and_another_seed_draws_others() -> None:
    store = next(room for room in ROOMS if room.name == "store")
    few, more, others = ({key_of(*one) for one in drawn_sites(store, *asked)} for asked in ((8, 0), (16, 0), (8, 1)))
    assert few < more
    assert few != others


@pytest.fixture(scope="module")
def modules() -> set[Path]:
    return {file for room in ROOMS for file in room.modules}


@pytest.mark.parametrize("named", NAMED, ids=lambda named: named.name)
def test_a_named_bug_can_be_put_into_its_function(named: Named, modules: set[Path]) -> None:
    ast.parse(named.text())
    assert named.line() > 0
    assert named.file in modules


def test_a_named_bug_that_is_not_there_is_reported() -> None:
    with pytest.raises(ValueError, match=r"gone: framework\.metrics\.slo judge has 0 times 'x / y'"):
        Named("gone", "framework.metrics.slo", "judge", "x / y", "x").text()


def test_every_bug_of_the_list_is_there_once_and_has_a_reason() -> None:
    assert no_longer_there() == []
    assert len(argued()) == sum(": " in line for line in EQUIVALENT.read_text().splitlines()[1:])
    assert all(len(reason.split()) > 2 for reason in argued().values())


def test_the_same_operators_serve_the_engine() -> None:
    mutants = drawn_mutants(100, 0)
    assert len(mutants) >= 100
    assert not any("reference" in mutant.file for mutant in mutants)
    for mutant in mutants[::10]:
        ast.parse(mutant.text())


def test_a_fate_counts_until_code_or_tests_change(tmp_path: Path) -> None:
    room = Room("metrics", ("framework/metrics",), ("tests/metrics",))
    bug = Bug("a.b drop 1", Path("a", "b.py"), "x = 1\n", 1, "x")
    fates = Fates.read(tmp_path / "new" / "fates.json")
    assert fates.of(bug, room) is None
    for fate in (LIVES, "tests/metrics/test_series.py::test_x"):
        fates.keep(bug, room, fate)
        assert Fates.read(fates.file).of(bug, room) == fate
    assert Fates.read(fates.file).first() == {bug.key: "tests/metrics/test_series.py::test_x"}
    assert fates.of(Bug(bug.key, bug.file, "x = 2\n", 1, "x"), room) is None


def test_tests_that_come_to_a_statement_are_tried_fastest_first() -> None:
    reach = Reach({"slow": 3.0, "fast": 1.0, "other": 0.5}, {"a.py": {"7": ["slow", "fast"], "9": ["other"]}})
    assert reach.of(Bug("a", Path("a.py"), "", 7, "")) == ["fast", "slow"]
    assert reach.of(Bug("a", Path("a.py"), "", 0, "")) == ["other", "fast", "slow"]
    assert reach.of(Bug("a", Path("b.py"), "", 7, "")) == ["other", "fast", "slow"]


def test_the_time_of_a_fixture_counts_for_each_test_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test a begins at 0 s, its fixture takes from 1 to 6 s, and it ends at 7 s; test b takes from 10 to 11 s."""
    clock = iter([0.0, 1.0, 6.0, 7.0, 10.0, 11.0])
    monkeypatch.setattr("tests.mutants.reach.time", SimpleNamespace(process_time=lambda: next(clock)))
    plugin, fixture = _Reaching([]), object()

    def begun(hook: Iterator[Any]) -> Any:
        next(hook)
        return hook

    def ended(hook: Any) -> None:
        with suppress(StopIteration):
            hook.send(None)

    for name in "ab":
        asked = SimpleNamespace(name2fixturedefs={"made": [fixture]})
        test = begun(plugin.pytest_runtest_protocol(SimpleNamespace(nodeid=name, _fixtureinfo=asked)))
        if name == "a":
            ended(begun(plugin.pytest_fixture_setup(fixture)))
        ended(test)
    assert plugin.reach.seconds == {"a": 7.0, "b": 6.0}


def test_a_process_may_begin_with_a_bug(tmp_path: Path) -> None:
    text = tmp_path / "text.py"
    text.write_text("LEVEL = 7\n")
    environment = os.environ | {"MUTANT_MODULE": "framework.codes", "MUTANT_TEXT": str(text)}
    words = [sys.executable, "-c", "import framework.codes as c; print(c.LEVEL, c.__file__)"]
    ended = subprocess.run(
        words, cwd=ROOT, env=environment | {"PYTHONPATH": str(OVERLAY)}, capture_output=True, text=True, check=True
    )
    assert ended.stdout.split() == ["7", str(ROOT / "framework" / "codes.py")]


JUDGED = """
from pathlib import Path
from tests.mutants.operators import mutated, sites
from tests.mutants.rooms import Room, bug_at
from tests.mutants.trial import Trials

file = Path("framework/metrics/paired.py")
wanted = {"paired edge 1", "_of_adjacent shift 1", "shift 1"}
bugs = [bug_at(file, site) for site in sites(file.read_text()) if site.name in wanted]
room = Room("few", (str(file),), ("tests/metrics/test_paired.py",))
Trials(room, {}, 1, lambda bug, fate: print(bug.key, fate, sep="|", flush=True)).of(bugs)
"""


@pytest.mark.slow  # `make mutants` does what it does
def test_bugs_inside_and_outside_of_functions_are_seen() -> None:
    ended = subprocess.run([sys.executable, "-c", JUDGED], cwd=ROOT, capture_output=True, text=True, check=True)
    fates = dict(line.split("|") for line in ended.stdout.splitlines())
    assert set(fates) == {
        "framework.metrics.paired shift 1",
        "framework.metrics.paired.paired edge 1",
        "framework.metrics.paired._of_adjacent shift 1",
    }
    for fate in fates.values():
        assert fate.startswith("tests/metrics/test_paired.py::")


@pytest.mark.slow  # a process that begins with a bug is tested above
def test_what_runs_as_a_module_is_imported_needs_a_process_of_its_own() -> None:
    """`_times_of` makes the metadata of fields; `_sum` adds rows that there are."""
    file = Path("framework/timing/step_row.py")
    text = (ROOT / file).read_text()
    found = {site.function: runs_on_import(file, mutated(text, site).text) for site in sites(text) if site.function}
    assert found["_times_of"]
    assert not any(runs for function, runs in found.items() if function != "_times_of")
