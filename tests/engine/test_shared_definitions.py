"""What the compiled engine, the reference engine and the drawn scenarios have in common, against its definition.

tests/helpers/definitions.py has the definitions; all is drawn from seeds. By hand: tests/engine/test_shared_parts.py.
"""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from framework.engine.durations.speculation import Speculation
from framework.engine.memory.state import Memory
from framework.engine.setup.allocate import allocate
from framework.engine.setup.config import EngineConfig, Implementation
from framework.reference.hooks.base import Hooks
from framework.reference.options import Drafts, Options
from framework.reference.state import Instance
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.system.model import kv_capacity_tokens
from framework.timing import table
from framework.timing.table import StepRow, stack
from framework.workload import Workload
from tests.conftest import ROOT
from tests.helpers import definitions
from tests.helpers.bounds import server
from tests.helpers.drawing import Draw
from tests.helpers.drawn_parts import counts_at, full_rows, parallelisms, wide_models
from tests.helpers.scenarios import MODEL, RowTiming, Scenario, kv_formats, scenarios, sharings, step_rows

DRAWS = 150
SECOND = StepRow(base_s=1.0)


def check(pairs: Iterable[tuple[float, float]], number: int, exactly: bool = False) -> None:
    """Raise AssertionError where what was found, the first of a pair, is not what was expected."""
    for place, (found, expected) in enumerate(pairs):
        if found != expected and (exactly or not math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-9)):
            raise AssertionError(f"draw {number}, value {place}: found {found!r}, expected {expected!r}")


