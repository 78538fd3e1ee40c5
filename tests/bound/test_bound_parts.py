"""What the bound on goodput is made of: step times that are never undercut, and jobs that cannot all be in time."""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from framework.bound.demand import _pace_s, most_in_time
from framework.bound.fluid import _costs
from framework.bound.prefills import attention
from framework.bound.setting import Setting
from framework.bound.steps import Chunks, Decodes, PoolSteps, Prices
from framework.bound.tables import Extent, least_steps
from framework.engine.setup.config import EngineConfig
from framework.load import Open
from framework.metrics.slo import Slo
from framework.system.cluster import PoolSpec, disaggregated
from framework.timing import table as step
from framework.timing.table import StepRow, StepTables
from framework.workload import Workload
from tests.helpers.bounds import random_row, server
from tests.helpers.scenarios import MODEL, MODES, RowTiming

Rng = np.random.Generator
WIDE = Extent(100, 10**6, 5000, 2, 100, 0)  # prompts of up to 100 tokens, batches of up to 5,000
NEAR = 1 + 1e-7


class Steps:
    """Steps of a random pool, as an engine may form them."""

    def __init__(self, rng: Rng) -> None:
        self.rng, self.row = rng, random_row(rng)
        self.tables: StepTables = step.stack([self.row])
        self.role = str(rng.choice(["mixed", "mixed", "mixed", "prefill", "decode"]))
        self.batching = MODES[rng.integers(len(MODES))]
        self.whole = self.batching not in ("decode_first", "unified", "concurrent", "chunks_first")
        self.low = int(rng.integers(2, 20))
        self.high = self.low + int(rng.integers(0, 100))
        self.batch = int(rng.choice([1, 2, 5, 20, 60, 700]))
        self.kv_tokens = int(rng.integers(max(self.high, 60), 40 * self.high + 61))
        if rng.random() < 0.3:
            self.kv_tokens = 10**6
        self.budget = int(rng.integers(1, 200))
        self.longest = int(rng.integers(1, min(self.kv_tokens, 150)))
        extent = Extent(self.longest, self.kv_tokens, self.batch, self.low, self.high, 0)
        pool = PoolSpec("pool", self.role, 1, server("gpu", 100))  # type: ignore[arg-type]
        self.least: PoolSteps = least_steps(pool, self.row, extent, self.budget, self.batching)

    def contexts(self) -> np.ndarray[Any, Any]:
        """Of the decodes of a step, as many as fit; none where it does not decode."""
        if self.role == "prefill" or self.rng.random() < 0.2:
            return np.zeros(0, np.int64)
        contexts = self.rng.integers(self.low, self.high + 1, self.rng.integers(1, self.batch + 1))
        if self.rng.random() < 0.5:
            contexts.sort()
        return contexts[np.cumsum(contexts) <= self.kv_tokens]

    def prefill(self, decodes: int) -> tuple[int, bool]:
        """Tokens of a step's chunks with so many decodes, and whether they are one whole prompt beyond the budget."""
        mixes = self.role == "mixed" and self.batching not in ("prefill_first", "static", "concurrent", "chunks_first")
        if self.role == "decode" or decodes >= self.batch or (decodes and (not mixes or self.rng.random() < 0.3)):
            return 0, False
        if self.whole and self.rng.random() < 0.3:
            tokens = int(self.rng.integers(1, self.longest + 1))
            return tokens, tokens + decodes > self.budget
        most = min(self.budget - decodes, self.kv_tokens)
        return (
            (int(self.rng.integers(1, most + 1)) if self.rng.random() < 0.7 else most, False)
            if most > 0
            else (0, False)
        )

    def time_s(self, prefill: int, contexts: np.ndarray[Any, Any]) -> float:
        """Of a step, attention of its chunks apart; some of them end a prompt, those of whole prompts do."""
        ends = int(self.rng.integers(self.whole, 4)) if prefill else 0
        ends = min(ends, prefill, self.batch - len(contexts))
        total = int(contexts.sum())
        base_s = float(step.base_s(self.tables, 0, prefill, len(contexts), len(contexts) + ends))
        return base_s + float(step.decode_s(self.tables, 0, len(contexts), total)[0]) - self.row.per_sampled_s * ends


def check_steps(steps: Steps, rounds: int) -> None:
    """At any prices no part of a step is worth more than the whole of its time."""
    rng = steps.rng
    for _ in range(rounds):
        prices = Prices(*(10.0 ** rng.uniform(-2, 2, 4) * (rng.random(4) < 0.75) * [1, 1, 0.03, 1]))
        second = steps.least.price(prices)
        for _ in range(40):
            contexts = steps.contexts()
            prefill, alone = steps.prefill(len(contexts))
            if prefill + len(contexts) == 0:
                continue
            time_s = steps.time_s(prefill, contexts)
            kept = contexts[: rng.integers(0, len(contexts) + 1)] if rng.random() < 0.5 else contexts
            worth = prices.decode * len(kept) + prices.context * kept.sum()
            if alone:
                worth += steps.least.whole_prompts(np.array([float(prefill)]), second, prices)[0]
            else:
                worth += prices.token * (prefill if rng.random() < 0.5 else rng.integers(0, prefill + 1))
            assert worth <= time_s * (second + prices.pace * len(kept)) * NEAR + 1e-13


