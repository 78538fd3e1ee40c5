"""A store of many runs, made of a few real ones: `python -m tests.helpers.many_runs FROM TO 10000`.

Each is a copy of a real run with another seed and another key, whose figures differ by a few percent, as those of other
seeds do. It is for trying how fast a large store is shown.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from framework.metrics.figures import METRICS
from framework.run.store import Record, Store

_SPREAD = 0.03


def copies(real: list[Record], count: int) -> list[Record]:
    """`count` runs: each real one in turn, with the next seed."""
    rng = np.random.default_rng(0)
    return [_other(real[number % len(real)], number, number // len(real), rng) for number in range(count)]


def _other(record: Record, number: int, seed: int, rng: np.random.Generator) -> Record:
    factor = float(np.exp(rng.normal(0.0, _SPREAD)))
    summary = {
        key: factor * value if isinstance(value, float) and key in METRICS else value
        for key, value in record.summary.items()
    }
    return replace(record, key=f"{number:032x}", config={**record.config, "seed": seed}, summary=summary)


if __name__ == "__main__":
    origin, target, count = sys.argv[1:]
    made = Store(Path(target))
    for one in copies(Store(Path(origin)).read(), int(count)):
        made.put(one)
    print(f"{len(made.read()):,} runs in {target}")
