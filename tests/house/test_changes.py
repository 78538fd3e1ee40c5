"""What a new hook costs: the change that CONTRIBUTING.md shows is made to a copy, and both engines ask it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

MOST_OF_A_HOOK = 5  # files
_METHOD = '''    def on_finish(self, request: Request, cluster: Cluster) -> None:
        """Called when a request finishes."""

'''
_ASK = """    if is_asked(s, ON_FINISH):
        ask(s, ON_FINISH, r)
"""
_ASK_IN_REFERENCE = """    if "on_finish" in s.hooks.overrides:
        s.hooks.ask("on_finish", r.id)
"""
# By file: what stands there, and what is put in its place.
HOOK = {
    "framework/policy/base.py": [("    def decide(self, instance", f"{_METHOD}    def decide(self, instance")],
    "framework/policy/hooks.py": [
        (
            ")\nHOOK_NAMES = ",
            '    Hook("on_finish", "request", "nothing", "a request finishes", True),\n)\nHOOK_NAMES = ',
        ),
        ("FETCH_PREFIX, DECIDE = range", "FETCH_PREFIX, DECIDE, ON_FINISH = range"),
    ],
    "framework/policy/answers.py": [
        ('"tokens": self._tokens,\n', '"tokens": self._tokens,\n            "nothing": lambda hook, answer, r: 0,\n')
    ],
    "framework/engine/requests/lifecycle.py": [
        ("    end_request(s, r, FINISHED, 0)\n", f"    end_request(s, r, FINISHED, 0)\n{_ASK}"),
        (
            "from framework.engine.events.order import wake\n",
            "from framework.engine.events.ask import ask, is_asked\nfrom framework.engine.events.order import wake\n",
        ),
        (
            "import defer_free, put_in_inbox\n",
            "import defer_free, put_in_inbox\nfrom framework.policy.hooks import ON_FINISH\n",
        ),
    ],
    "framework/reference/steps/prefill_end.py": [
        (
            "    s.end_request(r, FINISHED)\n",
            f"    s.end_request(r, FINISHED)\n{_ASK_IN_REFERENCE}",
        )
    ],
}
ASKING = """
import numpy as np
from framework.engine.setup.config import EngineConfig
from framework.policy import Policy
from framework.simulate import simulate
from framework.system.cluster import mixed
from framework.timing.affine import Affine
from framework.workload import Workload
from tests.helpers.scenarios import MODEL
from tests.helpers.servers import GPU

class Listening(Policy):
    def on_finish(self, request, cluster):
        seen.append((request.id, cluster.now_s, len(cluster.decoding(0))))

workload = Workload(np.zeros(4), np.full(4, 8), np.array([3, 1, 2, 3]))
for implementation in ("compiled", "reference"):
    seen = []
    engine = EngineConfig(kv_tokens=1024, kv_fraction=1.0, implementation=implementation)
    simulate(workload, mixed(1, GPU), MODEL, Affine(base_s=1.0), engine, Listening())
    print(seen)
"""


def test_a_hook_touches_five_files_and_both_engines_ask_it(tmp_path: Path) -> None:
    assert len(HOOK) <= MOST_OF_A_HOOK
    change(tmp_path, HOOK)
    compiled, reference = run(tmp_path, ASKING)
    assert compiled == reference == "[(1, 1.0, 1), (2, 2.0, 2), (0, 3.0, 0), (3, 3.0, 0)]"


def test_contributing_shows_the_files_of_that_change() -> None:
    shown = re.search(r"<!-- diff-hook.*?```text\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert shown is not None
    assert set(re.findall(r"^ (\S+\.py) ", shown[1], re.MULTILINE)) == set(HOOK)


def change(copy: Path, edits: dict[str, list[tuple[str, str]]]) -> None:
    """Copy the project's code, and edit it."""
    for folder in ("framework", "servelab", "policies", "predictors", "traces", "tests"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name, replacements in edits.items():
        text = (copy / name).read_text()
        for before, after in replacements:
            assert text.count(before) == 1, f"{name}: {before!r}"
            text = text.replace(before, after)
        (copy / name).write_text(text)


def run(directory: Path, script: str) -> list[str]:
    """The lines that a script prints in a copy, its engine interpreted."""
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(directory)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
