"""The effects of experiments.validation.textbook have the sign and size that textbooks give them, at a small scale."""

from __future__ import annotations

import pytest

from experiments.validation.textbook.command import balance, chunk_size, held_out, spread
from tests.helpers.launcher import typed

_REQUESTS = 416  # whole batches


def test_an_affine_fit_to_three_batches_predicts_the_fourth() -> None:
    errors = {point.batch: point.error for point in held_out()}
    assert abs(errors[64]) < 0.01
    assert max(abs(error) for error in errors.values()) < 0.06


def test_continuous_batching_gains_with_the_spread_of_outputs() -> None:
    even, mild, wide = (spread(cv, _REQUESTS) for cv in (0.0, 0.5, 1.5))
    assert even.gain == pytest.approx(1.0, abs=0.1)
    assert 1.3 < mild.gain < wide.gain
    assert 2.0 < wide.gain < 5.0
    assert wide.iteration_level > 2.0 * wide.static  # it is the iterations, not the paging
    assert wide.reserved_fill < 0.3 < 0.95 < wide.paged_fill < 1.0  # whereas memory is what paging saves


def test_chunk_size_trades_first_tokens_against_stalls() -> None:
    sizes = [chunk_size(tokens, _REQUESTS) for tokens in (256, 1024, 8192)]
    assert sizes[0].ttft_p99_s > 1.5 * sizes[1].ttft_p99_s
    assert sizes[0].ttft_p50_s > 1.5 * sizes[1].ttft_p50_s > 1.5 * sizes[2].ttft_p50_s
    assert 1.2 * sizes[0].stall_s < sizes[1].stall_s < sizes[2].stall_s / 1.5
    assert balance(sizes) is sizes[1]


def test_command_prints_three_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("validation", "textbook")(["requests=60"]) == 0
    printed = capsys.readouterr().out
    assert "predicted" in printed
    assert "gain" in printed
    assert "▸" in printed


def test_no_requests_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("validation", "textbook")(["requests=0"]) == 2
    assert capsys.readouterr().err == "error: requests must be a whole number from 1 to 1,000,000,000, got '0'\n"
