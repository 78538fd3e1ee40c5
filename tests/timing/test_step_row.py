"""The one statement of step times: whatever a row declares is packed, added, scaled and split."""

from __future__ import annotations

import functools
import operator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from framework.timing.curves import Curve, Surface
from framework.timing.step_row import StepRow
from framework.timing.table import base_s, chunk_s, decode_s, stack, step_s, uneven_s

NAMES = [declared.name for declared in fields(StepRow)]
CURVE = Curve((1.0, 64.0), (0.5, 2.0))
SURFACE = Surface((1.0, 8.0), (1.0, 64.0), ((1.0, 2.0), (3.0, 4.0)))
CURVES = ("linear", "attention", "bounded", "logits", "waste", "decode_limits")


def row(**values: Any) -> StepRow:
    return StepRow(**values)


FULL = row(**{name: CURVE if name in CURVES else SURFACE if name == "decode" else 0.25 for name in NAMES})


def step_of(row: StepRow) -> float:
    return step_s(stack([row]), 0, [4], [8], 3, 30, longest=16)


@pytest.mark.parametrize("name", NAMES)
def test_every_field_is_packed(name: str) -> None:
    value = getattr(FULL, name)
    other = value.times(2.0) if isinstance(value, Curve | Surface) else 2 * value
    before, after = stack([FULL]), stack([FULL.mapped(**{name: lambda _: other})])
    assert before.rows != after.rows or not np.array_equal(before.data, after.data, equal_nan=True)


OF_NO_PART = (
    *("request_s", "intake_s", "intake_token_s", "late_share", "late_s"),
    *("tokens_limit", "length_limit", "sampled_limit", "decode_limits", "graph_tokens", "decode_rows"),
    *("head_group", "decodes_at_once"),
)


def test_a_row_is_the_sum_of_its_parts() -> None:
    parts = FULL.parts()
    assert list(parts) == ["linear", "prefill_attention", "decode_attention", "logits", "overhead"]
    total = functools.reduce(operator.add, parts.values())
    of_no_part = [*OF_NO_PART, "host_s", "host_sequence_s", "eager_s"]
    assert total == replace(FULL, **{name: getattr(StepRow(), name) for name in of_no_part})
    assert step_of(FULL) == pytest.approx(sum(step_of(part) for part in parts.values()), rel=1e-14)


def test_times_of_a_step_scale_and_the_rest_stays() -> None:
    twice = FULL.times(2.0)
    assert step_of(twice) == 2 * step_of(FULL)
    for name in (*OF_NO_PART, "waste"):
        assert getattr(twice, name) == getattr(FULL, name), name
    for lookup, asked in ((base_s, (10, 3, 4)), (chunk_s, (4, 8)), (uneven_s, (3, 30, 16))):
        assert lookup(stack([twice]), 0, *asked) == 2 * lookup(stack([FULL]), 0, *asked)
    assert decode_s(stack([twice]), 0, 3, 30)[:2] == tuple(2 * value for value in decode_s(stack([FULL]), 0, 3, 30)[:2])


def test_rows_add_up_to_the_nearer_limit() -> None:
    near, far = StepRow(base_s=1.0, tokens_limit=100.0), StepRow(base_s=0.5, tokens_limit=200.0, decode_limits=CURVE)
    assert near + far == StepRow(base_s=1.5, tokens_limit=100.0, decode_limits=CURVE)
    for name in ("waste", "decode_limits"):
        with pytest.raises(ValueError, match=f"only one of the rows may have {name}"):
            row(**{name: CURVE}) + row(**{name: CURVE})


def test_a_chunk_takes_the_difference_of_bounded_attention() -> None:
    tables = stack([StepRow(bounded=Curve((1.0, 9.0, 25.0), (1.0, 9.0, 9.0)), masked_s=2.0)])
    assert [chunk_s(tables, 0, *cut) for cut in ((0, 5), (5, 4), (9, 1), (4, 96))] == [55.0, 36.0, 2.0, 5.0 + 2 * 96**2]
    with pytest.raises(ValueError, match="bounded must not fall"):
        StepRow(bounded=Curve((1.0, 2.0, 3.0), (2.0, 1.0, 1.0)))


def test_curves_add_on_the_knots_of_both() -> None:
    total = Curve((1.0, 3.0), (1.0, 2.0)) + Curve((0.0, 2.0, 4.0), (0.0, 4.0, 4.0))
    assert total == Curve((0.0, 1.0, 2.0, 3.0, 4.0), (1.0, 3.0, 5.5, 6.0, 6.5))
    assert total.at(np.array([5.0])) == 7.0


def test_surfaces_add_on_equal_knots() -> None:
    assert SURFACE.times(2.0) == SURFACE + SURFACE
    with pytest.raises(ValueError, match="different knots"):
        SURFACE + replace(SURFACE, batches=(1.0, 9.0))


def test_mapped_fields_change_and_absent_curves_stay_absent() -> None:
    functions: dict[str, Any] = {"linear": lambda curve: curve.times(3.0), "skew_s": lambda skew_s: skew_s + 1.0}
    assert StepRow(skew_s=0.5).mapped(**functions) == StepRow(skew_s=1.5)
    assert StepRow(linear=CURVE).mapped(**functions) == StepRow(linear=CURVE.times(3.0), skew_s=1.0)


def test_a_curve_goes_on_as_the_power_of_its_last_segment() -> None:
    square = Curve((1.0, 2.0, 4.0), (1.0, 4.0, 16.0)).continued_to(64.0)
    assert square.knots[:3] == (1.0, 2.0, 4.0)
    assert square.knots[-1] == 64.0
    assert np.allclose(square.values, np.square(square.knots))
    steep, flat = (Curve((1.0, 2.0), (1.0, last)).continued_to(8.0).values[-1] for last in (8.0, 1.0))
    assert steep == pytest.approx(8.0 * 4**2)  # powers from 1 to 2
    assert flat == pytest.approx(4.0)
    assert square.continued_to(50.0) is square
