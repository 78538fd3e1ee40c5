"""A file as a trace, in the given format or in the one that its content shows."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from framework.cli.files import read_once
from framework.cli.reading import require_regular
from framework.cli.terminal import warn_once
from framework.errors import InputError
from traces.formats import registry
from traces.formats.tables import advice
from traces.frame import Trace
from traces.parsing.doubts import doubted_clock
from traces.parsing.how import AS_IT_IS, How
from traces.parsing.rows import beginning, read_bytes

FOLDER = "servegen"


def read(path: Path, format_name: str | None = None, how: How = AS_IT_IS) -> Trace:
    """Read a trace file in a given format, or in the one that its content shows; with the file's sha256.

    A process reads a file again only if it has changed. Raises InputError if there is no such file or format, or if
    more records are bad than `how` allows.
    """
    if str(path) in ("", "."):
        raise InputError("trace.path is empty; name a file")
    if not path.is_dir():
        require_regular(path, "trace file")
    if format_name is not None and format_name not in registry.FORMATS:
        raise InputError(f"trace.format: {format_name!r} is not known; the formats are {', '.join(registry.FORMATS)}")
    trace = _read(path, format_name, how if path.is_dir() else replace(how, seed=0))  # none has distributions
    return trace.with_frame(trace.frame.clone())  # a frame can be changed in place, its columns cannot


@read_once(keep=8)
def _read(path: Path, format_name: str | None, how: How) -> Trace:
    name = sniff(path) if format_name is None else format_name
    if path.is_dir() != (name == FOLDER):
        raise InputError(f"{path}: {'a folder' if path.is_dir() else 'no folder'} is no trace in format {name}")
    known = registry.FORMATS[name]
    try:
        trace = known.read(path, replace(how, block_tokens=how.block_tokens or known.block_tokens))
    except InputError as error:
        other = None if format_name is None or path.is_dir() else registry.guess(read_bytes(path))
        if other in (None, format_name):
            raise
        raise InputError(f"{error}; the file looks like trace.format={other}") from error
    doubts = doubted_clock(trace)
    for doubt in doubts:
        warn_once(f"WARNING: {path}: {doubt}")
    trace = replace(trace, notes=(*trace.notes, *doubts))
    if trace.sha256:
        return trace
    with path.open("rb") as content:
        return replace(trace, sha256=hashlib.file_digest(content, "sha256").hexdigest())


def sniff(path: Path) -> str:
    """The format of a file by its content. Raises InputError if it has none of the known ones."""
    if path.is_dir():
        return FOLDER
    if (found := registry.guess_csv(beginning(path))) is not None:
        return found
    data = read_bytes(path)
    if (found := registry.guess(data)) is not None:
        return found
    if (why := registry.refusal(data)) is not None:
        raise InputError(f"{path}: {why}")
    known = f"{path}: in no known format; set trace.format to one of {', '.join(registry.FORMATS)}"
    raise InputError(known + advice(path, data))
