"""Options that change what a step or a transfer costs: worked numbers, and every policy with every option."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from _pytest.mark import ParameterSet
from hydra import compose as compose_config
from hydra.errors import HydraException

from framework.cli.arguments import name_files
from framework.cli.explain import explain
from framework.engine.durations.attention_overlap import Attention
from framework.engine.kv.kv_compression import KvFormat
from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.metrics.invariants import check_result
from framework.metrics.usage import memory_bytes
from framework.policy import Disaggregated
from framework.result import Result
from framework.run.compose import compose
from framework.run.job import chosen, flattened
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.system.model import kv_capacity_tokens
from framework.system.parallelism import Parallelism
from framework.timing.calibration_terms import Calibration
from framework.timing.roofline import Roofline
from framework.timing.table import StepRow, Surface, base_s, chunk_s, decode_s, extrapolation, stack, uneven_s
from framework.workload import Workload
from tests.conftest import ROOT
from tests.helpers.bounds import server
from tests.helpers.composing import composing, configured, small
from tests.helpers.parts import load, made_up
from tests.helpers.quick import marks
from tests.helpers.results import INSTANCE_FIELDS, records
from tests.helpers.scenarios import MODEL, RowTiming

LLAMA, H100 = load("model", "llama3_8b"), load("gpu", "h100")
ROW = StepRow(base_s=1.0, prefill_quadratic_s=0.25, per_context_token_s=0.5)


def run(workload: Workload, *roles: str, engine: EngineConfig, row: StepRow = ROW) -> Result:
    """On an instance of each role, over a link of 8 bytes/s and 1 s; a token of KV has 16 bytes."""
    gpu = server("gpu", 1000)
    pools = tuple(PoolSpec(role, role, 1, gpu) for role in roles)  # type: ignore[arg-type]
    cluster, timing = ClusterSpec(pools, LinkSpec(8.0, 1.0)), RowTiming({"gpu": row})
    policy = Disaggregated() if "decode" in roles else None
    result = simulate(workload, cluster, MODEL, timing, replace(engine, block_tokens=1, kv_fraction=1.0), policy)
    check_result(result)
    return result


def trace(*rows: tuple[float, int, int]) -> Workload:
    arrival_s, prompts, outputs = zip(*rows, strict=True)
    return Workload(np.array(arrival_s, float), np.array(prompts), np.array(outputs))


# attention of a step with both phases


@pytest.mark.parametrize(("overlap", "hybrid_s"), [(0.0, 3.5), (0.5, 3.0), (1.0, 2.5)])
def test_only_a_hybrid_step_gains(overlap: float, hybrid_s: float) -> None:
    """1 s + 2^2/4 s of prefill; then 1 s + (1.5 s of decode, 1 s of prefill); then 1 s + 2 s of decode."""
    result = run(trace((0, 2, 3), (1, 2, 1)), "mixed", engine=EngineConfig(attention=Attention(overlap)))
    assert result.requests["first_token_s"].tolist() == [2.0, 2.0 + hybrid_s]
    assert result.requests["end_s"].tolist() == [2.0 + hybrid_s + 3.0, 2.0 + hybrid_s]


@pytest.mark.parametrize(("rows", "decode_s"), [(1, 1.75), (2, 4.0)])
def test_a_decode_with_a_chunk_takes_up_a_tile(rows: int, decode_s: float) -> None:
    """The same with ((3 + rows)^2 - 3^2)/4 s of decode in the hybrid step; the last step has no chunk."""
    engine = EngineConfig(attention=Attention(decode_rows=rows))
    result = run(trace((0, 2, 3), (1, 2, 1)), "mixed", engine=engine)
    hybrid_s = 2.0 + decode_s
    assert result.requests["first_token_s"].tolist() == [2.0, 2.0 + hybrid_s]
    assert result.requests["end_s"].tolist() == [2.0 + hybrid_s + 3.0, 2.0 + hybrid_s]


def test_a_tile_costs_no_less_than_the_decode_alone() -> None:
    row = replace(ROW, prefill_quadratic_s=1 / 64)
    plain, tiled = (
        run(trace((0, 2, 3), (1, 2, 1)), "mixed", engine=EngineConfig(attention=Attention(decode_rows=rows)), row=row)
        for rows in (0, 2)
    )
    assert tiled.requests["end_s"].tolist() == plain.requests["end_s"].tolist()


@pytest.mark.parametrize(
    ("group", "at_once", "decode_s"),
    [
        (1.0, 1.0, 3.0),  # each head reads keys of its own
        (4.0, float("inf"), 3.0),  # tiles of other heads run concurrently with the one that reads
        (4.0, 1.0, 2.0 + 2.25),  # nothing does: 2 s of reading, then three heads
        (4.0, 1.5, 0.5 * 3.0 + 0.5 * 4.25),
    ],
)
def test_tiles_of_the_first_head_wait_for_memory(group: float, at_once: float, decode_s: float) -> None:
    """With a chunk of 2, a decode of 4 tokens whose tiles compute 2 * (0.5 + 4/4) = 3 s and which alone takes 2 s."""
    tiled = replace(ROW, decode_rows=2.0, tile_row_s=0.5, tile_pair_s=0.25)
    row = replace(tiled, head_group=group, decodes_at_once=at_once)
    result = run(trace((0, 3, 3), (1, 2, 1)), "mixed", engine=EngineConfig(), row=row)
    first_s = 1.0 + 9 * 0.25
    assert result.requests["first_token_s"].tolist() == [first_s, first_s + 1.0 + 1.0 + decode_s]


def test_uneven_decodes_are_part_of_decode_attention() -> None:
    """Prefill attention of 16 s hides half of decode attention: 3 + 8 tokens at 0.5 s and 2 * 8 - 11 at 1 s."""
    row = replace(ROW, prefill_quadratic_s=1.0, skew_s=1.0)
    engine = EngineConfig(attention=Attention(0.5))
    result = run(trace((0, 1, 1), (1, 2, 2), (1, 7, 2), (3, 4, 1)), "mixed", engine=engine, row=row)
    together_s = 2 + 1 + 4 + 49
    assert result.requests["end_s"].tolist() == [2, *[together_s + 1 + 16 + 0.5 * (5.5 + 5)] * 3]


# formats of keys and values


def test_transfers_move_what_the_format_makes_of_them() -> None:
    """1 s and 4 * 0.25 s of packing, 4 * 8 bytes at 8 bytes/s, 1 s of latency, 4 * 0.5 s of unpacking; 1 + 5/2 s."""
    kv = KvFormat(copy_share=0.5, pack_bytes_s=64.0, unpack_bytes_s=32.0)
    row = replace(ROW, prefill_quadratic_s=0.0)
    result = run(trace((0, 4, 2)), "prefill", "decode", engine=EngineConfig(kv_compression=kv), row=row)
    (request,) = result.requests
    assert (request["prefill_end_s"], request["transfer_end_s"], request["end_s"]) == (2.0, 9.0, 12.5)
    assert result.instances["transferred_bytes"].tolist() == [32.0, 0.0]


def test_memory_holds_more_tokens_of_a_smaller_format() -> None:
    plain, half = (kv_capacity_tokens(LLAMA, H100, Parallelism(), 0.9, share) for share in (1.0, 0.5))
    assert half in (2 * plain, 2 * plain + 1)
    kv = KvFormat(memory_share=0.25)
    result = run(trace((0, 4, 2)), "mixed", engine=EngineConfig(kv_compression=kv))
    assert result.instances["total_blocks"].tolist() == [4000]
    given = run(trace((0, 4, 2)), "mixed", engine=EngineConfig(kv_compression=kv, kv_tokens=100))
    assert given.instances["total_blocks"].tolist() == [100]


def test_swap_moves_what_memory_holds() -> None:
    """Two requests outgrow 9 tokens; the victim's leave and come back over 1 MB/s, so many bytes a token."""
    row = StepRow(base_s=1.0)
    spent = []
    for kv in (KvFormat(), KvFormat(memory_share=0.25, copy_share=0.5)):
        engine = EngineConfig(kv_compression=kv, kv_tokens=9, preemption="swap", watermark=0.0)
        result = run(trace((0, 3, 5), (0, 3, 5)), "mixed", engine=engine, row=row)
        assert result.requests["preemptions"].sum() > 0
        spent.append(float(result.instances["busy_s"][0] - result.instances["steps"][0]))
    assert spent[1] == pytest.approx(0.25 * spent[0])


