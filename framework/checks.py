"""Bounds of a user's values, as checks that fail with one clear line, and as annotations of settings.

A class states the bounds of its settings where it declares them: `tokens: Count = 16`, `share: Annotated[float,
between(0, 1)]`. `check_fields` and `checked` test values against them. A `Literal` and a `bool` are bounds themselves;
`| None` allows None; the bounds of the entries of a tuple or a mapping hold for each of them.
"""

from __future__ import annotations

import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from numbers import Integral
from typing import Annotated, Any, Literal, ParamSpec, TypeGuard, TypeVar, get_args, get_origin

from framework.errors import InputError, shown

Check = Callable[[str, Any], None]  # name and value of a setting; raises InputError for a value out of bounds
P = ParamSpec("P")
T = TypeVar("T")

MOST = 1e24  # largest quantity: more than the bytes, FLOP/s and tokens of any simulation
MOST_COUNTED = 10**15  # largest count
MOST_S = 1e9  # seconds, thirty years


def check_fields(settings: Any, prefix: str) -> None:
    """Raise InputError, its name after `prefix`, for the first field of a dataclass that its annotation rules out."""
    kind: Any = type(settings)
    for name, check in _bounds(kind):
        check(f"{prefix}{name}", getattr(settings, name))


def checked(prefix: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a constructor, or a function that makes something, to check its arguments against their annotations.

    Defaults are checked too. The first that is out of bounds raises InputError, its name after `prefix`.
    """

    def decorate(make: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(make)

        @functools.wraps(make)
        def made(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                given = signature.bind(*args, **kwargs)
            except TypeError:
                make(*args, **kwargs)  # reports wrong arguments in its own words
                raise
            given.apply_defaults()
            for name, check in _bounds(make):
                check(f"{prefix}{name}", given.arguments[name])
            return make(*args, **kwargs)

        return made

    return decorate


def require_count(name: str, value: Any, most: int = MOST_COUNTED) -> None:
    """Raise InputError unless `value` is a whole number from 1 to `most`."""
    _require_whole(name, value, 1, most)


def require_whole(name: str, value: Any, most: int = MOST_COUNTED) -> None:
    """Raise InputError unless `value` is a whole number from 0 to `most`."""
    _require_whole(name, value, 0, most)


def require_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raise InputError, listing the choices, unless `value` is one of them."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}; got {shown(value)}")


def require_flag(name: str, value: Any) -> None:
    """Raise InputError unless `value` is true or false."""
    if not isinstance(value, bool):
        raise InputError(f"{name} must be true or false, got {shown(value)}")


def require_name(name: str, value: Any) -> None:
    """Raise InputError unless `value` is a text that can name something: not empty, and all characters printable."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise InputError(f"{name} must be a name, got {shown(value)}")


def require_at_least(name: str, value: Any, minimum: float) -> None:
    """Raise InputError unless `value` is a finite number of at least `minimum`, and not absurdly large."""
    if not is_number(value) or value < minimum:
        raise InputError(f"{name} must be a finite number of at least {minimum:g}, got {shown(value)}")
    _require_at_most(name, value, _most(name))


def require_positive(name: str, value: Any) -> None:
    """Raise InputError unless `value` is a finite number above 0, and not absurdly large."""
    if not is_number(value) or value <= 0:
        raise InputError(f"{name} must be a finite number above 0, got {shown(value)}")
    _require_at_most(name, value, _most(name))


def require_share(name: str, value: Any) -> None:
    """Raise InputError unless 0 < `value` <= 1."""
    if not is_number(value) or not 0 < value <= 1:
        raise InputError(f"{name} must be above 0 and at most 1, got {shown(value)}")


def require_number(name: str, value: Any, least: float, most: float) -> None:
    """Raise InputError unless `value` is a finite number from `least` to `most`."""
    if not is_number(value):
        raise InputError(f"{name} must be a finite number, got {shown(value)}")
    if not least <= value <= most:
        raise InputError(f"{name} must lie between {least:g} and {most:g}, got {shown(value)}")


def is_number(value: Any) -> bool:
    """Whether `value` is a finite number that a float64 can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < 1e300 if isinstance(value, int) else math.isfinite(value)


def is_numeric(value: object) -> TypeGuard[int | float]:
    """Whether `value` is an int or a float, NaN and infinities too, and not a truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


# --- bounds, for annotations
# -------------------------------------------------------------------------------------------


def between(least: float, most: float) -> Check:
    """A finite number from `least` to `most`."""
    return lambda name, value: require_number(name, value, least, most)


def at_least(minimum: float) -> Check:
    """A finite number of at least `minimum`."""
    return lambda name, value: require_at_least(name, value, minimum)


def at_most(most: float) -> Check:
    """At most `most`, for what another bound has found to be a number."""
    return lambda name, value: _require_at_most(name, value, most)


def up_to(most: int, least: int = 1) -> Check:
    """A whole number from `least` to `most`."""
    return lambda name, value: _require_whole(name, value, least, most)


def one_of(choices: Sequence[str]) -> Check:
    """One of the choices, if they are no `Literal` of their own."""
    return lambda name, value: require_choice(name, value, choices)


Count = Annotated[int, require_count]
Whole = Annotated[int, require_whole]
Positive = Annotated[float, require_positive]
NotNegative = Annotated[float, at_least(0)]
Share = Annotated[float, require_share]
Name = Annotated[str, require_name]


@functools.cache
def _bounds(declared: Any) -> tuple[tuple[str, Check], ...]:
    """Names and checks of those fields of a dataclass, or arguments of a function, that have bounds."""
    hints = typing.get_type_hints(declared, include_extras=True)
    names = [one.name for one in fields(declared)] if is_dataclass(declared) else inspect.signature(declared).parameters
    found = ((name, _check_of(hints[name])) for name in names if name in hints)
    return tuple((name, check) for name, check in found if check is not None)


def _check_of(hint: Any) -> Check | None:
    """The check that an annotation states; None: it has no bounds."""
    kind, inner = get_origin(hint), get_args(hint)
    if hint is bool:
        return require_flag
    if kind is Annotated:
        return _all_of([*inner[1:], _check_of(inner[0])])
    if kind is Literal:
        return one_of(inner)
    if kind in (typing.Union, types.UnionType):
        return _check_of_union([one for one in inner if one is not type(None)])
    check = _check_of(inner[-1 if kind is Mapping else 0]) if kind in (tuple, Mapping) else None
    if check is None:
        return None
    return _of_each_value(check) if kind is Mapping else _of_each(check)


def _all_of(checks: Sequence[Check | None]) -> Check:
    present = [check for check in checks if check is not None]

    def check_all(name: str, value: Any) -> None:
        for check in present:
            check(name, value)

    return present[0] if len(present) == 1 else check_all


def _check_of_union(others: Sequence[Any]) -> Check | None:
    """The check of the one kind besides None; of several kinds nothing is checked."""
    check = _check_of(others[0]) if len(others) == 1 else None
    if check is None:
        return None

    def check_unless_none(name: str, value: Any) -> None:
        if others[0] is bool and not isinstance(value, bool | None):
            raise InputError(f"{name} must be true, false or null, got {shown(value)}")
        if value is not None:
            check(name, value)

    return check_unless_none


def _of_each(check: Check) -> Check:
    def check_each(name: str, value: Any) -> None:
        for one in value if isinstance(value, Sequence) else ():
            check(name, one)

    return check_each


def _of_each_value(check: Check) -> Check:
    def check_each_value(name: str, value: Any) -> None:
        for key, one in value.items() if isinstance(value, Mapping) else ():
            check(f"{name}.{key}", one)

    return check_each_value


def _require_whole(name: str, value: Any, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {shown(value)}")
    _require_at_most(name, int(value), most)


def _require_at_most(name: str, value: float, most: float) -> None:
    if value > most:
        raise InputError(f"{name} must be at most {most:g}, got {shown(value)}")


def _most(name: str) -> float:
    """The largest value for a name: seconds end in _s, but so do rates such as bytes_s."""
    return MOST_S if name.endswith("_s") and not name.endswith("bytes_s") else MOST
