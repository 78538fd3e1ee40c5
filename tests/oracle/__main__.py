"""Compares a policy with the scheduler that it is written after, token by token: `make oracle`.

`policy=vllm_v1` with vLLM's; with `--of cancellations`, the same with clients that give up; with `--of connector`, the
same on prefill and decode instances that pull KV with vLLM's servers and their NIXL connector; with `--of offloading`,
a tier in host memory with vLLM's OffloadingConnector; with `--of sglang`, `policy=sglang` with SGLang's. VLLM_PYTHON
and SGLANG_PYTHON name the interpreters of environments that have vLLM 0.24.0 and SGLang 0.5.14 (`pip install
vllm==0.24.0`, some 9 GB, and `sglang==0.5.14`, some 11 GB, each into an environment of its own; no GPU is needed).
Prints a line for each regime, and for each run that differs; the exit code is 1 if there is one.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.oracle import comparison, connector_comparison, drawing, offloading_comparison, sglang_comparison
from tests.oracle.comparison import TOLERANCE_S, Verdict, interpreter, oracle
from tests.oracle.drawing import Run


@dataclass(frozen=True)
class _Scheduler:
    variable: str
    program: Path
    drawn: Callable[[int], Run]
    compared: Callable[[Any, dict[str, Any]], Verdict]
    regimes: tuple[str, ...]


_SCHEDULERS = {
    "vllm": _Scheduler(comparison.VARIABLE, comparison.PROGRAM, drawing.drawn, comparison.compared, drawing.REGIMES),
    "cancellations": _Scheduler(
        comparison.VARIABLE,
        comparison.PROGRAM,
        drawing.given_up,
        comparison.compared,
        drawing.REGIMES_OF_CANCELLATIONS,
    ),
    "connector": _Scheduler(
        comparison.VARIABLE,
        connector_comparison.PROGRAM,
        connector_comparison.drawn,
        connector_comparison.compared,
        connector_comparison.REGIMES,
    ),
    "offloading": _Scheduler(
        comparison.VARIABLE,
        offloading_comparison.PROGRAM,
        offloading_comparison.drawn,
        offloading_comparison.compared,
        offloading_comparison.REGIMES,
    ),
    "sglang": _Scheduler(
        sglang_comparison.VARIABLE,
        sglang_comparison.PROGRAM,
        sglang_comparison.drawn,
        sglang_comparison.compared,
        sglang_comparison.REGIMES,
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--of", choices=_SCHEDULERS, default="vllm", help="whose scheduler (default vllm)")
    parser.add_argument("--runs", type=int, default=300, help="drawn runs (default 300)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="first seed (default 0)")
    chosen = parser.parse_args(arguments)
    other = _SCHEDULERS[chosen.of]
    python = interpreter(other.variable)
    if python is None:
        print(f"{other.variable} is not set: it names the Python of an environment that has it", file=sys.stderr)
        return 2
    runs: Counter[str] = Counter()
    equal: Counter[str] = Counter()
    worst_s, tokens, preemptions = 0.0, 0, 0
    with oracle(python, other.program) as theirs:
        for seed in range(chosen.first, chosen.first + chosen.runs):
            run = other.drawn(seed)
            verdict = other.compared(run, theirs.play(run))
            names = ["all", *(run.regimes or ("none of these",))]
            runs.update(names)
            tokens += sum(len(r.output) for r in run.requests)
            preemptions += verdict.preemptions[1]
            if verdict.equal:
                equal.update(names)
                worst_s = max(worst_s, verdict.worst_s)
            else:
                here, there = verdict.preemptions
                print(f"{seed} ({', '.join(run.regimes)}): {verdict.where}; preemptions {here} here, {there} there")
    for name in ("all", *other.regimes, "none of these"):
        print(f"{name}: {equal[name]:,} of {runs[name]:,} runs equal")
    print(
        f"{tokens:,} tokens, {preemptions:,} preemptions; equal runs within {worst_s:.1e} s (bound {TOLERANCE_S:.0e})"
    )
    return int(equal["all"] < runs["all"])


if __name__ == "__main__":
    sys.exit(main())
