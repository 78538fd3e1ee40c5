"""The few terms that kernel times lack and that are fitted to measured deployments, and their file.

`<directory>/<gpu>/<backend>/calibration.json`, next to the profiles of that GPU and backend, holds a list of fits; each
states its models and data types.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from framework.checks import NotNegative, Positive, check_fields, require_choice
from framework.cli.files import write_whole
from framework.cli.reading import parsed_json, read_text
from framework.errors import InputError
from framework.system.gpu import DTYPE_BYTES
from framework.system.model import Model
from framework.timing.fit_domain import Domain, Place
from framework.timing.step_row import StepRow

_FORMAT = "servelab calibrations 1"
_KINDS = ("dense", "moe")
COMPUTE_TOKENS = 128.0  # largest step, in tokens, whose linear layers take only the time to read the weights
LATE_TOKENS = 1024.0  # tokens of the largest message that `communication` multiplies in full
# Terms of a server's work; framework.timing.server explains them.
SERVER_TERMS = ("step_s", "message_s", "host_s", "host_sequence_s", "eager_layer_s", "request_s", "token_s")


@dataclass(frozen=True)
class Calibration:
    """The terms that modify the kernel times of one GPU and backend; the default changes nothing.

    `kernel` multiplies all kernel times except communication. `communication` multiplies the time of messages of up to
    LATE_TOKENS tokens, and adds the same to larger ones: GPUs do not wait longer for each other because a message is
    larger. `compute` also multiplies what is bound by arithmetic: prefill attention, and the time of linear layers
    beyond that for COMPUTE_TOKENS tokens. Under sustained load GPUs reach their power limit, and clocks fall, while
    tables are measured in short bursts; reading memory is not affected. The terms of SERVER_TERMS replace those of the
    server, framework.timing.server.Server. Whatever the server hides, `sequence_s` is added to a step for every decode
    in it, and `prefill_step_s` to every step with a chunk. Raises InputError for values that no fit can give.
    """

    kernel: Positive = 1.0
    communication: Positive = 1.0
    step_s: NotNegative = 0.0
    sequence_s: NotNegative = 0.0
    request_s: NotNegative = 0.0
    prefill_step_s: NotNegative = 0.0
    token_s: NotNegative = 0.0
    host_s: NotNegative = 0.0
    host_sequence_s: NotNegative = 0.0
    eager_layer_s: NotNegative = 0.0
    message_s: NotNegative = 0.0
    compute: Positive = 1.0

    def __post_init__(self) -> None:
        check_fields(self, "calibration: ")

    @property
    def overheads(self) -> StepRow:
        """The seconds that are added to every step with a chunk, and for each decode, on any server."""
        return StepRow(prefill_step_s=self.prefill_step_s, per_sequence_s=self.sequence_s)


_TERMS = tuple(field.name for field in fields(Calibration))


@dataclass(frozen=True)
class Selector:
    """The models of a calibration: one by name, or all of the kind "dense" or "moe", with weights of `dtype`.

    "" stands for any. Raises InputError for an unknown kind or data type, and if both model and kind are given.
    """

    model: str = ""
    kind: str = ""
    dtype: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.model, str):
            raise InputError(f"calibration: model must be a name, got {self.model!r}")
        for name, choices in (("kind", _KINDS), ("dtype", tuple(DTYPE_BYTES))):
            if getattr(self, name) != "":
                require_choice(f"calibration: {name}", getattr(self, name), choices)
        if self.model and self.kind:
            raise InputError(f"calibration: either model or kind, got {self.model} and {self.kind}")

    @classmethod
    def of(cls, model: Model) -> Selector:
        """The selector of this model in its data type, the most specific one."""
        return cls(model=model.name, dtype=model.dtype)

    def fits(self, model: Model) -> bool:
        """Whether the calibration is for that model."""
        own = {"model": model.name, "kind": "dense" if model.experts is None else "moe", "dtype": model.dtype}
        return all(asked in ("", own[name]) for name, asked in asdict(self).items())

    @property
    def specificity(self) -> tuple[bool, bool, bool]:
        """The rank of a selector: a model is more specific than a kind, and a kind than a data type."""
        return self.model != "", self.kind != "", self.dtype != ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.model, self.kind, self.dtype))) or "any model"


@dataclass(frozen=True)
class Fit:
    """A calibration, its models, and its origin.

    `rows` has the keys of the deployments that it was fitted to, `domain` the ranges of their loads, None if unknown,
    and `note` says how it was fitted. `source` and `licence` are those of their measurements. Raises InputError if one
    of these is no text.
    """

    calibration: Calibration
    selector: Selector = Selector()
    rows: tuple[str, ...] = ()
    note: str = ""
    source: str = ""
    licence: str = ""
    domain: Domain | None = None

    def __post_init__(self) -> None:
        if not all(isinstance(text, str) for text in (self.note, self.source, self.licence, *self.rows)):
            raise InputError("calibration: rows, note, source and licence must be text")

    def excludes(self, place: Place | None, model: Model) -> str:
        """Why the fit does not count for a load of `model` at `place`, as text; empty if it counts, or if that is
        unknown.
        """
        if place is None or self.domain is None:
            return ""
        if model.experts is not None and place.is_at_once and not self.domain.is_at_once:
            return "all requests are offered at once, and it was fitted to other loads of a mixture of experts"
        return self.domain.excludes(place)


def calibration_path(directory: Path, gpu: str, backend: str) -> Path:
    """The file of the calibrations of that GPU and backend in a directory of profiles."""
    return directory / gpu / backend / "calibration.json"


def write_calibrations(path: Path, entries: Iterable[Fit]) -> None:
    """Write `entries` as JSON, completely or not at all.

    Raises InputError if two are for the same models, and if the file cannot be written.
    """
    ordered = sorted(entries, key=lambda fit: (fit.selector.specificity, str(fit.selector)))
    _require_distinct(ordered)
    content = {"format": _FORMAT, "entries": [_encoded(fit) for fit in ordered]}
    write_whole(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


def replace_calibration(path: Path, fit: Fit) -> bool:
    """Put `fit` into the file at `path`, which need not exist, in place of the one for the same models.

    Returns whether there was one. Raises InputError as reading and writing do.
    """
    there = read_calibrations(path) if path.is_file() else ()
    others = [entry for entry in there if entry.selector != fit.selector]
    write_calibrations(path, [*others, fit])
    return len(others) < len(there)


def read_calibrations(path: Path) -> tuple[Fit, ...]:
    """The calibrations in a file, written by `write_calibrations` or by hand. Raises InputError for anything else."""
    try:
        content = parsed_json(read_text(path, "file of calibrations"))
        if content["format"] != _FORMAT:
            raise ValueError("another format")
        entries = tuple(map(_decoded, content["entries"]))
        _require_distinct(entries)
        return entries
    except InputError as error:
        raise InputError(str(error) if str(path) in str(error) else f"{path}: {error}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        names = ", ".join(_encoded(Fit(Calibration())))
        raise InputError(f"{path}: no calibrations, which are format {_FORMAT!r} and entries of {names}") from error


def find_calibration(
    directories: Iterable[Path], gpu: str, backend: str, model: Model, place: Place | None = None
) -> Fit | None:
    """The most specific fit for `model` in the first directory that has one; None if there is none.

    Fits that do not count for a load at `place` come last. Raises InputError for a file that cannot be read.
    """
    for directory in directories:
        path = calibration_path(directory, gpu, backend)
        fits = [fit for fit in read_calibrations(path) if fit.selector.fits(model)] if path.is_file() else []
        if fits:
            return max(fits, key=lambda fit: (not fit.excludes(place, model), fit.selector.specificity))
    return None


def _require_distinct(entries: Iterable[Fit]) -> None:
    selector, count = next(iter(Counter(fit.selector for fit in entries).most_common(1)), (None, 0))
    if count > 1:
        raise InputError(f"calibration: {count} entries for {selector}")


def _encoded(fit: Fit) -> dict[str, Any]:
    """One flat object: models, terms, origin."""
    known = asdict(fit)
    return known.pop("selector") | known.pop("calibration") | known


def _decoded(entry: Mapping[str, Any]) -> Fit:
    known = dict(entry)
    terms = {name: known.pop(name) for name in _TERMS if name in known}
    chosen = {field.name: known.pop(field.name) for field in fields(Selector) if field.name in known}
    rows, domain = known.pop("rows", []), known.pop("domain", None)
    if not isinstance(rows, list):
        raise TypeError("rows are no list")
    ranges = Domain(**domain) if isinstance(domain, Mapping) else None  # earlier files have a text, or none
    return Fit(Calibration(**terms), Selector(**chosen), tuple(rows), domain=ranges, **known)
