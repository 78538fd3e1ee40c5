"""Ways to damage a file: as bytes, as JSON, as CSV. Each yields names of damages with the file that they leave."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

# JSON values, as text, that a reader does not expect somewhere.
HOSTILE_JSON = {
    "null": "null",
    "true": "true",
    "text": '"text"',
    "empty text": '""',
    "control text": '"\\u001b[31mred\\u0007\\n"',
    "number as text": '"12"',
    "list": "[1, 2]",
    "empty list": "[]",
    "uneven lists": "[[1], [2, 3]]",
    "list of null": "[null]",
    "list of texts": '["a", "b"]',
    "object": '{"a": 1}',
    "empty object": "{}",
    "zero": "0",
    "minus": "-1",
    "fraction": "0.5",
    "huge": "1e308",
    "beyond": "1e999",
    "not a number": "NaN",
    "infinite": "Infinity",
    "minus infinite": "-Infinity",
    "tiny": "1e-320",
    "many": "1e18",
    "63 bits": str(2**63),
    "64 bits": str(2**64),
    "minus 63 bits": str(-(2**63) - 1),
    "5001 digits": "9" * 5001,
    "deep": "[" * 100_000 + "]" * 100_000,
    "deep object": '{"a":' * 50_000 + "1" + "}" * 50_000,
    "surrogate": '"\\ud800"',
}
HOSTILE_CELLS = {
    "empty": "",
    "blank": "  ",
    "text": "text",
    "nan": "nan",
    "inf": "inf",
    "minus inf": "-inf",
    "beyond": "1e999",
    "huge": "1e308",
    "many": "1e18",
    "zero": "0",
    "minus": "-1",
    "fraction": "1.5",
    "63 bits": str(2**63),
    "5001 digits": "9" * 5001,
    "quoted newline": '"1\n2"',
    "open quote": '"1',
    "long": "x" * 200_000,
    "escape": "\x1b[31mred",
    "hexadecimal": "0x10",
    "underscore": "1_000",
    "thousands": '"1,000"',
    "other digits": "١٢",
    "null byte": "1\x00",
    "true": "true",
    "formula": "=1+1",
    "year 1": "0001-01-01 00:00:00.0000000",
    "year 9999": "9999-12-31 23:59:59.9999999",
    "no such day": "2023-02-30 00:00:00.0",
    "no such hour": "2023-11-16 25:00:00.0",
    "other zone": "2023-11-16 18:15:46.6805900+05:00",
}
_MARK = "\u0001here\u0001"


@dataclass(frozen=True)
class Damaged:
    """A file as a damage leaves it, which is made when it is asked for: there are thousands, of which few are drawn."""

    name: str
    make: Callable[[], bytes]

    @property
    def content(self) -> bytes:
        return self.make()


def given(name: str, content: bytes) -> Damaged:
    """A file that is made already."""
    return Damaged(name, lambda: content)


def damaged_bytes(content: bytes, seed: int, drawn: int = 8) -> Iterator[Damaged]:
    """Truncated, overwritten, packed, encoded otherwise; `drawn` of them at random."""
    rng = random.Random(seed)
    yield given("empty", b"")
    yield given("blank", b" \n\n\t\n")
    yield given("byte order mark alone", b"\xef\xbb\xbf")
    yield given("byte order mark", b"\xef\xbb\xbf" + content)
    yield given("nulls", bytes(4096))
    yield given("random bytes", rng.randbytes(4096))
    yield given("carriage returns", content.replace(b"\n", b"\r\n"))
    yield given("carriage returns alone", content.replace(b"\n", b"\r"))
    yield given("blank lines", content.replace(b"\n", b"\n\n"))
    yield given("another null", content + b"\x00")
    yield given("one line of 2 MB", b"x" * 2_000_000)
    yield given("brackets", b"[" * 1_000_000)
    yield given("braces", b'{"a":' * 200_000)
    yield given("twice", content + content)
    text = content.decode("utf-8", "replace")
    yield given("utf-16", text.encode("utf-16"))
    yield given("latin-1", ("é" + text).encode("latin-1", "replace"))
    packed = gzip.compress(content, mtime=0)
    yield given("gzip", packed)
    yield given("gzip twice", gzip.compress(packed, mtime=0))
    yield given("gzip cut", packed[: len(packed) // 2])
    yield given("gzip head", packed[:12])
    yield given("gzip and more", packed + b"more")
    yield given("gzip, wrong sum", packed[:-8] + bytes(8))
    yield given("gzip of nothing", gzip.compress(b"", mtime=0))
    yield given("zstd head", b"\x28\xb5\x2f\xfd")
    yield given("zstd of rubbish", b"\x28\xb5\x2f\xfd" + rng.randbytes(300))
    yield given("parquet of rubbish", b"PAR1" + rng.randbytes(300) + b"PAR1")
    for number in range(drawn):
        cut = rng.randrange(1, max(2, len(content)))
        yield given(f"cut {number}", content[:cut])
        changed = bytearray(content)
        for _ in range(rng.choice((1, 1, 3, 20))):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        yield given(f"overwritten {number}", bytes(changed))
        at = rng.randrange(len(content))
        yield given(f"inserted {number}", content[:at] + rng.randbytes(rng.choice((1, 4, 64))) + content[at:])


def gzip_bomb(megabytes: int = 300) -> bytes:
    """A small file that unpacks to so many megabytes."""
    block = gzip.compress(b"0" * 1_000_000, compresslevel=9, mtime=0)
    return block * megabytes


def damaged_json(document: Any, entries: int = 2) -> Iterator[Damaged]:
    """Each value of a document (of a list the first few) replaced by hostile ones, left out, or given twice."""
    for path in _paths(document, entries):
        where = ".".join(map(str, path)) or "all"
        for name, text in HOSTILE_JSON.items():
            yield Damaged(f"{where}: {name}", partial(_with, document, path, text))
        if path:
            yield Damaged(f"{where}: left out", partial(_left_out, document, path))
        if path and isinstance(path[-1], str):
            yield Damaged(f"{where}: given twice", partial(_given_twice, document, path))


def damaged_csv(text: str) -> Iterator[Damaged]:
    """Each cell of the second row, and the header, replaced by hostile ones; rows and columns more and fewer."""
    header, *rows = text.splitlines()
    names = header.split(",")
    cells = rows[1].split(",")
    for column in range(len(names)):
        for name, value in HOSTILE_CELLS.items():
            changed = ",".join([*cells[:column], value, *cells[column + 1 :]])
            yield given(f"{names[column]}: {name}", _lines(header, rows[0], changed, *rows[2:]))
            if name in ("empty", "long", "open quote", "quoted newline", "null byte", "escape"):
                other = ",".join([*names[:column], value, *names[column + 1 :]])
                yield given(f"header {names[column]}: {name}", _lines(other, *rows))
        fewer = [",".join(_but(line.split(","), column)) for line in (header, *rows)]
        yield given(f"{names[column]}: no such column", _lines(*fewer))
        twice = [f"{line},{line.split(',')[column]}" for line in (header, *rows)]
        yield given(f"{names[column]}: twice", _lines(*twice))
        yield given(f"{names[column]}: one cell fewer", _lines(header, ",".join(_but(cells, column)), *rows))
    yield given("one cell more", _lines(header, rows[0] + ",1", *rows[1:]))
    yield given("header alone", _lines(header))
    yield given("no header", _lines(*rows))
    yield given("header twice", _lines(header, header, *rows))
    yield given("other separator", text.replace(",", ";").encode())
    yield given("spaces", text.replace(",", " , ").encode())
    yield given("10,000 columns", _lines(",".join(f"c{k}" for k in range(10_000)), *rows))


def _lines(*lines: str) -> bytes:
    return ("\n".join(lines) + "\n").encode()


def _but(cells: Sequence[str], column: int) -> list[str]:
    return [*cells[:column], *cells[column + 1 :]]


def _with(document: Any, path: Sequence[Any], text: str) -> bytes:
    """The document as JSON, with this text where that value was."""
    marked = json.dumps(_replaced(document, tuple(path), _MARK))
    return marked.replace(json.dumps(_MARK), text).encode()


def _left_out(document: Any, path: Sequence[Any]) -> bytes:
    return json.dumps(_without(document, tuple(path))).encode()


def _given_twice(document: Any, path: Sequence[Any]) -> bytes:
    *before, key = path
    parent = _at(document, tuple(before))
    return _with(document, before, json.dumps(parent)[:-1] + f", {json.dumps(key)}: null}}")


def _paths(document: Any, entries: int, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(document, dict):
        for key, value in document.items():
            yield from _paths(value, entries, (*path, key))
    elif isinstance(document, list):
        for index, value in enumerate(document[:entries]):
            yield from _paths(value, entries, (*path, index))


def _at(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


def _replaced(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    key, *rest = path
    copied = dict(document) if isinstance(document, dict) else list(document)
    copied[key] = _replaced(document[key], tuple(rest), value)
    return copied


def _without(document: Any, path: tuple[Any, ...]) -> Any:
    parent = _at(document, path[:-1])
    key = path[-1]
    left = (
        {name: value for name, value in parent.items() if name != key}
        if isinstance(parent, dict)
        else [value for index, value in enumerate(parent) if index != key]
    )
    return _replaced(document, path[:-1], left)
