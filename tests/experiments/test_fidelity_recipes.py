"""Published settings of disaggregated deployments: the table, the layouts that it corrects, and who gets a request."""

from __future__ import annotations

import polars as pl
import pytest

from experiments.validation.fidelity.recipes import RECIPES, AtRandom, InTurn, as_they_were, recipe_of, router_of
from experiments.validation.fidelity.rows import Pool, Row
from framework.engine.setup.config import EngineConfig
from framework.policy import Disaggregated
from framework.simulate import simulate
from framework.system.cluster import disaggregated
from framework.system.parallelism import Parallelism
from tests.bound.test_bound import GPU, LLAMA, TIMING, requests

LISTED = Row(
    key="one",
    model="deepseek_v3",
    gpu="h200",
    backend="trtllm",
    version="0.8.1.post1",
    dtype="fp8_block",
    expert_dtype="fp8_block",
    mode="disagg",
    prefill=Pool(1, Parallelism(tp=8, ep=8)),
    decode=Pool(9, Parallelism(tp=8, ep=8)),
    isl=1024,
    osl=1024,
    concurrency=576,
    prompts=5760,
    shortest=0.8,
    ttft_s=1.81,
    tpot_s=0.0309,
    family="InferenceX",
    date="2026-02-14",
)


def test_a_layout_is_that_of_the_recipe() -> None:
    """The prefill instance of that run had eight data-parallel ranks, which the list of measurements does not say."""
    [row] = as_they_were([LISTED])
    assert row.prefill == Pool(1, Parallelism(dp=8, ep=8))
    assert row.decode == LISTED.decode
    assert row.listed == "1xtp8-ep8 + 9xtp8-ep8"
    recipe = recipe_of(row)
    assert recipe == recipe_of(LISTED)
    assert recipe is not None
    assert (recipe.prefill_seats, recipe.prefill_tokens, recipe.frontends) == (64, 65536, "one")
    assert router_of(row) is InTurn


def test_what_no_recipe_says_stays() -> None:
    unknown = Row(**{**vars(LISTED), "concurrency": 577})
    assert as_they_were([unknown]) == [unknown]
    assert recipe_of(unknown) is None
    assert router_of(unknown) is Disaggregated


def test_every_line_keeps_the_gpus_of_its_deployment() -> None:
    table = pl.read_csv(RECIPES, comment_prefix="#", schema_overrides={"frontends": pl.String})
    keys = ["gpu", "backend", "model", "dtype", "isl", "osl", "concurrency", "date", "listed"]
    assert table.select(keys).is_unique().all()

    def gpus(layout: str) -> int:
        parts = {part[:2]: int(part[2:]) for part in layout.split("-")}
        return parts["tp"] * parts.get("dp", 1) * parts.get("pp", 1)

    for line in table.iter_rows(named=True):
        for role, listed in zip(("prefill", "decode"), line["listed"].split(" + "), strict=True):
            assert gpus(line[role]) == gpus(listed.partition("x")[2]), line
        for name in ("prefill_seats", "prefill_tokens", "decode_seats"):
            assert line[name] is None or line[name] > 0, line
        assert line["frontends"] in ("one", "several", None)


@pytest.mark.parametrize("policy", [InTurn, AtRandom])
def test_requests_are_dealt(policy: type[Disaggregated]) -> None:
    result = simulate(requests(12, 100, 3), disaggregated(2, 3, GPU), LLAMA, TIMING, EngineConfig(), policy())
    prefills, decodes = (result.requests[name].tolist() for name in ("prefill_instance", "decode_instance"))
    assert set(prefills) == {0, 1}
    assert set(decodes) == {2, 3, 4}
    if policy is InTurn:
        assert prefills == [0, 1] * 6
        assert sorted(decodes) == sorted([2, 3, 4] * 4)
