"""The results of the golden set are those that were committed, and the set leaves nothing out."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest

from tests.conftest import ROOT
from tests.golden.configurations import EXACT, SAME_MACHINE, Golden
from tests.golden.fingerprint import columns, moved
from tests.golden.runs import hashes_of, known_hashes, refusals, start, unreached

CONF = ROOT / "conf"
GROUPS = (
    *("policy", "timing", "predictor", "objective", "load", "slo", "cluster"),
    *("engine/attention", "engine/kv_compression", "engine/speculation", "engine/prefix_stores", "engine/sharing"),
)
_DEFAULT = re.compile(r"^ *- (?:override /)?([\w/]+): (\w+)", re.MULTILINE)


@pytest.mark.parametrize("name", EXACT)
def test_results_are_as_committed(name: str, tmp_path: Path) -> None:
    hashes = hashes_of(EXACT[name], tmp_path)
    assert not unreached(EXACT[name], tmp_path, known_hashes())
    changed = moved(known_hashes()[name], hashes)
    assert not changed, f"{name}: {', '.join(changed)} changed; if that is meant, `make golden` renews the hashes"


_TIMED = {"objective=offered"}  # its summary has CPU times


def test_no_hashes_are_left_of_a_configuration_that_is_gone() -> None:
    assert list(known_hashes()) == list(EXACT)


def test_each_policy_has_results_that_are_committed() -> None:
    words = {word for golden in EXACT.values() for word in golden.overrides}
    assert {f"policy={name}" for name in choices("policy")} <= words


@pytest.mark.parametrize("group", GROUPS)
def test_each_choice_of_a_group_is_in_the_set(group: str) -> None:
    chosen = {word for golden in (EXACT | SAME_MACHINE).values() for word in golden.overrides}
    for file in (CONF / "config.yaml", *CONF.glob("policy/*.yaml")):
        chosen |= {f"{key}={name}" for key, name in _DEFAULT.findall(file.read_text())}
    chosen |= {f"engine/{key}={name}" for key, name in _DEFAULT.findall((CONF / "engine/default.yaml").read_text())}
    assert {f"{group}={name}" for name in choices(group)} - _TIMED <= chosen


def choices(group: str) -> list[str]:
    return [path.stem for path in (CONF / group).glob("*.yaml") if not path.stem.startswith("_")]


def test_a_configuration_that_misses_its_aim_is_reported(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"preemptions": 0, "migrations": 2, "mfu": null}')
    pl.DataFrame({"reason": ["tbt", None]}).write_parquet(tmp_path / "requests.parquet")
    aims = ("migrations", "preemptions", "mfu", "hits"), ("reason = 'tbt'", "reason = 'ttft'")
    golden = Golden("", *aims, unlike="other")
    missed = ["preemptions", "mfu", "hits", "reason = 'ttft'"]
    assert unreached(golden, tmp_path, {}) == missed
    assert unreached(golden, tmp_path, {"other": columns(tmp_path)}) == [*missed, "unlike other"]


def test_a_checkout_is_driven_by_its_run_py_alone(tmp_path: Path) -> None:
    script = "import sys\nif 'bad=1' in sys.argv:\n    sys.exit('error: bad')\n"
    script += "open(sys.argv[2].partition('=')[2], 'w').write(sys.argv[1])\n"
    (tmp_path / "run.py").write_text(script)
    words = {"first": "bad=1", "second": "key=2", "third": "key=3"}
    runs = {name: Golden(word, held=()) for name, word in words.items()}
    assert refusals(start(tmp_path, runs, tmp_path / "out"), runs) == {"first": "error: bad"}
    assert [(tmp_path / "out" / name).read_text() for name in ("second", "third")] == ["key=2", "key=3"]


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("time_s", pl.Series("time_s", [1.0, None, 0.3])),
        ("time_s", pl.Series("time_s", [0.0, None, 0.1 + 0.2])),
        ("time_s", pl.Series("time_s", [-0.0, None, 0.3])),
        ("time_s", pl.Series("time_s", [0.0, 0.0, 0.3])),
        ("state", pl.Series("state", ["a", None, "c"])),
        ("state", pl.Series("state", ["ab", "", "c"])),
        ("count", pl.Series("count", [1, 2, 3], pl.Int32)),
    ],
)
def test_a_change_of_one_value_shows_in_its_column_alone(name: str, other: pl.Series, tmp_path: Path) -> None:
    table = pl.DataFrame({"time_s": [0.0, None, 0.3], "state": ["a", "b", "c"], "count": [1, 2, 3]})
    table.write_parquet(tmp_path / "requests.parquet")
    before = columns(tmp_path)
    table.with_columns(other.alias(name)).write_parquet(tmp_path / "requests.parquet")
    assert moved(before, columns(tmp_path)) == [f"requests.{name}"]