def test_memory_traffic_counts_what_memory_holds() -> None:
    steps = records(INSTANCE_FIELDS, [{"prefill_tokens": 10, "decode_tokens": 2, "context_tokens": 23.0}])
    assert memory_bytes(LLAMA, steps, 0.5)[0] == memory_bytes(LLAMA, steps)[0] / 2


@pytest.mark.parametrize("factor", [0.25, 0.5, 0.31, 1.0, 2.0])
@pytest.mark.parametrize("timing", ["roofline", "measured"])
def test_decode_attention_takes_as_long_as_for_a_share_of_the_context(timing: str, factor: float) -> None:
    own = made_up(skew_s=2.0**-30).row(Calibration())
    if timing == "roofline":
        own = Roofline().row(LLAMA, H100, Parallelism())
    kv = KvFormat(read_factor=factor, prefill_factor=0.5)
    tables = stack([own, kv.step_row(own, LLAMA, Parallelism())])
    for batch, context in ((1, 100), (1, 100_000), (7, 3000), (64, 200_000), (300, 900_000)):
        like = round(factor * context)
        here, there = decode_s(tables, 1, batch, context)[0], decode_s(tables, 0, batch, like)[0]
        assert here == pytest.approx(there, rel=1e-3)
        assert uneven_s(tables, 1, 2, 1000, 800) == pytest.approx(factor * uneven_s(tables, 0, 2, 1000, 800))
        far, like_far = (
            extrapolation(tables, 1, 1, 1, batch, context, 0),
            extrapolation(tables, 0, 1, 1, batch, like, 0),
        )
        assert far == pytest.approx(like_far)
    assert chunk_s(tables, 1, 500, 100) == chunk_s(tables, 0, 500, 100) / 2
    assert base_s(tables, 1, 100, 3, 4) == base_s(tables, 0, 100, 3, 4)


