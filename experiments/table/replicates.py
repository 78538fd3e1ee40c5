"""What the replicates of a cell are samples of, and the transforms that made their requests."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any

from omegaconf import OmegaConf

from experiments.table.select import ABSENT, shown, value_of
from framework.cli.conf import CONF
from framework.run.store import Record

Runs = Mapping[Any, Record]  # runs by replicate
_TRANSFORMS = CONF / "trace" / "_transforms.yaml"
_KINDS = {"twin": "fresh samples of the fitted trace", "synthetic": "fresh samples of the synthetic load"}


def sampling(runs: Runs) -> str | None:
    """The kind of each replicate, for a reader; None if all have the same requests, and therefore no
    information on others.
    """
    records = list(runs.values())
    if len({value_of(record, "trace.seed") for record in records}) < max(2, len(records)):
        return None
    block_s = value_of(records[0], "trace.resample_s")
    resampled = f"resampled in blocks of {block_s:g} s" if isinstance(block_s, (int, float)) else None
    kind = _KINDS.get(str(records[0].summary.get("trace_source")))
    if kind is None or _is_recorded(records[0]):
        return resampled
    return f"{kind}, {resampled}" if resampled else kind


def trace_of(runs: Runs) -> str:
    """The name of a cell's trace."""
    return str(next(iter(runs.values())).summary.get("trace"))


def transforms(records: Collection[Record], apart: Collection[str]) -> str:
    """The changes to a trace in some of `records`, as in "limit 2000", without keys `apart`; empty if there are
    none.
    """
    parts = []
    for key, default in _defaults().items():
        found = {value_of(record, f"trace.{key}") for record in records} - {ABSENT}
        if f"trace.{key}" not in apart and found - {default}:
            parts.append(f"{key} {' or '.join(sorted(shown(value) for value in found))}")
    return ", ".join(parts)


def _is_recorded(record: Record) -> bool:
    """Whether requests are read one by one, for any origin."""
    path = value_of(record, "trace.path")
    return value_of(record, "trace.format") == "parquet" or str(path).endswith(".parquet")


@functools.cache
def _defaults() -> dict[str, Any]:
    """The transforms that every trace takes, with the values that change nothing."""
    content = OmegaConf.to_container(OmegaConf.load(_TRANSFORMS))
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items() if key != "seed"}
