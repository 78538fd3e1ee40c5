"""A map of two settings: a table with darker cells for higher values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from framework.report.numbers import number
from framework.report.page.markup import text

_LIGHT, _DARK = 6, 50  # percent of the colour, from the lowest value to the highest: text stays legible on both


def heat_map(
    title: str,
    note: str,
    axes: tuple[str, str],
    names: tuple[Sequence[str], Sequence[str]],
    values: NDArray[np.float64],
) -> str:
    """A map of `values` (down, across), NaN if there is none; `axes` and `names` of both directions, down first."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    head = "".join(f'<th scope="col" class="n">{text(name)}</th>' for name in names[1])
    corner = f'<th scope="col">{text(axes[0])} \\ {text(axes[1])}</th>'
    rows = "".join(
        f'<tr><th scope="row">{text(name)}</th>{"".join(_cell(float(value), low, high) for value in row)}</tr>'
        for name, row in zip(names[0], values, strict=True)
    )
    return (
        f"<figure><figcaption><strong>{text(title)}</strong> <span>{text(note)}</span></figcaption>"
        f'<div class="scroll" tabindex="0"><table class="map"><thead><tr>{corner}{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></figure>"
    )


def _cell(value: float, low: float, high: float) -> str:
    if not np.isfinite(value):
        return '<td class="n">–</td>'
    place = (value - low) / (high - low) if high > low else 1.0
    shade = round(_LIGHT + (_DARK - _LIGHT) * place)
    best = ' class="n best"' if value == high else ' class="n"'
    style = f"background:color-mix(in srgb,var(--c0) {shade}%,transparent)"
    return f'<td{best} style="{style}"><data value="{value!r}">{number(value)}</data></td>'
