"""What a curve raises from point to point, and the numbers that a user may write for it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from framework.checks import require_positive
from framework.cli.terminal import tell
from framework.errors import InputError

_MOST_POINTS = 1000  # most points of a series


@dataclass(frozen=True)
class Axis:
    """`word` of the command line, `column` of the figures, `key` of the configuration, which needs `fixed`."""

    word: str
    column: str
    key: str
    fixed: tuple[str, ...]

    def overrides(self, value: float) -> list[str]:
        """The settings of a run at `value`."""
        return [*self.fixed, f"{self.key}={value:.15g}"]


RATE = Axis("rates", "rate_rps", "trace.rate", ())
CONCURRENCY = Axis("concurrency", "concurrency", "load.concurrency", ("load=closed",))


def values(axis: Axis, text: str) -> tuple[float, ...]:
    """The numbers of `1,2,4`, of `1:8:15` (15 of them, evenly spaced) or of `1:256:x2` (each twice the one before).

    Raises InputError unless they are positive and increase, and are whole if clients are counted.
    """
    numbers = [number for part in text.split(",") for number in _expanded(axis.word, part.strip())]
    for number in numbers:
        require_positive(axis.word, number)
        if axis is CONCURRENCY and number != int(number):
            raise InputError(f"{axis.word} counts clients and must be whole, got {number:g}")
    if any(one >= other for one, other in pairwise(numbers)):
        raise InputError(f"{axis.word}={text}: must increase from point to point")
    return tuple(numbers)


def number(word: str, text: str) -> float:
    """`text` as a number. Raises InputError, naming `word`, for anything else."""
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{word}: {text!r} is not a number") from None


def _expanded(word: str, part: str) -> list[float]:
    ends = part.split(":")
    if len(ends) == 1:
        return [number(word, part)]
    if len(ends) != 3:
        raise InputError(f"{word}={part}: a range is first:last:count or first:last:xFACTOR")
    first, last = number(word, ends[0]), number(word, ends[1])
    for end in (first, last):
        require_positive(word, end)
    if first >= last:
        raise InputError(f"{word}={part}: must increase from point to point")
    if ends[2].startswith("x"):
        return _multiplied(f"{word}={part}", first, last, number(word, ends[2][1:]))
    return _evenly_spaced(f"{word}={part}", first, last, ends[2])


def _evenly_spaced(where: str, first: float, last: float, count: str) -> list[float]:
    if not count.isascii() or not count.isdigit() or not 2 <= int(count) <= _MOST_POINTS:
        raise InputError(f"{where}: the count must be a whole number from 2 to {_MOST_POINTS}, got {count!r}")
    steps = int(count) - 1
    points, exact = (last - first) / int(count) + 1, (last - first) / steps
    if points == int(points) and points > 2 and exact != int(exact):  # it may be meant as a step
        meaning = f"{count} values from {first:g} to {last:g}, {exact:.3g} apart"
        tell(f"note: {where} means {meaning}; {first:g}:{last:g}:{points:g} are {count} apart")
    return [_rounded(first + (last - first) * step / steps) for step in range(steps + 1)]


def _multiplied(where: str, first: float, last: float, factor: float) -> list[float]:
    if not factor > 1:
        raise InputError(f"{where}: the factor must be above 1")
    found = []
    value = first
    while _rounded(value) <= last:
        found.append(_rounded(value))
        value *= factor
        if len(found) > _MOST_POINTS:
            raise InputError(f"{where}: more than {_MOST_POINTS} points")
    return found


def _rounded(value: float) -> float:
    return float(f"{value:.12g}")
