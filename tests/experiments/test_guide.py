"""The guide: presets that are what they say, equal tuning, rankings with intervals, flips, and refusals in one line."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hydra.utils import instantiate

from experiments.guide import answer as answering
from experiments.guide import plots
from experiments.guide.axes import Axis, Value, axis
from experiments.guide.data import text_of
from experiments.guide.families import FAMILIES, Family, chosen, described, short
from experiments.guide.flips import Bests, Cell, Line, is_flip, lines
from experiments.guide.judged import judged
from experiments.guide.knobs import Knob, Setting
from experiments.guide.limits import Front, Hold
from experiments.guide.plan import PARTS, presets, read_plan
from experiments.guide.plots import draw
from experiments.guide.ranking import Entrant, Ranking, ranked
from experiments.guide.report import families_unlike, report, thumbs, unsettled, verdict
from experiments.guide.rules import Load, link_share
from experiments.guide.tuning import Task, Trial, Tuned, tuned, value
from experiments.plot.style import save
from experiments.tune.base import Configuration
from experiments.tune.space import Point, Space
from experiments.tune.space_file import read_space
from framework.cli.terminal import results_console
from framework.errors import InputError
from framework.metrics.statistics import Estimate
from framework.run.store import Record
from framework.run.sweep import Outcome
from tests.conftest import ROOT
from tests.helpers.composing import configured
from tests.helpers.launcher import typed
from tests.helpers.quick import every_second

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

BY_NAME = {family.name: family for family in FAMILIES}


# --- presets ----------------------------------------------------------------------------------------------------------


def test_there_are_the_loads_that_are_asked_for() -> None:
    assert presets() == ["agents", "batch", "chat", "code", "documents", "rag", "reasoning"]


@pytest.mark.parametrize("name", every_second(presets()))
def test_a_preset_has_the_lengths_that_it_states(name: str) -> None:
    config = Configuration((f"+guide={name}", "policy=chunked")).config
    for lengths in (config.trace.input, config.trace.output):
        drawn = instantiate(lengths).quantile((np.arange(200_000) + 0.5) / 200_000)
        assert drawn.mean() == pytest.approx(lengths.mean, rel=0.01)
        assert drawn.std() / drawn.mean() == pytest.approx(lengths.cv, rel=0.03)


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
        assert "engine.max_batch=1024" in family.fixed
        assert {"policy.order=fcfs", "policy.queue=fcfs", "policy=ares"} & set(family.fixed)  # ares has no order


def test_all_families_are_ranked_and_no_other_part_is_made_unless_it_is_asked_for() -> None:
    plan = read_plan(("preset=chat",))
    assert (plan.families, plan.parts, plan.decode_gpu) == (tuple(BY_NAME), (), "a100")
    assert read_plan(("preset=chat", "gpu=a100")).decode_gpu == "h100"
    asked = read_plan(("preset=chat", "families=hack,pod", "parts=all"))
    assert (asked.families, asked.parts) == (("pod", "hack"), PARTS)


def test_one_gpu_is_not_divided() -> None:
    assert [one.name for one in chosen(tuple(BY_NAME), gpus=1)] == ["whole", "chunked", "shared", "pod"]
    with pytest.raises(InputError, match="gpus=1: ares need two GPUs"):
        chosen(("ares",), gpus=1)


def test_settings_are_reported() -> None:
    assert described(CHUNKED) == "8 × TP 1, 512 tokens"
    assert short(CHUNKED) == "512"
    assert short({**CHUNKED, "cluster.tp": 2}) == "512 TP2"
    assert described(SPLIT) == "P:D 3:2, TP 2 and 1"
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
    for hits, share in zip(axis("hits", SETTINGS, 1.0).values, (0, 0.25, 0.5, 0.75, 0.9), strict=True):
        settings = dict(word.split("=") for word in hits.overrides)
        mean, prefix = float(settings["trace.input.mean"]), int(settings["trace.sessions.prefix_tokens"])
        assert mean + prefix == pytest.approx(1156)
        assert prefix % 128 == 0
        assert abs(prefix - share * 1156) <= 64


def test_the_other_axes() -> None:
    assert axis("slo", SETTINGS, 1.0).values[0].overrides == ("slo.ttft_s=0.8",)
    assert axis("link", SETTINGS, 1.0).values[1].overrides == ("cluster.link_bandwidth_bytes_s=2e+09",)
    assert axis("load", SETTINGS, 10.0).values[1].overrides == ("objective=goodput", "trace.tile=8", "trace.rate=6")
    recorded = axis("prompt", {"slo.ttft_s": 1.0}, 1.0)
    assert not recorded.values
    assert "recording" in recorded.missing


# --- equal tuning -----------------------------------------------------------------------------------------------------


@dataclass
class Anything:
    """Whatever a space does not rule out can be launched."""

    pool: list[Point]

    def is_feasible(self, point: Point) -> bool:
        return point.shortfall == 0


class Hill:
    """Stands for the runs of families whose spaces are those of conf/space: worth falls off from one point."""

    def __init__(self, top: dict[str, int], counts: dict[int, float] | None = None) -> None:
        self.top, self.counts = top, counts or {}  # by TP what a request/s counts, 1 unless it is said
        self.asked: list[tuple[str, ...]] = []

    def space(self, family: Family) -> Space:
        names = ("cluster.instances", "cluster.tp", "engine.token_budget", "policy.prefill_percent")
        settings = dict.fromkeys((*names, "engine.max_batch", "policy.order"), 1)
        settings |= {"engine.token_budget": 2048, "policy.prefill_percent": 50}
        pools = {f"cluster.{pool}{part}": 1 for pool in ("prefill", "decode") for part in ("", "_tp")}
        given = ("engine.max_batch", "policy.order", *family.given)
        return read_space(family.space, {**settings, **pools}, given, {"gpus": "8"})

    def feasible(self, family: Family) -> Anything:
        return Anything([point for point in self.space(family).points() if point.shortfall == 0])

    def rate_worth(self, family: Family, point: Point) -> float:
        return self.counts.get(point.settings.get("cluster.tp", 0), 1.0)

    def run(self, jobs: Sequence[Sequence[str]]) -> list[Outcome]:
        self.asked += [tuple(job) for job in jobs]
        return [Outcome(tuple(job), self.record(job), None) for job in jobs]

    def record(self, job: Sequence[str]) -> Record:
        least = dict(word.split("=") for word in job).get("objective.at_least", 0.0)
        found = self.worth(job) if self.worth(job) >= float(least) else 0.0
        return Record("", {}, {}, {"capacity_high": 1.01 * found, "capacity_settled": found != 7.0}, found)

    def worth(self, job: Sequence[str]) -> float:
        settings = dict(word.split("=") for word in job)
        return 9.0 - sum(abs(math.log2(int(settings[name]) / wanted)) for name, wanted in self.top.items())


@pytest.mark.parametrize("trials", [1, 7, 12])
def test_every_family_gets_as_many_trials_none_of_them_twice(trials: int) -> None:
    for family in FAMILIES:
        hill = Hill({})
        found = tuned(hill, family, Task(("slo.ttft_s=1",), value, trials, 3))  # type: ignore[arg-type]
        assert len(found.trials) == trials
        assert len(set(hill.asked)) == len(hill.asked) == trials
        assert all("seed=3" in job and "slo.ttft_s=1" in job for job in hill.asked)


def test_a_climb_ends_at_the_top_of_a_hill() -> None:
    hill = Hill({"engine.token_budget": 512, "cluster.tp": 2})
    found = tuned(hill, BY_NAME["chunked"], Task((), value, 12, 0))  # type: ignore[arg-type]
    assert found.best is not None
    assert (found.best.point.settings["engine.token_budget"], found.best.point.settings["cluster.tp"]) == (512, 2)
    assert found.points == 28


def test_a_space_that_is_smaller_is_tried_whole() -> None:
    found = tuned(Hill({}), BY_NAME["whole"], Task((), value, 100, 0))  # type: ignore[arg-type]
    assert len(found.trials) == found.points == 20


def test_searches_begin_at_the_best_rate_so_far_and_links_move_those_alone_that_copy() -> None:
    task = Task(("cluster.link_bandwidth_bytes_s=1e9",), value, 12, 0, 5.0)
    for family in FAMILIES:
        hill = Hill({})
        tuned(hill, family, task)  # type: ignore[arg-type]
        assert "trace.rate=5" in hill.asked[0]
        assert "trace.rate=9" in hill.asked[-1]
        assert not any("at_least" in word for word in hill.asked[0])
        assert all("objective.at_least=9.09" in job for job in hill.asked[1:])
        assert (task.overrides[0] in hill.asked[0]) == (family.space == "pd")


@pytest.mark.parametrize("family", FAMILIES[:4])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_races_end_where_full_searches_do(family: Family, tp: int) -> None:
    name = "cluster.prefill_tp" if family.space == "pd" else "cluster.tp"
    hill = Hill({name: tp})
    searched = tuned(hill, family, Task((), value, 12, 0))  # type: ignore[arg-type]
    raced = tuned(hill, family, Task((), value, 12, 0, 5.0))  # type: ignore[arg-type]
    assert searched.best is not None
    assert raced.best is not None
    assert raced.best.point.settings == searched.best.point.settings
    assert len(raced.trials) == len(searched.trials) == 12
    given_up = [one for one in raced.trials if one.is_given_up]
    assert given_up
    assert all(one.raced_rps is not None and one.raced_rps <= 1.01 * raced.best.worth for one in given_up)


def test_races_are_run_at_rates_that_count_as_much() -> None:
    hill = Hill({"cluster.tp": 4}, {1: 4.0})
    found = tuned(hill, BY_NAME["chunked"], Task((), value, 30, 0, 5.0))  # type: ignore[arg-type]
    assert found.best is not None
    assert found.best.point.settings["cluster.tp"] == 1  # 7 requests/s, which count as 28
    assert found.best.worth == 28
    assert {word for job in hill.asked[1:] for word in job if "at_least" in word} == {
        *("objective.at_least=7.07", "objective.at_least=28.28"),
    }
    fixed = Hill({}, {1: 4.0})
    tuned(fixed, BY_NAME["chunked"], Task(("trace.rate=6",), value, 30, 0))  # type: ignore[arg-type]
    rates = {int(words["cluster.tp"]): words["trace.rate"] for job in fixed.asked for words in [told(job)]}
    assert rates[1] == "1.5"
    assert {rates[tp] for tp in rates if tp > 1} == {"6"}


def told(job: Sequence[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in job)


def test_a_load_that_is_near_gives_the_point_and_the_rate_to_begin_with() -> None:
    first = tuned(Hill({"cluster.tp": 4}), BY_NAME["chunked"], Task((), value, 12, 0, 5.0))  # type: ignore[arg-type]
    assert first.best is not None
    hill = Hill({"cluster.tp": 4})
    tuned(hill, BY_NAME["chunked"], Task((), value, 1, 0, 5.0), first.best)  # type: ignore[arg-type]
    assert {"trace.rate=9", "objective.first_step=1.2", "cluster.tp=4"} <= set(hill.asked[0])


# --- ranking and flips ------------------------------------------------------------------------------------------------


def entrant(name: str, *values: float) -> Entrant:
    settings = SPLIT if name == "disaggregated" else CHUNKED
    return Entrant(BY_NAME[name], Point({}, settings, 0.0), values[0], np.array(values))


BEST = Trial(Point({}, CHUNKED, 0.0), 1.0, None, "")
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


def test_each_setting_of_the_map_is_ranked_once_from_its_neighbour() -> None:
    asked: list[tuple[tuple[str, ...], str]] = []

    def cell(overrides: tuple[str, ...], begin: Bests) -> tuple[Ranking, Bests]:
        asked.append((overrides, next(iter(begin))))
        return FAR if overrides else NEAR, {"-".join(overrides): BEST}

    less, base, more, most = (Value("slo", f"× {n}", (f"slo={n}",) if n != 1 else ()) for n in (0, 1, 2, 3))
    link = Axis("link", (Value("link", "own ports", ()),))
    found = lines([Axis("slo", (less, base, more, most)), link], cell, {"begin": BEST})
    assert asked == [((), "begin"), (("slo=2",), ""), (("slo=3",), "slo=2"), (("slo=0",), "")]
    assert [cell.ranking for cell in found[0].cells] == [FAR, NEAR, FAR, FAR]
    assert found[1].cells[0].ranking is NEAR


# --- rules of thumb ---------------------------------------------------------------------------------------------------

CHAT = Load(8, 1155.0, 211.0, 0.8, 1.0, 0.05, 10.9, 1.02)
LONG = Load(2, 9000.0, 1200.0, 1.2, 10.0, 0.05, 0.3)
OFFLINE = Load(8, 1000.0, 500.0, 0.8, 120.0, None, 10.9, 0.7)


@pytest.mark.parametrize(
    ("load", "recommended"),
    [
        (CHAT, {"chunked", "unlike"}),
        (LONG, {"chunked", "shared", "pod", "ares", "hack"}),
        (replace(LONG, link_share=1.5), {"chunked", "disaggregated", "shared", "pod", "ares"}),
        (OFFLINE, {"whole"}),
    ],
)
def test_a_rule_recommends_families_for_its_loads(load: Load, recommended: set[str]) -> None:
    assert {name for name, one in BY_NAME.items() if one.rule is not None and one.rule.applies(load)} == recommended


def test_a_link_is_compared_with_the_kv_that_prefill_makes() -> None:
    """8B on an H100: half of 989 TFLOP/s are 33,000 tokens/s of 131,072 bytes."""
    parts = configured("model=llama3_8b", "gpu=h100")
    model, gpu = instantiate(parts.model, _convert_="all"), instantiate(parts.gpu, _convert_="all")
    assert link_share(model, gpu, 1.25e9, 1) == pytest.approx(1.25 / 4.6, rel=0.02)
    assert link_share(model, gpu, 1.25e9, 2) == link_share(model, gpu, 1.25e9, 1) / 2
    assert link_share(model, gpu, None, 2) == link_share(model, gpu, 50e9, 1)


def test_rules_are_judged_by_the_paired_samples_of_both_families() -> None:
    tried = [Tuned(BY_NAME[name], 1, (), "") for name in ("whole", "chunked", "disaggregated", "ares", "hack")]
    rates = (10.0, 11.0, 12.0, 10.0, 11.0, 13.0)
    ranking = ranked(
        [
            entrant("chunked", *rates),
            entrant("whole", *(0.9 * rate for rate in rates)),
            entrant("disaggregated", *(1.2 * rate for rate in rates)),
            entrant("ares", *(rate + 0.1 * (-1) ** n for n, rate in enumerate(1.2 * rate for rate in rates))),
        ]
    )
    found = {one.family.name: one for one in judged(ranking, tried, replace(CHAT, output_tokens=2000, output_cv=1))}
    assert found["chunked"].holds
    assert found["chunked"].gain == pytest.approx(1 / 0.9 - 1)
    assert found["disaggregated"].is_above
    assert not found["disaggregated"].holds
    assert not found["ares"].holds  # recommended, and as good as the other
    assert found["hack"].is_below
    assert found["hack"].holds  # it serves nothing, and is not recommended
    agrees, contradicts = thumbs(tuple(found.values()))
    assert agrees == (
        "As rules of thumb say: chunked prefill, recommended for loads with a limit on TPOT, as here, is 11.1 % above "
        "whole prompts; disaggregated, HACK, recommended for links slower than prefill makes KV, not for this load, "
        "does not serve it, and disaggregated does."
    )
    assert contradicts.startswith("Against rules of thumb: disaggregated, recommended for TPOT limits under 1/60")
    assert contradicts.endswith("as here, cannot be distinguished from disaggregated.")


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


SMALL = (
    *("preset=chat", "timing=affine", "server=none", "trace.requests=30", "gpus=2", "parts=none", "trials=1"),
    *("replicates=4", "objective.tolerance=0.5", "objective.most_requests=200", "out=out"),
)


@pytest.mark.slow
def test_two_families_are_tuned_equally_and_give_the_same_bytes_again(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("guide")((*SMALL, "families=chunked,disaggregated")) == 0
    printed = capsys.readouterr()
    assert "is best" in printed.out
    assert printed.err == "results in out\n"
    assert "Besides the policy" not in printed.out  # one server, one router, one cache
    first = (here / "out" / "guide.json").read_bytes()
    found = json.loads(first)
    assert [len(one["trials"]) for one in found["tuned"]] == [1, 1]
    assert {len(one["rates"]) for one in found["ranking"]["entrants"]} == {4}
    assert len(list((here / "results" / "records").iterdir())) == 2 * (1 + 1)
    assert typed("guide")((*SMALL, "families=chunked,disaggregated")) == 0
    assert (here / "out" / "guide.json").read_bytes() == first


@pytest.mark.slow
def test_rates_on_two_kinds_of_gpu_count_by_price(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("families=disaggregated,unlike", "gpus=3", "decode_gpu=l40s", "trials=1")
    assert typed("guide")([word for word in SMALL if word not in ("gpus=2", "trials=1")] + list(words)) == 0
    assert "l40s decodes, at 0.86 $ an hour for 2.99 of h100. Rates count by price" in capsys.readouterr().out
    ranking = json.loads((here / "out" / "guide.json").read_text())["ranking"]["entrants"]
    entrant = next(one for one in ranking if one["family"] == "unlike")
    decodes = entrant["settings"]["cluster.decode"] * entrant["settings"]["cluster.decode_tp"]
    stored = [json.loads(path.read_text()) for path in (here / "results" / "records").glob("*.json")]
    rates = [
        one["summary"]["capacity_replicates"]
        for one in stored
        if one["config"].get("cluster.decode_gpu.name") == "l40s" and len(one["summary"]["capacity_replicates"]) == 4
    ]
    assert len(rates) == 1
    usd = (3 - decodes) * 2.99 + decodes * 0.86
    assert entrant["rates"] == pytest.approx([rate * 2.99 / usd for rate in rates[0]])


@pytest.mark.slow
def test_a_map_is_made_of_searches_and_of_runs_at_a_rate(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = ("families=chunked,disaggregated", "parts=map,batch,limits", "axes=load,link", "cell_trials=2")
    assert typed("guide")([word for word in SMALL if word != "parts=none"] + list(parts)) == 0
    found = json.loads((here / "out" / "guide.json").read_text())
    assert [len(line["cells"]) for line in found["map"]] == [5, 5]
    assert [one["family"] for one in found["batch"]] == ["chunked", "disaggregated"]
    assert all(front["tightest_again"]["scale"]["mean"] <= 1 for front in found["limits"]["fronts"])
    assert (here / "out" / "map.png").exists()


def test_pictures_and_words_of_all_parts(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(plots, "save", partial(save, formats=("png",)))
    plan = read_plan(("preset=chat", "seed=3"))
    knob = Knob(BY_NAME["chunked"], "engine.token_budget", "tokens", tuple(setting(2.0**n) for n in range(8, 13)))
    split = Knob(BY_NAME["disaggregated"], "prefill_gpus", "GPUs", tuple(setting(float(n)) for n in range(1, 4)))
    holds = (Hold(CHUNKED, 100.0, 20.0, 0.4), Hold(CHUNKED, 200.0, 10.0, 0.2))
    undecided = replace(entrant("disaggregated", 4, 4.5, 5, 4.1), is_settled=False)
    cells = (
        Cell(Value("slo", "× 1", ()), NEAR),
        Cell(Value("slo", "× 2", ()), ranked([entrant("chunked", 1, 1, 1, 1), undecided])),
        Cell(Value("slo", "× 3", ()), None),
    )
    lost = Trial(Point({}, CHUNKED, 0.0), 0.0, Record("", {}, {}, {"capacity_settled": False}, 0.0), "", 5.0)
    tried = tuple(Tuned(family, 0, (lost,) if family.name == "chunked" else (), "") for family in FAMILIES)
    whole = answering.Answer(
        plan=plan,
        settings={**SETTINGS, "model.name": "m", "gpu.name": "g", "slo.tpot_s": 0.05},
        timing="affine",
        source="synthetic",
        tuned=tried,
        ranking=FAR,
        rules=tuple(judged(FAR, tried, CHAT)),
        knobs=(knob, split),
        batches=(knob,),
        lines=(Line(Axis("slo", tuple(cell.value for cell in cells)), cells),),
        hits=((Value("hits", "50 %", ()), split),),
        fronts=(Front(BY_NAME["chunked"], holds, (Estimate(210.0, 9.0), Estimate(10.5, 0.1), Estimate(0.21, 0.01))),),
        front_rate_rps=4.0,
    )
    assert {path.name for path in draw(whole, here) if path.suffix == ".png"} == {
        *("map.png", "knobs.png", "batch.png", "split.png", "limits.png")
    }
    assert "disaggregated (P:D 3:2, TP 2 and 1) is best: 1.91 req/s a GPU" in verdict(whole)
    console = results_console()
    with console.capture() as printed:
        console.print(report(whole))
    assert "0.550*" in printed.get()
    assert "Besides the policy" not in printed.get()
    shared = ranked([entrant("chunked", 1, 1, 1, 1), entrant("shared", 2, 2, 2, 2)])
    assert families_unlike(replace(whole, ranking=shared)) == (
        "Besides the policy, runs differ in asynchronous scheduling (off; on: chunked prefill), "
        "engine.sharing (chunked prefill)."
    )
    assert "* rests on a rate that runs of 160,000 requests could not tell" in printed.get()
    assert "1 of 1 of chunked prefill" in printed.get()
    assert "210 ± 9" in printed.get()
    assert not unsettled(replace(whole, lines=(), tuned=()))
    told_trials = json.loads(text_of(whole))["tuned"][1]["trials"]
    assert told_trials == [{"settings": CHUNKED, "rate": None, "below": 0.625, "is_settled": False}]


def setting(value: float) -> Setting:
    return Setting(value, f"{value:g}", np.array([1.0, 1.1, 1.2, 1.0]) * (1 + value / 1e4), tpot_ms=value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give the load once, as preset=NAME (agents, batch"),
        (("preset=chat", "trace=azure_conv"), "give the load once"),
        (("preset=nonesuch",), "preset must be one of agents"),
        (("preset=chat", "policy=ares"), "policy=ares: not understood"),
        (("preset=chat", "replicates=3"), "replicates=3: fewer than 4"),
        (("preset=chat", "cell_replicates=2"), "cell_replicates=2: fewer than 4"),
        (("preset=chat", "parts=nonesuch"), "parts must be one of knobs, batch, map, hits, limits"),
        (("preset=chat", "axes=load,nonesuch"), "axes must be one of load"),
        (("preset=chat", "families=nonesuch"), "families must be one of whole, chunked"),
        (("preset=chat", "families=pod", "decode_gpu=l40s"), "decode_gpu=l40s is of families=unlike, which is not"),
        (("preset=chat", "families=unlike", "decode_gpu=h1"), "decode_gpu must be one of a100, a100_pcie"),
        (("preset=chat", "families=unlike", "decode_gpu=h100"), "gpu and decode_gpu are both h100"),
        (("preset=chat", "trials=0"), "trials must be a whole number"),
        (("preset=chat", "objective=goodput"), "objective= is the guide's own"),
        (("preset=chat", "gpus=1", "gpus=2"), "gpus is given twice"),
    ],
)
def test_what_cannot_be_meant_is_one_line(
    here: Path, arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("guide")(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert said in line
    assert not list(here.iterdir())


def test_a_load_that_nothing_serves_is_one_line(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("guide")([*SMALL, "families=chunked", "slo.ttft_s=1e-6"]) == 2
    assert "no architecture sustains any rate within the SLO" in capsys.readouterr().err
    assert not (here / "out").exists()


def test_pictures_of_the_page_are_shown_and_small() -> None:
    page = (ROOT / "docs" / "guide.md").read_text()
    for picture in (ROOT / "docs" / "guide").iterdir():
        assert f"(guide/{picture.name})" in page
        assert picture.stat().st_size < 100_000
