"""A part of a run's page: what limits its goodput, and what would improve it."""

from __future__ import annotations

import numpy as np

from framework.diagnosis.trials import Trial, Trials
from framework.report.numbers import number
from framework.report.page.bars import stacked_bars
from framework.report.page.markup import Cell, Legend, Sheet, figure, text
from framework.report.trials_table import helping, units, verdict


def limits(trials: Trials) -> str:
    """The sentences, then the worth of each removed cause and each tried remedy."""
    said = "".join(f"<p>{text(line)}</p>" for line in verdict(trials))
    below = f'<p class="note">{text(units(trials))}</p>' if units(trials) else ""
    return "".join([f'<div class="finding">{said}</div>', _removed(trials), _tried(trials), below])


def _removed(trials: Trials) -> str:
    if not trials.removed:
        return ""
    bars = [("as it is", trials.base), *((f"with {one.cause.without}", one.trial) for one in trials.removed)]
    rows: list[list[Cell]] = [[name, *_figures(trial, trials.base)] for name, trial in bars]
    rest = ", ".join(cause.without for cause in trials.indifferent)
    after = f'<p class="note">No better with {text(rest)}.</p>' if rest else ""
    return _drawn("Causes removed", "each by itself, the same requests again", bars, trials, rows, "run") + after


def _tried(trials: Trials) -> str:
    found = helping(trials)
    rest = ", ".join(one.remedy.text for one in trials.tried if one not in found)
    after = f'<p class="note">No better with <code>{text(rest)}</code>.</p>' if rest else ""
    if not found:
        return after
    bars = [("as it is", trials.base), *((one.remedy.text, one.trial) for one in found)]
    rows: list[list[Cell]] = [[name, *_figures(trial, trials.base)] for name, trial in bars]
    return _drawn("Remedies tried", "each by itself, as settings of the run", bars, trials, rows, "settings") + after


def _drawn(
    title: str, note: str, bars: list[tuple[str, Trial]], trials: Trials, rows: list[list[Cell]], first: str
) -> str:
    """Bars of the share of requests that kept the SLO, with gains marked, next to the same as a table."""
    base = trials.base.kept / trials.base.offered
    names = [f"{name} ({number(trial.goodput)} req/s)" for name, trial in bars]
    kept = np.array([trial.kept / trial.offered for _, trial in bars])
    shares = np.stack([np.minimum(kept, base), np.maximum(kept - base, 0.0), 1 - kept], axis=1)
    drawn = stacked_bars(f"{title}: share of requests that keep the SLO", names, shares, ["f0", "f2", "none"])
    legend = Legend((("kept the SLO anyway", "f0"), ("gained", "f2")))
    columns = [first, "GPUs", "requests that keep the SLO", "goodput (req/s)", "gain (req/s)", "goodput per GPU"]
    made = figure(title, note, drawn, legend, Sheet(columns, rows))
    return made.replace("<figure>", '<figure class="wide">', 1)


def _figures(trial: Trial, base: Trial) -> list[Cell]:
    return [trial.gpus, trial.kept, trial.goodput, trial.worth(base), trial.goodput / trial.gpus]
