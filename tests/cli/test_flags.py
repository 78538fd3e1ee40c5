"""Flags stand anywhere among the settings; what cannot be meant is refused in a line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from framework.cli.arguments import name_files
from framework.cli.flags import flags_first
from framework.errors import InputError
from framework.version import VERSION
from tests.conftest import ROOT


def test_flags_come_first_by_their_long_names() -> None:
    assert flags_first(["a=1", "-c", "job", "b=2", "--resolve"]) == ["--cfg=job", "--resolve", "a=1", "b=2"]
    assert flags_first(["a=1,2", "-m", "~trace.limit"]) == ["--multirun", "a=1,2", "~trace.limit"]
    assert flags_first(["--resolve", "--cfg=all"]) == ["--resolve", "--cfg=all"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("--polcy=ares", "--polcy=ares: there is no such flag; a setting is written without dashes: polcy=ares"),
        ("-x", "-x: there is no such flag; a setting is written without dashes: x=VALUE"),
        ("--hydra-help", "--hydra-help: there is no such flag; a setting is"),
        ("--multi", "--multi: there is no such flag; did you mean --multirun?"),
        ("--cfg", "--cfg: written --cfg job"),
        ("--cfg=x", "--cfg x: written --cfg job"),
        ("--cfg -m", "--cfg -m: written --cfg job"),
        ("--multirun=1", "--multirun=1: --multirun takes no value"),
        ("--package=x", "--package=x: there is no such flag"),
        ("--resolve", "--resolve: goes with --cfg job"),
        ("-m --cfg job", "--cfg shows the settings of one run, and --multirun runs several"),
    ],
)
def test_a_flag_that_cannot_be_meant_is_told_in_a_line(arguments: str, line: str) -> None:
    with pytest.raises(InputError) as refused:
        flags_first(["policy=ares", *arguments.split()])
    assert str(refused.value).startswith(line)


@pytest.mark.parametrize("word", ["+foo=3", "++foo.bar=3", "+sed=1"])
def test_an_added_setting_that_nothing_reads_is_refused(word: str) -> None:
    with pytest.raises(InputError, match="no part of a run reads"):
        name_files(["policy=ares", word])


def test_an_added_setting_that_something_reads_is_taken() -> None:
    read = [
        ["+n=3", "cluster.prefill=${n}"],
        ["++seed=3"],
        ["+trace.limit=3"],
        ["+tuned=x"],
        ["+a=1", "hydra.searchpath=[x]"],
    ]
    for arguments in read:
        assert name_files(arguments) == arguments


def test_settings_may_stand_on_both_sides_of_a_flag(tmp_path: Path) -> None:
    def said(*arguments: str) -> str:
        command = [sys.executable, str(ROOT / "run.py"), *arguments]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout

    assert "name: h200" in said("policy=ares", "--cfg", "job", "gpu=h200")
    assert said("policy=ares", "--version").strip() == VERSION
