"""One line on how `cluster.prefill=auto` divided a run's instances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from framework.report.numbers import number


def split_line(split: Mapping[str, Any]) -> str:
    """The key `split` of a summary in words: the instances, and what a request needs of each pool."""
    rate = "" if split["rate_rps"] is None else f" at {number(split['rate_rps'])} req/s"
    both = ", which prefill too," if split["decode_prefills"] else ""
    parts = []
    for pool, of in (("prefill", " a request"), ("decode", "")):
        load = split[f"{pool}_load"]
        parts.append(f"{pool} {number(split[f'{pool}_s'])} s{of}" + ("" if load is None else f" ({100 * load:.0f} %)"))
    return f"split {split['prefill']} prefill + {split['decode']} decode{both}{rate}: {', '.join(parts)}"
