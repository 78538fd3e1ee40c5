"""The guide: presets that are what they say, equal tuning, rankings with intervals, flips, and refusals in one line."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hydra.utils import instantiate

from experiments.guide import answer as answering
from experiments.guide.axes import Axis, Value, axis
from experiments.guide.command import main
from experiments.guide.families import BY_NAME, FAMILIES, short, told
from experiments.guide.flips import Cell, Line, is_flip, lines
from experiments.guide.knobs import Knob, Setting
from experiments.guide.limits import Front, Hold
from experiments.guide.plan import presets, read_plan
from experiments.guide.plots import draw
from experiments.guide.ranking import Entrant, Ranking, ranked
from experiments.guide.report import report, verdict
from experiments.guide.tuning import Tuned
from experiments.tune.base import Configuration
from experiments.tune.space import Point
from framework.cli.terminal import results_console

CHUNKED = {"cluster.instances": 8, "cluster.tp": 1, "engine.token_budget": 512}
SPLIT = {"cluster.prefill": 3, "cluster.prefill_tp": 2, "cluster.decode": 2, "cluster.decode_tp": 1}
SETTINGS = {
    "trace.input.mean": 900.0,
    "trace.input.high": 16384,
    "trace.output.mean": 200.0,
    "trace.output.high": None,
    "trace.sessions.prefix_tokens": 256,
    "trace.sessions.block_tokens": 128,
    "slo.ttft_s": 2.0,
    "slo.tpot_s": None,
}


# --- presets ----------------------------------------------------------------------------------------------------------


def test_there_are_the_loads_that_are_asked_for() -> None:
    assert presets() == ["agents", "batch", "chat", "code", "documents", "rag", "reasoning"]


@pytest.mark.parametrize("name", presets())
def test_a_preset_has_the_lengths_that_it_states(name: str) -> None:
    config = Configuration((f"+guide={name}", "policy=chunked")).config
    for law in (config.trace.input, config.trace.output):
        drawn = instantiate(law).quantile((np.arange(200_000) + 0.5) / 200_000)
        assert drawn.mean() == pytest.approx(law.mean, rel=0.01)
        assert drawn.std() / drawn.mean() == pytest.approx(law.cv, rel=0.03)


@pytest.mark.parametrize(
    ("name", "prompt", "output"),
    [("chat", 1155, 211), ("code", 2048, 28), ("agents", 8596, 182), ("reasoning", 803, 1200)],
)
def test_a_preset_with_a_source_has_its_means(name: str, prompt: float, output: float) -> None:
    trace = Configuration((f"+guide={name}", "policy=chunked")).config.trace
    assert trace.sessions.prefix_tokens + trace.input.mean == prompt
    assert trace.output.mean == output


def test_agents_find_as_much_of_their_prompts_cached_as_the_trace_does() -> None:
    trace = Configuration(("+guide=agents", "policy=chunked")).config.trace
    assert trace.sessions.prefix_tokens / 8596 == pytest.approx(0.59, abs=0.01)


# --- families and axes ------------------------------------------------------------------------------------------------


def test_all_families_have_one_router_one_queue_and_one_batch() -> None:
    for family in FAMILIES:
        assert "policy.routing=least_queued" in family.fixed
        assert "engine.max_batch=512" in family.fixed
        assert {"policy.order=fcfs", "policy.queue=fcfs"} & set(family.fixed)


def test_settings_are_told() -> None:
    assert told(CHUNKED) == "8 × TP 1, 512 tokens"
    assert short(CHUNKED) == "512"
    assert short({**CHUNKED, "cluster.tp": 2}) == "512 TP2"
    assert told(SPLIT) == "P:D 3:2, TP 2 and 1"
    assert short(SPLIT) == "3:2 TP2,1"


def test_the_prompt_axis_scales_prefix_and_rest() -> None:
    value = axis("prompt", SETTINGS, 1.0).values[3]
    assert value.label == "2,312"
    assert value.overrides == (
        *("trace.input.mean=1800", "trace.input.high=32768"),
        "trace.sessions.prefix_tokens=512",
    )
    assert axis("prompt", SETTINGS, 1.0).values[2].overrides == ()


def test_hits_keep_the_length_of_prompts() -> None:
    for value, share in zip(axis("hits", SETTINGS, 1.0).values, (0, 0.25, 0.5, 0.75, 0.9), strict=True):
        words = dict(word.split("=") for word in value.overrides)
        mean, prefix = float(words["trace.input.mean"]), int(words["trace.sessions.prefix_tokens"])
        assert mean + prefix == pytest.approx(1156)
        assert prefix % 128 == 0
        assert abs(prefix - share * 1156) <= 64


def test_the_other_axes() -> None:
    assert axis("slo", SETTINGS, 1.0).values[0].overrides == ("slo.ttft_s=0.8",)
    assert axis("link", SETTINGS, 1.0).values[1].overrides == ("cluster.link_bandwidth_bytes_s=2e+09",)
    assert axis("load", SETTINGS, 10.0).values[1].overrides == ("objective=goodput", "trace.rate=6")
    recorded = axis("prompt", {"slo.ttft_s": 1.0}, 1.0)
    assert not recorded.values
    assert "recording" in recorded.missing


# --- ranking and flips ------------------------------------------------------------------------------------------------


def entrant(name: str, *values: float) -> Entrant:
    settings = SPLIT if name == "disaggregated" else CHUNKED
    return Entrant(BY_NAME[name], Point({}, settings, 0.0), values[0], np.array(values))


NEAR = ranked([entrant("chunked", 10, 11, 12, 10, 11, 13), entrant("whole", 10.1, 10.8, 12.2, 9.9, 11.2, 12.9)])
FAR = ranked([entrant("chunked", 10, 11, 12, 10, 11, 13), entrant("disaggregated", 14, 15.5, 16, 14.2, 15, 17.1)])


def test_the_best_has_the_highest_mean_and_paired_differences_tell_it_apart() -> None:
    assert [one.family.name for one in FAR.entrants] == ["disaggregated", "chunked"]
    assert FAR.is_clear
    assert FAR.behind[0].mean == pytest.approx(np.mean([4, 4.5, 4, 4.2, 4, 4.1]))
    assert [one.family.name for one in FAR.as_good] == ["disaggregated"]


def test_samples_that_vary_more_than_families_do_leave_them_as_good() -> None:
    assert not NEAR.is_clear
    assert {one.family.name for one in NEAR.as_good} == {"chunked", "whole"}


def test_a_difference_that_does_not_vary_is_one() -> None:
    same = ranked([entrant("chunked", 1, 2, 3, 4), entrant("whole", 0, 1, 2, 3)])
    assert math.isnan(same.behind[0].p)
    assert same.is_clear
    assert not ranked([entrant("chunked", 1, 2), entrant("whole", 1, 2)]).is_clear


def test_an_answer_flips_where_no_family_is_good_on_both_sides() -> None:
    chunked = ranked([entrant("chunked", 5, 5.1, 5.2, 5, 5.3, 5), entrant("whole", 1, 1.1, 1.3, 1.2, 1.4, 1.1)])
    assert is_flip(chunked, FAR)
    assert not is_flip(chunked, NEAR)
    assert not is_flip(chunked, None)


def test_each_setting_of_the_map_is_ranked_once() -> None:
    asked: list[tuple[str, ...]] = []

    def cell(overrides: tuple[str, ...], compared: int) -> Ranking:
        asked.append(overrides)
        return FAR if overrides else NEAR

    base, other = Value("slo", "× 1", ()), Value("slo", "× 2", ("slo.ttft_s=4",))
    found = lines([Axis("slo", (base, other)), Axis("link", (Value("link", "own ports", ()),))], cell)
    assert asked == [(), ("slo.ttft_s=4",)]
    assert [cell.ranking for cell in found[0].cells] == [NEAR, FAR]
    assert found[1].cells[0].ranking is NEAR


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


SMALL = (
    *("preset=chat", "timing=affine", "server=none", "trace.requests=30", "gpus=2", "parts=none", "trials=1"),
    *("replicates=4", "objective.tolerance=0.5", "objective.most_requests=200", "out=out"),
)


def test_two_families_are_tuned_equally_and_give_the_same_bytes_again(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(answering, "FAMILIES", FAMILIES[1:3])
    assert main(SMALL) == 0
    printed = capsys.readouterr()
    assert "is best" in printed.out
    assert printed.err == "results in out\n"
    first = (here / "out" / "guide.json").read_bytes()
    found = json.loads(first)
    assert [len(one["trials"]) for one in found["tuned"]] == [1, 1]
    assert {len(one["rates"]) for one in found["ranking"]["entrants"]} == {4}
    assert len(list((here / "results" / "records").iterdir())) == 2 * (1 + 1)
    assert main(SMALL) == 0
    assert (here / "out" / "guide.json").read_bytes() == first


def test_pictures_and_words_of_all_parts(here: Path) -> None:
    plan = read_plan(("preset=chat", "seed=3"))
    knob = Knob(BY_NAME["chunked"], "engine.token_budget", "tokens", tuple(setting(2.0**n) for n in range(8, 13)))
    split = Knob(BY_NAME["disaggregated"], "prefill_gpus", "GPUs", tuple(setting(float(n)) for n in range(1, 4)))
    cells = (
        Cell(Value("slo", "× 1", ()), NEAR),
        Cell(Value("slo", "× 2", ()), FAR),
        Cell(Value("slo", "× 3", ()), None),
    )
    whole = answering.Answer(
        plan=plan,
        settings={**SETTINGS, "model.name": "m", "gpu.name": "g", "slo.tpot_s": 0.05},
        timing="affine",
        source="synthetic",
        tuned=tuple(Tuned(family, 0, (), "") for family in FAMILIES),
        ranking=FAR,
        knobs=(knob, split),
        lines=(Line(Axis("slo", tuple(cell.value for cell in cells)), cells),),
        hits=((Value("hits", "50 %", ()), split),),
        fronts=(Front(BY_NAME["chunked"], (Hold(CHUNKED, 100.0, 20.0, 0.4), Hold(CHUNKED, 200.0, 10.0, 0.2))),),
        front_rate_rps=4.0,
    )
    assert {path.name for path in draw(whole, here) if path.suffix == ".png"} == {
        *("map.png", "knobs.png", "split.png", "limits.png")
    }
    assert "disaggregated (P:D 3:2, TP 2 and 1) is best: 1.91 req/s a GPU" in verdict(whole)
    with results_console().capture():
        results_console().print(report(whole))


def setting(value: float) -> Setting:
    return Setting(value, f"{value:g}", np.array([1.0, 1.1, 1.2, 1.0]) * (1 + value / 1e4))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give the load once, as preset=NAME (agents, batch"),
        (("preset=chat", "trace=azure_conv"), "give the load once"),
        (("preset=nonesuch",), "preset must be one of agents"),
        (("preset=chat", "policy=ares"), "policy=ares: not understood"),
        (("preset=chat", "replicates=3"), "replicates=3: fewer than 4"),
        (("preset=chat", "parts=nonesuch"), "parts must be one of knobs, map, hits, limits"),
        (("preset=chat", "axes=load,nonesuch"), "axes must be one of load"),
        (("preset=chat", "trials=0"), "trials must be a whole number"),
        (("preset=chat", "objective=goodput"), "objective= is the guide's own"),
        (("preset=chat", "gpus=1", "gpus=2"), "gpus is given twice"),
    ],
)
def test_what_cannot_be_meant_is_one_line(
    here: Path, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert said in line
    assert not list(here.iterdir())


def test_a_load_that_nothing_serves_is_one_line(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(answering, "FAMILIES", FAMILIES[1:2])
    assert main([*SMALL, "slo.ttft_s=1e-6"]) == 2
    assert "no architecture sustains any rate within the SLO" in capsys.readouterr().err
    assert not (here / "out").exists()
