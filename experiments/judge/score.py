"""The score of a policy that is given as text, for people and for programs that search."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from experiments.judge.confined import Limits, isolation, without_network
from experiments.judge.scenarios import Scenario, read_judging
from experiments.judge.source import checked_source
from framework.checks import require_whole
from framework.errors import InputError

_START_S = 120.0  # longest that a process may take besides the CPU time of its policy
_XCPU, _KILLED = 24, 9
_FILE = "policy.py"


@dataclass(frozen=True)
class Played:
    """A scenario: the goodput of the policy and of the baseline in good requests/s, that which no schedule passes, and
    the attainment of the policy.
    """

    load: str
    seed: int
    goodput_rps: float
    baseline_rps: float
    bound_rps: float
    attainment: float

    @property
    def share(self) -> float:
        """Of the bound."""
        return self.goodput_rps / self.bound_rps if self.bound_rps > 0 else 0.0


@dataclass(frozen=True)
class Verdict:
    """What a judge says of a policy.

    Attributes:
        score: The mean over scenarios of goodput as a share of the bound that no schedule passes; 0 with an error.
        baseline: The same of the baseline, vLLM's scheduler; 0 if it was not played.
        error: Why the policy has no score, in a line that its author can act on; empty if it has one.
        scenarios: Each scenario that was played.
        seed: The seed from which those of the scenarios were drawn.
        seconds: How long judging took.
        isolation: How the policy was kept apart.
    """

    score: float
    baseline: float
    error: str
    scenarios: tuple[Played, ...]
    seed: int
    seconds: float
    isolation: str = field(default_factory=isolation)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def judge(
    source: str, *, name: str = "", tier: str = "quick", seed: int | None = None, limits: Limits | None = None
) -> Verdict:
    """The score of a policy whose class is in the text `source`.

    The text is played in a process of its own on the scenarios of a tier: its loads on samples that the seed draws, so
    that a search without a fixed seed meets other samples at each call. It may import numpy, the like of math and
    collections, servelab and policies, and does not reach files, networks or processes. Whatever it does wrong ends in
    a verdict with an error and a score of 0.

    Args:
        source: The text of a Python module.
        name: The class of the policy; the last one of the text by default.
        tier: `quick` (seconds), `minute` or `long`.
        seed: Of the samples; drawn anew by default. The verdict states it.
        limits: CPU time and memory of the policy; by default the time of the tier, and 2 GiB.

    Returns:
        The verdict, with a score from 0 to 1.

    Raises:
        InputError: For an unknown tier, or a seed that is not a number.

    Example:
        >>> verdict = servelab.judge("import os", seed=1)
        >>> verdict.score, verdict.error[:32]
        (0.0, 'line 1: import os is not allowed')
    """
    judging = read_judging()
    limits = limits or Limits(judging.cpu_s(tier))
    seed = secrets.randbits(31) if seed is None else seed
    require_whole("seed", seed)
    scenarios = judging.scenarios(tier, seed)
    begun_s = time.monotonic()
    try:
        _, policy = checked_source(source, name)
    except InputError as error:
        return Verdict(0.0, 0.0, str(error), (), seed, time.monotonic() - begun_s)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / _FILE
        file.write_text(source, encoding="utf-8")
        lines, ended = _played(
            {
                "file": str(file),
                "policy": policy,
                "baseline": judging.baseline,
                "scenarios": [one.overrides for one in scenarios],
                "cpu_s": limits.cpu_s,
                "memory_bytes": limits.memory_bytes,
            }
        )
    return _verdict(scenarios, lines, ended, seed, time.monotonic() - begun_s)


def evaluate(program_path: str) -> dict[str, Any]:
    """The evaluator of OpenEvolve and of loops like it: the file of a program to its `combined_score` and the rest."""
    verdict = judge(Path(program_path).read_text(encoding="utf-8"))
    shares = {f"{one.load}_share": one.share for one in verdict.scenarios}
    return {"combined_score": verdict.score, "baseline": verdict.baseline, "error": verdict.error, **shares}


def _played(job: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """What the process of a job has said, and how it ended, if not well."""
    read, write = os.pipe()
    command = [*without_network(), sys.executable, "-m", "experiments.judge.worker", str(write)]
    root = str(Path(__file__).resolve().parents[2])
    places = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    with (
        tempfile.TemporaryFile() as told,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=told,
            pass_fds=(write,),
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": places},
        ) as process,
    ):
        os.close(write)
        assert process.stdin is not None
        process.stdin.write(json.dumps(job).encode())
        process.stdin.close()
        try:
            code = process.wait(_START_S + 2 * job["cpu_s"])
        except subprocess.TimeoutExpired:
            process.kill()
            code = None
        with os.fdopen(read) as said:
            lines = [json.loads(line) for line in said if line.endswith("\n")]
        told.seek(0)
        last = told.read().decode("utf-8", "replace").strip().splitlines()[-1:]
    return lines, _ended(code, job["cpu_s"], last)


def _ended(code: int | None, cpu_s: float, last: list[str]) -> str:
    if code == 0:
        return ""
    if code is None:
        return "the policy waits for something: it took far longer than its CPU time"
    if code in (-_XCPU, -_KILLED, 128 + _XCPU, 128 + _KILLED):
        return f"the policy took more than {cpu_s:g} s of CPU time, or more memory than it may have"
    return f"the process of the policy ended with code {code}" + "".join(f" ({line})" for line in last)


def _verdict(scenarios: list[Scenario], lines: list[dict[str, Any]], ended: str, seed: int, seconds: float) -> Verdict:
    """Put together what was said of the scenarios."""
    baselines = [line["baseline"] for line in lines if "baseline" in line]
    mine = [line["policy"] for line in lines if "policy" in line]
    error = next((line["error"] for line in lines if "error" in line), ended)
    played = tuple(
        Played(
            scenario.load,
            scenario.seed,
            own["goodput_rps"],
            other["goodput_rps"],
            other["goodput_bound"] or 0.0,
            own["slo_attainment"],
        )
        for scenario, own, other in zip(scenarios, mine, baselines, strict=False)
    )
    of_baseline = [one["goodput_rps"] / one["goodput_bound"] for one in baselines if one["goodput_bound"]]
    baseline = sum(of_baseline) / len(of_baseline) if of_baseline else 0.0
    if not error and len(played) < len(scenarios):
        error = "not all scenarios were played"
    score = 0.0 if error else sum(one.share for one in played) / len(played)
    return Verdict(score, baseline, error, played, seed, seconds)
