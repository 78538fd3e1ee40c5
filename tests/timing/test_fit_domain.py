"""The loads of a calibration: ranges, distances, and where it stops to count, by hand and in runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framework.errors import InputError
from framework.load import Closed, Open
from framework.run.compose import compose
from framework.system.parallelism import Parallelism
from framework.timing.calibration_terms import (
    Calibration,
    Fit,
    Selector,
    calibration_path,
    read_calibrations,
    write_calibrations,
)
from framework.timing.fit_domain import Domain, Place, _span, cached_share
from framework.timing.measured import Measured, placed
from framework.timing.server import Server
from framework.workload import Workload, consecutive
from tests.helpers.composing import configured
from tests.helpers.parts import load, made_up, put

CLOSED = Domain((1000, 8000), (100, 1000), in_flight=(4, 128))
BOTH = CLOSED | Domain((600, 600), (250, 250), (0.97, 0.98), rate_rps=(5, 10))
SETUP = load("model", "llama3_8b"), load("gpu", "h100"), Parallelism()
QUICK = Server("quick", request_s=0.25)


@pytest.fixture(autouse=True)
def _no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A profile and what was fitted with it, to closed loops."""
    put(tmp_path, "llama3_8b", "h100", "own", made_up())
    write_calibrations(calibration_path(tmp_path, "h100", "own"), [Fit(Calibration(request_s=0.5), domain=CLOSED)])
    return tmp_path


def measured(own: Path, place: Place | None, **more: Any) -> Measured:
    return Measured(backend="own", profiles=str(own), server=QUICK, place=place, **more)


def prompts(rows: list[list[int]], tokens: int = 4) -> Workload:
    """One request for each row of block names, with one more token than its blocks have."""
    lengths = np.array([len(row) for row in rows])
    return Workload(
        np.arange(len(rows)) / 2.0,
        lengths * tokens + 1,
        np.full(len(rows), 3),
        hash_ids=np.array([name for row in rows for name in row], np.int64),
        hash_spans=consecutive(lengths),
        hash_block_tokens=tokens,
    )


def test_the_share_of_prompts_that_came_before() -> None:
    # 13 + 9 + 13 tokens, of which the second prompt's two blocks, and two of the third's, were there before
    assert cached_share(prompts([[1, 2, 3], [1, 2], [1, 2, 4]])) == (8 + 8) / 35
    assert cached_share(replace(prompts([[1], [2]]), hash_spans=None)) == 0.0


def test_a_place_is_that_of_one_instance() -> None:
    workload = prompts([[1, 2, 3], [1, 2], [1, 2, 4]])
    place = Place.of(workload, Open(), 2, prefix_cache=True)
    assert place == Place(35 / 3, 3.0, 16 / 35, rate_rps=1.0)
    assert Place.of(workload, Closed(6), 3, prefix_cache=False) == Place(35 / 3, 3.0, in_flight=2.0)


def test_ranges_hold_all_places() -> None:
    assert Domain.around([Place(100, 9, in_flight=4), Place(50, 20, in_flight=2)]) == Domain(
        (50, 100), (9, 20), in_flight=(2, 4)
    )
    assert Domain((600, 8000), (100, 1000), (0, 0.98), (4, 128), (5, 10)) == BOTH
    assert ", 90 to 98 % cached, " in str(replace(BOTH, cached_share=(0.9, 0.98)))
    assert str(BOTH) == (
        "prompts of 600 to 8,000 tokens, 0 to 98 % cached, outputs of 100 to 1,000, 4 to 128 in flight, 5 to 10"
        " requests/s an instance"
    )


@pytest.mark.parametrize(
    ("place", "distance"),
    [
        (Place(1000, 100, in_flight=4), ""),
        (Place(16000, 50, in_flight=256), "prompts 2 times longer, outputs 2 times shorter, load 2 times larger"),
        (Place(500, 100, 0.25, in_flight=2), "prompts 2 times shorter, 25 % more cached, load 2 times smaller"),
        (Place(1000, 100, rate_rps=3.0), "no open loop fitted"),
        (Place(1000, 100), ""),
        (Place(1000, 100, in_flight=1.05 * 128), ""),
        (Place(1000, 100, in_flight=1.06 * 128), "load 1.1 times larger"),
    ],
)
def test_how_far_a_run_lies_from_a_fit(place: Place, distance: str) -> None:
    assert CLOSED.distance(place) == distance


@pytest.mark.parametrize(
    ("domain", "place", "reason"),
    [
        (CLOSED, Place(64000, 1, in_flight=10_000), ""),
        (CLOSED, Place(64001, 1, in_flight=1), "prompts are 8 times longer than any it was fitted to"),
        (CLOSED, Place(124, 1), "prompts are 8.1 times shorter than any it was fitted to"),
        (CLOSED, Place(1000, 100, 0.5), ""),
        (CLOSED, Place(600, 250, 0.97), "97 % of prompt tokens may be cached, but it was fitted to none"),
        (BOTH, Place(600, 250, 0.97), ""),
        (BOTH, Place(600, 250, 0.5), ""),
    ],
)
def test_where_a_fit_stops_to_count(domain: Domain, place: Place, reason: str) -> None:
    assert domain.excludes(place) == reason


