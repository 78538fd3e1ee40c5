"""The content of a command line: the kind of picture, its runs, and its look."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiments.plot.style import COLUMN_IN, FORMATS
from experiments.table.command import filters
from framework.cli.command import Arguments
from framework.cli.safe_text import printable
from framework.cli.suggest import nearest
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
    "pareto": {"metric": HEADLINE, "x": "usd_per_hour"},
    "slo": {"metric": "slo_attainment", "x": ""},
}
KEYS = {
    "from": "directories, joined by commas, results by default",
    "metric": "what is shown, joined by commas",
    "columns": "bars: the key by which they are grouped",
    "x": "pareto, slo: what is across",
    "width": "single (3.3 in), the default, or double (7 in)",
    "out": "the file, without an ending",
    "formats": f"some of {', '.join(FORMATS)}; pdf,png by default",
    "dpi": "of a PNG, 300 by default",
    "replicate": "the key in which runs of a group differ, seed by default: means with 95 % intervals",
    "colours": "a store: each policy has the colour that it has in pictures of that store",
    "note": "false leaves out the line above the picture",
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
        """The width of the picture, in inches."""
        return COLUMN_IN[self.own["width"]]

    @property
    def formats(self) -> tuple[str, ...]:
        """The files to write, by their endings."""
        return tuple(self.own["formats"].split(","))

    @property
    def dpi(self) -> float:
        """Dots per inch of a PNG."""
        return float(self.own["dpi"])

    def above(self, note: str) -> str:
        """The note, if the picture should state what was run."""
        return note if self.own["note"] == "true" else ""

    @property
    def out(self) -> Path:
        """The files to write, without their endings."""
        return Path(self.own["out"] or self.kind)

    @property
    def metrics(self) -> list[str]:
        """The quantities to show, each once."""
        return list(dict.fromkeys(self.own["metric"].split(",")))


def read_request(arguments: Arguments) -> Request:
    """The request of `arguments`. Raises InputError for arguments that make none."""
    kind, *places = arguments.operands
    if kind not in KINDS:
        advice = nearest(kind, KINDS) or ";"
        raise InputError(f"plot {printable(kind)}: there is no such picture{advice} choose one of {', '.join(KINDS)}")
    known = {**_COMMON, **_OF_KIND[kind]}
    for key in arguments.own:
        if key not in known:
            raise InputError(f"{key}=: plot {kind} has no such option; it has {', '.join(sorted(known))}")
    own = {**known, **arguments.own}
    _require_possible(own)
    places += arguments.several("from")
    return Request(
        kind, tuple(Path(place).expanduser() for place in places or [_STORE]), own, filters(arguments.settings)
    )


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
