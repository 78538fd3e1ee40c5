"""What limits a run is found by running it again: planted bottlenecks, the changes that remove them, the command."""

from __future__ import annotations

import functools
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf
from rich.console import Console

from framework.diagnosis.changes import Seen, host_is_free, memory_is_endless, routing_is_by_load
from framework.diagnosis.phase_times import all_faster, context_faster, decode_faster, prefill_faster, without_host
from framework.diagnosis.remedies import Remedy, remedies
from framework.diagnosis.removals import REMOVABLE
from framework.diagnosis.trials import Removed, Trial, Trials, run
from framework.errors import InputError
from framework.objective.goodput import Goodput
from framework.report.page.limits import limits
from framework.report.trials_table import TrialsTable, helping, verdict
from framework.run.compose import compose_on
from framework.run.job import done, flattened
from framework.run.trying import as_json, config_of, tried, with_settings
from framework.timing.curves import Curve, Surface
from framework.timing.step_row import StepRow
from servelab.diagnose_command import main
from tests.diagnosis.plants import PLANTS, Plant, every_fourth, steady, uneven
from tests.helpers.composing import configured
from tests.helpers.quick import every_second
from tests.report.test_run_page import Page

SEEN = Seen(duration_s=10.0, decodes=4.0)


@functools.cache
def found(name: str) -> Trials:
    return PLANTS[name].trials()


@pytest.mark.parametrize("name", every_second(PLANTS))
def test_the_planted_cause_is_named_first_and_its_remedy_helps(name: str) -> None:
    plant, trials = PLANTS[name], found(name)
    assert [one.name for one in trials.removed][:1] == [plant.cause]
    assert trials.removed[0].trial.worth(trials.base) > 0
    helped = [one.remedy.text for one in helping(trials)]
    assert [text for text in helped if text.startswith(plant.remedy)], helped
    said = " ".join(verdict(trials))
    assert REMOVABLE[plant.cause].title in said
    assert not {"nan", "unknown"} & set(said.replace(",", " ").split())


@pytest.mark.slow
def test_of_uneven_loads_nine_in_ten_are_named_first_and_mended() -> None:
    named, fixed = [], []
    for plant in PLANTS.values():
        for seed in range(4):
            trials = replace(plant, workload=uneven(plant.workload, seed)).trials()
            named.append([one.name for one in trials.removed][:1] == [plant.cause])
            fixed.append(any(one.remedy.text.startswith(plant.remedy) for one in helping(trials)))
    assert np.mean(named) >= 0.9
    assert np.mean(fixed) >= 0.9


def test_the_run_and_its_remedies_are_what_the_same_settings_come_to() -> None:
    plant, trials = PLANTS["slow link"], found("slow link")
    config = plant.config()
    summary = Goodput().measure(compose_on(config, plant.workload)).evaluation.summary
    assert (trials.base.goodput, trials.base.window_s) == (summary["goodput_rps"], summary["window_s"])
    best = helping(trials)[0]
    config.cluster.link_bandwidth_bytes_s = None
    again = Goodput().measure(compose_on(config, plant.workload)).evaluation.summary
    assert best.trial.goodput == pytest.approx(again["goodput_rps"], rel=1e-12)
    assert best.trial.kept == again["slo_attainment"] * again["offered"]


def test_a_cause_removed_is_the_run_without_it() -> None:
    plant, trials = PLANTS["small KV memory"], found("small KV memory")
    config = plant.config()
    config.engine.kv_tokens = 10_000_000
    alone = run(compose_on(config, plant.workload))
    (memory,) = [one.trial for one in trials.removed if one.name == "memory"]
    assert (memory.kept, memory.goodput) == (alone.kept, alone.goodput)


