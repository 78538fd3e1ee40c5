"""guide.json: all results, in the order of the report."""

from __future__ import annotations

import json
from typing import Any

from experiments.guide.answer import Answer
from experiments.guide.families import described, short
from experiments.guide.flips import Line
from experiments.guide.judged import Judged
from experiments.guide.knobs import Knob
from experiments.guide.limits import Front
from experiments.guide.ranking import Difference, Entrant, Ranking
from experiments.guide.tuning import Tuned


def text_of(answer: Answer) -> str:
    """The content of the file; the same answer gives the same bytes."""
    return json.dumps(content(answer), indent=1) + "\n"


def content(answer: Answer) -> dict[str, Any]:
    """Rates are requests/s per GPU."""
    gpus = answer.gpus
    return {
        "words": list(answer.plan.arguments),
        "load": answer.plan.load,
        "gpus": gpus,
        "model": answer.settings["model.name"],
        "gpu": answer.settings["gpu.name"],
        "slo": {name: answer.settings[f"slo.{name}"] for name in ("ttft_s", "tpot_s")},
        "timing": answer.timing,
        "trace_source": answer.source,
        "tuned": [_tuned(one, gpus) for one in answer.tuned],
        "ranking": _ranking(answer.ranking, gpus),
        "rules": [_rule(one) for one in answer.rules],
        "knobs": [_knob(one, gpus) for one in answer.knobs],
        "batch": [_knob(one, gpus) for one in answer.batches],
        "map": [_line(one, gpus) for one in answer.lines],
        "hits": [{"hits": value.label, "split": _knob(knob, gpus)} for value, knob in answer.hits],
        "limits": {
            "rate_per_gpu": answer.front_rate_rps / gpus,
            "fronts": [_front(one) for one in answer.fronts],
        },
    }


def _tuned(one: Tuned, gpus: int) -> dict[str, Any]:
    trials = [
        {
            "settings": dict(trial.point.settings),
            "rate": None if trial.is_given_up else trial.worth / gpus,
            "below": trial.raced_rps / gpus if trial.is_given_up and trial.raced_rps is not None else None,
            "is_settled": trial.is_settled,
        }
        for trial in one.trials
        if trial.record is not None
    ]
    return {
        "family": one.family.name,
        "fixed": list(one.family.fixed),
        "points": one.points,
        "trials": trials,
        "refusal": one.refusal,
    }


def _ranking(one: Ranking, gpus: int) -> dict[str, Any]:
    return {
        "is_clear": one.is_clear,
        "as_good": [entrant.family.name for entrant in one.as_good],
        "entrants": [_entrant(entrant, gpus) for entrant in one.entrants],
        "behind": [_difference(behind, gpus) for behind in one.behind],
    }


def _entrant(one: Entrant, gpus: int) -> dict[str, Any]:
    found = one.estimate
    return {
        "family": one.family.name,
        "told": described(one.point.settings),
        "short": short(one.point.settings),
        "settings": dict(one.point.settings),
        "rate": found.mean / gpus,
        "half_width": _number(found.half_width / gpus),
        "rates": [float(value) / gpus for value in one.values],
        "is_settled": one.is_settled,
    }


def _difference(one: Difference, gpus: int) -> dict[str, Any]:
    half_width = _number(one.half_width / gpus)
    return {
        "mean": one.mean / gpus,
        "half_width": half_width,
        "p": _number(one.p),
        "is_told": one.is_distinguished,
    }


def _rule(one: Judged) -> dict[str, Any]:
    return {
        "family": one.family.name,
        "over": one.other.name,
        "recommended_for": one.rule.text,
        "applies": one.applies,
        "gain": _number(one.gain),
        "half_width": _number(one.half_width),
        "holds": one.holds,
    }


def _knob(one: Knob, gpus: int) -> dict[str, Any]:
    good = {setting.value for setting in one.as_good}
    rows = [
        {
            "value": setting.value,
            "label": setting.label,
            "rate": setting.estimate.mean / gpus,
            "half_width": _number(setting.estimate.half_width / gpus),
            "is_as_good": setting.value in good,
            "is_settled": setting.is_settled,
            "p90_tpot_ms": _number(setting.tpot_ms),
        }
        for setting in one.settings
    ]
    return {"family": one.family.name, "name": one.name, "settings": rows}


def _line(one: Line, gpus: int) -> dict[str, Any]:
    cells = [
        {
            "value": cell.value.label,
            "overrides": list(cell.value.overrides),
            "ranking": None if cell.ranking is None else _ranking(cell.ranking, gpus),
        }
        for cell in one.cells
    ]
    flips = [[first.value.label, second.value.label] for first, second in one.flips]
    return {"axis": one.axis.name, "missing": one.axis.missing, "cells": cells, "flips": flips}


def _front(one: Front) -> dict[str, Any]:
    holds = [
        {"told": described(hold.settings), "ttft_ms": hold.ttft_ms, "tpot_ms": hold.tpot_ms, "scale": hold.scale}
        for hold in one.holds
    ]
    again = dict(zip(("ttft_ms", "tpot_ms", "scale"), one.again, strict=False))
    fresh = {name: {"mean": found.mean, "half_width": _number(found.half_width)} for name, found in again.items()}
    return {"family": one.family.name, "holds": holds, "tightest_again": fresh}


def _number(value: float) -> float | None:
    """None for NaN, which JSON lacks."""
    return None if value != value else value
