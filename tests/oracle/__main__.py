"""Compares `policy=vllm_v1` with vLLM's own scheduler, token by token: `make oracle`.

VLLM_PYTHON names the interpreter of an environment that has vLLM 0.24.0 (`pip install vllm==0.24.0`, some 9 GB, into an
environment of its own; no GPU is needed). Prints a line for each regime, and for each run that differs; the exit code
is 1 if there is one.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence

from tests.oracle.comparison import TOLERANCE_S, VARIABLE, compared, interpreter, oracle
from tests.oracle.drawing import REGIMES, drawn


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--runs", type=int, default=300, help="drawn runs (default 300)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="first seed (default 0)")
    chosen = parser.parse_args(arguments)
    python = interpreter()
    if python is None:
        print(f"{VARIABLE} is not set: it names the Python of an environment that has vLLM", file=sys.stderr)
        return 2
    runs: Counter[str] = Counter()
    equal: Counter[str] = Counter()
    worst_s, tokens, preemptions = 0.0, 0, 0
    with oracle(python) as vllm:
        for seed in range(chosen.first, chosen.first + chosen.runs):
            run = drawn(seed)
            verdict = compared(run, vllm.play(run))
            names = ["all", *(run.regimes or ("none of these",))]
            runs.update(names)
            tokens += sum(len(r.output) for r in run.requests)
            preemptions += verdict.preemptions[1]
            if verdict.equal:
                equal.update(names)
                worst_s = max(worst_s, verdict.worst_s)
            else:
                ours, theirs = verdict.preemptions
                print(f"{seed} ({', '.join(run.regimes)}): {verdict.where}; preemptions {ours} here, {theirs} there")
    for name in ("all", *REGIMES, "none of these"):
        print(f"{name}: {equal[name]:,} of {runs[name]:,} runs equal")
    print(
        f"{tokens:,} tokens, {preemptions:,} preemptions; equal runs within {worst_s:.1e} s (bound {TOLERANCE_S:.0e})"
    )
    return int(equal["all"] < runs["all"])


if __name__ == "__main__":
    sys.exit(main())
