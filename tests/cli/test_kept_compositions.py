"""A composed configuration is kept for the processes to come, as long as no file that it could be read from changes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra import compose

from framework.cli import composition, kept_compositions
from framework.cli.composition import composing
from framework.cli.kept_compositions import Composition
from framework.compiler.user_cache import kept_file, read_back, write_back


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Configurations of one group, and a cache of this test's own."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    conf = tmp_path / "conf"
    (conf / "size").mkdir(parents=True)
    (conf / "config.yaml").write_text("defaults: [size: small, _self_]\n")
    (conf / "size" / "small.yaml").write_text("tokens: 1\n")
    (conf / "size" / "large.yaml").write_text("tokens: 2\n")
    return conf


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The choices of each composition that was made and not read back."""
    calls: list[tuple[str, ...]] = []
    make = composition._compose

    def compose_and_tell(places, folders, config_name, run_mode, choices):
        calls.append(choices)
        return make(places, folders, config_name, run_mode, choices)

    monkeypatch.setattr(composition, "_compose", compose_and_tell)
    return calls


def tokens(conf: Path, *overrides: str) -> int:
    """As a process that begins would find it."""
    kept_compositions._slot.cache_clear()
    with composing(conf):
        found: int = compose("config", list(overrides)).size.tokens
    return found


def test_processes_to_come_read_it_back(conf: Path, made: list[tuple[str, ...]]) -> None:
    assert [tokens(conf), tokens(conf, "size=large"), tokens(conf), tokens(conf, "size=large")] == [1, 2, 1, 2]
    assert made == [(), ("size=large",)]
    assert tokens(conf, "size=large", "size.tokens=7") == 7
    assert len(made) == 2, "a setting is applied to what is kept"


def test_an_edit_is_seen(conf: Path, made: list[tuple[str, ...]]) -> None:
    assert tokens(conf) == 1
    (conf / "size" / "small.yaml").write_text("tokens: 10\n")
    assert tokens(conf) == 10
    assert len(made) == 2


def test_a_file_that_nothing_reads_changes_nothing(conf: Path, made: list[tuple[str, ...]]) -> None:
    assert tokens(conf) == 1
    (conf / "size" / "other.yaml").write_text("tokens: ${oc.env:HOME}\n")
    (conf / "elsewhere").mkdir()
    assert tokens(conf) == 1
    assert len(made) == 1


def test_a_file_that_takes_the_place_of_another_is_seen(conf: Path, made: list[tuple[str, ...]]) -> None:
    first = conf.parent / "first"
    (first / "size").mkdir(parents=True)
    (first / "config.yaml").write_text("defaults: [size: small, _self_]\nhydra: {searchpath: ['" + str(conf) + "']}\n")
    assert tokens(first) == 1
    (first / "size" / "small.yaml").write_text("tokens: 3\n")
    assert tokens(first) == 3
    assert len(made) == 2


def test_what_may_depend_on_the_environment_is_not_kept(conf: Path, made: list[tuple[str, ...]]) -> None:
    (conf / "size" / "home.yaml").write_text("tokens: 1\nhome: ${oc.env:HOME}\n")
    assert [tokens(conf, "size=home"), tokens(conf, "size=home")] == [1, 1]
    assert len(made) == 2


@pytest.mark.parametrize("damage", [b"", b"not a composition", None], ids=["empty", "other bytes", "cut"])
def test_a_damaged_file_is_as_good_as_none(
    conf: Path, made: list[tuple[str, ...]], tmp_path: Path, damage: bytes | None
) -> None:
    assert tokens(conf) == 1
    files = list((tmp_path / "cache" / "servelab" / "compositions").iterdir())
    assert files
    for file in files:
        file.write_bytes(file.read_bytes()[:-1] if damage is None else damage)
    assert [tokens(conf), tokens(conf)] == [1, 1]
    assert len(made) == 2, "it is made anew once, and read back after that"


def test_the_oldest_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = kept_file("things", "first", most=2)
    assert first is not None
    assert read_back(first) is None
    write_back(first, b"1")
    write_back(first, b"2")
    assert read_back(first) == b"1"
    for name in "abc":
        (first.parent / name).write_bytes(b"")
    kept_file("things", "first", most=3)
    assert len(list(first.parent.iterdir())) == 3


def test_what_is_kept_has_no_time_of_its_own(
    conf: Path, made: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(composition, "_compose", asking_the_time(composition._compose))
    (conf / "config.yaml").write_text("defaults: [size: small, _self_]\ntime: ${now:%f}\n")
    times = []
    for _ in range(2):
        kept_compositions._slot.cache_clear()
        with composing(conf):
            times.append(compose("config").time)
    assert len(set(times)) == 2
    assert len(made) == 1


def asking_the_time(make: Callable[..., Composition]) -> Callable[..., Composition]:
    """Hydra asks a configuration for its directories, which are named after the time, as it composes it."""

    def compose_and_ask(*arguments: Any) -> Composition:
        made = make(*arguments)
        config = pickle.loads(made.config)
        assert config.time
        return replace(made, config=pickle.dumps(config))

    return compose_and_ask
