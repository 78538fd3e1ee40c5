"""What a command line asks for: the kind of picture, the runs that it is made of, and how it is to look."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.plot.style import COLUMN_IN, FORMATS
from framework.cli.safe_text import printable
from framework.errors import InputError
from framework.metrics.figures import HEADLINE

KINDS = ("cdf", "series", "bars", "pareto", "slo")
_COMMON = {
    "from": "",
    "width": "single",
    "out": "",
    "formats": "pdf,png",
    "dpi": "300",
    "replicate": "seed",
    "colours": "",
    "note": "true",
}
_OF_KIND = {
    "cdf": {"metric": "ttft,tpot"},
    "series": {"metric": "queue,utilization,attainment"},
    "bars": {"metric": HEADLINE, "columns": ""},
    "pareto": {"metric": HEADLINE, "x": "cost"},
    "slo": {"metric": "slo_attainment", "x": ""},
}
_STORE = "results"
_MOST_DPI = 1200


@dataclass(frozen=True)
class Request:
    """A command line: `own` has every option of its kind of picture; `filters` are the settings that runs must have."""

    kind: str
    places: tuple[Path, ...]
    own: dict[str, str]
    filters: dict[str, str]

    @property
    def width_in(self) -> float:
        """Of the picture, in inches."""
        return COLUMN_IN[self.own["width"]]

    @property
    def formats(self) -> tuple[str, ...]:
        """The files to write, by their endings."""
        return tuple(self.own["formats"].split(","))

    @property
    def dpi(self) -> float:
        """Dots per inch of a PNG."""
        return float(self.own["dpi"])

    @property
    def is_noted(self) -> bool:
        """Whether the picture says what was run."""
        return self.own["note"] == "true"

    @property
    def out(self) -> Path:
        """The files to write, without their endings."""
        return Path(self.own["out"] or self.kind)

    @property
    def metrics(self) -> list[str]:
        """What is to be shown, each once."""
        return list(dict.fromkeys(self.own["metric"].split(",")))


def read_words(words: Sequence[str]) -> Request:
    """The request that `words` make. Raises InputError for what is none."""
    if not words or words[0] not in KINDS:
        given = printable(words[0]) if words else "nothing"
        near = difflib.get_close_matches(given, KINDS, 1)
        advice = f"did you mean {near[0]}? " if near else ""
        raise InputError(f"plot: the first word says what to draw, one of {', '.join(KINDS)}; {advice}got {given}")
    kind = words[0]
    given_words: dict[str, str] = {}
    places: list[str] = []
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if not equals:
            places.append(word)
        elif not key or not value:
            raise InputError(f"{printable(word)}: not understood; give KEY=VALUE, --help lists the keys")
        elif key in given_words:
            raise InputError(f"{printable(word)}: {key} is given twice; several values are joined by commas")
        else:
            given_words[key] = value
    known = {**_COMMON, **_OF_KIND[kind]}
    own = {key: given_words.pop(key, default) for key, default in known.items()}
    _require_possible(own)
    for key in given_words:
        if key in {key for options in _OF_KIND.values() for key in options}:
            raise InputError(f"{key}=: plot {kind} has no such option; it has {', '.join(sorted(known))}")
    places += own["from"].split(",") if own["from"] else []
    return Request(kind, tuple(Path(place).expanduser() for place in places or [_STORE]), own, given_words)


def _require_possible(own: dict[str, str]) -> None:
    if own["width"] not in COLUMN_IN:
        raise InputError(f"width={printable(own['width'])}: choose one of {', '.join(COLUMN_IN)}")
    if own["note"] not in ("true", "false"):
        raise InputError(f"note={printable(own['note'])}: must be true or false")
    if not own["dpi"].isascii() or not own["dpi"].isdigit() or not 30 <= int(own["dpi"][:5]) <= _MOST_DPI:
        raise InputError(f"dpi={printable(own['dpi'])}: must be a whole number from 30 to {_MOST_DPI}")
    for one in own["formats"].split(","):
        if one not in FORMATS:
            raise InputError(f"formats={printable(own['formats'])}: choose from {', '.join(FORMATS)}")
    if Path(own["out"]).suffix.removeprefix(".") in FORMATS:
        stem = printable(str(Path(own["out"]).with_suffix("")))
        raise InputError(
            f"out={printable(own['out'])}: give the name without an ending, as out={stem}; formats= has these"
        )
