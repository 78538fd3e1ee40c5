"""The few terms that kernel times lack and that are fitted to measured deployments, and the file that holds them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from framework.errors import InputError
from framework.files import write_whole
from framework.validate import require_at_least, require_positive

_FORMAT = "servelab calibration 1"


@dataclass(frozen=True)
class Calibration:
    """What is laid over the kernel times of one GPU and backend; the default changes nothing.

    `kernel` multiplies all times of kernels but communication, which `communication` multiplies. Seconds: `step_s` of
    every step, `sequence_s` of every decoding sequence in a step, `request_s` of every request before the scheduler
    sees it (client, HTTP, tokenizer). `rows`: keys of the deployments it was fitted to; `note`: how. Raises InputError
    for values that no fit can give.
    """

    kernel: float = 1.0
    communication: float = 1.0
    step_s: float = 0.0
    sequence_s: float = 0.0
    request_s: float = 0.0
    rows: tuple[str, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        for name in ("kernel", "communication"):
            require_positive(f"calibration: {name}", getattr(self, name))
        for name in ("step_s", "sequence_s", "request_s"):
            require_at_least(f"calibration: {name}", getattr(self, name), 0)
        if not isinstance(self.note, str) or not all(isinstance(row, str) for row in self.rows):
            raise InputError("calibration: note and rows must be text")


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write `calibration` as JSON; the file appears whole or not at all. InputError if it cannot be written."""
    content = {"format": _FORMAT} | asdict(calibration)
    write_whole(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


def read_calibration(path: Path) -> Calibration:
    """Read what `write_calibration` wrote, or what somebody wrote by hand; InputError where it is something else."""
    try:
        content = json.loads(path.read_text("utf-8"))
        if content.pop("format") != _FORMAT:
            raise ValueError("another format")
        rows = content.pop("rows", [])
        return Calibration(**content, rows=tuple(rows))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        names = ", ".join(field.name for field in fields(Calibration))
        raise InputError(f"{path}: not a calibration, which is JSON with format {_FORMAT!r} and {names}") from error


def find_calibration(directories: Iterator[Path] | tuple[Path, ...], gpu: str, backend: str) -> Calibration | None:
    """The first calibration of that GPU and backend in directories of profiles, None where there is none."""
    for directory in directories:
        path = directory / gpu / backend / "calibration.json"
        if path.is_file():
            return read_calibration(path)
    return None