def test_a_fit_of_experts_to_other_loads_does_not_count_for_requests_at_once() -> None:
    dense, experts = SETUP[0], load("model", "mixtral_8x7b")
    closed = Fit(Calibration(), domain=CLOSED)
    at_once = Place(1000, 100, rate_rps=np.inf)
    assert "all requests are offered at once" in closed.excludes(at_once, experts)
    assert not closed.excludes(at_once, dense)
    assert not closed.excludes(Place(1000, 100, rate_rps=1e3), experts)
    both = CLOSED | Domain.around([Place(1000, 100, rate_rps=500.0)])
    assert not replace(closed, domain=both).excludes(at_once, experts)
    assert not replace(closed, domain=None).excludes(at_once, experts)


@pytest.mark.parametrize("changes", [{"prompt_tokens": 3}, {"output_tokens": (1,)}, {"cached_share": (-1, 0)}])
def test_what_is_no_range_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="calibration: domain: "):
        replace(CLOSED, **changes)


def test_ranges_are_read_as_written(own: Path) -> None:
    path = calibration_path(own, "h100", "own")
    assert [fit.domain for fit in read_calibrations(path)] == [CLOSED]
    write_calibrations(path, [Fit(Calibration(), domain=BOTH)])
    assert [fit.domain for fit in read_calibrations(path)] == [BOTH]
    path.write_text(path.read_text().replace('"prompt_tokens": [', '"prompt_tokens": ["x", '))
    with pytest.raises(InputError, match="prompt_tokens must be the least and the most"):
        read_calibrations(path)


def test_a_fit_counts_near_its_loads(own: Path) -> None:
    timing = measured(own, Place(2000, 200, in_flight=8))
    assert timing.row(*SETUP).request_s == 0.5
    assert timing.source == (
        "measured (h100, own 0.1, calibrated to prompts of 1,000 to 8,000 tokens, none cached, outputs of 100 to 1,000,"
        " 4 to 128 in flight, this run: prompts of 2,000 tokens on average, none cached, outputs of 200, 8 in flight an"
        " instance: all within; server quick)"
    )


def test_far_from_them_kernels_and_the_server_count(own: Path) -> None:
    far = Place(600, 200, 0.97, rate_rps=5.0)
    timing = measured(own, far)
    assert timing.row(*SETUP) == measured(own, far, calibrated=False).row(*SETUP)
    assert timing.row(*SETUP).request_s == QUICK.request_s
    assert timing.source == (
        "measured (h100, own 0.1, calibration left out: 97 % of prompt tokens may be cached, but it was fitted to"
        " none, timing.outside_fit=keep counts it; server quick)"
    )


def test_a_less_specific_fit_counts_where_the_specific_one_does_not(own: Path) -> None:
    path, far = calibration_path(own, "h100", "own"), Place(600, 200, 0.97, rate_rps=5.0)
    special = Fit(Calibration(request_s=0.5), Selector(model="llama3_8b"), domain=CLOSED)
    write_calibrations(path, [special, Fit(Calibration(request_s=0.75), Selector(kind="dense"), domain=BOTH)])
    assert measured(own, Place(2000, 200, in_flight=8)).row(*SETUP).request_s == 0.5
    assert measured(own, far).row(*SETUP).request_s == 0.75
    assert measured(own, far, outside_fit="keep").row(*SETUP).request_s == 0.5


def test_it_can_be_kept_there(own: Path) -> None:
    timing = measured(own, Place(600, 200, 0.97, rate_rps=5.0), outside_fit="keep")
    assert timing.row(*SETUP).request_s == 0.5
    assert "an instance: prompts 1.7 times shorter, 97 % more cached, no open loop fitted; server" in timing.source
    with pytest.raises(InputError, match=r"timing.outside_fit must be one of kernels, keep"):
        Measured(outside_fit="perhaps")  # type: ignore[arg-type]


def test_without_a_place_or_ranges_a_fit_counts(own: Path) -> None:
    assert measured(own, None).row(*SETUP).request_s == 0.5
    write_calibrations(calibration_path(own, "h100", "own"), [Fit(Calibration(request_s=0.5))])
    timing = measured(own, Place(600, 200, 0.97, rate_rps=5.0))
    assert timing.row(*SETUP).request_s == 0.5
    assert timing.source == "measured (h100, own 0.1, calibrated; server quick)"


def test_a_place_is_given_to_fitted_sources_alone(own: Path) -> None:
    place = Place(2000, 200, in_flight=8)
    plain = Measured(calibrated=False)
    assert placed(plain, place) is plain
    fitted = placed(measured(own, None), place)
    assert isinstance(fitted, Measured)
    assert fitted.place == place


def test_a_run_knows_its_place(own: Path) -> None:
    words = (
        f"policy=vllm_v1 timing.backend=own timing.profiles={own} trace=synthetic trace.requests=20 load=closed"
        " load.concurrency=6 cluster.instances=2 trace.input={law:empirical,values:[2000]}"
        " trace.output={law:empirical,values:[200]}"
    )
    timing = compose(configured(*words.split())).timing
    assert isinstance(timing, Measured)
    assert timing.place == Place(2000, 200, in_flight=3.0)


def test_ends_of_a_range_have_the_digits_that_tell_them_apart() -> None:
    assert [_span(known) for known in ((5.25, 1234.0), (9.99, 9.99), (0.5, 0.5))] == ["5.2 to 1,234", "10", "0.5"]
