"""Records of JSON files in any form: one a line, an array, one object, or several one after another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from framework.checks import is_number
from framework.cli.reading import parsed_json
from framework.errors import InputError
from traces.parsing.rows import filled_lines, read_bytes

_LOOKED_AT = 20  # records that show the form of a file: the first may be of a failed request


def records(path: Path) -> Iterator[tuple[str, Any]]:
    """Each object of a file with its place; in place of an unreadable one the InputError that says why."""
    for place, record in placed(path, read_bytes(path)):
        yield f"{path}, {place}", record


def placed(path: Path, data: bytes) -> Iterator[tuple[str, Any]]:
    """The records of a file's content, each with its place: `line 5`, or `record 5` if they span lines."""
    if is_array(data):
        yield from _objects(path, _elements(path, data))
        return
    if _spans_lines(data) and (several := _decoded_all(data)) is not None:
        yield from _objects(path, several)
        return
    for line_number, line in filled_lines(data):
        place = f"line {line_number}"
        try:
            record = parsed_json(line)
        except ValueError as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error).splitlines()[0]
            yield place, InputError(f"{path}, {place}: not JSON ({reason})")
            continue
        yield place, record if isinstance(record, dict) else InputError(f"{path}, {place}: not a JSON object")


def is_array(data: bytes) -> bool:
    """Whether the content of a file is a JSON array."""
    return data.lstrip().startswith(b"[")


def _elements(path: Path, data: bytes) -> list[Any]:
    """The values of a JSON array; of a damaged one those before the damage, and an InputError about it."""
    try:
        values = parsed_json(data)
        if isinstance(values, list):
            return values
    except ValueError as error:
        reason = str(error).splitlines()[0]
    found: list[Any] = []
    try:
        text, at = _text(data), 1
        while True:
            value, at = json.JSONDecoder().raw_decode(text, _past(text, at))
            found.append(value)
            at = _past(text, at)
    except (ValueError, RecursionError):
        pass  # `reason` has it
    return [*found, InputError(f"{path}: not JSON ({reason})")]


def _past(text: str, at: int) -> int:
    """The place after blanks and commas."""
    while at < len(text) and (text[at].isspace() or text[at] == ","):
        at += 1
    return at


def values(path: Path) -> list[dict[str, Any]]:
    """The objects of a file that holds one or several, one after another or in an array. Raises InputError."""
    data = read_bytes(path)
    if is_array(data):
        found: list[Any] = _elements(path, data)
    else:
        try:
            found = list(_decoded(_text(data)))
        except ValueError as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            raise InputError(f"{path}: not JSON ({reason})") from None
    if fault := next((value for value in found if isinstance(value, InputError)), None):
        raise fault
    if not all(isinstance(value, dict) for value in found) or not found:
        raise InputError(f"{path}: not a JSON object")
    return found


def first_records(data: bytes) -> list[dict[str, Any]]:
    """The first objects of a JSON file, or of its array; none if there is none."""
    data = data.lstrip()
    found: list[Any] = []
    try:
        if is_array(data):
            found = _elements(Path(), data)[:_LOOKED_AT]
        elif data.startswith(b"{") and _spans_lines(data):
            for one in islice(_decoded(_text(data)), _LOOKED_AT):
                found.append(one)
        elif data.startswith(b"{"):
            for _, line in islice(filled_lines(data), _LOOKED_AT):
                found.append(parsed_json(line))
    except ValueError:
        pass  # the objects found so far are enough
    return [value for value in found if isinstance(value, dict)]


def value_at(record: Any, *places: str) -> Any:
    """The first value that is not null at these places, such as `info.timings.start` within objects of those names, or
    null.
    """
    for place in places:
        value: Any = record
        for name in (place,) if isinstance(record, dict) and place in record else place.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            return value
    return None


def number_of(value: Any) -> int | float | None:
    """A finite number, also one that is written as a text; None for anything else."""
    if isinstance(value, str):
        try:
            value = int(value) if value.strip().lstrip("+-").isdecimal() else float(value)
        except ValueError:
            return None
    return value if is_number(value) else None


def _objects(path: Path, found: list[Any]) -> Iterator[tuple[str, Any]]:
    for number, record in enumerate(found, start=1):
        place = f"record {number}"
        if not isinstance(record, dict | InputError):
            record = InputError(f"{path}, {place}: not a JSON object")
        yield place, record


def _spans_lines(data: bytes) -> bool:
    """Whether the first object does not end on its line, or another one begins there."""
    try:
        parsed_json(next(filled_lines(data))[1])
    except ValueError:
        return True
    return False


def _decoded_all(data: bytes) -> list[Any] | None:
    """All values of a file, one after another; None if it is no such file."""
    try:
        return list(_decoded(_text(data)))
    except ValueError:
        return None


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None


def _decoded(text: str) -> Iterator[Any]:
    """The values of a text that has one after another. Raises ValueError with a short reason."""
    at = 0
    while at < len(text):
        try:
            value, at = json.JSONDecoder().raw_decode(text, at)
        except RecursionError:
            raise ValueError("lists or objects nested too deep") from None
        except json.JSONDecodeError:
            raise
        except ValueError:  # Python converts no more than 4,300 digits
            raise ValueError("a number of too many digits") from None
        yield value
        while at < len(text) and text[at].isspace():
            at += 1
