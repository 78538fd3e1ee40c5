"""The gallery is true: each picture has its command, the commands run and make it, and the pictures are small."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from tests.conftest import ROOT
from tests.helpers import warm
from tests.helpers.gallery import PLACE, commands, made_by, most_bytes, pictures
from tests.helpers.readme import environment

_SMALLER = (
    (r"trace\.limit=\d+", "trace.limit=60"),
    (r"trace\.rate=40,60,80,100", "trace.rate=60,80"),
    (r"trace\.rate=100", "trace.rate=80"),
    (r"seed=0,1,2", "seed=0,1"),
    (r"cluster\.prefill=1,2,3 cluster\.decode=1,2,3", "cluster.prefill=1,2 cluster.decode=1"),
    (r"cluster\.instances=2,3,4,5,6", "cluster.instances=2,3"),
    (r"rates=20:120:6", "rates=20:120:2"),
    (r"trials=\d+", "trials=5"),
    (r" hydra/launcher=joblib", ""),
    (r"output\.window_s=\[10,11\]", "output.window_s=[0.2,0.4]"),
    (r"(experiments\.plot.*)", r"\1 dpi=40 formats=png"),
)
_LONG = ("experiments.tune", "experiments.curve")  # which other quick tests run with the same words


def quick(command: str) -> str:
    """The command on few requests."""
    for pattern, smaller in _SMALLER:
        command = re.sub(pattern, smaller, command)
    return command.replace(" run.py", f" {ROOT / 'run.py'}")


def test_each_picture_has_its_command_and_is_small() -> None:
    shown = pictures()
    assert len(shown) > 8
    assert {Path(name).name for name in shown} == {path.name for path in PLACE.iterdir()}
    for name in shown:
        path = ROOT / "docs" / name
        assert path.stat().st_size <= most_bytes(name)
        with Image.open(path) as picture:
            assert picture.width >= 400
    text = "".join(shown.values())
    assert all(f"experiments.plot {kind}" in text for kind in ("cdf", "series", "bars", "pareto", "slo"))


@pytest.mark.slow
@pytest.mark.parametrize("is_warm", [True, False])
def test_the_commands_make_the_pictures(is_warm: bool, tmp_path: Path) -> None:
    variables = environment(tmp_path)
    if is_warm:
        variables["PATH"] = f"{warm.path()}{os.pathsep}{variables['PATH']}"
    for command in commands():
        if is_warm and any(module in command for module in _LONG):
            continue
        words = quick(command)
        finished = subprocess.run(
            words, shell=True, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=300
        )
        assert finished.returncode == 0, finished.stderr
        assert finished.stdout.strip() or "servelab report" in command, command  # which names its page on stderr
    for name, command in pictures().items():
        if not is_warm or "experiments.plot" in command:
            assert (tmp_path / made_by(command, name)).is_file(), name
