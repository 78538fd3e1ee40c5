"""What a new hook and a new mechanism cost: the changes that CONTRIBUTING.md shows are made to a copy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

MOST_OF_A_HOOK, MOST_OF_A_MECHANISM = 5, 6  # files
_METHOD = '''    def on_end(self, request: Request, cluster: Cluster) -> None:
        """Called when a request finishes."""

'''
_ASK = """    if is_asked(s, ON_END):
        ask(s, ON_END, r)
"""
_ASK_IN_REFERENCE = """    if "on_end" in s.hooks.overrides:
        s.hooks.ask("on_end", r.id)
"""
# By file: what stands there, and what is put in its place.
HOOK = {
    "framework/policy/base.py": [("    def decide(self, instance", f"{_METHOD}    def decide(self, instance")],
    "framework/policy/hooks.py": [
        (
            ")\nHOOK_NAMES = ",
            '    Hook("on_end", "request", "nothing", "a request finishes", True),\n)\nHOOK_NAMES = ',
        ),
        ("    ON_FAILURE,\n) = range", "    ON_FAILURE,\n    ON_END,\n) = range"),
    ],
    "framework/policy/answers.py": [
        ('"tokens": self._tokens,\n', '"tokens": self._tokens,\n            "nothing": lambda hook, answer, r: 0,\n')
    ],
    "framework/engine/requests/lifecycle.py": [
        ("    end_request(s, r, FINISHED, 0)\n", f"    end_request(s, r, FINISHED, 0)\n{_ASK}"),
        (
            "from framework.engine.events.ask import is_asked\n",
            "from framework.engine.events.ask import ask, is_asked\n",
        ),
        (
            "import defer_free, free_now\n",
            "import defer_free, free_now\nfrom framework.policy.hooks import ON_END\n",
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
    def on_end(self, request, cluster):
        seen.append((request.id, cluster.now_s, len(cluster.decoding(0))))

workload = Workload(np.zeros(4), np.full(4, 8), np.array([3, 1, 2, 3]))
for implementation in ("compiled", "reference"):
    seen = []
    engine = EngineConfig(kv_tokens=1024, kv_fraction=1.0, implementation=implementation)
    simulate(workload, mixed(1, GPU), MODEL, Affine(base_s=1.0), engine, Listening())
    print(seen)
"""


