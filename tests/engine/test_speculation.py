"""Speculative decoding: steps worked out by hand, draws that nothing shifts, and the closed forms.

A step lasts 1 s, a prompt of one token included, unless said otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from framework.engine.durations.speculation import Speculation
from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.metrics.invariants import check_result
from framework.metrics.slo import Slo
from framework.metrics.summary import summarize
from framework.result import Result
from framework.run.compose import compose
from framework.run.output import step_table
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.timing.table import Curve, StepRow
from framework.workload import Workload
from tests.conftest import ROOT
from tests.helpers.composing import configured, small
from tests.helpers.parts import load
from tests.helpers.quick import one_in
from tests.helpers.recovery import token_times
from tests.helpers.scenarios import MODEL, RowTiming

CONF = ROOT / "conf"
GPU = replace(load("gpu", "h100"), name="gpu")
LONG = replace(MODEL, max_context=1 << 20)
SECOND = StepRow(base_s=1.0)


def run(
    speculation: Speculation,
    outputs: list[int],
    row: StepRow = SECOND,
    prompts: int = 1,
    instances: int = 1,
    seed: int = 0,
    **options: Any,
) -> Result:
    """All requests arrive at 0; the first has its prefill to itself, the others come in the step after it."""
    count = len(outputs)
    workload = Workload(np.zeros(count), np.full(count, prompts), np.array(outputs))
    cluster = ClusterSpec((PoolSpec("mixed", "mixed", instances, GPU),), LinkSpec(1e9))
    settings: dict[str, Any] = {"token_budget": 1 << 20, "batching": "prefill_first", "speculation": speculation}
    engine = EngineConfig(**(settings | options))
    result = simulate(workload, cluster, LONG, RowTiming({"gpu": row}), engine, seed=seed)
    check_result(result)
    return result


# by hand


def test_all_drafts_accepted() -> None:
    result = run(Speculation(2, 1.0, draft_cost=0.25), [7])
    step_s = 1 + 2 * 0.25
    assert token_times(result) == [[1.0] + 3 * [1 + step_s] + 3 * [1 + 2 * step_s]]
    assert result.steps == 3
    totals = result.instances[0]
    assert (totals["decode_tokens"], totals["accepted_tokens"], totals["drafted_tokens"]) == (6, 4, 4)


def test_none_accepted() -> None:
    result = run(Speculation(2, 0.0, draft_cost=0.25), [3])
    assert token_times(result) == [[1.0, 2.5, 4.0]]
    assert result.instances[0]["accepted_tokens"] == 0


def test_a_request_ends_within_a_step() -> None:
    result = run(Speculation(5, 1.0, draft_cost=0.0), [3, 9])
    assert token_times(result) == [[1.0, 2.0, 2.0], [1.0] + 6 * [2.0] + 2 * [3.0]]


def test_drafts_pass_the_model_and_the_kv_is_read_once() -> None:
    row = StepRow(
        linear=Curve((1.0, 4.0, 104.0), (1.0, 1.0, 101.0)),  # flat up to 4 tokens, then 1 s each
        per_context_token_s=2.0**-4,
        per_sampled_s=2.0**-3,
        skew_s=2.0**-5,
    )
    result = run(Speculation(2, 0.0, draft_cost=0.5), [2, 3], row, prompts=10)
    prefill_s = 17 + 2 * 2.0**-3  # of 20 tokens
    both = 2 * (10 + 1 + 2)  # what two decodes read: prompt, the token that came before, drafts
    plain_s = 1 + 2 * 2.0**-3 + 2 * (10 + 1) * 2.0**-4
    first_s = 3 + 6 * 2.0**-3 + both * 2.0**-4 + 2 * 0.5 * plain_s
    plain_s = 1 + 2.0**-3 + (10 + 2) * 2.0**-4
    second_s = 1 + 3 * 2.0**-3 + (10 + 2 + 2) * 2.0**-4 + 2 * 0.5 * plain_s
    assert list(result.step_log["context"]) == [0, both, 14]
    assert token_times(result)[1] == [prefill_s, prefill_s + first_s, prefill_s + first_s + second_s]


def test_verified_tokens_count_against_the_budget() -> None:
    result = run(Speculation(3, 0.0, draft_cost=0.0), [9, 9, 2], prompts=5, token_budget=8, batching="decode_first")
    # Chunks of 5 and 3 tokens; with the first decode, which verifies 4, the other 2 and 2 of the third prompt; with
    # two that has to wait, for the first to end at 9.
    assert result.requests["start_s"].tolist() == [0.0, 0.0, 1.0]
    assert result.requests["first_token_s"].tolist() == [1.0, 2.0, 10.0]


def test_drafts_need_room_only_while_they_are_verified() -> None:
    options: dict[str, Any] = {"block_tokens": 1, "watermark": 0.0}
    drafting = Speculation(3, 0.0, draft_cost=0.0)  # the two hold all that they ever will, 6 + 5, while it is verified
    for speculation, kv_tokens, enough in ((drafting, 11, True), (drafting, 10, False), (Speculation(), 10, True)):
        result = run(speculation, [5, 4], prompts=2, kv_tokens=kv_tokens, **options)
        assert (result.requests["preemptions"].sum() == 0) == enough
    used = run(drafting, [5], prompts=2, kv_tokens=6, **options).instances["kv_block_s"][0]
    assert used == 2 + 6 + 6 + 6 + 6  # prefill, then four steps that hold as much as the request ever will


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_a_victim_goes_on_with_its_own_draws(preemption: str) -> None:
    speculation, outputs = Speculation(3, 0.6, draft_cost=0.0), [60] * 6
    roomy = run(speculation, outputs, prompts=8)
    tight = run(speculation, outputs, prompts=8, kv_tokens=160, block_tokens=4, preemption=preemption)
    assert tight.requests["preemptions"].sum() > 0
    assert [len(times) for times in token_times(tight)] == outputs
    if preemption == "swap":  # no token comes from another prefill: the same steps
        assert steps_of(roomy) == steps_of(tight)


def steps_of(result: Result) -> list[int]:
    """Decode steps that each request took part in."""
    taken = np.zeros(len(result.requests), np.int64)
    np.add.at(taken, result.token_log["request"], result.token_log["last_step"] - result.token_log["first_step"])
    return taken.tolist()


# draws


def test_draws_belong_to_a_request_wherever_it_decodes() -> None:
    speculation, outputs = Speculation(4, 0.7), list(range(2, 40))
    one, many = (run(speculation, outputs, instances=n, max_batch=b) for n, b in ((1, 64), (4, 3)))
    assert steps_of(one) == steps_of(many)
    assert steps_of(one) != steps_of(run(speculation, outputs, seed=1))


def test_a_reduced_log_says_the_same() -> None:
    speculation, outputs = Speculation("adaptive", 0.7, 6, 0.05), [200] * 30
    full, reduced = (run(speculation, outputs, log=log) for log in ("full", "reduced"))
    assert full.requests.tobytes() == reduced.requests.tobytes()
    ours, theirs = (summarize(result, Slo()) for result in (full, reduced))
    for name in ("mean_itl_ms", "median_itl_ms", "p90_itl_ms", "p99_itl_ms", "accepted_per_step"):
        assert ours[name] == pytest.approx(theirs[name], rel=5e-3, abs=1e-6), name


def test_gaps_are_those_of_the_tokens() -> None:
    result = run(Speculation(3, 0.6, draft_cost=0.125), [1, 2, 5, 60, 90], StepRow(base_s=1.0, per_sequence_s=0.125))
    gaps = np.concatenate([np.diff(times) for times in token_times(result)])
    found = summarize(result, Slo())
    assert found["mean_itl_ms"] == pytest.approx(1e3 * gaps.mean())
    assert found["std_itl_ms"] == pytest.approx(1e3 * gaps.std())
    for share in (50, 90, 95, 99):
        name = "median" if share == 50 else f"p{share}"
        assert found[f"{name}_itl_ms"] == pytest.approx(1e3 * np.percentile(gaps, share))


@pytest.mark.parametrize("implementation", ["compiled", "reference"])
def test_the_host_goes_through_sequences_and_kernels_through_tokens(implementation: str) -> None:
    drafting = Speculation(3, 0.0, draft_cost=0.0)

    def steps_s(row: StepRow) -> list[float]:
        result = run(drafting, [6, 6, 6, 6], row, implementation=implementation)
        return sorted({line["first_s"] for line in step_table(result).iter_rows(named=True) if line["batch"] == 4})

    assert steps_s(StepRow(base_s=1.0, between_sequence_s=0.25)) == [1.0 + 4 * 0.25]
    assert steps_s(StepRow(base_s=1.0, per_sequence_s=0.25)) == [1.0 + 4 * 4 * 0.25]


# closed forms


@pytest.mark.parametrize(("acceptance", "depth"), [(0.3, 1), (0.7, 4), (0.85, 1), (0.9, 8)])
def test_tokens_of_a_step(acceptance: float, depth: int) -> None:
    """(1 - a^(g + 1)) / (1 - a), Leviathan et al., equation 1."""
    result = run(Speculation(depth, acceptance), [2000] * 50)
    expected = (1 - acceptance ** (depth + 1)) / (1 - acceptance)
    accepted = summarize(result, Slo())["accepted_per_step"]
    assert 1 + accepted == pytest.approx(expected, rel=0.01)
    assert summarize(result, Slo())["speculation_acceptance"] == accepted / depth


def test_speed_up_of_a_batch_of_one() -> None:
    """(1 - a^(g + 1)) / ((1 - a) (g c + 1)), theorem 3.8 there, where verifying costs no more than one token."""
    acceptance, depth, cost = 0.8, 3, 0.1
    with_, without = (
        run(speculation, [20000]) for speculation in (Speculation(depth, acceptance, 8, cost), Speculation())
    )
    speed_up = without.requests["end_s"][0] / with_.requests["end_s"][0]
    assert speed_up == pytest.approx((1 - acceptance ** (depth + 1)) / (1 - acceptance) / (depth * cost + 1), rel=0.01)


RIDGE = StepRow(base_s=0.1, linear=Curve((1.0, 64.0, 128.0), (1.0, 1.0, 2.0)))  # 64 tokens cost no more than one


@pytest.mark.parametrize(("batch", "depth"), [(1, 4), (12, 4), (40, 1), (64, 0), (200, 0)])
def test_depth_follows_the_batch(batch: int, depth: int) -> None:
    """Where verifying is free as many as pay for their drafting; past the ridge none."""
    result = run(Speculation("adaptive", 0.7, 8, 0.1), [3] * batch, RIDGE)
    first = result.step_log[result.step_log["batch"] == batch][0]
    rates = []
    for g in range(9):
        linear_s = 1.0 + max(0, batch * (g + 1) - 64) / 64
        plain_s = 0.1 + 1.0 + max(0, batch - 64) / 64
        rates.append((1 - 0.7 ** (g + 1)) / 0.3 / (0.1 + linear_s + g * 0.1 * plain_s))
    assert first["depth"] == np.argmax(rates) == depth


def test_one_layer_is_the_cost_of_a_draft_unless_said_otherwise() -> None:
    result = run(Speculation(1, 0.0), [2])
    assert result.requests["end_s"][0] == 2.0 + 1.0 / LONG.layers


# what users see


def test_nothing_shows_where_nothing_is_drafted() -> None:
    plain = run(Speculation(), [5, 6])
    assert "depth" not in step_table(plain).columns
    assert not {"accepted_per_step", "speculation_acceptance"} & summarize(plain, Slo()).keys()
    drafted = run(Speculation(3, 0.5), [5, 6])
    assert step_table(drafted)["depth"].to_list() == drafted.step_log["depth"].tolist()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"depth": -1}, ["depth", "-1"]),
        ({"depth": "deep"}, ["depth", "adaptive", "deep"]),
        ({"depth": 1, "acceptance": 1.5}, ["acceptance", "1.5"]),
        ({"depth": 1, "draft_cost": -0.5}, ["draft_cost", "-0.5"]),
        ({"depth": "adaptive", "max_depth": 0}, ["max_depth", "0"]),
    ],
)
def test_bad_options(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InputError) as raised:
        Speculation(**options)
    assert all(word in str(raised.value) for word in words)


# Without the one whose instances share requests, which does not go together with drafts.
POLICIES = sorted({path.stem for path in (CONF / "policy").glob("*.yaml")} - {"loongserve"})


@pytest.mark.parametrize("choice", [["draft"], ["draft", "engine.speculation.depth=adaptive"], ["mtp"]], ids=" ".join)
@pytest.mark.parametrize("policy", one_in(4, POLICIES))
def test_every_policy_runs_with_it(policy: str, choice: list[str]) -> None:
    config = small(policy)
    config.engine.speculation = configured(f"engine/speculation={choice[0]}", *choice[1:]).engine.speculation
    result = compose(config).run()
    assert np.all(result.requests["state"] == 1)
    assert result.instances["accepted_tokens"].sum() > 0


def test_a_name_alone_is_refused_with_what_to_write() -> None:
    with pytest.raises(InputError, match="engine/speculation=NAME"):
        EngineConfig(speculation="draft")  # type: ignore[arg-type]
