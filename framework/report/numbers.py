"""Figures in the form that people read."""

from __future__ import annotations

from collections.abc import Sequence

NONE = "–"  # sign of an undefined figure


def side_by_side(headings: Sequence[str]) -> list[str]:
    """Headings in lines for columns side by side: a first line that repeats the one before it is empty."""
    firsts = [heading.partition("\n")[0] for heading in headings]
    repeats = [first == before for first, before in zip(firsts, ["", *firsts], strict=False)]
    return [
        heading.removeprefix(first) if is_repeated else heading
        for heading, first, is_repeated in zip(headings, firsts, repeats, strict=True)
    ]


def percent(part: float | None) -> str:
    """In percent, with one decimal."""
    return NONE if part is None else f"{100 * part:.1f} %"


def small_percent(part: float) -> str:
    """As `percent`, for a part that is not 0: what would read 0.0 % is `under 0.1 %`."""
    return "under 0.1 %" if part < 0.0005 else percent(part)


def number(value: float) -> str:
    """Three significant digits, more only before the point."""
    if value == 0 or abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}" if abs(value) >= 0.0995 else f"{value:.3g}"