def check_prompts(steps: Steps) -> None:
    """However a prompt is cut, and whatever shares its steps, it takes no less."""
    chunks, rng = steps.least.chunks, steps.rng
    if chunks is None:
        return
    of_prompts = attention(steps.row, steps.longest + 20, chunks.budget, whole=chunks.whole)
    for _ in range(10):
        prompt = int(rng.integers(1, steps.longest + 1))
        cached = int(rng.integers(0, prompt))
        done, time_s, attention_s = cached, 0.0, 0.0
        while done < prompt:
            most = prompt - done if chunks.whole else min(prompt - done, int(chunks.budget))
            chunk = most if chunks.whole or rng.random() < 0.5 else int(rng.integers(1, most + 1))
            decoding = 0 if chunks.whole else int(rng.integers(0, int(chunks.budget) - chunk + 1))
            attention_s += float(step.chunk_s(steps.tables, 0, done, chunk))
            done += chunk
            time_s += float(step.base_s(steps.tables, 0, chunk + decoding, 0, int(done == prompt)))
        least_s = float(of_prompts.prompt_s(np.array([cached]), np.array([prompt]))[0])
        assert least_s <= attention_s * NEAR
        assert float(of_prompts.upto_s(np.array(prompt)) - of_prompts.upto_s(np.array(cached))) <= attention_s * NEAR
        least_s += float(chunks.prompts_s(np.array([float(prompt - cached)]))[0]) + chunks.ending_s
        assert least_s <= time_s + attention_s * NEAR + 1e-12


@pytest.mark.parametrize("seed", range(10))
def test_no_step_is_faster_than_its_least_time(seed: int) -> None:
    for number in range(12):
        check_steps(Steps(np.random.default_rng([seed, number])), 5)


@pytest.mark.parametrize("seed", range(10))
def test_no_way_to_cut_a_prompt_is_faster(seed: int) -> None:
    for number in range(20):
        check_prompts(Steps(np.random.default_rng([seed, number])))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_no_step_is_faster_than_its_least_time_many_more(seed: int) -> None:
    for number in range(60):
        steps = Steps(np.random.default_rng([seed, number]))
        check_steps(steps, 12)
        check_prompts(steps)


@pytest.mark.parametrize("seed", range(20))
def test_prices_are_not_higher_than_some_step_asks_for(seed: int) -> None:
    """Of affine times, where the envelope is exact, the price is that of the best step."""
    rng = np.random.default_rng(seed)
    base_s, token_s, sequence_s, context_s = rng.random(4) * [0.02, 1e-3, 1e-3, 1e-5]
    row = StepRow(base_s=base_s, per_prefill_token_s=token_s, per_sequence_s=sequence_s, per_context_token_s=context_s)
    pool = PoolSpec("pool", "mixed", 1, server("gpu", 100))
    least = least_steps(pool, row, Extent(50, 600, 12, 20, 70, 0), 64, "decode_first")
    prices = Prices(*(rng.random(4) * [1.0, 5.0, 0.05, 3.0]))
    best = 0.0
    for decodes in range(13):
        for prefill in {0, 1, 64 - decodes}:
            for context in {20 * decodes, min(70 * decodes, 600)}:
                time_s = base_s + token_s * prefill + sequence_s * decodes + context_s * context
                worth = prices.token * prefill + prices.decode * decodes + prices.context * context
                best = max(best, worth / time_s - prices.pace * decodes)
    assert least.price(prices) == pytest.approx(best, rel=1e-6)


def all_in_time(ready_s: np.ndarray[Any, Any], due_s: np.ndarray[Any, Any], work_s: np.ndarray[Any, Any]) -> bool:
    """Whether one machine can do all: between any arrival and any deadline there is time for what lies between."""
    for start_s in ready_s:
        for end_s in due_s:
            inside = (ready_s >= start_s) & (due_s <= end_s)
            if inside.any() and work_s[inside].sum() > end_s - start_s + 1e-12:
                return False
    return True


