"""The engine as plain Python: slow, and with functions that can be replaced and called."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.conftest import ROOT


def interpreted(code: str) -> subprocess.CompletedProcess[str]:
    """Python code in a process of its own, where nothing is compiled and numpy's warnings are errors."""
    return subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", code],
        cwd=ROOT,
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def printed_interpreted(code: str) -> str:
    """What code that ends well prints there."""
    run = interpreted(code)
    assert run.returncode == 0, run.stderr
    return run.stdout
