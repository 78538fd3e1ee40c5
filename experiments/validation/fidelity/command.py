"""Measured deployments replayed by the simulator, next to the vendor's own predictor.

    python -m experiments.validation.fidelity                                # everything: half an hour of one process
    python -m experiments.validation.fidelity kinds=dense backends=vllm

It needs `pip install '.[fidelity]'`: the package aiconfigurator-core (NVIDIA, Apache-2.0) holds the kernel tables and
the measurements. Each row is replayed as it was measured: a closed loop with as many requests in flight. Fitted
predictions are cross-validated in five folds by deployment: the same model, system, backend, parallelism and precision
are never on both sides, and all that is fitted or chosen comes from the other side. Predictors are compared on the rows
that all of them predict. It writes errors.csv (every row), scores.csv, scatter.png and scatter.svg into out= (default
outputs/fidelity). With both kinds and vLLM, stages of load tests in open loop (online.csv) are predicted by a fit to
closed loops, and closed loops by a fit to the stages alone: stages.csv, stages.png and stages.svg.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from experiments.validation.fidelity.calibrations import STAGES_OF, write_fitted
from experiments.validation.fidelity.campaigns import KINDS, compared, from_stages
from experiments.validation.fidelity.csv_file import key_difference, read_rows
from experiments.validation.fidelity.fit import calibration, vector
from experiments.validation.fidelity.online import read_stages
from experiments.validation.fidelity.replay import Replay, Replayed
from experiments.validation.fidelity.report import (
    as_table,
    beyond,
    draw,
    overview,
    require_matplotlib,
    sections,
    write_errors,
    write_scores,
)
from experiments.validation.fidelity.score import common, compare, scaled
from experiments.validation.fidelity.server import assumed
from experiments.validation.fidelity.stage_report import Record, stage_tables, write_stages
from experiments.validation.fidelity.study import Replays, Study, study
from experiments.validation.fidelity.vendor import stored_predictions
from framework.cli.command import Arguments, command
from framework.cli.files import require_writable
from framework.cli.terminal import results_console
from framework.errors import InputError
from framework.timing.calibration_terms import Calibration
from framework.timing.shipped.shipped_setups import BACKENDS

KEYS = Path(__file__).with_name("rows.txt")
OURS, VENDOR = "servelab", "aiconfigurator"
_GROUPS = (("agg", "dense"), ("agg", "moe"), ("disagg", "dense"), ("disagg", "moe"))
_MOST_PROCESSES = 8


_KEYS = {
    "kinds": "of models: dense, moe, or both, joined by a comma, by default",
    "backends": f"servers: some of {', '.join(BACKENDS)}; all by default",
    "calibrations": "a directory: the terms fitted to all rows are written there, too, for timing=measured",
    "out": "directory of the results, outputs/fidelity by default",
}


@dataclass(frozen=True)
class Options:
    """The subjects of the study, the directory of its results, and that of fitted terms (None: not written)."""

    kinds: tuple[str, ...]
    backends: tuple[str, ...]
    out: Path
    calibrations: Path | None


@command(__doc__, keys=_KEYS)
def main(arguments: Arguments) -> None:
    """Study, print, write."""
    options, started = parse(arguments), time.monotonic()
    require_matplotlib()
    for directory in filter(None, (options.out, options.calibrations)):
        require_writable(directory)
    reading = read_rows()
    known = [row for row in reading.rows if row.backend in options.backends]
    console = results_console()
    for line in reading.header():
        console.print(line, style="dim")
    if difference := key_difference(reading.rows, KEYS):
        print(f"note: {difference}", file=sys.stderr)
    run = Replays(min(_MOST_PROCESSES, os.cpu_count() or 1))
    studies = [
        study(rows, run)
        for mode, kind in _GROUPS
        if kind in options.kinds
        for backend in options.backends
        if (rows := [row for row in known if (row.mode, row.kind, row.backend) == (mode, kind, backend)])
    ]
    ours = pl.concat(own(one) for one in studies)
    shared_rows = [both for one in studies if (both := shared(one)) is not None]
    shown = [*overview(ours), *(sections(pl.concat(shared_rows)) if shared_rows else ())]
    tried = [one.beyond for one in studies if one.rows[0].mode == "agg" and len(one.beyond)]
    shown += [beyond(pl.concat(tried))] if tried else []
    for section in shown:
        console.print(as_table(section))
    for line in left_out(studies):
        console.print(line, style="dim")
    comparison = pl.concat([ours, *(frame.filter(pl.col("predictor") == VENDOR) for frame in shared_rows)])
    paths = [write_errors(comparison, options.out), write_scores(shown, options.out)]
    paths += draw(comparison, options.out)
    found: Mapping[str, Calibration] = {}
    if set(KINDS) <= set(options.kinds) and STAGES_OF[0] in options.backends:
        record = campaigns(studies, run)
        found = record.terms
        for table in stage_tables(record):
            console.print(table)
        paths += write_stages(record, options.out)
    if options.calibrations is not None:
        paths += write_fitted(studies, options.calibrations, found)
    print(f"{len(run):,} replays in {time.monotonic() - started:.0f} s; written:", *paths, sep="\n  ", file=sys.stderr)


def parse(arguments: Arguments) -> Options:
    """Options of the command line. Raises InputError for wrong ones."""
    kinds = tuple(arguments.several("kinds") or ("dense", "moe"))
    if not set(kinds) <= {"dense", "moe"}:
        raise InputError(f"kinds must be dense, moe or dense,moe; got {arguments.own['kinds']!r}")
    backends = tuple(arguments.several("backends") or BACKENDS)
    if not set(backends) <= set(BACKENDS):
        raise InputError(f"backends must be some of {', '.join(BACKENDS)}; got {arguments.own['backends']!r}")
    return Options(kinds, backends, arguments.path("out") or Path("outputs/fidelity"), arguments.path("calibrations"))


def campaigns(studies: Sequence[Study], run: Replays) -> Record:
    """Closed loops and stages in open loop, each predicted by a fit to the other."""
    both = {
        one.rows[0].kind: one for one in studies if (one.rows[0].mode, one.rows[0].backend) == ("agg", STAGES_OF[0])
    }
    closed = {kind: vector(one.terms[STAGES_OF]) for kind, one in both.items()}
    stages = read_stages()
    lines, terms = compared(stages, closed)
    alone = from_stages(stages)
    backwards = []
    for kind, one in both.items():
        rows = [row for row in one.rows if row.gpu == STAGES_OF[1]]
        outcomes = run([Replay(row, assumed(row), alone[kind]) for row in rows])
        predicted = {row.key: each for row, each in zip(rows, outcomes, strict=True) if isinstance(each, Replayed)}
        backwards += [compare(rows, {key: one.raw[key] for key in predicted}, OURS)]
        backwards += [compare(rows, predicted, OURS, fitted=True)]
    return Record(lines, pl.concat(backwards), {kind: calibration(found) for kind, found in terms.items()})


def own(one: Study) -> pl.DataFrame:
    """This project's predictions of every row that can be replayed, without and with a fit."""
    return pl.concat([compare(one.rows, one.raw, OURS), compare(one.rows, one.validated, OURS, fitted=True)])


def shared(one: Study) -> pl.DataFrame | None:
    """Both predictors, without and with a fit, on the rows that both predict; None if there are none."""
    stored = stored_predictions()
    theirs = {row.key: stored[row.key] for row in one.rows if row.key in stored and not stored[row.key].failure}
    if not theirs:
        return None
    raw = compare(one.rows, theirs, VENDOR)
    fitted = compare(one.rows, scaled(one.rows, theirs), VENDOR, fitted=True)
    return common([compare(one.rows, one.raw, OURS), compare(one.rows, one.validated, OURS, fitted=True), raw, fitted])


def left_out(studies: Iterable[Study]) -> list[str]:
    """Rows that could not be replayed, counted by reason."""
    reasons: Counter[str] = Counter()
    for one in studies:
        reasons.update(one.failures.values())
    return [f"not replayed: {count} {reason}" for reason, count in reasons.most_common()]
