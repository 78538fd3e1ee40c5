"""Errors of predictions: scores, folds that no deployment straddles, a calibration of two numbers.

A comparison is a frame with one line for each row and predictor; `compare` makes it, everything else reads it:

    key, mode, kind, gpu, backend, model, deployment, isl, osl, concurrency, doubtful, decile, queueing,
    predictor, fitted, and for each of METRICS: measured_<metric>, predicted_<metric>
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import linprog

from experiments.validation.fidelity.rows import Row, throughput
from framework.errors import InputError

METRICS = ("ttft_s", "tpot_s", "tokens_s_gpu")
FOLDS = 5
_QUEUEING = 0.25  # least share of its decoding time that a request waits for its first token
_FEWEST = 8  # least rows to which two numbers are fitted


class Latencies(Protocol):
    """A prediction for one row: mean seconds to the first token and between tokens."""

    @property
    def ttft_s(self) -> float: ...

    @property
    def tpot_s(self) -> float: ...


@dataclass(frozen=True)
class Means:
    """Latencies as two numbers."""

    ttft_s: float
    tpot_s: float


@dataclass(frozen=True)
class Scaling:
    """A calibration: `scale` x prediction + `offset_s`."""

    scale: float = 1.0
    offset_s: float = 0.0

    def __call__(self, predicted_s: float) -> float:
        return self.scale * predicted_s + self.offset_s


def compare(
    rows: Sequence[Row], predictions: Mapping[str, Latencies], predictor: str, *, fitted: bool = False
) -> pl.DataFrame:
    """The comparison of the rows that `predictions` has; see the module for its columns."""
    deciles = _deciles(rows)
    lines = [_line(row, predictions[row.key], deciles[row.key]) for row in rows if row.key in predictions]
    if not lines:
        raise InputError(f"{predictor} predicts none of the {len(rows)} rows")
    return pl.DataFrame(lines).with_columns(predictor=pl.lit(predictor), fitted=pl.lit(fitted))


def scores(comparison: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """For each predictor and group: `n`, and of each metric mean absolute and median signed error in percent."""
    keys = ["predictor", "fitted", *by]
    errors = [_relative(metric).alias(metric) for metric in METRICS]
    return (
        comparison.with_columns(errors)
        .group_by(keys, maintain_order=True)
        .agg(
            pl.len().alias("n"),
            *(expression for metric in METRICS for expression in _summary(metric)),
        )
        .sort(keys[2:] + keys[:2])
    )


def errors(comparison: pl.DataFrame) -> pl.DataFrame:
    """The comparison with the signed error of each metric in percent, `error_<metric>`."""
    return comparison.with_columns(_relative(metric).alias(f"error_{metric}") for metric in METRICS)


def common(comparisons: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """All comparisons below one another, only the rows that each of them has."""
    parts = list(comparisons)
    keys = set.intersection(*(set(part["key"]) for part in parts))
    return pl.concat(part.filter(pl.col("key").is_in(keys)) for part in parts)


def folds(rows: Sequence[Row], count: int = FOLDS, seed: int = 0) -> Mapping[str, int]:
    """A fold for each row's key. Rows of one deployment share it; each system and backend is spread over all of them.

    It depends on the rows and the seed alone. Raises InputError for fewer than two folds.
    """
    if count < 2:
        raise InputError(f"folds: at least 2 are needed to fit and test apart, got {count}")
    members: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        members[row.deployment].append(row)
    filled: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    total: Counter[int] = Counter()
    assigned: dict[str, int] = {}
    for deployment in sorted(members, key=lambda name: _shuffled(name, seed)):
        first = members[deployment][0]
        of_system = filled[first.gpu, first.backend]
        fold = min(range(count), key=lambda one: (of_system[one], total[one], one))
        of_system[fold] += len(members[deployment])
        total[fold] += len(members[deployment])
        assigned |= {row.key: fold for row in members[deployment]}
    return assigned


def splits(rows: Sequence[Row], count: int = FOLDS, seed: int = 0) -> Iterator[tuple[list[Row], list[Row]]]:
    """(rows to fit, rows to test) of each fold."""
    fold_of = folds(rows, count, seed)
    for fold in range(count):
        yield [row for row in rows if fold_of[row.key] != fold], [row for row in rows if fold_of[row.key] == fold]


def scaled(rows: Sequence[Row], predictions: Mapping[str, Latencies], seed: int = 0) -> Mapping[str, Means]:
    """Predictions after two numbers per metric, class, system and backend, fitted on the other folds' deployments.

    Doubtful rows are not fitted to. If the other folds have too few rows of a system and backend, the prediction stays
    as it is.
    """
    usable = [row for row in rows if row.key in predictions]
    found: dict[str, Means] = {}
    for training, test in splits(usable, seed=seed):
        fitted = _fit([row for row in training if not row.doubts], predictions)
        for row in test:
            ttft, tpot = fitted.get(_cell(row), (Scaling(), Scaling()))
            raw = predictions[row.key]
            found[row.key] = Means(ttft(raw.ttft_s), tpot(raw.tpot_s))
    return found


def least_relative(predicted_s: NDArray[np.float64], measured_s: NDArray[np.float64]) -> Scaling:
    """The scaling with scale, offset >= 0 of the least mean absolute relative error: a linear program.

    It minimises sum e_i subject to -e_i <= (scale x_i + offset - y_i) / y_i <= e_i. A few outliers hardly move it.
    """
    count = len(predicted_s)
    terms = np.column_stack([predicted_s / measured_s, 1 / measured_s])
    slack = np.eye(count)
    result = linprog(
        c=np.concatenate([[0.0, 0.0], np.ones(count)]),
        A_ub=np.block([[terms, -slack], [-terms, -slack]]),
        b_ub=np.concatenate([np.ones(count), -np.ones(count)]),
    )
    return Scaling(float(result.x[0]), float(result.x[1]))


def _line(row: Row, predicted: Latencies, decile: int) -> dict[str, object]:
    return {
        "key": row.key,
        "mode": row.mode,
        "kind": row.kind,
        "gpu": row.gpu,
        "backend": row.backend,
        "model": row.model,
        "deployment": row.deployment,
        "isl": row.isl,
        "osl": row.osl,
        "concurrency": row.concurrency,
        "doubtful": bool(row.doubts),
        "decile": decile,
        "queueing": row.ttft_s > _QUEUEING * (row.output_tokens - 1) * row.tpot_s,
        "measured_ttft_s": row.ttft_s,
        "measured_tpot_s": row.tpot_s,
        "measured_tokens_s_gpu": row.tokens_s_gpu,
        "predicted_ttft_s": predicted.ttft_s,
        "predicted_tpot_s": predicted.tpot_s,
        "predicted_tokens_s_gpu": throughput(row, predicted.ttft_s, predicted.tpot_s),
    }


def _deciles(rows: Sequence[Row]) -> Mapping[str, int]:
    """Load of each row, 1 to 10: the decile of its concurrency per GPU among rows of its mode and kind.

    Equal loads share a decile, the highest that any of them reaches.
    """
    loads: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        loads[row.mode, row.kind].append(row.concurrency / row.gpus)
    ordered = {group: np.sort(np.array(values)) for group, values in loads.items()}
    found = {}
    for row in rows:
        values = ordered[row.mode, row.kind]
        below = int(np.searchsorted(values, row.concurrency / row.gpus, side="right"))
        found[row.key] = max(1, -(-10 * below // len(values)))
    return found


def _relative(metric: str) -> pl.Expr:
    return (pl.col(f"predicted_{metric}") / pl.col(f"measured_{metric}") - 1) * 100


def _summary(metric: str) -> tuple[pl.Expr, pl.Expr]:
    error = pl.col(metric)
    return error.abs().mean().alias(f"{metric}_mape"), error.median().alias(f"{metric}_median")


def _shuffled(name: str, seed: int) -> str:
    return hashlib.sha256(f"{seed} {name}".encode()).hexdigest()


def _cell(row: Row) -> tuple[str, ...]:
    return (row.mode, row.kind, row.gpu, row.backend)


def _fit(
    rows: Iterable[Row], predictions: Mapping[str, Latencies]
) -> Mapping[tuple[str, ...], tuple[Scaling, Scaling]]:
    """(of TTFT, of TPOT) for each class, system and backend with enough rows."""
    cells: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        cells[_cell(row)].append(row)
    return {
        cell: (
            least_relative(*_pairs([(predictions[row.key].ttft_s, row.ttft_s) for row in members])),
            least_relative(*_pairs([(predictions[row.key].tpot_s, row.tpot_s) for row in members])),
        )
        for cell, members in cells.items()
        if len(members) >= _FEWEST
    }


def _pairs(pairs: Sequence[tuple[float, float]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    table = np.array(pairs)
    return table[:, 0], table[:, 1]