def test_causes_are_ranked_by_what_they_are_worth() -> None:
    for name in ("a router that ignores load", "one class starves another"):
        trials = found(name)
        worths = [one.trial.worth(trials.base) for one in trials.removed]
        near = sum(worth >= 0.9 * max(worths) for worth in worths)
        assert worths[near:] == sorted(worths[near:], reverse=True)
        breadths = [one.cause.breadth for one in trials.removed[:near]]
        assert breadths == sorted(breadths)
        near = sum(not trials.tried[0].trial.is_better(one.trial) for one in trials.tried)
        gains = [one.trial.worth(trials.base) for one in trials.tried]
        assert gains[near:] == sorted(gains[near:], reverse=True)
        assert not [one for one in trials.tried if one.trial.is_better(trials.tried[0].trial)]


def test_a_run_that_lost_nothing_is_not_run_again() -> None:
    plant = Plant("", "", ("policy=chunked", "cluster.instances=2"), steady(50, 1.0, 100, 10))
    trials = plant.trials()
    assert (trials.removed, trials.indifferent, trials.tried) == ((), (), ())
    assert list(verdict(trials))[1] == "Nothing limits goodput but the load: no request was lost."


def test_where_no_cause_by_itself_limits_it_says_so() -> None:
    plant = Plant("", "", ("policy=chunked", "cluster.instances=1", "slo.ttft_s=0.001"), steady(50, 1.0, 100, 10))
    said = list(verdict(plant.trials()))
    assert said[1].startswith("No single cause limits goodput")


def test_a_policy_that_cannot_do_without_its_hook_is_not_run_without_it() -> None:
    arguments = ("policy=dynaserve", "cluster.instances=2", "slo.ttft_s=0.05")
    trials = Plant("", "", arguments, every_fourth(32, 30.0, (800, 40), (9000, 40))).trials()
    names = [one.name for one in trials.removed] + [
        name for name, cause in REMOVABLE.items() if cause in trials.indifferent
    ]
    assert "routing" not in names
    assert "prefill" in names


def test_worth_counts_requests_over_the_time_of_the_run_itself() -> None:
    base = Trial(kept=10, offered=100, goodput=1.0, window_s=10.0, gpus=1, closed=False)
    sooner = replace(base, goodput=2.0, window_s=5.0)
    assert sooner.worth(base) == 0.0
    assert not sooner.is_better(base)
    more = replace(base, kept=30, goodput=1.0, window_s=30.0)
    assert more.worth(base) == 2.0
    closed = replace(base, closed=True)
    assert replace(closed, goodput=2.0).worth(closed) == 1.0


def test_what_a_run_is_worth_says_over_which_time() -> None:
    """A run with a shorter window has a goodput that is higher by more than what it is worth."""
    base = Trial(kept=50, offered=100, goodput=5.0, window_s=10.0, gpus=1, closed=False)
    for closed, window_s, said in (
        (False, 8.0, "a gain of 3.00 req/s over the window of the run as it is."),
        (False, 10.0, "a gain of 3.00 req/s."),
        (True, 8.0, "a gain of 5.00 req/s."),
    ):
        first = replace(base, closed=closed)
        second = replace(first, kept=80, goodput=80 / window_s, window_s=window_s)
        removed = Removed("network", REMOVABLE["network"], second, "It waits.")
        trials = Trials(first, found("too few prefill instances").seen, (removed,), (), ())
        assert said in " ".join(verdict(trials))
        output = io.StringIO()
        Console(file=output, width=120).print(TrialsTable(trials))
        for shown in (output.getvalue(), limits(trials)):
            assert ("own window; worth and gain are over" in shown) == (said.endswith("as it is."))


# --- the changes ------------------------------------------------------------------------------------------------------

ROW = StepRow(
    linear=Curve((1.0, 4.0, 8.0), (0.5, 0.5, 1.5)),
    per_prefill_token_s=0.25,
    prefill_quadratic_s=0.125,
    decode=Surface((1.0, 2.0), (1.0, 2.0), ((1.0, 1.0), (1.0, 1.0))),
    per_context_token_s=1.0,
    per_sequence_s=0.5,
    base_s=2.0,
    host_s=0.75,
    intake_s=0.5,
)