def test_the_models_own_format_changes_nothing() -> None:
    own = replace(made_up().row(Calibration()), decode=Surface((1.0, 4.0), (1.0, 8.0), ((1.0, 2.0), (2.0, 4.0))))
    assert KvFormat().step_row(own, LLAMA, Parallelism()) == own


def test_gpus_share_the_packing() -> None:
    """Heads over tp, tokens over dp and pp; with more GPUs than heads some hold copies."""
    kv = KvFormat(unpack_bytes_s=1e9)
    one_s = LLAMA.kv_bytes_per_token / 1e9
    shares = {(1, 1): 1.0, (4, 1): 0.25, (16, 1): 0.125, (2, 2): 0.25}  # of tp, pp
    for (tp, pp), share in shares.items():
        assert kv.unpack_s(LLAMA, Parallelism(tp, pp)) == pytest.approx(share * one_s)
    assert kv.unpack_s(LLAMA, Parallelism(2, dp=2)) == pytest.approx(0.25 * one_s)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (Attention, {"overlap": -0.1}, "engine.attention.overlap must be a finite number of at least 0"),
        (Attention, {"overlap": 1.5}, "engine.attention.overlap must be at most 1, got 1.5"),
        (Attention, {"overlap": "much"}, "engine.attention.overlap"),
        (KvFormat, {"memory_share": 0}, "engine.kv_compression.memory_share must lie between 1e-06 and 1"),
        (KvFormat, {"copy_share": 1.1}, "engine.kv_compression.copy_share"),
        (KvFormat, {"read_factor": 0}, "engine.kv_compression.read_factor must lie between 0.001 and 1000"),
        (KvFormat, {"prefill_factor": float("nan")}, "engine.kv_compression.prefill_factor"),
        (KvFormat, {"pack_bytes_s": 0}, "engine.kv_compression.pack_bytes_s"),
        (KvFormat, {"unpack_bytes_s": -1}, "engine.kv_compression.unpack_bytes_s"),
        (EngineConfig, {"attention": "pod"}, "engine.attention must be a file of conf/engine/attention, got 'pod'"),
        (EngineConfig, {"kv_compression": 0.5}, "write engine/kv_compression=NAME"),
    ],
)
def test_values_out_of_range_are_refused(kind: type, values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message.replace(".", r"\.")):
        kind(**values)


