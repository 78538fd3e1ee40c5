"""The answer for people: text, with tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from experiments.curve.table import number
from experiments.guide.answer import Answer
from experiments.guide.axes import TITLES
from experiments.guide.families import Family, described, short
from experiments.guide.flips import Cell, Line
from experiments.guide.judged import Judged
from experiments.guide.knobs import Knob
from experiments.guide.limits import Front
from experiments.guide.ranking import Difference, Entrant
from experiments.tune.base import Configuration
from framework.report.arms import Arm, unlike
from framework.report.table_words import open_table

UNSETTLED = "*"  # mark after a rate


def report(answer: Answer) -> RenderableType:
    """All that a reader is shown, for `rich.console.Console.print`."""
    parts: list[RenderableType] = [Text(headline(answer), "bold"), Text(), _ranking(answer), Text(), *_verdict(answer)]
    if answer.knobs:
        parts += [Text(), *(Text(sentence) for knob in answer.knobs for sentence in _of_knob(knob, answer.gpus))]
    if answer.batches:
        parts += [Text(), _batches(answer)]
    for line in answer.lines:
        parts += [Text(), *_of_line(line, answer.gpus)]
    if answer.hits:
        parts += [Text(), _hits(answer)]
    if answer.fronts:
        parts += [Text(), _limits(answer)]
    if said := unsettled(answer):
        parts += [Text(), Text(said)]
    return Group(*parts)


def headline(answer: Answer, replicates: int | None = None) -> str:
    """The question; `replicates`: fresh samples, by default those of the ranking."""
    settings = answer.settings
    limits = [("TTFT", settings["slo.ttft_s"], "s", 1), ("TPOT", settings["slo.tpot_s"], "ms", 1000)]
    limit_texts = [f"{name} {limit * factor:g} {unit}" for name, limit, unit, factor in limits if limit is not None]
    source = " fitted trace, not a recording" if answer.source == "twin" else ""
    return (
        f"{answer.plan.load}{source} on {answer.gpus} {settings['gpu.name']}, {settings['model.name']}; "
        f"SLO {', '.join(limit_texts) or 'none'}; {answer.plan.trials} trials a family, "
        f"{replicates or answer.plan.replicates} fresh samples"
    )


def unsettled(answer: Answer) -> str:
    """The meaning of the mark of an undecided rate, and how many trials such a rate decided; nothing if none did."""
    undecided = f"runs of {answer.plan.most_requests:,} requests could not tell to be sustained or not"
    said = []
    if has_unsettled(answer):
        said.append(f"{UNSETTLED} rests on a rate that {undecided}, and so may be low: that counts as too much.")
    lost = [(sum(not one.is_settled for one in tuned.trials), tuned) for tuned in answer.tuned]
    names = [f"{count} of {len(tuned.trials)} of {tuned.family.label}" for count, tuned in lost if count]
    if names:
        said.append(f"Trials that rest on a rate that {undecided}: {', '.join(names)}.")
    return " ".join(said)


def has_unsettled(answer: Answer) -> bool:
    """Whether a figure of the answer has the mark of an undecided rate."""
    rankings = [answer.ranking, *(cell.ranking for line in answer.lines for cell in line.cells)]
    knobs = [*answer.knobs, *answer.batches, *(knob for _, knob in answer.hits)]
    entrants = [one.is_settled for ranking in rankings if ranking is not None for one in ranking.entrants]
    return not all([*entrants, *(one.is_settled for knob in knobs for one in knob.settings)])


def marked(value: float, *, is_settled: bool) -> str:
    """A rate, with a mark if it rests on an undecided one."""
    return f"{number(value)}{'' if is_settled else UNSETTLED}"


def verdict(answer: Answer) -> str:
    """The best family, how near the next one is, and whether the two are distinguished."""
    ranking = answer.ranking
    best, gpus = ranking.best, answer.gpus
    rate = number(best.values.mean() / gpus)
    found = f"{best.family.label} ({described(best.point.settings)}) is best: {rate} req/s a GPU"
    if not ranking.behind:
        return f"{found}; no other serves this load at any rate."
    following, behind = ranking.entrants[1], ranking.behind[0]
    share = 100 * behind.mean / best.values.mean()
    distance = f"{following.family.label} is {share:.1f} % below it"
    if not math.isnan(behind.half_width):
        distance += f" (± {100 * behind.half_width / best.values.mean():.1f} %, paired)"
    if behind.is_distinguished:
        return f"{found}; {distance}."
    names = " and ".join(one.family.label for one in ranking.as_good[1:])
    return f"{found}, but {names} cannot be distinguished from it; {distance}."


def _verdict(answer: Answer) -> Iterator[Text]:
    yield Text(verdict(answer))
    for one in answer.tuned:
        if one.refusal:
            yield Text(f"{one.family.label}: {one.refusal}")
    yield from (Text(f"{one.label}: {one.caveat}.") for one in _ranked_families(answer) if one.caveat)
    yield from (Text(line) for line in thumbs(answer.rules))
    yield from (Text(line) for line in prices(answer))
    if (line := families_unlike(answer)) is not None:
        yield Text(line)


def _ranked_families(answer: Answer) -> list[Family]:
    return [one.family for one in answer.ranking.entrants]


def thumbs(rules: Sequence[Judged]) -> Iterator[str]:
    """Where the ranking bears rules of thumb out, in one line, and where it contradicts them, in another."""
    pairs = {frozenset((one.family.name, one.other.name)) for one in rules if one.applies}
    told = [one for one in rules if one.applies or frozenset((one.family.name, one.other.name)) not in pairs]
    for heading, found in (
        ("As rules of thumb say", [one for one in told if one.holds and (one.applies or one.is_below)]),
        ("Against rules of thumb", [one for one in told if not one.holds]),
    ):
        if found:
            yield f"{heading}: {'; '.join(_thumb(one) for one in found)}."


def _thumb(one: Judged) -> str:
    other = one.other.label
    if math.isnan(one.gain):
        measured = f"serves this load, and {other} does not" if one.is_above else f"does not serve it, and {other} does"
    elif one.is_above or one.is_below:
        measured = f"is {abs(100 * one.gain):.1f} % {'above' if one.is_above else 'below'} {other}"
    else:
        measured = f"cannot be distinguished from {other}"
    here = "as here" if one.applies else "not for this load"
    return f"{one.family.label}, recommended for {one.rule.text}, {here}, {measured}"


def prices(answer: Answer) -> Iterator[str]:
    """For each family with a second kind of GPU, what its rates count."""
    for one in (each for each in answer.tuned if not each.refusal):
        own = Configuration((*answer.plan.shared, *one.family.fixed)).settings
        if (other_usd := own.get("cluster.decode_gpu.usd_per_hour")) is not None:
            gpu, usd, decode_gpu = own["gpu.name"], own["gpu.usd_per_hour"], own["cluster.decode_gpu.name"]
            yield (
                f"{one.family.label}: {decode_gpu} decodes, at {other_usd:g} $ an hour for {usd:g} of {gpu}."
                f" Rates count by price: as if the money of all its GPUs bought {gpu}."
            )


def families_unlike(answer: Answer) -> str | None:
    """How families differ besides their policies and their tuned settings."""
    entrants = answer.ranking.entrants
    given = {name for one in entrants for name in one.point.settings}
    arms = []
    for one in entrants:
        arguments = (*answer.plan.shared, *one.family.arguments(one.point.overrides))
        arms.append(Arm(one.family.label, Configuration(arguments).settings, given=given))
    return unlike(arms)


def _table(*headings: str) -> Table:
    found = open_table()
    for place, heading in enumerate(headings):
        found.add_column(heading, justify="left" if place < 2 else "right", no_wrap=True)
    return found


def _ranking(answer: Answer) -> Table:
    table = _table("architecture", "tuned to", "req/s\na GPU", "\n±", "below the\nbest %", "\n±", "\np", "trials")
    trials = {one.family.name: len(one.trials) for one in answer.tuned}
    best = answer.ranking.best.values.mean()
    for place, one in enumerate(answer.ranking.entrants):
        behind = answer.ranking.behind[place - 1] if place else None
        found = one.estimate
        table.add_row(
            *(one.family.label, described(one.point.settings)),
            *(marked(found.mean / answer.gpus, is_settled=one.is_settled), number(found.half_width / answer.gpus)),
            *_below(behind, best),
            str(trials[one.family.name]),
        )
    return table


def _below(behind: Difference | None, best: float) -> tuple[str, str, str]:
    if behind is None:
        return "", "", ""
    p_value = "–" if math.isnan(behind.p) else f"{behind.p:.3f}"
    return f"{100 * behind.mean / best:.1f}", number(100 * behind.half_width / best), p_value


def _of_knob(knob: Knob, gpus: int) -> Iterator[str]:
    if not knob.settings:
        return
    values = ", ".join(
        f"{one.label}: {marked(one.rates.mean() / gpus, is_settled=one.is_settled)}" for one in knob.settings
    )
    good = [one.label for one in knob.as_good]
    yield f"{knob.family.label}, req/s a GPU by {knob.label}: {values}. As good as the best: {', '.join(good)}."


def _of_line(line: Line, gpus: int) -> Iterator[RenderableType]:
    title = TITLES[line.axis.name].replace("\n", " ")
    if line.axis.missing:
        yield Text(f"{title}: {line.axis.missing}")
        return
    table = _table(title, "best", "tuned to", "req/s\na GPU", "next", "\nbelow %", "signi-\nficant")
    for cell in line.cells:
        table.add_row(cell.value.label, *_of_cell(cell, gpus))
    yield table
    for first, second in line.flips:
        assert first.ranking is not None
        assert second.ranking is not None
        yield Text(
            f"Between {first.value.label} and {second.value.label} the answer flips from"
            f" {first.ranking.best.family.label} to {second.ranking.best.family.label}."
        )


def _of_cell(cell: Cell, gpus: int) -> tuple[str, ...]:
    ranking = cell.ranking
    if ranking is None:
        return ("none", "", "", "", "", "")
    best = ranking.best
    mean = best.values.mean()
    found = (best.family.label, short(best.point.settings), marked(mean / gpus, is_settled=best.is_settled))
    if not ranking.behind:
        return (*found, "none", "", "")
    behind = ranking.behind[0]
    share = f"{100 * behind.mean / mean:.1f}" if mean else "–"
    following = ranking.entrants[1]
    return (*found, following.family.label, f"{share}{_mark(following)}", "yes" if behind.is_distinguished else "no")


def _mark(entrant: Entrant) -> str:
    return "" if entrant.is_settled else UNSETTLED


def _batches(answer: Answer) -> Table:
    table = _table("sequences of an\ninstance at most", "\n", *(one.label for one in answer.batches[0].settings))
    for knob in answer.batches:
        good = {one.value for one in knob.as_good}
        rates = [
            (marked(one.rates.mean() / answer.gpus, is_settled=one.is_settled), one.value in good)
            for one in knob.settings
        ]
        table.add_row(knob.family.label, "req/s a GPU", *(Text(rate, "bold" if best else "") for rate, best in rates))
        table.add_row("", "TPOT, P90, ms", *(number(one.tpot_ms) for one in knob.settings))
    return table


def _hits(answer: Answer) -> Table:
    labels = [one.label for one in answer.hits[0][1].settings]
    table = _table("share of prompts\nthat is cached", "best\nP:D", *(f"req/s a GPU\nat {label}" for label in labels))
    for value, knob in answer.hits:
        good = " ".join(one.label for one in knob.as_good)
        rates = (marked(one.rates.mean() / answer.gpus, is_settled=one.is_settled) for one in knob.settings)
        table.add_row(value.label, good, *rates)
    return table


def _limits(answer: Answer) -> Table:
    rate = number(answer.front_rate_rps / answer.gpus)
    table = _table(f"at {rate} req/s a GPU\n90 % keep", "\ntuned to", "TTFT\nms", "TPOT\nms", "of the\nSLO")
    for front in answer.fronts:
        for place, hold in enumerate(front.holds):
            label = front.family.label if place == 0 else ""
            table.add_row(
                label, described(hold.settings), number(hold.ttft_ms), number(hold.tpot_ms), number(hold.scale)
            )
        if front.again:
            table.add_row("", f"the tightest, on {answer.plan.replicates} fresh samples", *_again(front))
    return table


def _again(front: Front) -> Iterator[str]:
    for one in front.again:
        yield f"{number(one.mean)} ± {number(one.half_width)}"