def test_a_faster_phase_takes_its_part_of_a_step() -> None:
    prefill = prefill_faster(ROW, 4.0, decodes=4.0)
    assert (prefill.per_prefill_token_s, prefill.prefill_quadratic_s) == (0.0625, 0.03125)
    assert (prefill.base_s, prefill.per_context_token_s) == (2.0, 1.0)
    assert prefill.linear is not None
    assert prefill.linear.at(np.array([4.0, 8.0])).tolist() == [0.5, 0.75]
    decode = decode_faster(ROW, 4.0, decodes=4.0)
    assert (decode.per_prefill_token_s, decode.prefill_quadratic_s) == (0.25, 0.125)
    assert (decode.base_s, decode.per_context_token_s, decode.per_sequence_s) == (0.5, 0.25, 0.125)
    assert decode.linear is not None
    assert decode.linear.at(np.array([4.0, 8.0])).tolist() == [0.125, 1.125]
    every = all_faster(ROW, 4.0)
    assert (every.base_s, every.host_s, every.per_prefill_token_s, every.intake_s) == (0.5, 0.1875, 0.0625, 0.5)
    context = context_faster(ROW, 4.0)
    assert (context.per_context_token_s, context.base_s) == (0.25, 2.0)
    assert context.decode is not None
    assert context.decode.values == ((0.25, 0.25), (0.25, 0.25))
    alone = without_host(ROW)
    assert (alone.host_s, alone.intake_s, alone.base_s) == (0.0, 0.0, 2.0)


def test_changes_leave_the_experiment_as_it_was_and_none_where_there_is_no_cause() -> None:
    plant = PLANTS["too few prefill instances"]
    experiment = compose_on(plant.config(), plant.workload)
    changed = memory_is_endless(experiment, SEEN)
    assert changed.engine.kv_tokens is not None
    assert changed.engine.kv_tokens > int(plant.workload.input_tokens.sum() + plant.workload.output_tokens.sum())
    assert experiment.engine.kv_tokens is None
    assert host_is_free(experiment, SEEN) is None
    assert routing_is_by_load(experiment, SEEN) is None
    assert changed.policy is not experiment.policy


# --- remedies ---------------------------------------------------------------------------------------------------------


def test_remedies_are_settings_that_act_on_the_causes() -> None:
    plant = PLANTS["too few prefill instances"]
    config = plant.config()
    experiment = compose_on(config, plant.workload)
    chosen = remedies(flattened(config), experiment, ["prefill"])
    texts = [one.text for one in chosen]
    assert {"cluster.prefill=2", "cluster.prefill=2 cluster.decode=1", "engine.token_budget=1024"} <= set(texts)
    assert not [one for one in texts if one.startswith("engine.kv_")]
    assert len(texts) == len(set(texts))
    assert remedies(flattened(config), experiment, []) == []


SHAPES: dict[tuple[str, ...], dict[str, set[str]]] = {
    ("policy=distserve", "cluster.prefill=4", "cluster.decode=3", "cluster.decode_tp=2"): {
        "prefill": {"cluster.prefill=2 cluster.prefill_tp=2", "cluster.prefill=2 cluster.prefill_pp=2"},
        "seats": {"cluster.decode=6 cluster.decode_tp=1"},
    },
    ("policy=chunked", "cluster.instances=2", "cluster.tp=2", "cluster.pp=2"): {
        "memory": {"cluster.instances=1 cluster.tp=4", "cluster.instances=1 cluster.pp=4"},
        "seats": {"cluster.instances=4 cluster.tp=1"},
        "decode": {"cluster.instances=1 cluster.tp=4", "cluster.instances=4 cluster.pp=1"},
    },
}


