"""Reading a user's file: the allowed kinds, sizes and compressions.

A file packed by gzip or zstd is unpacked, up to `MOST_BYTES`; a larger one is a mistake, or was made to fill the
memory. A pipe or a device is refused, since its end is unknown.
"""

from __future__ import annotations

import io
import json
import math
import os
import stat
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from framework.errors import InputError

if TYPE_CHECKING:
    import polars as pl

MOST_BYTES = 1 << 32
_STDERR = 2  # its file descriptor
_UNPACKED = 100  # text shrinks to a hundredth at most
_LEAST_LIMIT = 1 << 26  # bytes that any file may unpack to
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_CHUNK = 1 << 20
_ZSTD_BLOCK = 1 << 17  # most bytes in a block of zstd (RFC 8878, 3.1.1.2.4)
_NOT_A_SEPARATOR = "\x1e"  # a character that no text contains
_LONGEST_YAML, _DEEPEST_YAML, _MOST_ALIASES = 1_000_000, 50, 30
_MOST_REPEATED = 10_000  # total values after expanding aliases
_REFERENCE = "${"  # start of a reference to another setting
_MOST_REFERENCES = 100_000  # the most references to which a chain of all texts may lead
_BOM = b"\xef\xbb\xbf"


def read_file(path: Path, what: str = "file") -> bytes:
    """The content of a file, unpacked if it is packed, without byte order mark. Raises InputError in one line."""
    require_regular(path, what)
    try:
        with path.open("rb") as file:
            data = file.read(max(os.fstat(file.fileno()).st_size, _CHUNK) + 1)  # which allocates as much
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    return unpacked(data, path).removeprefix(_BOM)


def require_regular(path: Path, what: str = "file") -> None:
    """Raise InputError unless `path` names a regular file of a readable size."""
    try:
        status = path.stat()
    except FileNotFoundError:
        raise InputError(f"{path}: cannot be read (no such {what})") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except ValueError:  # a null byte in the name
        raise InputError(f"{path}: cannot name a {what}") from None
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path}: is {_kind(status.st_mode)}, no {what}")
    if status.st_size > MOST_BYTES:
        raise InputError(f"{path}: has {status.st_size:,} bytes, a {what} has at most {MOST_BYTES:,}")


def read_text(path: Path, what: str = "file") -> str:
    """The text of a file in UTF-8. Raises InputError as `read_file` does, and for other bytes."""
    try:
        return read_file(path, what).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not text in UTF-8 (byte {error.start + 1:,})") from None


def is_packed(path: Path) -> bool:
    """Whether a file begins as gzip or zstd does. Raises InputError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(4).startswith((_GZIP, _ZSTD))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None


def unpacked(data: bytes, path: Path) -> bytes:
    """`data`, unpacked if gzip or zstd packed it. Raises InputError if that fails, or if it is packed twice."""
    if not data.startswith((_GZIP, _ZSTD)):
        return data
    limit = min(MOST_BYTES, max(_LEAST_LIMIT, _UNPACKED * len(data)))
    inner = _gunzipped(data, path, limit) if data.startswith(_GZIP) else _unpacked_zstd(data, path, limit)
    if inner.startswith((_GZIP, _ZSTD)):
        raise InputError(f"{path}: is packed twice; unpack it")
    return inner


def parsed_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError with a short reason for any other text."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("lists or objects nested too deep") from None
    except json.JSONDecodeError:
        raise
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except ValueError as error:  # Python converts no more than 4,300 digits
        raise ValueError("a number of too many digits" if "digits" in str(error) else str(error)) from None


def parquet_of(data: bytes, most_rows: int) -> pl.DataFrame:
    """The table in a Parquet file's content. Raises ValueError for more rows, and for a damaged file."""
    import polars as pl

    try:
        with panics_withheld():
            rows = int(pl.scan_parquet(io.BytesIO(data)).select(pl.len()).collect().item())
            if rows > most_rows:
                raise ValueError(f"{rows:,} rows, at most {most_rows:,} are read")
            return pl.read_parquet(data)
    except pl.exceptions.PanicException:  # not an Exception to Python: polars trusts lengths in the file
        raise ValueError("damaged") from None


@contextmanager
def panics_withheld() -> Iterator[None]:
    """Keep the messages of polars' threads off the terminal when a damaged file makes them panic.

    Other writes to stderr come out afterwards, unless an exception ends this.
    """
    try:
        terminal = os.dup(_STDERR)
    except OSError:  # There is no stderr.
        yield
        return
    with tempfile.TemporaryFile() as written, os.fdopen(terminal, "wb", buffering=0) as kept:
        os.dup2(written.fileno(), _STDERR)
        try:
            yield
        except BaseException:
            written.truncate(0)
            raise
        finally:
            os.dup2(kept.fileno(), _STDERR)
            written.seek(0)
            with suppress(OSError):
                kept.write(written.read())


