"""The ten commands of docs/bring_a_gpu.md in an empty directory, each as a process of its own, as a new user runs them.

The fifth needs a GPU: here it reports what is missing, and the times of the card's datasheet take the place of its own.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from framework.system.gpu import Gpu
from framework.timing.microbench.cases import Case
from framework.timing.microbench.command import main, measure
from framework.timing.microbench.journal import Origin, Table
from framework.timing.microbench.options import Options, gpu_named
from tests.conftest import ROOT
from tests.helpers.readme import environment
from tests.timing.test_microbench import FakeDevice, FakeTimed

PAGE = (ROOT / "docs" / "bring_a_gpu.md").read_text()
CARD, COMMANDS, SERVED = re.findall(r"^```(?:sh|text)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
TEN = [line for line in COMMANDS.splitlines() if line.startswith("python ")]
MEASURES = "out=box.csv"
_LAUNCH_S = 3e-6

Finished = subprocess.CompletedProcess[str]


@dataclass
class Datasheet(FakeDevice):
    """Kernels that take what the datasheet of a card says, and a launch."""

    card: Gpu | None = None

    def prepare(self, case: Case) -> FakeTimed:
        card = self.card
        assert card is not None
        self.now += 1.0
        return FakeTimed(lambda: _LAUNCH_S + case.estimate_s(card))


def shell(line: str, directory: Path) -> Finished:
    return subprocess.run(
        line, shell=True, cwd=directory, env=environment(directory), capture_output=True, text=True, timeout=300
    )


def measured(line: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the fifth command writes where there is a GPU."""
    monkeypatch.chdir(directory)
    options = Options.parse(main.read(line.split()[3:]))
    card = gpu_named("box", "", 0.0, options.config_dirs)
    table = Table(Path(options.out), Origin("box", "2.9.0", "CC0-1.0"))
    try:
        device = Datasheet(card=card)
        measure(options.cases(), device, table, card, clock=lambda: device.now)
    finally:
        table.finish()


def test_there_are_ten_and_each_finds_the_card() -> None:
    assert len(TEN) == 10
    assert [k for k, line in enumerate(TEN) if MEASURES in line] == [4]
    assert all("--config-dir own" in line and "gpu=box" in line for line in TEN)


@pytest.mark.slow
def test_all_of_them_run_in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shell(CARD, tmp_path).returncode == 0
    (tmp_path / "bench.csv").write_text(SERVED + "".join(f"{0.5 * k},600,21,0.05,0.009\n" for k in range(2, 60)))
    printed = []
    for line in TEN:
        finished = shell(line, tmp_path)
        if MEASURES in line and finished.returncode == 2:
            assert re.fullmatch(r"error: the micro-benchmark needs PyTorch with CUDA.*\n", finished.stderr)
            measured(line, tmp_path, monkeypatch)
        else:
            assert finished.returncode == 0, finished.stderr
            assert finished.stdout.strip()
        assert "Traceback" not in finished.stderr
        printed.append(finished.stdout)
    assert "box scaled from h200" in printed[2]
    assert "with others: servelab -m --config-dir own policy=" in printed[2]
    assert "timing measured (box, torch 2.9.0; server vllm_v1)" in printed[7]
    assert re.search(r"note: never tested: closed loops", printed[8])
    line = next(line for line in printed[2].splitlines() if line.startswith("with others: "))
    again = shell(line.removeprefix("with others: ").replace("servelab", "python -m servelab", 1), tmp_path)
    assert again.returncode == 0, again.stderr