_LAUNCH = '''"""Chunk launch: seconds that a step with chunks takes in addition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from framework.checks import NotNegative, check_fields


@dataclass(frozen=True)
class ChunkLaunch:
    """Each step with chunks takes `seconds` more. Raises InputError for a negative number."""

    seconds: NotNegative = 0.0

    def __post_init__(self) -> None:
        check_fields(self, "engine.chunk_launch.")

    def engine_options(self) -> Mapping[str, float]:
        """Values of the fields of `OPTIONS` that the compiled part reads."""
        return {"chunk_launch_s": self.seconds}
'''
_ADDED = """    if unlikely(s.options.chunk_launch_s > 0.0) and prefill_tokens > 0:
        first_s += s.options.chunk_launch_s
"""
_ADDED_IN_REFERENCE = """    if chunks:
        duration += s.options.engine.chunk_launch.seconds
"""
_FIELD = "    chunk_launch: ChunkLaunch = field(default_factory=ChunkLaunch)  # what a step with chunks takes more\n"
_CHECKED = '\n    def __post_init__(self) -> None:\n        check_fields(self, "engine.")'
_RETURN = "    return first_s, increment_s, straight\n\n\n@inner\ndef note_even_parts"
_SWAPPED = "i.swap_bytes / i.spec.host_bytes_s\n"
_SETTING = """chunk_launch:
  _target_: framework.engine.durations.chunk_launch.ChunkLaunch
  seconds: 0.0 # that a step with chunks takes in addition
"""
MECHANISM = {
    "framework/engine/durations/chunk_launch.py": [("", _LAUNCH)],
    "framework/engine/durations/duration.py": [(_RETURN, _ADDED + _RETURN)],
    "framework/engine/memory/options.py": [
        ('    ("attention_overlap", "f8"),', '    ("chunk_launch_s", "f8"),\n    ("attention_overlap", "f8"),')
    ],
    "framework/engine/setup/config.py": [
        ("import Attention\n", "import Attention\nfrom framework.engine.durations.chunk_launch import ChunkLaunch\n"),
        (_CHECKED, _FIELD + _CHECKED),
    ],
    "framework/reference/steps/duration.py": [
        (f"{_SWAPPED}    if depth", f"{_SWAPPED}{_ADDED_IN_REFERENCE}    if depth")
    ],
    "conf/engine/default.yaml": [("implementation: compiled", f"{_SETTING}implementation: compiled")],
}
LAUNCHING = """
from dataclasses import replace
import numpy as np
from framework.engine.setup.config import EngineConfig
from framework.policy import Aggregated
from framework.run.compose import compose
from framework.simulate import simulate
from framework.system.cluster import mixed
from framework.timing.affine import Affine
from framework.workload import Workload
from tests.helpers.composing import configured
from tests.helpers.scenarios import MODEL
from tests.helpers.servers import GPU

launch = compose(configured("trace=synthetic", "trace.limit=1", "engine.chunk_launch.seconds=0.5")).engine.chunk_launch
workload = Workload(np.array([0.0, 4.0]), np.full(2, 8), np.array([3, 2]))
for own in (replace(launch, seconds=0.0), launch):
    for implementation in ("compiled", "reference"):
        engine = EngineConfig(kv_tokens=1024, kv_fraction=1.0, implementation=implementation, chunk_launch=own)
        result = simulate(workload, mixed(1, GPU), MODEL, Affine(base_s=1.0), engine, Aggregated())
        print(result.requests["first_token_s"].tolist(), result.requests["end_s"].tolist())
"""


def test_a_mechanism_touches_six_files_and_both_engines_have_it(tmp_path: Path) -> None:
    assert len(MECHANISM) <= MOST_OF_A_MECHANISM
    change(tmp_path, MECHANISM)
    *off, compiled, reference = run(tmp_path, LAUNCHING)
    assert off == ["[1.0, 5.0] [3.0, 6.0]"] * 2
    assert compiled == reference == "[1.5, 5.5] [3.5, 6.5]"


@pytest.mark.parametrize(("job", "files"), [("hook", HOOK), ("mechanism", MECHANISM)], ids=["hook", "mechanism"])
def test_contributing_shows_the_files_of_that_change(job: str, files: dict[str, Any]) -> None:
    shown = re.search(rf"<!-- diff-{job}.*?```text\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert shown is not None
    assert set(re.findall(r"^ (\S+) +\|", shown[1], re.MULTILINE)) == set(files)


def test_a_hook_touches_five_files_and_both_engines_ask_it(tmp_path: Path) -> None:
    assert len(HOOK) <= MOST_OF_A_HOOK
    change(tmp_path, HOOK)
    compiled, reference = run(tmp_path, ASKING)
    assert compiled == reference == "[(1, 1.0, 1), (2, 2.0, 2), (0, 3.0, 0), (3, 3.0, 0)]"


def change(copy: Path, edits: dict[str, list[tuple[str, str]]]) -> None:
    """Copy the project's code, and edit it."""
    for folder in ("framework", "servelab", "policies", "predictors", "traces", "tests", "conf"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name, replacements in edits.items():
        text = (copy / name).read_text() if (copy / name).exists() else ""
        for before, after in replacements:
            assert text.count(before) == 1, f"{name}: {before!r}"  # a new file has "" once
            text = text.replace(before, after)
        (copy / name).write_text(text)


def run(directory: Path, script: str) -> list[str]:
    """The lines that a script prints in a copy, its engine interpreted."""
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(directory)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
