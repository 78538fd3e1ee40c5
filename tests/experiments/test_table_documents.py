"""Whole tables of drawn runs, in each format and width: to the letter as they were."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.table.command import main, read_request, tabulate
from experiments.table.csv_file import as_csv
from experiments.table.formats import as_latex, as_markdown, as_text
from experiments.table.sheet import lay_out
from framework.errors import InputError
from framework.run.store import Record
from tests.experiments.test_paper_table import record
from tests.helpers.pinned import check_texts

KEPT = Path(__file__).with_name("tables.txt")
POLICIES = ("chunked", "distserve", "ares")


def drawn(seed: int) -> list[Record]:
    """Runs of some policies on some traces: of both sources, some missing, some of figures, states and classes."""
    rng = np.random.default_rng(seed)
    traces = [("synthetic", "synthetic"), ("mooncake", "twin"), ("azure_conv", str(rng.choice(["real", "twin"])))]
    chosen = [traces[k] for k in sorted(rng.choice(3, int(rng.integers(1, 4)), replace=False))]
    replicates, level = int(rng.choice([1, 2, 3, 5, 7])), float(10 ** rng.uniform(-1, 3))
    return list(_runs(rng, chosen, replicates, level))


def _runs(rng: np.random.Generator, traces: list[tuple[str, str]], replicates: int, level: float) -> Iterator[Record]:
    for policy in POLICIES:
        for trace, source in traces:
            own = level * float(rng.choice([1.0, 1.0, 1.1, 2.0]))
            state = (
                {} if rng.random() < 0.4 else {"load_state": str(rng.choice(["stable", "backlogged", "overloaded"]))}
            )
            if rng.random() < 0.1:
                continue
            for seed in range(replicates if rng.random() < 0.8 else max(1, replicates - 1)):
                goodput = own * (1 + 0.05 * rng.standard_normal() + 0.02 * seed)
                figures: dict[str, Any] = {
                    "goodput_rps": float(goodput) if rng.random() < 0.95 else 0.0,
                    "p99_ttft_ms": None if rng.random() < 0.05 else float(own * 31 * rng.uniform(0.9, 1.1)),
                    "slo_attainment": float(rng.uniform(0.5, 1.0)),
                    "rejected": int(rng.choice([0, 0, 0, 7])),
                    "window_is_short": bool(rng.random() < 0.2),
                    "extrapolated": float(rng.choice([0.0, 0.0, 0.125])),
                    "extrapolation": float(rng.uniform(0.5, 3.0)),
                    "gpus": int(rng.choice([5, 5, 5, 8])),
                    "classes": {"chat": {"p99_ttft_ms": float(rng.uniform(1, 9))}},
                    **state,
                }
                config = {"slo.ttft_s": 2.0, "engine.token_budget": 512 * (1 + (policy == "ares"))}
                yield record(policy, trace, seed, source, config, **figures)


REQUESTS: tuple[tuple[str, ...], ...] = (
    (),
    ("baseline=chunked",),
    ("metric=goodput_rps,p99_ttft_ms,slo_attainment",),
    ("metric=goodput_rps,p99_ttft_ms", "baseline=chunked"),
    ("rows=trace", "columns=policy", "baseline=chunked"),
    ("rows=policy,engine.token_budget", "metric=p99_ttft_ms,preemptions"),
    ("columns=metric", "metric=goodput_rps,p99_ttft_ms@chat,cost_usd", "trace=synthetic"),
    ("columns=metric", "metric=goodput_rps,slo_attainment", "trace=mooncake", "baseline=ares"),
    ("policy=chunked,ares", "metric=p99_ttft_ms"),
    ("rows=policy", "columns=trace,slo.ttft_s", "seed=0,1,2"),
)


def documents(seed: int) -> Iterator[tuple[str, str]]:
    request = REQUESTS[seed % len(REQUESTS)]
    asked = read_request(main.read(request))
    try:
        found = tabulate(asked, drawn(seed))
    except InputError as error:
        yield f"{seed} {' '.join(request)}", f"error: {error}\n"
        return
    sheet = lay_out(found, asked.filters)
    name = f"{seed} {' '.join(request)}"
    if seed % 2:
        yield f"{name}: {(width := 44 + 7 * (seed % 9))} columns", as_text(sheet, width)
    else:
        yield f"{name}: Markdown", as_markdown(sheet)
    if seed % 6 == 0:
        yield f"{name}: CSV", as_csv(found)
    if seed % 6 == 3:
        yield f"{name}: LaTeX", as_latex(replace(sheet, title=f"{sheet.title} & 5 % of ~{{x}}_^\\|"))


def test_tables_are_written_as_they_were() -> None:
    check_texts(KEPT, dict(document for seed in range(28) for document in documents(seed)))
