"""The runs of a store as columns: settings by the number of their value, figures as floats."""

from __future__ import annotations

import functools
import json
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.table.select import ABSENT, shown, value_of
from framework.checks import is_numeric
from framework.metrics.figures import METRICS, metric
from framework.report.load_words import load_state
from framework.report.page.words import axis_words
from framework.run.store import Record

SLO, STATE, TRACE = "SLO", "load_state", "trace"
FIGURES = (  # of the table at first, in this order
    *("goodput_rps", "goodput_per_gpu", "good_per_usd", "slo_attainment", "p99_ttft_ms", "p99_tpot_ms"),
    *("usd_per_million_good_tokens", "usd_per_hour", "gpus"),
)
_LIMITS_MS = {"tpot_s": "TPOT", "tbt_p99_s": "P99 TBT of each request", "tbt_tail_s": "slowest TBT"}
_LIMITS_S = {"ttft_s": "TTFT", "normalized_s": "latency a token", "reader_wait_s": "wait of readers"}
_NO_LIMIT = ("reading_tokens_s", "_target_", "_convert_")
# groups whose settings another column may decide: a policy's YAML names its cluster, its predictor and engine settings
_ABOVE = {"slo": (SLO,), **dict.fromkeys(("cluster", "predictor", "engine"), ("policy",))}
_ALL = 1 << 20  # values of a setting that are told apart


@dataclass
class Choices:
    """One setting: its `values` in words, and the number of the value of each run."""

    values: list[str]
    codes: array[int] = field(default_factory=lambda: array("i"))
    _numbers: dict[str, int] = field(default_factory=dict)

    def add(self, value: str) -> None:
        """The value of the next run."""
        number = self._numbers.setdefault(value, len(self._numbers))
        if number == len(self.values):
            self.values.append(value)
        self.codes.append(number)

    def fill(self, count: int) -> None:
        """Let the setting be absent in all further runs up to `count`."""
        while len(self.codes) < count:
            self.add(ABSENT)

    @property
    def column(self) -> NDArray[np.int32]:
        """The numbers, (runs,)."""
        return np.frombuffer(self.codes, np.int32)


@dataclass
class Columns:
    """Runs in the order in which they were found; `keys` are those of their records."""

    keys: list[str] = field(default_factory=list)
    settings: dict[str, Choices] = field(default_factory=dict)
    figures: dict[str, array[float]] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        """The next run."""
        before = len(self.keys)
        self.keys.append(record.key)
        for name, value in words_of(record).items():
            column = self.settings.get(name)
            if column is None:
                column = self.settings[name] = Choices([])
            if len(column.codes) < before:
                column.fill(before)
            column.add(value)
        for key, number in numbers_of(record.summary).items():
            held = self.figures.get(key)
            if held is None:
                held = self.figures[key] = array("d")
            if len(held) < before:
                held.extend([math.nan] * (before - len(held)))
            held.append(number)

    def finish(self) -> None:
        """Make all columns equally long, after the last `add`."""
        count = len(self.keys)
        for column in self.settings.values():
            column.fill(count)
        for held in self.figures.values():
            held.extend([math.nan] * (count - len(held)))

    def varying(self) -> list[str]:
        """The settings in which runs differ, without those that another one of their group decides."""
        several = [name for name, column in self.settings.items() if len(column.values) > 1]
        kept: list[str] = []
        for name in several:
            groups = name.split(".")[:-1] or [name]  # `cluster.gpu.pcie_bytes_s` is of the group `gpu`, too
            own = (*groups, *_ABOVE.get(groups[0], ()))
            above = [one for one in kept if one in own or one.startswith(f"{groups[0]}.")]
            rivals = [one for one in kept if one != STATE]
            if not any(self._decides(one, name) for one in above) and not any(
                self._decides(one, name) and self._decides(name, one) for one in rivals
            ):
                kept.append(name)
        return kept

    def _decides(self, one: str, other: str) -> bool:
        """Whether each value of `one` goes with a single value of `other`."""
        first, second = self.settings[one], self.settings[other]
        pairs = first.column.astype(np.int64) * _ALL + second.column
        return len(np.unique(pairs)) == len(first.values)

    def since(self, number: int, figures: Sequence[str], settings: Sequence[str]) -> dict[str, Any]:
        """The runs from `number` on, as JSON: their keys, `settings` and `figures`."""
        return {
            "keys": self.keys[number:],
            "settings": [
                {"name": name, "words": setting_words(name), "values": own.values, "codes": own.codes[number:].tolist()}
                for name, own in ((name, self.settings[name]) for name in settings)
            ],
            "figures": [self._figure(key, number) for key in figures if key in self.figures],
        }

    def _figure(self, key: str, number: int) -> dict[str, Any]:
        shown_as = metric(key)
        values = [None if math.isnan(one) else one for one in self.figures[key][number:]]
        words = {"words": shown_as.on_page, "meaning": shown_as.meaning, "scale": shown_as.scale}
        return {"key": key, **words, "better": int(shown_as.better), "values": values}

    def known(self) -> list[dict[str, Any]]:
        """All figures that there are, in the order of METRICS."""
        order = {key: place for place, key in enumerate(METRICS)}
        keys = sorted(self.figures, key=lambda key: (order.get(key, len(order)), key))
        return [{"key": key, "words": metric(key).on_page, "better": int(metric(key).better)} for key in keys]


def words_of(record: Record) -> dict[str, str]:
    """The options and settings of a run, its SLO and its load state, in words."""
    first = {name: shown(value_of(record, name)) for name in ("policy", TRACE)}
    found = {**first, SLO: slo_words(record.config), STATE: _state(record.summary)}
    found |= {name: str(choice) for name, choice in record.choices.items() if name not in found}
    for name, value in record.config.items():
        if not name.endswith(("_target_", "_convert_")) and name not in found:
            found[name] = json.dumps(value) if isinstance(value, (list, dict)) else _shown(value)
    return found


_shown = functools.lru_cache(maxsize=1 << 16, typed=True)(shown)  # most values are those of other runs too


def _state(summary: Mapping[str, Any]) -> str:
    return "window too short" if summary.get("window_is_short") else load_state([summary]) or ABSENT


def numbers_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a summary, by key."""
    return {key: float(value) for key, value in summary.items() if is_numeric(value) and math.isfinite(value)}


def setting_words(name: str) -> str:
    """A setting as the heading of a column."""
    return metric(name).on_page if name == STATE else name if name == SLO else axis_words(name)


def slo_words(config: Mapping[str, Any]) -> str:
    """The limits of a run: `TTFT ≤ 2 s, TPOT ≤ 50 ms`; those of classes with the name of the class."""
    said = []
    for name, value in config.items():
        if not name.startswith("slo.") or value is None or value == {} or name.endswith(_NO_LIMIT):
            continue
        *groups, limit = name.removeprefix("slo.").split(".")
        whose = f"{' '.join(groups).removeprefix('classes ')} " if groups else ""
        if not isinstance(value, int | float):
            said.append(f"{whose}{limit} {json.dumps(value)}")
        elif limit in _LIMITS_MS:
            said.append(f"{whose}{_LIMITS_MS[limit]} ≤ {1e3 * value:g} ms")
        else:
            said.append(f"{whose}{_LIMITS_S.get(limit, limit)} ≤ {value:g} {'s' if limit.endswith('_s') else '×'}")
    return ", ".join(said) or "none"
