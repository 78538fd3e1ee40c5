"""What people did by mistake or on purpose, through the launcher: one line that names it, or a run that is right."""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from rich import box
from rich.table import Table
from rich.text import Text

from experiments.curve.axis import RATE, values
from experiments.tune.space_file import read_space
from framework.cli.console import SafeConsole
from framework.cli.files import user_cache
from framework.compiler.user_cache import user_directory
from framework.errors import InputError
from framework.timing.shipped.profile_files import directories, has_any
from tests.conftest import ROOT
from tests.helpers import warm
from tests.helpers.processes import Finished, run
from tests.hostile.test_streams import refused

# Bytes of a kept composition that no pickle of this code has.
OTHER_CODE = (b"\x80\x04cnothing\nthere\n.", b"", b"\x80\x04N.", b"\x80\x04cos\nsep\n.")
_SMALL = ("policy=chunked", "trace=synthetic", "trace.limit=20")
_BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{two}: &{two} [{','.join([f'*{one}'] * 9)}]\n" for one, two in zip("abcdefgh", "bcdefghi", strict=True)
)


def command(directory: Path, *words: str) -> Finished:
    return run(directory, *_SMALL, *words, python=str(warm.path() / "python"), HYDRA_FULL_ERROR="0")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (_BOMB, "too many aliases"),
        (f"layers: {'9' * 5000}\n", "a number of too many digits"),
        ("layers: &a [*a]\n", "an alias of itself"),
        ("just text\n", "must hold settings"),
        ("".join(f"{one}: ${{.x}}${{.x}}\n" for one in "abcdefghijklmnopq"), "too many texts with several ${...}"),
        ("null: 1\n", "Incompatible key type 'NoneType'"),
        ("defaults: [mine]\n", "the defaults of a YAML in --config-dir lead to that YAML again"),
        ("# @package _global_\nmodel: no\n", "model must be settings with a _target_, got False"),
    ],
)
def test_a_yaml_that_holds_no_settings_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "own" / "model").mkdir(parents=True)
    (tmp_path / "own" / "model" / "mine.yaml").write_text(text)
    refused(command(tmp_path, "model=mine", "--config-dir=own"), said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cluster.pp=64", "timing=roofline"), "pp = 64 stages cannot share the 32 layers"),
        (("cluster.tp=7", "timing=roofline"), "tp = 7 does not divide the 32 heads"),
        (("gpu.idle_w=5000",), "gpu.idle_w = 5000 is above gpu.tdp_w = 700"),
        (("trace.rate_scale=1e-300",), "raise trace.rate or trace.rate_scale"),
        (("model=3",), "model=3: there is no model of that name"),
        (("model=[a,b]",), "a run takes one model"),
        (("model.layers=" + "9" * 5000,), "a number of too many digits"),
        (("output=x",), "output must be settings, as output.steps=true"),
        (("engine._target_={}",), "engine._target_ must be the name of a class, got {}"),
        (("policy._target_=../..",), "policy._target_ must be the name of a class, got ../.."),
        (("engine.kv_compression.read_factor=1e-320",), "engine.kv_compression.read_factor"),
        (("engine.kv_compression.pack_bytes_s=1e-320",), "engine.kv_compression.pack_bytes_s"),
        (("=1",), "=1: a setting is written key=value"),
        (("model.name=${gpu.name}${gpu.name}",) * 17, "too many settings with several ${...}: name the values"),
    ],
)
def test_a_setting_that_cannot_be_is_one_line(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    refused(command(tmp_path, *words), said)


@pytest.mark.parametrize("name", ["/tmp", "**", "../h100", ""])
def test_a_name_that_no_folder_can_have_has_no_profile(name: str) -> None:
    assert not has_any(directories(), name)


def test_a_timing_without_step_times_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own" / "timing").mkdir(parents=True)
    (tmp_path / "own" / "timing" / "mine.yaml").write_text("{}")
    refused(command(tmp_path, "timing=mine", "--config-dir=own"), "timing: _target_ must make a timing")


def test_a_sweep_without_a_store_is_refused(tmp_path: Path) -> None:
    finished = command(tmp_path, *_SMALL, "-m", "store=[]")
    assert (finished.returncode, finished.stderr.splitlines()[-1][:36]) == (2, "error: store must be a name, got [] ")


def _finished(directory: Path, *words: str, **environment: str | None) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in (os.environ | environment).items() if value is not None}
    run = [sys.executable, str(ROOT / "run.py"), *(words or _SMALL)]
    return subprocess.run(run, cwd=directory, env=own, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_variables_that_end_libraries_are_left_out(tmp_path: Path) -> None:
    odd = {
        "NUMBA_NUM_THREADS": "0",
        "POLARS_MAX_THREADS": "0",
        "NUMBA_DEBUG": "x",
        "NUMBA_DUMP_IR": "x",
        "COLUMNS": "0",
    }
    finished = _finished(tmp_path, **odd)
    assert finished.returncode == 0, finished.stderr
    assert "$NUMBA_NUM_THREADS cannot be '0'; it is taken as not set" in finished.stderr
    assert "Traceback" not in finished.stderr
    assert "goodput" in finished.stdout


def test_a_cache_that_cannot_be_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for variables in ({"XDG_CACHE_HOME": str(tmp_path / "file")}, {"XDG_CACHE_HOME": None, "HOME": None}):
        finished = _finished(tmp_path, "--cfg", "job", **({"NUMBA_CACHE_DIR": None} | variables))
        assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize(
    "content", [OTHER_CODE[0], *(pytest.param(one, marks=pytest.mark.slow) for one in OTHER_CODE[1:])]
)
def test_a_cache_of_other_code_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    variables = {"NUMBA_CACHE_DIR": None, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    before = _finished(tmp_path, "--cfg", "job", **variables)
    files = [file for file in (tmp_path / "cache").rglob("*") if file.parent.name == "compositions"]
    assert files
    for file in files:
        file.write_bytes(hashlib.sha256(content).digest() + content)  # sealed, as if it were whole
    after = _finished(tmp_path, "--cfg", "job", **variables)
    assert after.returncode == 0, after.stderr
    assert after.stdout == before.stdout


@pytest.mark.parametrize(
    ("what", "own"),
    [("run", ["hydra.run.dir=same"]), pytest.param("sweep", ["-m", "hydra.sweep.dir=same"], marks=pytest.mark.slow)],
)
def test_two_processes_do_not_share_a_directory(what: str, own: list[str], tmp_path: Path) -> None:
    words = [
        str(warm.path() / "python"),
        str(ROOT / "run.py"),
        "policy=chunked",
        "trace=synthetic",
        "trace.limit=20",
        *own,
    ]
    runs = [
        subprocess.Popen([*words, f"seed={seed}"], cwd=tmp_path, stderr=subprocess.PIPE, text=True) for seed in (0, 1)
    ]
    errors = [run.communicate()[1] for run in runs]
    assert sorted(run.returncode for run in runs) == [0, 2], errors
    assert f"another {what} writes there now" in "".join(errors)
    assert list((tmp_path / "same").rglob(".hydra/overrides.yaml")), "what the one made, the other has removed"


def test_control_characters_of_files_and_policies_are_shown(tmp_path: Path) -> None:
    odd = "x\x1b[31m\u202e"
    rows = "".join(f"{at},100,30\n" for at in range(8))
    (tmp_path / f"{odd}.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows)
    hook = f"    def admit(self, request, cluster):\n        return {odd!a}\n"
    text = f"import servelab\nclass Mine(servelab.Aggregated):\n{hook}"
    (tmp_path / "mine.py").write_text(text)
    finished = run(tmp_path, "policy=mine.py:Mine", f"trace.path='{odd}.csv'", python=str(warm.path() / "python"))
    for stream in (finished.stdout, finished.stderr):
        assert not [one for one in stream if not one.isprintable() and one != "\n"]
        assert "x\\x1b[31m\\u202e" in stream


# --- tables on a narrow terminal --------------------------------------------------------------------------------------


def printed(renderable: object, width: int) -> list[str]:
    file = io.StringIO()
    SafeConsole(file=file, width=width).print(renderable)
    return file.getvalue().splitlines()


@pytest.mark.parametrize(("width", "shown"), [(40, 3), (60, 5), (80, 8), (200, 12)])
def test_a_table_without_room_names_the_columns_that_it_lacks(width: int, shown: int) -> None:
    table = Table("run", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for number in range(12):
        table.add_column(f"figure\n{number}" if number % 2 == 0 else f"\n{number}", justify="right", no_wrap=True)
    table.add_row("a \x1brun", *(f"{1234567 + number}" for number in range(12)))
    lines = printed(table, width)
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert [number for number in range(12) if f"{1234567 + number}" in text] == list(range(shown))
    missing = [f"figure {number}" for number in range(shown, 12)]
    assert (f"not shown: {', '.join(missing)} (a terminal of" in text) == bool(missing)
    assert "…" not in text
    assert "\\x1brun" in text
    if missing:
        room = int(re.search(r"a terminal of (\d+) columns", text)[1])  # type: ignore[index]
        assert [any("not shown" in line for line in printed(table, at)) for at in (room - 1, room)] == [True, False]


def test_a_text_of_any_kind_is_shown() -> None:
    assert printed(Text("a\x1b[31m\u202eb"), 80) == ["a\\x1b[31m\\u202eb"]
    assert printed("a\x1b[31m", 80) == ["a\\x1b[31m"]


# --- words that mean something else -----------------------------------------------------------------------------------


def test_a_range_that_may_be_meant_as_steps_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(values(RATE, "20:80:20")) == 20
    assert "means 20 values from 20 to 80, 3.16 apart; 20:80:4 are 20 apart" in capsys.readouterr().err
    for plain in ("10:100:10", "1:8:8", "20:120:6", "1:4:3"):
        values(RATE, plain)
        assert capsys.readouterr().err == ""


def test_what_a_space_works_out_is_named_as_it_was_typed() -> None:
    names = ("prefill_tp", "decode_tp", "prefill", "decode")
    settings: dict[str, int | str] = {f"cluster.{name}": 4 for name in names}
    settings |= {"engine.token_budget": 512, "engine.max_batch": 64, "policy.order": "fcfs"}
    with pytest.raises(InputError, match=r"cluster.decode=4: space pd works that out"):
        read_space("pd", settings, ["cluster.decode"])
    with pytest.raises(InputError, match=r"cluster.instances=8: space whole works that out"):
        read_space(
            "whole", {"cluster.instances": 8, "cluster.tp": 1, "engine.token_budget": 512}, ["cluster.instances"]
        )


def test_a_home_that_there_is_not_is_one_line_where_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(
        command(tmp_path, "trace=mooncake", "trace.path='~nobody_of_that_name/x.csv'"),
        "there is no such home directory",
    )
    monkeypatch.setenv("HOME", "~")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    assert user_directory("x") == tmp_path / f"servelab-{os.getuid()}" / "x"
    assert user_cache() == Path("~/.cache/servelab")
