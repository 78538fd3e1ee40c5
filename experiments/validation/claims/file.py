"""The rows of the claims table: a paper's claim about its system, and the runs that test it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from yaml import YAMLError

from framework.checks import require_count
from framework.cli.conf import CONF
from framework.errors import InputError

FOLDER = CONF / "experiment"
_RULE = "_rule"
ARMS = ("system", "baseline")


@dataclass(frozen=True)
class Claim:
    """The contents of conf/experiment/NAME.yaml; NAME is SYSTEM/CASE.

    `claimed`: system over baseline in `metric`, a key of summary.json, as a factor (0.25 for "75 % lower"), or the ends
    of a range. `published`: the regime is the paper's by the rule of `rule.py`, and `class_reason` says why it is or is
    not; `chosen` says what had to be chosen. `settings` are of both `arms`, lists of overrides. `lengths`: the figures
    of prompts and outputs that the source quotes and the distributions in `settings` meet. `sensitivity`: overrides for
    both arms, by what they change. `found`: findings. `rests_on_mistake`: the claimed figure comes from a mistake of
    the paper's own simulator, which `found` names. `fast`: further overrides of the fast mode. `replicates`: their
    number in place of that of all rows, if the trace leaves almost nothing to draw. Raises InputError for inconsistent
    contents.
    """

    system: str
    source: str
    text: str
    metric: str
    claimed: float | Sequence[float]
    published: bool
    class_reason: str
    settings: Sequence[str]
    arms: Mapping[str, Sequence[str]]
    sensitivity: Mapping[str, Sequence[str]] = field(default_factory=dict)
    chosen: Sequence[str] = ()
    found: Sequence[str] = ()
    rests_on_mistake: bool = False
    fast: Sequence[str] = ()
    lengths: Mapping[str, Any] | None = None
    replicates: int | None = None
    name: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        where = f"{self.name}.yaml"
        for name in ("chosen", "found"):
            if not all(isinstance(one, str) for one in getattr(self, name)):
                raise InputError(f"{where}: {name} must be a list of texts; one with a colon in it needs quotes")
        if set(self.arms) != set(ARMS):
            raise InputError(f"{where}: arms must be {' and '.join(ARMS)}, got {', '.join(self.arms)}")
        if self.rests_on_mistake and not self.found:
            raise InputError(f"{where}: found must name the mistake that the row rests on")
        if self.replicates is not None:
            require_count(f"{where}: replicates", self.replicates)
        low, high = self.range
        if not (0 < low <= high < math.inf) or low <= 1 <= high:
            raise InputError(f"{where}: claimed must be a factor above or below 1, or the ends of a range of them")

    @property
    def range(self) -> tuple[float, float]:
        """The ends of the claim, equal for a single figure."""
        ends = [self.claimed] if isinstance(self.claimed, (int, float)) else list(self.claimed)
        return float(min(ends)), float(max(ends))


@dataclass(frozen=True)
class Trial:
    """conf/experiment/_rule.yaml: how every row is tried.

    `replicates` are those that decide a row; what is shown next to it, and the whole fast mode, has `fast_replicates`.
    `passes_within` is the factor by which a row may differ and still pass. `is_fast`: runs have the `fast` settings of
    their rows.
    """

    replicates: int
    fast_replicates: int
    passes_within: float
    is_fast: bool = False

    def in_fast_mode(self) -> Trial:
        """The same rule with fewer replicates and shorter traces."""
        return replace(self, replicates=self.fast_replicates, is_fast=True)


def read_claims(only: Sequence[str] = (), folder: Path = FOLDER) -> list[Claim]:
    """The rows, in the order of their names; with `only`, those that one of its words means.

    A word is a system, a system and a case, or the beginning of a case: sarathi, sarathi/yi_strict, sarathi/yi. Raises
    InputError for a word that means no row, and for a file that is no row.
    """
    names = claim_names(folder)
    words = [_known_word(word, names) for word in only]
    wanted = [name for name in names if not only or any(_is_meant(name, word) for word in words)]
    return [_read(folder / f"{name}.yaml", Claim, name=name) for name in wanted]


def claim_names(folder: Path = FOLDER) -> list[str]:
    """SYSTEM/CASE of every row."""
    found = (f"{path.parent.name}/{path.stem}" for path in folder.glob("*/[!_]*.yaml"))
    return sorted(found, key=lambda name: name.replace("/", "_"))


def read_trial(folder: Path = FOLDER) -> Trial:
    """The rule that all rows have in common."""
    return _read(folder / f"{_RULE}.yaml", Trial)


def _known_word(word: str, names: Sequence[str]) -> str:
    """`word`. Raises InputError if it means no row."""
    if not any(_is_meant(name, word) for name in names):
        raise InputError(f"only={word}: no claim of that name; choose from {', '.join(names)}")
    return word


def _is_meant(name: str, word: str) -> bool:
    return name == word or name.startswith((f"{word}/", f"{word}_"))


def _read(path: Path, kind: type[Any], **own: str) -> Any:
    where = f"{own.get('name', path.stem)}.yaml"
    try:
        content = OmegaConf.to_container(OmegaConf.load(path))
    except YAMLError as error:
        raise InputError(f"{where}: {' '.join(str(error).split())}") from error
    known = {item.name for item in fields(kind)} - set(own)
    if not isinstance(content, dict) or not set(content) <= known:
        raise InputError(f"{where}: its keys must be among {', '.join(sorted(known))}")
    try:
        return kind(**{str(key): value for key, value in content.items()}, **own)
    except TypeError as error:  # a key too few
        raise InputError(f"{where}: {error}") from error
