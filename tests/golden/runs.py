"""Configurations of the golden set, run: in this process, or by the run.py of any checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from framework.run.job import perform
from tests.golden.configurations import Golden
from tests.golden.fingerprint import columns, figures, portable
from tests.helpers.composing import configured

HASHES = Path(__file__).with_name("hashes.json")
_WORKER = Path(__file__).with_name("worker.py")


def hashes_of(golden: Golden, directory: Path) -> dict[str, str]:
    """Run in this process, into `directory`."""
    perform(configured(*golden.overrides), directory)
    return portable(directory)


def known_hashes() -> dict[str, dict[str, str]]:
    """Those of EXACT that are committed."""
    known: dict[str, dict[str, str]] = json.loads(HASHES.read_text()) if HASHES.exists() else {}
    return known


def unreached(golden: Golden, directory: Path, others: Mapping[str, dict[str, str]]) -> list[str]:
    """What the configuration is there for and did not reach in the run in `directory`; `others`: hashes by name."""
    found = figures(directory)
    missing = [key for key in golden.positive if not (found.get(f"summary.{key}") or 0) > 0]
    for table, conditions in (("requests", golden.requests), ("steps", golden.steps)):
        for condition in conditions:
            if pl.read_parquet(directory / f"{table}.parquet").filter(pl.sql_expr(condition)).is_empty():
                missing.append(condition)
    if golden.unlike and _fares(columns(directory)) == _fares(others.get(golden.unlike, {})):
        missing.append(f"unlike {golden.unlike}")
    return missing


def start(checkout: Path, runs: Mapping[str, Golden], folder: Path) -> subprocess.Popen[str]:
    """A process that runs all of `runs` with the run.py of a checkout, each into the subfolder of its name.

    It replays what ships with the project: TRACES_DIR is not set.
    """
    left_out = ("TRACES_DIR", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment |= {"TRACES_OFFLINE": "1", "OPENBLAS_NUM_THREADS": "1"}
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, str(_WORKER), str(checkout.resolve())],
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    json.dump([[*golden.overrides, f"hydra.run.dir={folder / name}"] for name, golden in runs.items()], process.stdin)
    process.stdin.close()
    return process


def refusals(process: subprocess.Popen[str], runs: Mapping[str, Golden]) -> dict[str, str]:
    """Wait for a process of `start`: the last line of stderr of each run that failed, by name."""
    assert process.stdout is not None
    answers = json.loads(process.stdout.read())
    process.wait()
    return {
        name: (error.strip().splitlines() or [f"exit code {code}"])[-1]
        for name, (code, error) in zip(runs, answers, strict=True)
        if code
    }


def _fares(hashes: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in hashes.items() if name.startswith("requests.")}
