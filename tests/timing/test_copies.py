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


def test_a_time_tells_a_rate_from_a_quarter_above_the_launch_on() -> None:
    """Launches of 4 us. At just 5 us 1 MB says nothing, so that 1 GB in 96 us more gives the rate of all sizes."""
    rows = pl.DataFrame({"bytes": [2**11, 2**20, 2**30], "latency_s": [4.0, 5.0, 100.0]})
    copies = Copies.measured(rows, 1.0)
    assert copies.seconds(np.array([2.0**20, 2.0**30])) == pytest.approx([96 / 1024, 96.0])
    more = Copies.measured(rows.with_columns(latency_s=pl.Series([4.0, 5.1, 100.0])), 1.0)
    assert more.seconds(np.array([2.0**20])) == pytest.approx(1.1)


def test_where_all_is_launches_the_largest_size_gives_the_rate() -> None:
    """Of which at least a tenth of the launch is taken to be bytes."""
    copies = Copies.measured(pl.DataFrame({"bytes": [2**11, 2**20], "latency_s": [4.0, 4.1]}), 1.0)
    assert copies.seconds(np.array([2.0**20, 2.0**21])) == pytest.approx([0.4, 0.8])


def test_a_size_that_takes_hardly_more_than_a_launch_tells_no_rate_where_another_does() -> None:
    copies = Copies.measured(pl.DataFrame({"bytes": [2**11, 2**15, 2**20], "latency_s": [4.0, 6.0, 4.1]}), 2.0)
    assert (copies.sizes.tolist(), copies.rates.tolist()) == ([2.0**14], [2.0**14])
