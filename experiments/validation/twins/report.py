"""The comparison in Markdown: a summary of all traces, then every cell."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from experiments.validation.twins.judge import RULES, Rule, outside
from experiments.validation.twins.run import SPANS, Cell, Found, Pair
from experiments.validation.twins.study import Study

ONLY_WITHIN = "~"
OUTSIDE = "!"
_FIGURES = {"attainment": "attainment", "p99_ttft_s": "P99 TTFT", "capacity": "capacity"}
_SHORT_SPANS = ("whole", "1st third", "2nd third", "3rd third")


def summary(study: Study, found: Sequence[Found]) -> str:
    """A row for each trace and figure, cells that were kept out of the fitting apart; `by chance`: how many are
    near or in the interval if a resample of the recording takes the place of the fitted trace, on average.
    """
    lines = [
        "| fitted trace | cells | figure | number | off by, on average | at most | near | or in interval | by chance |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for one in found:
        for is_out, texts in ((False, "of the fitting"), (True, "kept out")):
            for figure, rule in RULES.items():
                pairs = [
                    pair for cell, pair in getattr(one, figure).items() if (cell.policy == study.held_out) == is_out
                ]
                scores = rule.scores(pairs)
                lines.append(
                    f"| {one.trace} | {texts} | {_FIGURES[figure]} | {scores.cells} | {_off(figure, scores.mean)} | "
                    f"{_off(figure, scores.worst)} | {scores.near} | {scores.held} | "
                    f"{_count(scores.held_of_resamples)} |"
                )
    return "\n".join(lines) + "\n"


def samples(study: Study, found: Sequence[Found]) -> str:
    """How many figures of the cells of the fitting are outside, sample by sample."""
    lines = [f"Shares and P99 TTFT of the cells of the fitting that are marked {OUTSIDE}, by the sample's seed:", ""]
    for one in found:
        counts = ", ".join(f"{seed}: {count}" for seed, count in enumerate(outside(study, one)))
        lines.append(f"- {one.trace}: {counts}")
    return "\n".join(lines) + "\n"


def cells(study: Study, found: Found) -> str:
    """Every figure of a trace, recording / fitted trace."""
    lines = [
        f"### {found.trace}",
        "",
        f"| policy | memory | req/s | {' | '.join(_SHORT_SPANS)} | {' | '.join(_SHORT_SPANS)} | capacity |",
        f"|---|---|---:|{'---:|' * (2 * len(SPANS) + 1)}",
        f"| | | | {'| '.join(['attainment, % '] * len(SPANS))}| {'| '.join(['P99 TTFT, s '] * len(SPANS))}| req/s |",
    ]
    kept_out = [cell for cell in _rows(found) if cell.policy == study.held_out]
    for cell in [*(cell for cell in _rows(found) if cell not in kept_out), *kept_out]:
        row = [Cell(cell.policy, cell.memory, cell.rate, span) for span in SPANS]
        texts = [_words(found.attainment[one], RULES["attainment"], 100, 1) for one in row]
        texts += [_words(found.p99_ttft_s[one], RULES["p99_ttft_s"], 1, 2) for one in row]
        searched = found.capacity[Cell(cell.policy, cell.memory, None, SPANS[0])]
        policy = f"{cell.policy} (kept out)" if cell in kept_out else cell.policy
        texts.append(_words(searched, RULES["capacity"], 1, 2))
        lines.append(f"| {policy} | {cell.memory} | {cell.rate:g} | {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def _rows(found: Found) -> Iterable[Cell]:
    return (cell for cell in found.attainment if cell.span == SPANS[0])


def _words(pair: Pair, rule: Rule, factor: float, digits: int) -> str:
    mark = "" if rule.is_near(pair) else f" {ONLY_WITHIN}" if rule.holds(pair) else f" {OUTSIDE}"
    return f"{factor * pair.recorded:.{digits}f} / {factor * pair.fitted[0]:.{digits}f}{mark}"


def _count(held: float) -> str:
    return "" if math.isnan(held) else f"{held:.1f}"


def _off(figure: str, error: float) -> str:
    return f"{100 * error:.1f} {'points' if figure == 'attainment' else '%'}"