@pytest.mark.parametrize("arguments", SHAPES, ids=" ".join)
def test_other_shapes_of_the_same_gpus_are_tried(arguments: tuple[str, ...]) -> None:
    plant = Plant("", "", arguments, steady(10, 1.0, 100, 10))
    config = plant.config()
    experiment = compose_on(config, plant.workload)
    gpus = sum(pool.gpus for pool in experiment.cluster.pools)
    for cause, expected in SHAPES[arguments].items():
        chosen = [one for one in remedies(flattened(config), experiment, [cause]) if " cluster." in one.text]
        assert expected <= {one.text for one in chosen}
        for one in chosen:
            if one.text in expected:
                again = with_settings(config, plant.workload, one.settings)
                assert sum(pool.gpus for pool in again.cluster.pools) == gpus


def test_stores_and_formats_of_kv_are_tried_where_the_run_can_have_them() -> None:
    plant = PLANTS["prefixes that GPU memory drops"]
    config = plant.config()
    texts = {one.text for one in remedies(flattened(config), compose_on(config, plant.workload), ["prefill"])}
    assert {"engine.prefix_stores=dram", "engine.prefix_stores=pool"} <= texts
    config.engine.prefix_cache = False
    texts = {one.text for one in remedies(flattened(config), compose_on(config, plant.workload), ["prefill"])}
    assert "engine.prefix_cache=true engine.prefix_stores=dram" in texts
    plant = PLANTS["slow link"]
    config = plant.config()
    texts = {one.text for one in remedies(flattened(config), compose_on(config, plant.workload), ["network"])}
    assert {f"engine.kv_compression={name}" for name in ("fp8", "int4", "cachegen")} <= texts
    assert not [text for text in texts if "prefix_stores" in text]


def test_a_full_memory_is_named_where_more_of_it_alone_is_no_help() -> None:
    """Prefills alone are too much, so endless memory mends nothing; decodes ten times as fast free memory sooner."""
    arguments = ("policy=chunked", "cluster.instances=1", "engine.kv_tokens=12000")
    trials = Plant("", "", arguments, steady(150, 20.0, 4000, 100)).trials()
    assert [one.name for one in trials.removed] == ["decode"]
    (said,) = (line for line in verdict(trials) if line.startswith("Decode limits goodput"))
    assert "KV memory is full while requests wait: decodes read 62 % of the KV memory of mixed, a prompt that" in said
    assert "engine.kv_tokens=null" in {one.remedy.text for one in trials.tried}
    assert "KV memory is full" not in found("too few prefill instances").removed[0].evidence


def test_a_remedy_may_name_a_file_of_settings() -> None:
    plant = PLANTS["too few prefill instances"]
    config = plant.config()
    changed = with_settings(config, plant.workload, {"engine.kv_compression": "fp8", "cluster.prefill": 2})
    assert changed.engine.kv_compression.memory_share == 0.5
    assert [pool.instances for pool in changed.cluster.pools] == [2, 2]
    assert config.cluster.prefill == 1
    assert Remedy({"a.b": None, "c": 0.25, "d": True}, ()).text == "a.b=null c=0.25 d=true"


# --- what is shown ----------------------------------------------------------------------------------------------------


def test_terminal_page_and_file_say_the_same() -> None:
    trials = found("a router that ignores load")
    file = io.StringIO()
    Console(file=file, width=120).print(TrialsTable(trials))
    shown = file.getvalue()
    data = as_json(trials)
    assert json.loads(json.dumps(data)) == data
    assert [one["cause"] for one in data["causes"]] == [one.name for one in trials.removed]
    assert data["run"]["goodput"] == trials.base.goodput
    page = Page(f"<main>{limits(trials)}</main>")
    values = {float(one["value"] or "nan") for one in page.every("data")}
    for cause in data["causes"]:
        assert cause["without"] in shown
        assert cause["without"] in page.text
        assert cause["goodput"] in values
    for one in helping(trials):
        assert one.remedy.text in shown
        assert one.remedy.text in page.text
        assert one.trial.goodput in values
    assert "Routing limits goodput." in page.text
    assert max(map(len, shown.splitlines())) <= 120