@pytest.mark.parametrize("kind", ["exact", "general", "full"])
def test_step_times(kind: str) -> None:
    for number in range(DRAWS):
        draw = Draw(1, number)
        row = full_rows(draw) if kind == "full" else step_rows(draw, kind == "exact")
        tables = stack([StepRow(base_s=1e6), row])
        tokens, sampled = counts_at(draw, row.linear), counts_at(draw, row.logits)
        prefill = draw.integer(0, tokens)
        length, chunk = max(1, counts_at(draw, row.attention)), max(1, counts_at(draw, row.waste))
        step, cut = (prefill, tokens - prefill, sampled), (max(length - chunk, 0), chunk)
        read = counts_at(draw, row.decode), counts_at(draw, row.decode, "contexts")
        uneven = (*read, read[1] // max(read[0], 1) + draw.integer(0, 99))
        far = (tokens, sampled, counts_at(draw, row.decode_limits), read[1], length)
        value_s, slope_s, knot = table.decode_s(tables, 1, *read)
        later = row.decode.contexts[1:] if row.decode is not None and read[0] > 0 else ()
        more = math.ceil(min(knot, read[1] + 1e6)) - 1 - read[1]  # still before the knot
        pairs = [
            (table.base_s(tables, 1, *step), definitions.base_s(row, *step)),
            (table.chunk_s(tables, 1, *cut), definitions.chunk_s(row, *cut)),
            (value_s, definitions.decode_s(row, *read)),
            (value_s + slope_s * more, definitions.decode_s(row, read[0], read[1] + more)),
            (table.uneven_s(tables, 1, *uneven), definitions.uneven_s(row, *uneven)),
        ]
        check(pairs, number, exactly=kind == "exact")
        check([(table.extrapolation(tables, 1, *far), definitions.extrapolation(row, *far))], number)
        assert knot == min((context for context in later if context > read[1]), default=math.inf)


def _from_nothing(row: StepRow) -> StepRow:
    """Decode attention from a context of 0 on: a first knot above it stays as it is in a format that reads less."""
    return row.mapped(decode=lambda surface: replace(surface, contexts=(0.0, *surface.contexts[1:])))


@pytest.mark.parametrize("wide", [False, True])
def test_formats_of_keys_and_values(wide: bool) -> None:
    for number in range(DRAWS):
        draw = Draw(2, number)
        row = _from_nothing(full_rows(draw)) if wide else step_rows(draw, exact=False)
        kv, model, split = kv_formats(draw, exact=draw.chance(0.5)), wide_models(draw), parallelisms(draw)
        tables = stack([kv.step_row(row, model, split)])
        read = counts_at(draw, row.decode), counts_at(draw, row.decode, "contexts")
        prefill, sampled, chunk, prefix = (*draw.integers(0, 99, 2), draw.integer(1, 99), draw.integer(0, 9999))
        step, cut = (prefill, read[0], sampled), (prefix, chunk)
        longest = read[1] // max(read[0], 1) + chunk
        pack_s = definitions.token_s(kv.pack_bytes_s, model, split)
        found = (
            table.base_s(tables, 0, *step),
            table.chunk_s(tables, 0, *cut),
            table.decode_s(tables, 0, *read)[0],
            table.uneven_s(tables, 0, *read, longest),
        )
        expected = definitions.formatted_s(row, kv, pack_s, step, cut, (read[1], longest))
        check(zip(found, expected, strict=True), number)
        far = table.extrapolation(tables, 0, step[0], step[2], *read, sum(cut))
        like = definitions.extrapolation(row, step[0], step[2], read[0], kv.read_factor * read[1], sum(cut))
        unpack_s = kv.unpack_s(model, split), definitions.token_s(kv.unpack_bytes_s, model, split)
        check([(far, like), unpack_s], number)


def test_memory_of_models() -> None:
    gpu = server("gpu", 1)
    for number in range(DRAWS):
        draw = Draw(3, number)
        model, split = wide_models(draw), parallelisms(draw)
        share, fraction = draw.one([1.0, draw.real(0.1, 1.0)]), draw.real(0.2, 1.0)
        shared, routed = definitions.weight_bytes(model)
        own = definitions.kv_bytes(model, split.tp)
        pairs = [
            (model.weight_bytes, float(shared + routed)),
            (model.kv_bytes_per_token, float(definitions.kv_bytes(model))),
            (model.kv_share(split.tp), float(own / definitions.kv_bytes(model))),
            (model.state_bytes, float(definitions.state_bytes(model))),
        ]
        check(pairs, number)
        weights = float(shared / (split.tp * split.pp) + routed / split.gpus)
        room = replace(gpu, memory_bytes=(weights + float(own) * draw.real(1.1, 300.0)) / fraction)
        found = kv_capacity_tokens(model, room, split, fraction, share)
        assert found == definitions.capacity_tokens(model, room, split, fraction, share), number


def test_slowdowns() -> None:
    for number in range(DRAWS):
        draw = Draw(4, number)
        sharing = sharings(draw, exact=False)
        knots = sorted({draw.integer(1, 99) for _ in range(draw.integer(1, 6))})
        factors = sorted((draw.real(1.0, 9.0) for _ in knots), reverse=True)
        sharing = replace(sharing, decode_slowdown={100: 1.0, **dict(zip(knots, factors, strict=True))})
        found = sharing.slowdowns().tolist()
        for row, points in zip(found, (sharing.prefill_slowdown, sharing.decode_slowdown), strict=True):
            assert row[0] == math.inf
            percents = [1, 99, 100, *points, *draw.integers(1, 99, 10)]
            check([(row[percent], definitions.slowdown(points, percent)) for percent in percents], number)


def test_runs_as_both_engines_lay_them_out() -> None:
    for number in range(DRAWS):
        s = scenarios(Draw(5, number), number % 2 == 0)
        memory = allocate(s.setting())
        reference = s.simulation(Hooks())
        _check_options(s, memory, reference.options, number)
        _check_stores(s, memory, reference.options, number)
        _check_instances(s, memory.instances, reference.instances, number)


def _check_options(s: Scenario, memory: Memory, reference: Options, number: int) -> None:
    kv, experts, cost = s.engine.kv_compression, s.model.experts, s.engine.speculation.draft_cost
    kept = float(definitions.kv_bytes(s.model) * definitions.kept_layers(s.model, s.engine.window_kv))
    expected = {
        "kv_bytes_per_token": kept * kv.memory_share,
        "copy_bytes_per_token": kept * kv.copy_share,
        "weight_bytes": float(sum(definitions.weight_bytes(s.model))),
        "chosen_share": 0.0 if experts is None else experts.per_token / experts.count,
    }
    check([(memory.options[0][name], value) for name, value in expected.items()], number)
    check([(getattr(reference, name), value) for name, value in expected.items()], number)
    cost = 1 / s.model.layers if cost is None else cost
    check([(memory.options[0]["draft_cost"], cost), (reference.drafts.cost, cost)], number)
    at, sharing = int(memory.options[0]["slowdown_at"]), s.engine.sharing
    for percent in (1, 50, number % 100 + 1):
        prefill, decode = (
            definitions.slowdown(p, percent) for p in (sharing.prefill_slowdown, sharing.decode_slowdown)
        )
        check([(reference.prefill_slowdown[percent], prefill), (reference.decode_slowdown[percent], decode)], number)
        compiled = memory.timing_data[[at + percent, at + 101 + percent]]
        check(zip(compiled, (prefill, decode), strict=True), number)


def _share(s: Scenario) -> Fraction:
    """Bytes that a token's KV takes in GPU memory, as a multiple of the model's own."""
    return Fraction(s.engine.kv_compression.memory_share) * definitions.kept_layers(s.model, s.engine.window_kv)


def _check_stores(s: Scenario, memory: Memory, reference: Options, number: int) -> None:
    most, per_token = len({*s.workload.hash_ids.tolist()}), definitions.kv_bytes(s.model)
    tiers = list(s.engine.prefix_stores.tiers.values())
    for k, tier in enumerate(tiers):
        kept = per_token * _share(s)
        blocks = definitions.tier_blocks(tier.capacity_tokens, tier.capacity_bytes, kept, s.workload.hash_block_tokens)
        assert {*memory.tiers["capacity"][k :: len(tiers)].tolist()} == {min(blocks, most)}, number
        assert min(reference.tiers[k].store[0], most) == min(blocks, most), number


def _check_instances(s: Scenario, compiled: NDArray[np.void], reference: Sequence[Instance], number: int) -> None:
    kv, engine = s.engine.kv_compression, s.engine
    pools = [pool for pool in s.cluster.pools for _ in range(pool.instances)]
    for pool, ours, theirs in zip(pools, compiled, reference, strict=True):
        split, gpu = pool.parallelism, pool.gpu
        tokens = definitions.capacity_tokens(s.model, gpu, split, engine.kv_fraction, float(_share(s)))
        total = (engine.kv_tokens or tokens) // engine.block_tokens
        watermark = total - definitions.admissible_blocks(total, engine.watermark)
        reserved = definitions.reserved_blocks(pool.reserve_tokens, engine.block_tokens, total, engine.watermark)
        assert (ours["total_blocks"], ours["watermark"], ours["reserve_blocks"]) == (total, watermark, reserved), number
        assert (theirs.spec.total_blocks, theirs.watermark) == (total, watermark), number
        assert (theirs.spec.reserve_blocks or 0) == reserved, number
        gpus, link_bytes_s = split.tp * split.pp * split.dp, s.cluster.link.bandwidth_bytes_s
        expected = {
            "host_bytes_s": gpu.pcie_bytes_s * gpus,
            "memory_bytes_s": gpu.bandwidth_bytes_s * gpus if engine.sharing.contention else math.inf,
            "bandwidth_bytes_s": link_bytes_s if pool.link_bytes_s is None else pool.link_bytes_s,
            "unpack_s": definitions.token_s(kv.unpack_bytes_s, s.model, split),
        }
        check([(ours[name], value) for name, value in expected.items()], number)
        check([(getattr(theirs.spec, name), value) for name, value in expected.items()], number)


# --- draws ------------------------------------------------------------------------------------------------------------


def test_draws_of_the_plain_engine() -> None:
    draw = Draw(7)
    for _ in range(DRAWS):
        seed, request, token = draw.integer(0, 2**32 - 1), draw.integer(0, 10**5), draw.integer(0, 10**5)
        depth, acceptance, left = draw.integer(0, 8), draw.share(), draw.integer(1, 9)
        drafts = Drafts(acceptance=acceptance, seed=seed)
        right = definitions.right_drafts(seed, request, token, depth, acceptance)
        assert drafts.emitted(request, token, left, depth) == min(1 + right, left)


@pytest.mark.parametrize("implementation", ["compiled", "reference"])
@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**32 + 7])
def test_steps_of_a_run(seed: int, implementation: Implementation) -> None:
    outputs = [1, 2, *range(10, 30)]
    gpu, count = server("gpu", 1000), len(outputs)
    workload = Workload(np.zeros(count), np.ones(count, np.int64), np.array(outputs))
    speculation = Speculation(depth=4, acceptance=0.7)
    engine = EngineConfig(kv_fraction=1.0, block_tokens=1, speculation=speculation, implementation=implementation)
    cluster, timing = ClusterSpec((PoolSpec("p", "mixed", 1, gpu),), LinkSpec(1.0)), RowTiming({"gpu": SECOND})
    log = simulate(workload, cluster, MODEL, timing, engine, seed=seed).token_log
    steps = np.zeros(count, np.int64)
    np.add.at(steps, log["request"], log["last_step"] - log["first_step"])
    assert steps.tolist() == [definitions.steps_to_decode(seed, r, n, 4, 0.7) for r, n in enumerate(outputs)]


def test_no_code_has_two_meanings() -> None:
    """A name that is given twice would silently mean the later one."""
    tree = ast.parse((ROOT / "framework" / "codes.py").read_text())
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    assert len(names) > 40
    assert not [name for name, count in Counter(names).items() if count > 1]
