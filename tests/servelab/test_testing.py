"""`servelab.testing` from a user's own folder, with folders with the names of servelab's packages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

POLICIES = """
import numpy as np
import servelab


class Right(servelab.Aggregated):
    def route_prefill(self, request, cluster):
        return cluster.prefill.argmin(cluster.prefill.queued_tokens)


class Drops(servelab.Aggregated):
    def batching(self, instance, cluster):
        return servelab.Plan(64, "decode_only")


class Far(servelab.Aggregated):
    def route_prefill(self, request, cluster):
        return 2**80


class Unseeded(servelab.Aggregated):
    def route_prefill(self, request, cluster):
        return int(np.random.default_rng().integers(len(cluster.instances)))


class Forces(servelab.Aggregated):
    def admit(self, request, cluster):
        cluster.instances.queued.setflags(write=True)
        return True


class Reaches(servelab.Aggregated):
    def admit(self, request, cluster):
        cluster.view.instances["token_budget"] += 1
        return True
"""
TEST = """from servelab.testing import PolicyConformance
from own import {0}

class Test{0}(PolicyConformance):
    policy_factory = {0}
"""
# What a failure of each says.
SAID = {
    "Drops": r"60 of 60 were not served: failed \(stalled\): requests 0, 1, 2, 3, 4, 5, 6, 7 and 52 more",
    "Far": "route_prefill returned instance 1208925819614629174706176 for request 0; the cluster has instances 0 to",
    "Unseeded": r"the same run, a second time, is another: request \d+ has \w+ .* and .*; draw .* a numpy Generator",
    "Forces": "ValueError: cannot set WRITEABLE flag to True of this array",
    "Reaches": r"admit changed what it was shown; .copy\(\) a column to change it",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("policies", "traces", "framework"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong package')\n")
    (tmp_path / "own.py").write_text(POLICIES)
    for name in ("Right", *SAID):
        (tmp_path / f"test_{name.lower()}.py").write_text(TEST.format(name))
    return tmp_path


def outcome(folder: Path, python: str | Path, path: str | None, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {} if path is None else {"PYTHONPATH": path}
    run = [str(python), "-m", "pytest", "-p", "no:cacheprovider", *words]
    return subprocess.run(run, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)


def require_verdicts(folder: Path, python: str | Path, path: str | None) -> None:
    asked = "TestRight or nothing_fails or (roomy and (same_run or views))"
    wrong = outcome(folder, python, path, "-rp", "-k", asked)
    assert len(re.findall(r"^PASSED test_right\.py::", wrong.stdout, re.MULTILINE)) > 40, wrong.stdout
    assert "_ TestRight.test" not in wrong.stdout
    for name, said in SAID.items():
        failures = re.findall(rf"_ Test{name}\.test.*?(?=\n___|\n===)", wrong.stdout, re.DOTALL)
        assert any(re.search(said, one) and "on cluster '" in one for one in failures), (name, wrong.stdout)


def test_a_file_of_five_lines_tells_right_from_wrong(folder: Path) -> None:
    require_verdicts(folder, sys.executable, str(ROOT))


@pytest.mark.slow
def test_it_does_so_from_the_wheel(folder: Path, installed: Path) -> None:
    require_verdicts(folder, str(installed), None)