def test_what_others_wrote_stays_text() -> None:
    hostile = "<img src=x>\x1b[31m"
    trials = found("slow link")
    first = trials.tried[0]
    wrong = replace(trials, tried=(replace(first, remedy=Remedy({hostile: hostile}, ("network",))),))
    assert "<img" not in limits(wrong)
    assert "\x1b" not in limits(wrong)
    file = io.StringIO()
    Console(file=file, width=120).print(TrialsTable(wrong))
    assert "\x1b[31m" not in file.getvalue()


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_diagnoses_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrivals = ("trace=synthetic", "trace.requests=60", "trace.arrivals.law=fixed", "trace.arrivals.rate=4")
    sizes = ("trace.input.law=fixed", "trace.input.mean=1000", "trace.output.law=fixed", "trace.output.mean=20")
    plant = PLANTS["slow link"]
    config = replace(plant, arguments=(*plant.arguments, *arrivals, *sizes)).config()
    (tmp_path / ".hydra").mkdir()
    OmegaConf.save(config, tmp_path / ".hydra" / "config.yaml")
    (tmp_path / "summary.json").write_text('{"goodput_rps": 123.0}')
    assert main([str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "The network limits goodput." in out
    assert "came to a goodput of 123 req/s; repeated, it comes to 0" in err
    data = json.loads((tmp_path / "diagnosis.json").read_text())
    assert data["causes"][0]["cause"] == "network"
    assert data["remedies"][0]["settings"] == "cluster.link_bandwidth_bytes_s=null"


SMALL = ("policy=distserve", "trace.limit=60", "slo.ttft_s=0.2", "slo.tpot_s=0.02", "cluster.prefill=1")


def test_a_run_is_diagnosed_as_it_ends_where_that_is_asked_for(tmp_path: Path) -> None:
    config = configured(*SMALL, "diagnose=true", "report=true")
    done(config, tmp_path)
    data = json.loads((tmp_path / "diagnosis.json").read_text())
    assert data["run"]["kept"] < data["run"]["offered"]
    assert data["causes"]
    page = Page((tmp_path / "report.html").read_text())
    assert "limits" in {one["id"] for one in page.every("section")}
    assert data["causes"][0]["title"] in page.text
    alone = configured(*SMALL)
    assert flattened(alone) == flattened(config)
    done(alone, tmp_path / "alone")
    assert not (tmp_path / "alone" / "diagnosis.json").exists()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("diagnose=maybe",), "diagnose must be true or false"),
        (("diagnose=true", "objective=capacity"), "objective=goodput"),
    ],
)
def test_what_cannot_be_diagnosed_is_refused_before_the_run(
    tmp_path: Path, arguments: tuple[str, ...], part: str
) -> None:
    with pytest.raises(InputError, match=part):
        done(configured(*SMALL, *arguments), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "part"),
    [(None, "no run has left its configuration"), ("a: [", "cannot be read"), ("seed: 1", "no configuration of a run")],
)
def test_what_is_no_run_is_refused_in_a_line(tmp_path: Path, content: str | None, part: str) -> None:
    if content is not None:
        (tmp_path / ".hydra").mkdir()
        (tmp_path / ".hydra" / "config.yaml").write_text(content)
    with pytest.raises(InputError, match=part):
        config_of(tmp_path)


def test_the_command_wants_one_directory() -> None:
    for arguments, said in (([], "DIR is missing"), (["a", "b"], "there is one DIR")):
        with pytest.raises(InputError, match=said):
            main(arguments)
    assert main(["--help"]) == 0


def test_trials_of_a_run_whose_log_was_reduced() -> None:
    plant = PLANTS["too few prefill instances"]
    config = plant.config()
    config.engine.log = "reduced"
    experiment = compose_on(config, plant.workload)
    trials = tried(config, flattened(config), experiment, Goodput().measure(experiment))
    assert trials.removed[0].name == "prefill"
    assert "nan" not in " ".join(verdict(trials))
