"""The goals of a study: keys of the summary, and which way is better."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hydra.utils import get_class
from omegaconf import DictConfig
from optuna.study import StudyDirection

from framework.checks import is_numeric
from framework.errors import InputError
from framework.metrics.figure import Better
from framework.metrics.figures import HEADLINE, direction
from framework.run.store import Record


@dataclass(frozen=True)
class Goal:
    """A key of the summary, and whether more of it is better."""

    key: str
    maximize: bool = True

    @property
    def direction(self) -> StudyDirection:
        return StudyDirection.MAXIMIZE if self.maximize else StudyDirection.MINIMIZE

    def value(self, record: Record) -> float | None:
        """The figure of a run, None if undefined. Raises InputError for a key that no summary has."""
        value = record.summary.get(self.key)
        if value is None and self.key in record.summary:
            return None
        if not is_numeric(value):
            numeric = ", ".join(key for key, one in record.summary.items() if is_numeric(one))
            raise InputError(f"objectives: {self.key} is no number of a summary; choose from {numeric}")
        return float(value) if math.isfinite(value) else None

    def __str__(self) -> str:
        return f"{'+' if self.maximize else '-'}{self.key}"


def read_goals(text: str | None, config: DictConfig) -> tuple[Goal, ...]:
    """The goals in `KEY,KEY,...`, each optionally with a sign: + if higher is better, - if lower is.

    Without a sign `framework.metrics.figures` decides. None: only the figure of the config's objective, higher is
    better. Raises InputError for a key that is named twice, and for one without a sign and without a better side.
    """
    if text is None:
        key = getattr(get_class(config.objective._target_), "key", None)
        if not isinstance(key, str):
            raise InputError(f"objective: {config.objective._target_} names no key of the summary")
        return (Goal(key),)
    goals = []
    for word in (part.strip() for part in text.strip("[]").split(",")):
        key = word.lstrip("+-")
        if not key:
            raise InputError(f"objectives={text}: it names keys of the summary, as {HEADLINE},cost_usd")
        goals.append(Goal(key, word.startswith("+") if word != key else _is_more_better(key, text)))
    if len({goal.key for goal in goals}) < len(goals):
        raise InputError(f"objectives={text}: a key is named twice")
    return tuple(goals)


def _is_more_better(key: str, text: str) -> bool:
    advice = f"write +{key} for the more the better, -{key} for the less"
    return direction(key, f"objectives={text}", advice) is Better.HIGHER
