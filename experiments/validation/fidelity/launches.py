"""The time to launch a layer kernel by kernel (`eager_layer_s`), with all other terms of a shipped fit kept.

    python -m experiments.validation.fidelity.launches kind=dense
    python -m experiments.validation.fidelity.launches kind=moe write=framework/timing/profiles

Two data sets show it. One is closed loops of short prompts, whose means also hold many other effects. The other is the
tail of first stages: 44 of 3,000 requests compute a whole prompt there, in steps larger than any graph, and the P99 of
TTFT is one of them. Both are replayed for each of a few times; losses are those of fits (`fit.py`), a P99 counts with 5
%. A stage that contains a server's cold start says nothing of launches and does not count (`_COLD`). It needs `pip
install '.[fidelity]'`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from experiments.validation.fidelity.calibrations import STAGES_OF
from experiments.validation.fidelity.csv_file import read_rows
from experiments.validation.fidelity.fit import NOISE, Floats
from experiments.validation.fidelity.online import Stage, read_stages, replayed
from experiments.validation.fidelity.replay import Replay, Replayed, replay
from experiments.validation.fidelity.rows import Row
from experiments.validation.fidelity.server import assumed, unsupported
from framework.cli.command import Arguments, command
from framework.cli.terminal import tell
from framework.errors import InputError
from framework.timing.calibration_terms import (
    Calibration,
    Fit,
    calibration_path,
    read_calibrations,
    replace_calibration,
)
from framework.timing.shipped.profile_files import shipped_directory

SECONDS = (1e-4, 5e-4, 6e-4, 7e-4, 8e-4, 9e-4, 1e-3)
_COLD = ("mixtral_8x7b",)  # first requests waited for half a second and longer
_TAIL_NOISE = 0.05  # standard deviation of the relative error of a P99, as of the median of a stage (campaigns.py)
_NOTE = "; eager_layer_s by experiments/validation/fidelity/launches.py"
_KEYS = {
    "kind": "dense or moe; dense by default",
    "write": "a directory of profiles, in whose calibration of the kind the best is written",
}


@command(__doc__, keys=_KEYS)
def main(arguments: Arguments) -> None:
    """Print the losses by seconds, with every stage and without those of each model."""
    kind, write = arguments.own.get("kind", "dense"), arguments.path("write")
    fit = _shipped(kind, shipped_directory())
    backend, gpu = STAGES_OF
    rows = [row for row in read_rows().rows if _counts(row, kind)]
    stages = [one for one in read_stages() if one.stage == 0 and one.kind == kind and one.model not in _COLD]
    closed, tails = of_closed_loops(rows, fit.calibration), of_tails(stages, fit.calibration)
    for seconds, loss, *of_stages in zip(SECONDS, closed, *tails.values(), strict=True):
        tell(f"{1e3 * seconds:.1f} ms: {len(rows)} closed loops {loss:.1f}, P99 {np.round(of_stages, 3).tolist()}")
    tell(f"best: {1e3 * best(closed, tails):.1f} ms")
    for stage in stages:
        others = {other: errors for other, errors in tails.items() if other.model != stage.model}
        at = SECONDS.index(best(closed, others))
        tell(f"without {stage.model}: {1e3 * SECONDS[at]:.1f} ms, its P99 is off by {100 * tails[stage][at]:+.1f} %")
    if write is not None:
        found = replace(fit.calibration, eager_layer_s=best(closed, tails))
        note = fit.note.removesuffix(_NOTE) + _NOTE
        replace_calibration(calibration_path(write, gpu, backend), replace(fit, calibration=found, note=note))


def of_closed_loops(rows: Sequence[Row], terms: Calibration) -> Floats:
    """The loss of all rows, for each of SECONDS."""
    losses = []
    for seconds in SECONDS:
        outcomes = [replay(Replay(row, assumed(row), replace(terms, eager_layer_s=seconds))) for row in rows]
        errors = [
            np.log([one.ttft_s / row.ttft_s, one.tpot_s / row.tpot_s])
            for row, one in zip(rows, outcomes, strict=True)
            if isinstance(one, Replayed)
        ]
        losses.append(soft_l1(np.array(errors) / NOISE))
    return np.array(losses)


def of_tails(stages: Sequence[Stage], terms: Calibration) -> Mapping[Stage, Floats]:
    """The relative error of each stage's P99 of TTFT, for each of SECONDS."""
    return {
        stage: np.array(
            [
                replayed(stage, replace(terms, eager_layer_s=seconds)).ttft_ms_p99 / stage.ttft_ms_p99 - 1
                for seconds in SECONDS
            ]
        )
        for stage in stages
    }


def best(closed: Floats, tails: Mapping[Stage, Floats]) -> float:
    """The one of SECONDS with the least loss over closed loops and tails."""
    of_tails = [[soft_l1(error / _TAIL_NOISE) for error in errors] for errors in tails.values()]
    losses = closed + np.sum(of_tails, axis=0) if tails else closed
    return SECONDS[int(np.argmin(losses))]


def soft_l1(residuals: Floats) -> float:
    """The loss of residuals of any shape, in standard deviations."""
    return float((np.sqrt(1 + np.square(residuals)) - 1).sum())


def _shipped(kind: str, directory: Path) -> Fit:
    backend, gpu = STAGES_OF
    for fit in read_calibrations(calibration_path(directory, gpu, backend)):
        if fit.selector.kind == kind:
            return fit
    raise InputError(f"kind must be dense or moe, got {kind!r}")


def _counts(row: Row, kind: str) -> bool:
    own = (row.backend, row.gpu) == STAGES_OF and row.kind == kind and row.mode == "agg"
    return own and not row.doubts and not unsupported(row)


if __name__ == "__main__":
    main.start()