# by name


@pytest.fixture
def config_directory() -> Iterator[None]:
    with composing():
        yield


def names(group: str) -> list[str]:
    return sorted(path.stem for path in (ROOT / "conf" / group).glob("*.yaml") if not path.stem.startswith("_"))


OPTIONS = [(kind, name) for kind in ("attention", "kv_compression") for name in names(f"engine/{kind}")]


def test_a_name_chooses_a_file() -> None:
    given = ["engine.attention=pod", "engine.kv_compression=fp8,int8", "engine=default"]
    assert name_files(given) == ["engine/attention=pod", "engine/kv_compression=fp8,int8", "engine=default"]


@pytest.mark.parametrize(
    "word",
    [
        *("engine.attention.overlap=0.5", "engine.attention={overlap: 0.5}", "engine.attention", "cluster=mixed"),
        *("engine/attention=pod", "~engine.attention", "+engine.attention=pod", "--cfg", "trace.path=conf/engine"),
        "engine.attention=${engine.log}",
    ],
)
def test_other_words_stay_as_they_are(word: str) -> None:
    assert name_files([word]) == [word]


def test_both_spellings_are_one_configuration(config_directory: None) -> None:
    pairs = [name_files(["engine.attention=pod", "engine.kv_compression=hack"])]
    pairs.append(["engine/attention=pod", "engine/kv_compression=hack"])
    one, other = (flattened(compose_config("config", overrides=arguments)) for arguments in pairs)
    assert one == other
    assert one["engine.attention.overlap"] == 0.74
    settings = ["engine.attention.overlap=0.74", "engine.attention.decode_rows=0"]
    plain = flattened(compose_config("config", overrides=settings))
    assert plain == flattened(compose_config("config", overrides=["engine/attention=pod"]))


def test_a_parameter_can_be_tuned_with_the_name(config_directory: None) -> None:
    arguments = name_files(["engine.attention.overlap=0.5", "engine.attention=pod"])
    config = compose_config("config", overrides=arguments, return_hydra_config=True)
    assert config.engine.attention.overlap == 0.5
    choices = chosen(config.hydra.runtime.choices)
    assert (choices["engine.attention"], choices["engine.kv_compression"]) == ("pod", "none")


def test_an_unknown_name_is_answered_with_those_there_are(config_directory: None) -> None:
    with pytest.raises(HydraException) as caught:
        compose_config("config", overrides=name_files(["engine.attention=nonesuch"]))
    assert explain(caught.value) == (
        "engine/attention=nonesuch: there is no engine/attention of that name; choose one of "
        + ", ".join(names("engine/attention"))
    )


def in_turn(first: list[str], second: list[tuple[str, str]]) -> list[ParameterSet]:
    """Every pair, of which one of eight is quick."""
    return [
        pytest.param(one, *other, marks=marks((i + j) % 8 == 0))
        for i, one in enumerate(first)
        for j, other in enumerate(second)
    ]


@pytest.mark.parametrize(("policy", "kind", "name"), in_turn(names("policy"), OPTIONS))
def test_every_policy_runs_with_every_option(policy: str, kind: str, name: str) -> None:
    config = small(policy)
    config.engine[kind] = configured(f"engine/{kind}={name}").engine[kind]
    result = compose(config).run()
    assert np.all(result.requests["state"] == 1)
