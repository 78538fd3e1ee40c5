"""YAMLs of a user's own, by `--config-dir`, in each command that takes the name of a GPU or a model."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from framework.cli.arguments import config_dirs, configured, split_arguments, with_config_dirs
from framework.errors import InputError
from framework.timing.microbench.command import main
from framework.timing.microbench.options import Options, dry_run_gpu
from tests.conftest import ROOT
from tests.helpers import warm

BOX = "defaults: [h100, _self_]\nname: box\nbandwidth_bytes_s: 2.0e+12\nneighbour: h100\n"
TINY = "defaults: [llama3_8b, _self_]\nname: tiny\nlayers: 2\n"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    for group, name, text in (("gpu", "box", BOX), ("model", "tiny", TINY)):
        (tmp_path / "own" / group).mkdir(parents=True)
        (tmp_path / "own" / group / f"{name}.yaml").write_text(text)
    return tmp_path / "own"


def test_a_directory_becomes_a_setting_wherever_it_stands(own: Path) -> None:
    expected = [f"hydra.searchpath=[file://{own}]", "gpu=box"]
    assert with_config_dirs(["--config-dir", str(own), "gpu=box"]) == expected
    assert with_config_dirs(["gpu=box", f"--config-dir={own}"]) == expected
    assert with_config_dirs(["gpu=box", "-cd", str(own)]) == expected
    assert with_config_dirs(["--cfg", "job", "gpu=box", "-cd", str(own)]) == ["--cfg", "job", *expected]
    assert with_config_dirs(["gpu=box"]) == ["gpu=box"]
    assert config_dirs(expected) == (ROOT / "conf", own)


@pytest.mark.parametrize("words", [["--config-dir"], ["--config-dir", "nowhere"], ["--config-dir="]])
def test_what_is_no_directory_is_refused(words: list[str]) -> None:
    with pytest.raises(InputError, match="there is no such directory"):
        with_config_dirs(words)


def test_a_configuration_that_nothing_reads_is_refused(own: Path) -> None:
    (own / "config.yaml").write_text("policy: chunked\n")
    with pytest.raises(InputError, match=r"config.yaml: conf/ has the one that is read"):
        with_config_dirs([f"--config-dir={own}"])


def test_words_choose_what_lies_there(own: Path) -> None:
    _, overrides = split_arguments(with_config_dirs(["gpu=box", f"--config-dir={own}"]), (), ("gpu",))
    gpu = configured(overrides, ["gpu"])["gpu"]
    assert (gpu.name, gpu.bandwidth_bytes_s, gpu.neighbour) == ("box", 2e12, "h100")


def test_the_micro_benchmark_knows_them(own: Path) -> None:
    options = Options.parse(main.read(["model=tiny", "gpu=box", f"--config-dir={own}"]))
    assert options.models[0].layers == 2
    assert dry_run_gpu("box", options.config_dirs).name == "box"
    with pytest.raises(InputError, match=r"gpu=bx: there is no gpu of that name; choose one of a100, .*, box, "):
        dry_run_gpu("bx", options.config_dirs)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("-m", "framework.report.show_step", "gpu=box", "prefill=512"), "box scaled from h100"),
        (("-m", "framework.timing.microbench", "gpu=box", "model=tiny", "list"), "on one box"),
        ((str(ROOT / "run.py"), "gpu=box", "model=tiny", "timing=roofline", "--cfg", "job"), "name: box"),
    ],
)
def test_commands_run_in_an_empty_directory(own: Path, tmp_path: Path, command: tuple[str, ...], said: str) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    done = subprocess.run(
        [str(warm.path() / "python"), *command, "--config-dir", str(own)],
        cwd=empty,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
