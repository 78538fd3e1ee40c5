"""The picture of a league: policies by loads, each cell the share of the bound on capacity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments.league.results import Played
from experiments.league.sentences import spoken
from experiments.league.standing import Standing

NAME = "share_of_bound"
_ROW_IN, _HEAD_IN = 0.19, 0.95  # height of a row, and of everything else
_DARK = 0.55  # share of the scale below which letters are white


def draw(standings: Sequence[Standing], cells: Mapping[str, Played], out: Path) -> Path:
    """Write share_of_bound.png into `out`; the same results give the same bytes."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

    from experiments.plot.style import legible, save, styled

    names = list(cells)
    grid = np.array([[_share(one, name) for name in names] for one in standings])
    with styled():
        figure = Figure(figsize=(1.6 + 0.72 * len(names), _HEAD_IN + _ROW_IN * len(standings)))
        axes = figure.subplots()
        axes.grid(visible=False)
        top = float(np.nanmax(grid))
        image = axes.imshow(grid, vmin=0, vmax=top, cmap="cividis", aspect="auto")
        axes.set_xticks(range(len(names)), [legible(spoken(name)).replace(" ", "\n") for name in names])
        axes.set_yticks(range(len(standings)), [legible(one.policy) for one in standings])
        axes.tick_params(length=0)
        axes.xaxis.tick_top()
        axes.spines[:].set_visible(False)
        for (row, column), share in np.ndenumerate(grid):
            place = standings[row].places.get(names[column])
            if place is None:
                axes.text(column, row, "–", ha="center", va="center", fontsize=6.5, color="0.4")
                continue
            colour = "white" if share < _DARK * top else "black"
            weight = "bold" if place.is_as_good else "normal"
            axes.text(
                column,
                row,
                f"{100 * share:.0f}",
                ha="center",
                va="center",
                fontsize=6.5,
                color=colour,
                fontweight=weight,
            )
        bar = figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02, format=lambda share, _: f"{100 * share:.0f}")
        bar.outline.set_visible(False)
        bar.set_label("capacity, % of the bound; bold: not told from the best of the load")
        return save(figure, out, NAME, formats=("png",), dpi=200)[0]


def _share(standing: Standing, cell: str) -> float:
    place = standing.places.get(cell)
    return np.nan if place is None else place.share
