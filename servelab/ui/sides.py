"""Stored runs as sides of a comparison."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

import polars as pl

from framework.metrics.summary import Evaluation
from framework.report.page.compared import Run
from framework.run.store import Record


def sides(records: Sequence[Record], labels: Sequence[str], evaluations: Sequence[Evaluation] = ()) -> list[Run]:
    """The runs as sides of a comparison, with their requests if they were evaluated again."""
    every: Iterable[tuple[str, Record, Evaluation | None]] = zip_longest(labels, records, evaluations)
    return [
        Run(
            label,
            f"record {one.key[:12]}",
            again.summary if again else one.summary,
            again.requests if again else pl.DataFrame(),
            one.config,
        )
        for label, one, again in every
    ]
