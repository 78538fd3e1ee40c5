"""The process that plays a policy: a job on stdin, its results on a file descriptor, one line each.

The baseline is played first. Then the process is confined, and the policy's text is loaded for the first time.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose as compose_config
from omegaconf import DictConfig

from experiments.judge.confined import Limits, RefusedError, confine
from framework.cli.arguments import name_files, with_config_dirs
from framework.cli.composition import composing
from framework.cli.conf import CONF
from framework.cli.explain import explain
from framework.cli.outside import with_files
from framework.errors import InputError
from framework.metrics.invariants import check_result
from framework.objective.experiment import Experiment
from framework.objective.goodput import Goodput
from framework.run.compose import compose

_LINES = 3  # of the policy's own lines in an error


@dataclass(frozen=True)
class Job:
    """The policy is class `policy` of `file`; each scenario is played with it and with `baseline`."""

    file: str
    policy: str
    baseline: str
    scenarios: Sequence[Sequence[str]]
    cpu_s: float
    memory_bytes: int


def main(out: int) -> None:
    """Play the job on stdin and write to the file descriptor `out`."""
    job = Job(**json.load(sys.stdin))
    with os.fdopen(out, "w") as results:

        def say(**what: Any) -> None:
            results.write(json.dumps(what) + "\n")
            results.flush()

        with composing(CONF):
            for overrides in job.scenarios:
                say(baseline=_played(compose(_config([*overrides, f"policy={job.baseline}"]))))
            mine = with_files([f"policy={job.file}:{job.policy}"])
            configs = [_config([*overrides, *mine]) for overrides in job.scenarios]
            confine(Limits(job.cpu_s, job.memory_bytes))
            for config in configs:
                try:
                    say(policy=_played(compose(config)))
                except BaseException as error:  # whatever a text raises is its author's
                    say(error=_told(error, Path(job.file)))
                    return


def _config(overrides: Sequence[str]) -> DictConfig:
    return compose_config("config", overrides=name_files(with_config_dirs(list(overrides))))


def _played(experiment: Experiment) -> dict[str, Any]:
    measured = Goodput().measure(experiment)
    check_result(measured.result)
    summary = measured.evaluation.summary
    keys = ("goodput_rps", "slo_attainment", "goodput_bound", "share_of_bound", "load_state", "offered")
    return {key: summary.get(key) for key in keys}


def _told(error: BaseException, file: Path) -> str:
    """What went wrong, with the lines of the policy's text that led there."""
    if isinstance(error, MemoryError):
        return "MemoryError: the policy needs more memory than it may have"
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).name == file.name]
    where = "".join(f"line {frame.lineno}, in {frame.name}: {frame.line}; " for frame in own[-_LINES:])
    said = str(error) if isinstance(error, InputError | RefusedError) else None
    line = said or explain(error) or f"{type(error).__name__}: {error}"
    return f"{where}{line}".replace(str(file), "policy")


if __name__ == "__main__":
    main(int(sys.argv[1]))
