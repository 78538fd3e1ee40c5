"""Deployments of models with linear and with sparse attention, which no fit has seen, against default runs.

    python -m experiments.validation.given.later_models
    python -m experiments.validation.given.later_models every=4

They are those of Qwen3.5-397B and GLM-5 with SGLang in the list that `experiments.validation.fidelity` reads, replayed
in the same way, with the server's own terms. It needs `pip install '.[fidelity]'`.
"""

from __future__ import annotations

import polars as pl

from experiments.validation.fidelity.csv_file import LATER_MODELS, read_rows
from experiments.validation.fidelity.replay import Replay, Replayed, replay
from experiments.validation.fidelity.server import assumed, unsupported
from experiments.validation.given.coverage import unfitted
from framework.cli.command import Arguments, command
from framework.cli.terminal import tell

_KEYS = {"every": "of how many deployments one is replayed; each by default"}


@command(__doc__, keys=_KEYS)
def main(arguments: Arguments) -> None:
    """Print the errors by model, GPU, type and version of the server."""
    rows = read_rows(models=LATER_MODELS).rows[:: arguments.whole("every", 1)]
    lines = []
    for row in rows:
        found = unsupported(row) or replay(Replay(row, assumed(row), unfitted()))
        if isinstance(found, Replayed):
            errors = {"TTFT": found.ttft_s / row.ttft_s - 1, "TPOT": found.tpot_s / row.tpot_s - 1}
            late_ms = 1e3 * (row.ttft_s - found.ttft_s)
            lines.append({"model": row.model, "gpu": row.gpu, "dtype": row.dtype, "late_ms": late_ms, **errors})
    table = pl.DataFrame(lines)
    tell(f"{len(table)} of {len(rows)} deployments, median error and mean absolute error in percent:")
    shown = [pl.len(), pl.col("late_ms").median()]
    for name in ("TTFT", "TPOT"):
        error = 100 * pl.col(name)
        shown += [error.median().alias(name), error.abs().mean().alias(f"{name}_mape")]
    for names in (("model",), ("model", "gpu", "dtype")):
        for line in table.group_by(names).agg(*shown).sort(names).iter_rows(named=True):
            place = ", ".join(line[name] for name in names)
            figures = ", ".join(f"{name} {line[name]:+.0f} ({line[f'{name}_mape']:.0f})" for name in ("TTFT", "TPOT"))
            tell(f"{place}: {line['len']} deployments, {figures}, TTFT {line['late_ms']:+.0f} ms longer than predicted")


if __name__ == "__main__":
    main.start()
