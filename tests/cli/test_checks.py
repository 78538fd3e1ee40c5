"""Bounds of settings that annotations state, for dataclasses and for constructors."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import pytest

from framework.checks import (
    Count,
    Name,
    NotNegative,
    Positive,
    Share,
    Whole,
    at_least,
    at_most,
    between,
    check_fields,
    checked,
    one_of,
    up_to,
)
from framework.cli.outside import make
from framework.errors import InputError


@dataclass(frozen=True)
class Settings:
    """One field of each kind of bound."""

    name: Name = "a"
    count: Count = 1
    few: Annotated[int, up_to(9)] = 1
    whole: Whole = 0
    positive: Positive | None = None
    not_negative: NotNegative = 0.0
    wait_s: NotNegative = 0.0
    portion: Annotated[NotNegative, at_most(1)] = 0.0
    factor: Annotated[float, at_least(1)] = 1.0
    share: Share = 1.0
    ratio: Annotated[float, between(0, 1)] = 0.0
    kind: Literal["a", "b"] = "a"
    dtype: Annotated[str, one_of(("bf16", "fp8"))] = "bf16"
    flag: bool = False
    perhaps: bool | None = None
    sizes: tuple[Count, ...] = ()
    limits: Mapping[str, Mapping[str, Positive | None]] | None = None
    free: int | str = 0  # two kinds: its class has to say which

    def __post_init__(self) -> None:
        check_fields(self, "part.")


class Part:
    """A class whose constructor is checked."""

    @checked("part.")
    def __init__(self, tokens: Count, *, share: Share = 2.0, other: str = "") -> None:
        self.tokens = tokens


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"name": " "}, "part.name must be a name, got ' '"),
    ({"count": 0}, "part.count must be a whole number of at least 1, got 0"),
    ({"count": None}, "part.count must be a whole number of at least 1, got None"),
    ({"few": 10}, "part.few must be at most 9, got 10"),
    ({"whole": True}, "part.whole must be a whole number of at least 0, got True"),
    ({"positive": 0.0}, "part.positive must be a finite number above 0, got 0.0"),
    ({"not_negative": float("nan")}, "part.not_negative must be a finite number of at least 0, got nan"),
    ({"wait_s": 2e9}, "part.wait_s must be at most 1e+09, got 2000000000.0"),
    ({"portion": -1}, "part.portion must be a finite number of at least 0, got -1"),
    ({"portion": 1.5}, "part.portion must be at most 1, got 1.5"),
    ({"factor": 0.5}, "part.factor must be a finite number of at least 1, got 0.5"),
    ({"share": 0}, "part.share must be above 0 and at most 1, got 0"),
    ({"ratio": 1.5}, "part.ratio must lie between 0 and 1, got 1.5"),
    ({"ratio": "x"}, "part.ratio must be a finite number, got 'x'"),
    ({"kind": "c"}, "part.kind must be one of a, b; got 'c'"),
    ({"dtype": "int3"}, "part.dtype must be one of bf16, fp8; got 'int3'"),
    ({"flag": 1}, "part.flag must be true or false, got 1"),
    ({"perhaps": "no"}, "part.perhaps must be true, false or null, got 'no'"),
    ({"sizes": (1, 0)}, "part.sizes must be a whole number of at least 1, got 0"),
    ({"limits": {"chat": {"ttft_s": 1.0, "tpot_s": -1}}}, "part.limits.chat.tpot_s must be a finite number above 0"),
]


@pytest.mark.parametrize(("changed", "said"), REFUSED, ids=[f"{one[0]}" for one in REFUSED])
def test_a_value_out_of_bounds_is_refused_in_one_line(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        replace(Settings(), **changed)
    assert str(caught.value).startswith(said)


def test_values_within_their_bounds_pass() -> None:
    limits = {"chat": {"ttft_s": 1.0, "tpot_s": None}}
    Settings(positive=1, perhaps=True, sizes=(1, 2), limits=limits, free="any", kind="b", share=1e-9)


def test_a_constructor_checks_its_arguments_and_its_defaults() -> None:
    with pytest.raises(InputError, match=r"^part\.tokens must be a whole number of at least 1, got 0$"):
        Part(0, share=0.5)
    with pytest.raises(InputError, match=r"^part\.share must be above 0 and at most 1, got 2\.0$"):
        Part(1)
    assert Part(tokens=3, share=0.5).tokens == 3


def test_a_checked_constructor_shows_its_own_signature_and_errors() -> None:
    assert list(inspect.signature(Part).parameters) == ["tokens", "share", "other"]
    wrong: dict[str, Any] = {"token": 1}
    with pytest.raises(TypeError, match=r"Part\.__init__\(\) got an unexpected keyword argument 'token'"):
        Part(**wrong)


def test_a_checked_class_of_a_file_says_what_it_lacks(tmp_path: Any) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "from framework.checks import Count, checked\n\n\n"
        "class Own:\n    @checked('policy.')\n    def __init__(self, tokens: Count) -> None:\n"
        "        self.tokens = tokens\n"
    )
    with pytest.raises(InputError, match=r"policy\.tokens must be a whole number of at least 1, got 0"):
        make(str(file), "Own", "", tokens=0)
    with pytest.raises(InputError, match=r"Own cannot be made: .*missing 1 required positional argument: 'tokens'"):
        make(str(file), "Own", "")
