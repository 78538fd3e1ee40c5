"""`servelab textbook`: its arithmetic is that of textbooks, and simulated effects have their sign and size."""

from __future__ import annotations

import math

import pytest

from experiments.textbook.arithmetic import Rule, rules
from experiments.textbook.batches import batches
from experiments.textbook.effects import balance, chunk_size, idle, spread, target, transfer_s
from experiments.textbook.machine import machine
from tests.helpers.composing import configured
from tests.helpers.launcher import typed

_REQUESTS = 416  # whole batches


@pytest.fixture(scope="module")
def found() -> dict[str, Rule]:
    return {rule.name: rule for rule in rules()}


@pytest.mark.parametrize(
    ("name", "textbook", "kernels"),
    [
        ("ridge of h100", 295, (250, 300)),
        ("ridge of a100", 153, (150, 200)),
        ("prefill of 4,096 tokens, 7B, a100", 0.3676, (0.2, 0.3)),
        ("least TPOT of a 7B, a100", 7.0, (9, 12)),
        ("tokens of one sequence, 8B, h100", 209.4, (125, 167)),
        ("h100 over a100, prefill", 3.17, (2.5, 3.2)),
        ("KV of 4,096 tokens, 8 KV heads", 512, (512, 512)),
        ("KV of 4,096 tokens, 32 KV heads", 2048, (2048, 2048)),
    ],
)
def test_a_rule_has_its_figure_and_the_measured_one(
    found: dict[str, Rule], name: str, textbook: float, kernels: tuple[float, float]
) -> None:
    assert found[name].textbook == pytest.approx((textbook,), rel=0.003)
    (measured,) = found[name].kernels
    assert kernels[0] <= measured <= kernels[1]


def test_kernels_prefill_above_the_rule_and_servers_within_it_for_short_prompts(found: dict[str, Rule]) -> None:
    rule = found["MFU of 512 to 8,192 tokens, h100"]
    assert rule.textbook == (30.0, 45.0)
    assert min(rule.kernels) > 60 > 45 > min(rule.server) > 30
    assert "31 % and 43 %" in rule.why


def test_decoding_keeps_the_rules(found: dict[str, Rule]) -> None:
    for name in ("MBU of 1 to 128 decodes, h100", "MFU of 32 to 128 decodes, h100"):
        rule = found[name]
        assert rule.textbook[0] < min(rule.kernels) < max(rule.kernels) < rule.textbook[1]


def test_an_affine_fit_to_three_batches_predicts_the_fourth() -> None:
    points = {point.batch: point for point in batches(machine("llama2_7b", "a100"))}
    assert abs(points[64].error) < 0.01
    assert max(abs(point.error) for point in points.values()) < 0.06
    assert all(point.formula_s < point.kernels_s < point.said_s for point in points.values())


def test_a_copy_takes_its_bytes_over_its_bandwidth() -> None:
    assert transfer_s(12.5e9, 4096) == pytest.approx(2.0**29 / 12.5e9 + 1e-4, rel=0.01)


def test_a_static_batch_idles_by_the_sum_of_what_is_left() -> None:
    wide = idle(1.0)
    assert wide.simulated_s == pytest.approx(wide.said_s, rel=0.1)
    assert wide.simulated_s < wide.said_s  # steps become faster
    assert 0.5 < wide.share < 0.95


@pytest.mark.slow
def test_continuous_batching_gains_with_the_spread_of_outputs() -> None:
    even, mild, wide = (spread(cv, _REQUESTS) for cv in (0.0, 0.5, 1.5))
    assert even.gain == pytest.approx(1.0, abs=0.1)
    assert 1.3 < mild.gain < wide.gain
    assert 2.0 < wide.gain < 5.0
    assert wide.iteration_level > 2.0 * wide.static  # it is the iterations, not the paging
    assert wide.reserved_fill < 0.3 < 0.95 < wide.paged_fill < 1.0  # whereas memory is what paging saves


@pytest.mark.slow
def test_chunk_size_trades_first_tokens_against_stalls() -> None:
    sizes = [chunk_size(tokens, _REQUESTS) for tokens in (256, 1024, 8192)]
    assert sizes[0].ttft_p99_s > 1.5 * sizes[1].ttft_p99_s
    assert sizes[0].ttft_p50_s > 1.5 * sizes[1].ttft_p50_s > sizes[2].ttft_p50_s
    assert 1.2 * sizes[0].stall_s < sizes[1].stall_s < sizes[2].stall_s / 1.5
    assert balance(sizes) is not sizes[2]


@pytest.mark.slow
def test_the_targets_of_2025_exclude_each_other() -> None:
    calm, crowded = target(2.0, _REQUESTS), target(32.0, _REQUESTS)
    assert calm.kept > 0.9 > crowded.kept
    assert min(calm.busy, crowded.busy) > 0.95
    assert calm.kv < 0.1 < crowded.kv < 0.98
    assert calm.tpot_p90_s < 0.02 < crowded.tpot_p90_s


def test_the_targets_are_an_slo_of_any_run() -> None:
    slo = configured("slo=targets_2025").slo
    assert (slo.ttft_s, slo.tpot_s) == (0.1, 0.02)


def test_the_command_prints_what_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("textbook")(["only=arithmetic,batch"]) == 0
    printed = capsys.readouterr().out
    assert "209" in printed
    assert "other three" in printed
    assert "idle" not in printed
    assert max(map(len, map(str.rstrip, printed.splitlines()))) <= 80


def test_values_without_a_measurement_are_dashes(found: dict[str, Rule]) -> None:
    assert found["least TPOT of a 7B, a100"].server == ()
    assert not any(math.isnan(value) for rule in found.values() for value in (*rule.kernels, *rule.server))


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("requests=0", "requests must be a whole number from 1 to 1,000,000,000, got '0'"),
        ("only=pictures", "only must be one of"),
    ],
)
def test_nonsense_is_refused(word: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("textbook")([word]) == 2
    assert message in capsys.readouterr().err
