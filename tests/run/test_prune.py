"""What other code made can be told from what today's code would reuse, and removed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose as compose_config

from framework.compiler.sources import import_closure
from framework.errors import InputError
from framework.run import store as stores
from framework.run.compose import compose
from framework.run.job import flattened
from framework.run.prune import main
from framework.run.run_key import is_of_this_code, run_key
from framework.run.store import UNSTAMPED, Record, Store
from framework.version import VERSION
from tests.conftest import ROOT
from tests.helpers.composing import composing

STAMPED = {"versions": {"servelab": VERSION}}


@pytest.fixture(scope="module")
def today() -> Iterator[Record]:
    with composing():
        config = compose_config("config", ["policy=chunked", "trace=synthetic", "trace.limit=20"])
        settings = flattened(config)
        yield Record(run_key(settings, compose(config)), settings, {}, STAMPED, 1.0)


def other(record: Record, number: int, **changes: Any) -> Record:
    """Another run, of other code."""
    return Record(**{**vars(record), "key": f"{number:032x}", **changes})


def test_a_key_tells_whose_code_made_it(today: Record) -> None:
    assert is_of_this_code(today.key, today.config)
    assert not is_of_this_code(other(today, 1).key, today.config)


def test_every_version_has_keys_of_its_own() -> None:
    """So that no record of another version is of any use."""
    closure = import_closure(ROOT / "framework" / "run" / "job.py", ROOT)
    assert ROOT / "framework" / "version.py" in closure


@pytest.mark.parametrize("loose", [0, 64])
def test_records_of_other_code_are_counted_and_then_removed(
    today: Record, loose: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stores, "_LOOSE", loose)
    store = Store(tmp_path)
    elsewhere = other(today, 3, config={**today.config, "policy._target_": "not_here.Policy"})
    for record in (today, other(today, 1), other(today, 2, summary={}), elsewhere):
        store.put(record)
    assert {record.version for record in store.read()} == {VERSION, UNSTAMPED}
    main([f"store={tmp_path}"])
    line = capsys.readouterr().out
    assert line.startswith("2 of 4 records made by other code")
    assert f"1 of version {UNSTAMPED}, 1 of version {VERSION}" in line
    assert len(store.read()) == 4
    main([f"store={tmp_path}", "remove=true"])
    assert capsys.readouterr().out.startswith("2 of 4 records removed")
    assert {record.key for record in store.read()} == {today.key, elsewhere.key}
    main([f"store={tmp_path}", "remove=true"])
    assert capsys.readouterr().out.startswith("0 of 2 records removed")


@pytest.mark.parametrize(
    ("words", "said"),
    [(["store=nowhere"], "holds no runs"), (["force=true"], "force=true: not understood"), (["remove=1"], "remove")],
)
def test_mistakes_are_reported(words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=said):
        main(words)
