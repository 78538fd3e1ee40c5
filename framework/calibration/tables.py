"""The tables of a calibration on a terminal: measured times, simulated ones before and after, and the terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from framework.calibration.optimise import Fitted
from framework.calibration.replay import Served

Chosen = NDArray[np.int64]
_NONE = "–"
_MS, _US = (1e3, "ms"), (1e6, "µs")
_UNITS = dict.fromkeys(("step_s", "host_s", "request_s"), _MS)
_UNITS |= dict.fromkeys(("message_s", "host_sequence_s", "eager_layer_s", "token_s"), _US)
_MEANINGS = {
    "kernel": "all kernels but communication",
    "compute": "what is bound by arithmetic, besides",
    "communication": "between GPUs",
    "step_s": "each step, on the GPU",
    "message_s": "each wait of GPUs for each other, for each doubling of their number",
    "host_s": "each step, on the host",
    "host_sequence_s": "each decode of a step, on the host",
    "eager_layer_s": "each layer that no CUDA graph launches",
    "request_s": "each request, on its way there and back",
    "token_s": "each prompt token, before the scheduler sees it",
}


@dataclass(frozen=True)
class Replayed:
    """One benchmark of N requests: its measured times, and its replays without and with the fitted terms.

    `checked` has the times with terms that were fitted without the requests `held_out` (indices), to what `fitted_to`
    says. `title` is a line on the benchmark, and `output_tokens` has shape (N,).
    """

    title: str
    output_tokens: NDArray[np.int64]
    measured: Served
    before: Served
    after: Served
    checked: Served
    held_out: Chosen
    fitted_to: str
    notes: tuple[str, ...] = ()


def report(replays: Sequence[Replayed], fitted: Fitted, untested: Sequence[str]) -> RenderableType:
    """The result of a calibration, for `rich.console.Console.print`; `untested` are lines on the untested loads."""
    parts: list[RenderableType] = []
    for replayed in replays:
        parts += [Text(replayed.title, style="bold"), _times(replayed), _check(replayed)]
        parts += [Text(f"note: {note}") for note in replayed.notes]
        parts.append(Text())
    parts.append(_terms(fitted))
    parts += [Text(f"note: {line}") for line in (*fitted.warnings(), *untested)]
    return Group(*parts)


def figures(served: Served, output_tokens: NDArray[np.int64], chosen: Chosen | None = None) -> dict[str, float | None]:
    """Latencies in milliseconds of all requests, or of those `chosen` by index, and throughputs per second of all.

    They are None if unknown; throughputs are left out for chosen requests.
    """
    latencies = {"TTFT": served.ttft_s, "TPOT": served.tpot_s, "E2E": served.e2e_s}
    found: dict[str, float | None] = {}
    for name, values_s in latencies.items():
        values_ms = 1e3 * (values_s if chosen is None else values_s[chosen])
        values_ms = values_ms[np.isfinite(values_ms)]
        for statistic, value in (
            ("mean", np.mean),
            ("P50", np.median),
            ("P99", lambda values: np.percentile(values, 99)),
        ):
            found[f"{name} ms {statistic}"] = float(value(values_ms)) if len(values_ms) else None
    if chosen is None:
        duration_s = served.duration_s
        found["requests/s"] = len(output_tokens) / duration_s if duration_s else None
        found["output tokens/s"] = int(output_tokens.sum()) / duration_s if duration_s else None
    return found


def _times(replayed: Replayed) -> Table:
    table = _table("", "measured", "uncalibrated", "", "calibrated", "")
    columns = [figures(each, replayed.output_tokens) for each in (replayed.measured, replayed.before, replayed.after)]
    measured, before, after = columns
    for name, value in measured.items():
        cells = [_number(value)]
        for simulated in (before[name], after[name]):
            cells += [_number(simulated), _difference(simulated, value)]
        table.add_row(name, *cells)
    return table


def _check(replayed: Replayed) -> Table:
    """The requests to which the terms in the last column were not fitted."""
    served = replayed.measured, replayed.before, replayed.checked
    measured, before, checked = (figures(each, replayed.output_tokens, replayed.held_out) for each in served)
    chosen = "all" if len(replayed.held_out) == len(replayed.output_tokens) else f"last {len(replayed.held_out)}"
    table = _table(f"{chosen}, fitted to {replayed.fitted_to}", "measured", "uncalibrated", "calibrated")
    for name, value in measured.items():
        table.add_row(name, _number(value), _difference(before[name], value), _difference(checked[name], value))
    return table


def _terms(fitted: Fitted) -> Table:
    table = _table("term", "of", "fitted", "±", left=("of",))
    for name, value in fitted.values.items():
        factor, unit = _UNITS.get(name, (1.0, "×"))
        known = fitted.known[name]
        style = None if known else "dim"
        text = f"{value * factor:.3f} {unit}", f"{fitted.errors[name] * factor:.3f}"
        table.add_row(name, _MEANINGS.get(name, ""), *text, style=style)
    return table


def _table(*headings: str, left: Sequence[str] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index == 0 or heading in left else "right")
    return table


def _number(value: float | None) -> str:
    if value is None:
        return _NONE
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")


def _difference(simulated: float | None, measured: float | None) -> str:
    if simulated is None or measured is None or measured == 0:
        return _NONE
    return f"{100 * (simulated / measured - 1):+.1f} %"
