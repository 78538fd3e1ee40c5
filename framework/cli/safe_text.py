"""Text for people: lines of errors, notes in files, cells of tables.

All text for a terminal or a file passes through here. Secrets in URLs are masked, control characters are shown instead
of sent, and long values are shortened.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from urllib.parse import unquote

MASK = "***"
_URL = re.compile(r"(?P<scheme>(?:[A-Za-z][A-Za-z0-9+.-]*)?)://(?P<rest>\S*?)(?=['\"`)\],;:.]*(?:\s|$))")
_ADDRESS = re.compile(r" at 0x[0-9a-f]{6,}(?=>)")  # address of an object without a text of its own
_LONGEST = 1_500  # characters of a line
_LONGEST_WORD = 400  # longest run of letters without a blank
_LEAST_SECRET = 3  # characters: shorter secrets occur in other words


def one_line(text: str) -> str:
    """`text` as one printable line: blanks collapsed, secrets masked, control characters shown, shortened.

    Addresses in memory, which differ from run to run, are left out.
    """
    words = masked(_ADDRESS.sub("", " ".join(text.split()))).split(" ")
    line = " ".join(map(_shortened_word, words))
    if len(line) > _LONGEST:
        line = f"{line[: _LONGEST - 200]} … {line[-200:]}"
    return printable(line)


def printable(text: str) -> str:
    """`text` with every unprintable character written as an escape, line ends included."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escape(one) for one in text)


def to_be_seen(text: str) -> str:
    """`text` with every unprintable character except line ends and tabs written as an escape."""
    if text.isprintable():
        return text
    return "".join(one if one in "\n\t" else printable(one) for one in text)


class LineFormatter(logging.Formatter):
    """Makes a library's log printable: it repeats words of the command line and names of files."""

    def format(self, record: logging.LogRecord) -> str:
        return to_be_seen(super().format(record))


def masked(text: str) -> str:
    """`text` with user, password and every query value of each URL in it masked."""
    return _URL.sub(_masked_url, text) if "://" in text else text


def without(text: str, secrets: tuple[str, ...]) -> str:
    """`text` with its URLs masked, and with each of these words masked if a message quotes it from a URL."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return masked(text)


def secrets_of(text: str) -> tuple[str, ...]:
    """User, password and query values of each URL in a text, as written there and as a driver may quote them."""
    found = {one for match in _URL.finditer(text) for one in _secrets_in(match["rest"])}
    return tuple(sorted(one for one in found | set(map(unquote, found)) if len(one) >= _LEAST_SECRET))


def _masked_url(match: re.Match[str]) -> str:
    scheme, rest = match["scheme"], match["rest"]
    at, query = rest.rfind("@"), rest.find("?")
    if 0 <= query < at:  # a password with a ?, or a value with an @: both readings are possible
        return f"{scheme}://{MASK}"
    place, _, values = rest.partition("?")
    place, hash_sign, _ = place.partition("#")
    if at >= 0:
        place = f"{MASK}@{rest[at + 1 : query if query >= 0 else None].partition('#')[0]}"
    shown = [f"{name}={MASK}" if equals else MASK for name, equals, _ in _pairs(values)] if query >= 0 else []
    return f"{scheme}://{place}{'?' + '&'.join(shown) if shown else ''}{'#' + MASK if hash_sign else ''}"


def _pairs(values: str) -> Iterator[tuple[str, str, str]]:
    return (pair.partition("=") for pair in re.split("[&;]", values))


def _secrets_in(rest: str) -> Iterator[str]:
    before, at, _ = rest.rpartition("@")
    if at:
        user, _, password = before.partition(":")
        yield from (user, password)
    _, question_mark, values = rest.partition("?")
    if question_mark:
        yield from (value if equals else name for name, equals, value in _pairs(values))


def _shortened_word(word: str) -> str:
    if len(word) <= _LONGEST_WORD:
        return word
    return f"{word[:80]}…({len(word):,} characters)…{word[-40:]}"


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
