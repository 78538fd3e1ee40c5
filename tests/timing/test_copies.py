"""Elementwise kernels: launch, cache and memory, from what was measured."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from framework.timing.kernels.copies import Copies

LAUNCH_S, CACHE, MEMORY = 2e-6, 4e12, 1e12


def measured(shared: float) -> Copies:
    """Sizes of 2 KB to 2 GB on a GPU with a cache of 64 MB."""
    sizes = 2 ** np.arange(11, 32)
    rates = np.where(sizes <= 2**26, CACHE, MEMORY)
    return Copies.measured(pl.DataFrame({"bytes": sizes, "latency_s": LAUNCH_S + sizes / rates}), shared)


def test_the_launch_is_what_next_to_nothing_takes() -> None:
    assert measured(1.0).launch_s == pytest.approx(LAUNCH_S, rel=1e-3)


@pytest.mark.parametrize(("power", "rate"), [(23, CACHE), (26, CACHE), (28, MEMORY), (31, MEMORY), (34, MEMORY)])
def test_bytes_move_at_the_speed_of_what_holds_them(power: int, rate: float) -> None:
    assert measured(1.0).seconds(np.asarray(2.0**power)) == pytest.approx(2.0**power / rate, rel=0.01)


def test_a_shared_cache_holds_half() -> None:
    at = np.asarray(2.0**26)
    assert measured(2.0).seconds(at) == pytest.approx(2.0**26 / MEMORY, rel=0.01)
    assert measured(2.0).seconds(at / 2) == pytest.approx(2.0**25 / CACHE, rel=0.01)


def test_one_rate_is_that_of_every_size() -> None:
    copies = Copies.at(1e12, 3e-6)
    assert copies.launch_s == 3e-6
    np.testing.assert_allclose(copies.seconds(np.array([0.0, 1e6, 1e9])), [0.0, 1e-6, 1e-3])
