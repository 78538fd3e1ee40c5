"""A score for a policy in a file, as a program that searches for policies gets it.

    servelab judge ./mine.py:Mine
    servelab judge ./mine.py tier=minute seed=7 json=true

The file is played as text in a process of its own, without network, files or other processes, on samples of several
loads that no call before has met unless `seed` names them. The score is the mean share of the bound that no schedule
passes; vLLM's scheduler plays the same tier.
"""

from __future__ import annotations

import json
from pathlib import Path

from rich.table import Table

from experiments.judge.confined import Limits
from experiments.judge.scenarios import read_judging
from experiments.judge.score import Verdict, judge
from framework.cli.command import Arguments, command
from framework.cli.reading import read_text
from framework.cli.terminal import results_console
from framework.errors import InputError

_KEYS = {
    "tier": "quick (seconds, the default), minute or long",
    "seed": "of the samples; drawn anew by default",
    "cpu_s": "CPU seconds that the policy may take over all scenarios, by tier by default",
    "memory_bytes": "that it may take besides, 2 GiB by default",
    "json": "true: the verdict as JSON",
}


@command(__doc__, operands="FILE[:CLASS]", keys=_KEYS)
def main(arguments: Arguments) -> None:
    """Judge and print. Raises InputError for a file that cannot be read, and for a policy without a score."""
    if len(arguments.operands) != 1:
        raise InputError("judge takes one file, FILE.py or FILE.py:CLASS")
    place, _, name = arguments.operands[0].partition(".py:")
    file = Path(f"{place}.py" if name else place).expanduser()
    tier = arguments.own.get("tier", "quick")
    limits = Limits(
        arguments.number("cpu_s", read_judging().cpu_s(tier)), arguments.whole("memory_bytes", Limits.memory_bytes)
    )
    seed = arguments.whole("seed", 0, least=0) if "seed" in arguments.own else None
    verdict = judge(read_text(file), name=name, tier=tier, seed=seed, limits=limits)
    if arguments.truth("json"):
        print(json.dumps(verdict.as_dict()))
        return
    if verdict.error:
        raise InputError(f"{file} has no score: {verdict.error}")
    _show(verdict)


def _show(verdict: Verdict) -> None:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("load")
    for heading in ("sample", "req/s in time", "baseline", "bound", "of bound %"):
        table.add_column(heading, justify="right")
    for one in verdict.scenarios:
        rates = (f"{rate:.2f}" for rate in (one.goodput_rps, one.baseline_rps, one.bound_rps))
        table.add_row(one.load, str(one.seed), *rates, f"{100 * one.share:.1f}")
    console = results_console()
    console.print(table)
    console.print(f"score {verdict.score:.4f}, baseline {verdict.baseline:.4f}; seed {verdict.seed}", highlight=False)
    console.print(verdict.isolation, highlight=False, style="dim")