def parsed_yaml(text: str) -> Any:
    """The value of a YAML text of a size that a person writes. Raises ValueError, with the reason, for any
    other text.
    """
    if len(text) > _LONGEST_YAML:
        raise ValueError(f"{len(text):,} characters, at most {_LONGEST_YAML:,} are read")
    try:
        _require_small(yaml.parse(text, Loader=yaml.SafeLoader))
        return yaml.safe_load(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    except (yaml.YAMLError, ValueError) as error:
        reason = "a number of too many digits" if "digits" in str(error) else str(error)
        raise ValueError(" ".join(reason.split())) from None


def _require_small(events: Iterable[yaml.Event]) -> None:
    """Raise ValueError for nesting that is too deep, and for aliases that refer to themselves or to too much."""
    sizes: dict[str, int] = {}  # values below each anchor, with all aliases followed
    within: list[tuple[str | None, int]] = []  # what is open: its anchor, and the values seen before it
    seen = aliases = repeated = 0
    texts: list[str] = []
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in within):
                raise ValueError("an alias of itself")
            size = sizes.get(event.anchor, 1)
            seen, repeated, aliases = seen + size, repeated + size, aliases + 1
            if aliases > _MOST_ALIASES or repeated > _MOST_REPEATED:
                raise ValueError("too many aliases")
        elif isinstance(event, yaml.CollectionStartEvent):
            within.append((event.anchor, seen))
            seen += 1
            if len(within) > _DEEPEST_YAML:
                raise ValueError("nested too deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = within.pop()
            if anchor is not None:
                sizes[anchor] = seen - before
        elif isinstance(event, yaml.ScalarEvent):
            seen += 1
            texts.append(event.value)
    if leads_too_far(texts):
        raise ValueError(f"too many texts with several {_REFERENCE}...}}")


def leads_too_far(texts: Iterable[str]) -> bool:
    """Whether settings with these texts might need too many lookups if each referred to the next."""
    return math.prod(max(1, text.count(_REFERENCE)) for text in texts) > _MOST_REFERENCES


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a directory"
    return "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"


def _gunzipped(data: bytes, path: Path, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    rest = data
    try:
        while rest.startswith(_GZIP):  # a file may have several members
            member = zlib.decompressobj(wbits=31)
            while not member.eof:
                part = member.decompress(rest, _CHUNK)
                rest = member.unconsumed_tail
                if not part and not rest and not member.eof:
                    raise InputError(f"{path}: the gzip file is cut short")
                parts.append(part)
                size += len(part)
                if size > limit:
                    raise _too_large(path, limit)
            rest = member.unused_data
    except zlib.error as error:
        raise InputError(f"{path}: is no whole gzip file ({error})") from None
    if rest.strip(b"\x00"):
        raise InputError(f"{path}: something else follows the gzip data")
    return b"".join(parts)


def _unpacked_zstd(data: bytes, path: Path, limit: int) -> bytes:
    """Unpack through polars, line by line: Python has no zstd before 3.14."""
    if _zstd_size(data, path) > limit:
        raise _too_large(path, limit)
    import polars as pl  # it takes long to load, and few files need it

    try:
        lines = pl.read_csv(
            data,
            has_header=False,
            separator=_NOT_A_SEPARATOR,
            quote_char=None,
            infer_schema=False,
            new_columns=["line"],
        )["line"]
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else "damaged"
        raise InputError(f"{path}: is no zstd file of lines of text ({reason})") from None
    return "\n".join(lines.fill_null("")).encode() + b"\n"


def _zstd_size(data: bytes, path: Path) -> int:
    """The most bytes that zstd frames can unpack to, by the headers of their blocks (RFC 8878, section 3.1.1)."""
    at = most = 0
    try:
        while at < len(data):
            magic = int.from_bytes(data[at : at + 4], "little")
            if 0x184D2A50 <= magic <= 0x184D2A5F:  # a frame to be skipped
                at += 8 + int.from_bytes(data[at + 4 : at + 8], "little")
                continue
            if data[at : at + 4] != _ZSTD:
                raise InputError(f"{path}: something else follows the zstd data")
            descriptor = data[at + 4]
            is_single = descriptor >> 5 & 1
            of_size = (is_single, 2, 4, 8)[descriptor >> 6]
            at += 5 + (not is_single) + (0, 1, 2, 4)[descriptor & 3] + of_size
            is_last = False
            while not is_last:
                header = int.from_bytes(data[at : at + 3], "little")
                is_last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
                if kind == 3 or at + 3 > len(data):
                    raise IndexError
                most += _ZSTD_BLOCK if kind == 2 else size
                at += 3 + (1 if kind == 1 else size)
            at += 4 * (descriptor >> 2 & 1)
    except IndexError:
        at = len(data) + 1
    if at > len(data):
        raise InputError(f"{path}: the zstd file is damaged or cut short")
    return most


def _too_large(path: Path, limit: int) -> InputError:
    return InputError(f"{path}: unpacks to more than {limit:,} bytes; unpack it if that is meant")