@pytest.mark.parametrize("seed", range(10))
def test_most_jobs_in_time_are_those_of_an_exhaustive_search(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for number in range(25):
        count = int(rng.integers(1, 8))
        ready_s = np.sort(rng.integers(0, rng.integers(1, 12), count)).astype(float)
        due_s = np.maximum.accumulate(ready_s + rng.integers(1, 6, count))
        work_s = rng.integers(0, 5, count).astype(float) if number % 2 else rng.random(count) * 3
        most = max(
            (
                len(kept)
                for size in range(count + 1)
                for kept in combinations(range(count), size)
                if all_in_time(ready_s[list(kept)], due_s[list(kept)], work_s[list(kept)])
            ),
        )
        assert most_in_time(ready_s, due_s, work_s) == most


def test_deadlines_that_fall_are_put_off() -> None:
    assert most_in_time(np.array([0.0, 1.0]), np.array([10.0, 2.0]), np.array([5.0, 1.0])) == 2


@pytest.mark.parametrize("recomputes", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_a_token_costs_a_decode_or_a_prompt_that_is_computed_again(recomputes: bool, seed: int) -> None:
    """Token by token: of both ways the cheaper one, where there are both; the first token comes from the prompt."""
    rng = np.random.default_rng(seed)
    count = 6
    known, decodes = rng.integers(0, 5, count), rng.integers(0, 12, count)
    prompts = known + rng.integers(1, 30, count)
    tokens, extra_s, again_s = (prompts - known).astype(float), rng.random(count), rng.random(count)
    token, decode, context, second = rng.random(4) * [1.0, 12.0, 0.6, 2.0]
    reads = [prompts[r] + 1 + np.arange(decodes[r]) for r in range(count)]
    demand: Any = SimpleNamespace(
        tokens=tokens,
        first_context=prompts + 1,
        known=known,
        decodes=decodes,
        context=np.array([float(read.sum()) for read in reads]),
        extra_s=[extra_s],
        again_s=[again_s],
        recomputes=recomputes,
    )
    prices = Prices(token, decode, context, 0.0)
    pool: Any = SimpleNamespace(chunks=SimpleNamespace(whole=False, budget=8), own=lambda prices: prices)
    found = _costs(demand, [pool], prices, np.array([second]))
    for r in range(count):
        once = [decode + context * read for read in reads[r]]
        again = [token * (read - known[r]) + second * again_s[r] for read in reads[r]]
        later = sum(map(min, once, again)) if recomputes else sum(once)
        assert found[r] == pytest.approx(token * tokens[r] + second * extra_s[r] + later)


def test_a_step_with_chunks_begins_with_what_the_engine_adds_to_it() -> None:
    row = StepRow(base_s=0.5, prefill_step_s=0.25, per_sampled_s=0.125)
    chunks = least_steps(PoolSpec("pool", "mixed", 1, server("gpu", 100)), row, WIDE, 100, "decode_first").chunks
    assert chunks is not None
    assert (chunks.start_s, chunks.ending_s) == (0.75, 0.125)


def test_large_batches_are_looked_at_few_by_few() -> None:
    row = StepRow(base_s=0.5, per_sequence_s=0.001)
    decodes = least_steps(PoolSpec("pool", "decode", 1, server("gpu", 100)), row, WIDE, 100, "decode_first").decodes
    assert decodes is not None
    assert (decodes.batches[0], decodes.batches[-1]) == (1.0, WIDE.batch)
    assert len(decodes.batches) < 1000


@pytest.mark.parametrize("first_token", ["prefill", "join"])
def test_what_comes_before_a_first_token_elsewhere_counts_for_its_decode_steps(first_token: Any) -> None:
    """TTFT of 2 s, TPOT of 0.25 s, outputs of 1 and 5, transfers of 0.5 s, which come after a first token there."""
    setting = Setting(
        Workload(np.zeros(2), np.array([10, 10]), np.array([1, 5])),
        disaggregated(1, 1, server("gpu", 100)),
        MODEL,
        RowTiming({"gpu": StepRow(base_s=1.0)}),
        EngineConfig(first_token=first_token),
        Open(),
        slo=Slo(2.0, 0.25),
    )
    needs: Any = SimpleNamespace(transfer_s=np.full(2, 0.5))
    spent_s = _pace_s(setting, needs, np.ones(2, np.bool_))
    assert spent_s is not None
    assert spent_s.tolist() == ([-0.5, 0.5] if first_token == "prefill" else [0.0, 3.0])


def test_a_whole_prompt_may_have_any_batch_between_two_of_the_grid_beside_it() -> None:
    """A step of T tokens takes T s; each of 1, 2, 3 or 4 decodes is worth 1.5 s; 2 and 3 are charged as 1, for 3."""
    linear, none = np.array([0.0, 9.0]), np.zeros((3, 1))
    chunks = Chunks(1.0, 0.0, 0.0, linear + 1.0, linear, 10.0, True)
    decodes = Decodes(np.array([1.0, 3.0, 4.0]), none, none, none, np.zeros(3), 99.0)
    tokens, prices = np.array([2.0, 5.0]), Prices(0.0, 1.5, 0.0, 0.0)
    alone, mixed = (PoolSteps(chunks, decodes, mixes).whole_prompts(tokens, 2.0, prices) for mixes in (False, True))
    assert alone.tolist() == [4.0, 10.0]
    assert mixed.tolist() == [2 * (2 + 1) - 4.5, 2 * (5 + 1) - 4.5]
