"""One study of measured deployments: replayed as they are, cross-validated, and fitted as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from experiments.validation.fidelity.beyond import beyond
from experiments.validation.fidelity.fit import (
    AGGREGATED,
    Cell,
    Surfaces,
    calibration,
    choose_clients,
    fit_all,
    prior_of,
    terms_of,
)
from experiments.validation.fidelity.replay import Replay, Replayed, replay_all
from experiments.validation.fidelity.rows import Row
from experiments.validation.fidelity.score import splits
from experiments.validation.fidelity.server import Client, assumed, unsupported
from framework.cli.terminal import progress_line
from framework.timing.calibration_terms import Calibration


class Replays:
    """Replays each task once, on several processes, with progress."""

    def __init__(self, processes: int) -> None:
        self._known: dict[Replay, Replayed | str] = {}
        self._processes = processes

    def __call__(self, tasks: Sequence[Replay]) -> list[Replayed | str]:
        """Outcomes in the order of the tasks."""
        fresh = sorted({task for task in tasks if task not in self._known}, key=_shared_tables)
        with progress_line("replaying deployments", "runs") as progress:
            for at, outcome in enumerate(replay_all(fresh, self._processes)):
                self._known[fresh[at]] = outcome
                if progress is not None:
                    progress(at + 1, len(fresh))
        return [self._known[task] for task in tasks]

    def __len__(self) -> int:
        return len(self._known)


@dataclass(frozen=True)
class Study:
    """The results for the rows of one mode, kind and backend.

    `raw`: predictions with nothing fitted; `validated`: with terms and clients from other folds' deployments; both by
    key. `failures`: why the other rows could not be replayed. `terms`: fitted to all `rows`, by cell. `beyond`: tests
    of terms on the other side of an axis of load (`beyond.py`).
    """

    rows: tuple[Row, ...]
    raw: Mapping[str, Replayed]
    validated: Mapping[str, Replayed]
    failures: Mapping[str, str]
    terms: Mapping[Cell, Calibration]
    beyond: pl.DataFrame = field(default_factory=pl.DataFrame)


@dataclass(frozen=True)
class _Fold:
    training: list[Row]
    test: list[Row]
    clients: Mapping[str, Client]


def study(rows: Sequence[Row], run: Replays) -> Study:
    """Replay, cross-validate, and fit to everything."""
    failures = {row.key: reason for row in rows if (reason := unsupported(row))}
    rows = [row for row in rows if row.key not in failures]
    outcomes = run([Replay(row, assumed(row), Calibration()) for row in rows])
    raw = {row.key: one for row, one in zip(rows, outcomes, strict=True) if isinstance(one, Replayed)}
    failures |= {row.key: one for row, one in zip(rows, outcomes, strict=True) if isinstance(one, str)}
    rows = [row for row in rows if row.key not in failures]
    folds = [_Fold(training, test, choose_clients(rows, training, run)) for training, test in splits(rows)]
    whole = _Fold(rows, [], choose_clients(rows, rows, run))
    prior = prior_of(rows[0]) if rows else AGGREGATED
    surfaces = Surfaces.laid(((row, fold.clients[row.key]) for fold in (*folds, whole) for row in rows), run, prior)
    tasks = [task for fold in folds for task in _held_out(fold, surfaces)]
    return Study(
        rows=tuple(rows),
        raw=raw,
        validated={task.row.key: one for task, one in zip(tasks, run(tasks), strict=True) if isinstance(one, Replayed)},
        failures=failures,
        terms={cell: calibration(found) for cell, found in fit_all(rows, whole.clients, surfaces).items()},
        beyond=beyond(rows, whole.clients, surfaces, run),
    )


def _held_out(fold: _Fold, surfaces: Surfaces) -> list[Replay]:
    """The test rows with predictions from the training rows."""
    found = fit_all(fold.training, fold.clients, surfaces)
    return [Replay(row, fold.clients[row.key], calibration(terms_of(row, found))) for row in fold.test]


def _shared_tables(task: Replay) -> tuple[str, ...]:
    """A sort key that groups tasks which read the same tables."""
    row, client = task.row, task.client
    return (row.gpu, row.backend, row.deployment, row.key, repr(client), repr(task.calibration))
