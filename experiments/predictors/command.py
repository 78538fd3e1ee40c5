"""The errors of each predictor of output lengths, on each trace, next to published ones.

    python -m experiments.predictors mooncake reasoning only=lognormal,bucket

Operands are traces. Learning predictors have seen the first half of each; errors are those of the second half, when 0,
25, 50 and 75 % of each output have been generated. `median` always expects the median output of the first half.
Settings are those of the trace and of predictors, as `trace.limit=5000`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence

import numpy as np
from rich.table import Table

from experiments.predictors.score import PROGRESS, Constant, Score, mae_after, scores
from experiments.tune.base import Configuration
from framework.cli.arguments import ANY
from framework.cli.command import Arguments, command
from framework.cli.conf import CONF
from framework.cli.terminal import results_console
from framework.errors import InputError
from framework.policy.predictor import Predictor
from framework.run.building import build
from framework.workload import Workload

_TRACES = ("mooncake", "azure_conv", "azure_code", "reasoning")
_WIDTH = 200  # tokens of a bucket
_KEYS = {
    "only": "predictors, joined by commas; all but none by default",
    "width": f"tokens of a bucket of output lengths, {_WIDTH} by default",
}
_REFERENCE = "median"


@command(__doc__, operands="[TRACE ...]", keys=_KEYS, settings=ANY)
def main(arguments: Arguments) -> None:
    """Print a table for each trace, then the published figures. Raises InputError for unknown predictors."""
    names = arguments.several("only") or [name for name in _shipped() if name != "none"]
    for name in names:
        if name not in _shipped():
            raise InputError(f"only={name}: there is no such predictor; there are {', '.join(_shipped())}")
    width = arguments.whole("width", _WIDTH)
    console = results_console()
    for trace in arguments.operands or _TRACES:
        config = Configuration((f"trace={trace}", *arguments.settings)).config
        workload: Workload = build(config, "trace")
        if len(workload) < 2:
            raise InputError(f"trace {trace}: one request has no two halves")
        print(f"{trace}: {len(workload):,} requests", file=sys.stderr)
        found = {name: scores(_predictor(name, arguments.settings), workload, width) for name in names}
        found[_REFERENCE] = scores(Constant(), workload, width)
        console.print(_table(f"{workload.name} ({workload.source})", found, width))
    for line in published(arguments.settings):
        console.print(line, markup=False, highlight=False)


def published(settings: Sequence[str]) -> Iterator[str]:
    """The published figures, next to those of the predictor that models each paper's."""
    long = _made(np.random.default_rng(0).integers(30_000, 32_001, 4000))
    first, later = (mae_after(_predictor("lognormal", settings), long, tokens) for tokens in (0, 8_000))
    yield "outputs of 30,000 to 32,000 tokens (ARES, arXiv 2510.13668), MAE in tokens:"
    yield f"  from the prompt      published 18,256   lognormal {first:,.0f}"
    yield f"  after 8,000 tokens   published  2,929   lognormal {later:,.0f}"
    yield "its whole test set, whose lengths are not published: 3,873, 49.42 % less than 7,658 of a predictor by prompt"


def _made(output_tokens: np.ndarray) -> Workload:
    count = len(output_tokens)
    return Workload(np.arange(count, dtype=np.float64), np.full(count, 1000), output_tokens.astype(np.int64))


def _shipped() -> list[str]:
    return sorted(file.stem for file in (CONF / "predictor").glob("*.yaml"))


def _predictor(name: str, settings: Sequence[str]) -> Predictor:
    """The named predictor with those of the settings that it has."""
    own = [word for word in settings if word.startswith("predictor.")]
    known = Configuration((f"predictor={name}",)).config.predictor
    there = [word for word in own if word.removeprefix("predictor.").partition("=")[0] in known]
    made: Predictor = build(Configuration((f"predictor={name}", *there)).config, "predictor")
    return made


def _table(title: str, found: dict[str, list[Score]], width: int) -> Table:
    table = Table(title=f"{title}: errors of remaining tokens", title_justify="left", box=None, pad_edge=False)
    table.add_column("\npredictor")
    for share in PROGRESS:
        table.add_column(f"MAE\nat {share:.0%}", justify="right")
    for heading in ("bias\nat 0%", "rank\nat 0%", "rank\nat 50%", f"bucket {width}\nat 0%", "in spread\nat 50%"):
        table.add_column(heading, justify="right")
    for name, rows in sorted(found.items(), key=lambda item: item[1][0].mae):
        start, middle = rows[0], rows[2]
        cells = [_tokens(row.mae) for row in rows]
        cells += [_tokens(start.bias, "+"), _share(start.rank), _share(middle.rank)]
        table.add_row(name, *cells, _percent(start.bucket), _percent(middle.within))
    return table


def _tokens(value: float, sign: str = "") -> str:
    return "0" if value == 0 else f"{value:{sign},.{0 if abs(value) >= 10 else 1}f}"


def _share(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.0%}"
