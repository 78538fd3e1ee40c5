"""The league: halves that stay apart, figures by hand, a tiny league by its command, a page that says what it has."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.league.command import expected
from experiments.league.cost import cost
from experiments.league.offered import Offered, read_off
from experiments.league.page import BEGIN, END, page
from experiments.league.plan import read_plan
from experiments.league.results import SHIPPED, Entry, Played, Results, read, write
from experiments.league.sentences import sentences
from experiments.league.standing import standings
from experiments.league.study import read_study
from experiments.tune.base import Configuration
from framework.cli.command import Arguments
from framework.errors import InputError
from framework.run.building import build
from framework.run.store import Store
from framework.workload import Workload
from tests.conftest import ROOT
from tests.helpers.launcher import typed
from tests.helpers.servers import SERVICE_S, experiment, regular, requests, ttft_within

TINY = (
    *("loads=agents,roll_out", "trials=2", "replicates=2", "requests=60", "timing=roofline"),
    *("engine.max_batch=256", "trace.requests=440", "trace.arrivals.rate=0.4"),
)
MINE = "from framework.policy import Aggregated\n\n\nclass Mine(Aggregated):\n    pass\n"

# --- figures by hand --------------------------------------------------------------------------------------------------


def test_a_capacity_is_read_off_a_line() -> None:
    assert read_off({10: 1.0, 20: 0.95, 30: 0.75}, 0.9) == pytest.approx(22.5)  # a quarter of the way down to 0.75
    assert read_off({10: 0.5, 20: 0.2}, 0.9) == pytest.approx(2.0)  # from 1 at rate 0 to 0.5 at 10
    assert read_off({10: 1.0, 20: 0.9}, 0.9) == 20  # nothing is known above


def test_rates_are_offered_until_one_fails_and_the_last_pass_counts() -> None:
    server = experiment(requests(regular(40)), ttft_within(3 * SERVICE_S))  # one after the other
    rates = [share / SERVICE_S for share in (0.5, 0.9, 1.5, 3.0)]
    offered = Offered(rates).measure(server).evaluation.summary["offered_rates"]
    assert [row["rate_rps"] for row in offered["rates"]] == rates[:3]
    assert [row["attainment"] for row in offered["rates"]] == [1.0, 1.0, 0.0]  # all of a second pass is late
    assert offered["lost_to"] == {"queue": 40}
    assert Offered(rates).measure(server).value == pytest.approx(0.96 / SERVICE_S)
    once = Offered(rates, passes=1).measure(server).evaluation.summary["offered_rates"]
    assert 0 < once["rates"][2]["attainment"] < 0.9  # the first are in time
    falling = Offered(rates, first=3).measure(server).evaluation.summary["offered_rates"]
    assert [row["rate_rps"] for row in falling["rates"]] == rates[1:]


def entry(*capacities_rps: float, lost_to: dict[str, int] | None = None) -> Entry:
    return Entry(capacities_rps, settings=("engine.token_budget=512",), usd_per_hour=24.0, lost_to=lost_to or {})


def cell(load: str, **entries: Entry) -> Played:
    return Played(load, "core", 8, (), "fitted", (5.0, 10.0), (5.0, 10.0), (100.0, 100.0), "GPU time", entries)


CELLS = {
    "chat": cell("chat", a=entry(50, 50), b=entry(40, 44), c=entry(51, 48, lost_to={"queue": 3, "decode": 1})),
    "code": cell("code", a=entry(20, 20), b=entry(80, 80), c=entry(2, 2, lost_to={"interference": 9})),
}


def test_shares_ranks_and_regrets_by_hand() -> None:
    by_name = {one.policy: one for one in standings(CELLS)}
    assert [one.policy for one in standings(CELLS)] == ["b", "a", "c"]  # by geometric means: 58, 32, 10 %
    assert by_name["a"].mean_share == pytest.approx((0.5 * 0.2) ** 0.5)
    assert [by_name[name].places["chat"].rank for name in "abc"] == [1, 3, 2]
    assert by_name["b"].places["chat"].below == pytest.approx(1 - 42 / 50)
    assert [by_name[name].regret for name in "abc"] == pytest.approx([0.75, 1 - 42 / 50, 1 - 2 / 80])
    assert [by_name[name].worst for name in "abc"] == ["code", "chat", "code"]
    assert by_name["a"].mean_rank == 1.5


def test_as_good_as_the_best_is_what_pairs_do_not_tell_apart() -> None:
    places = {one.policy: one.places for one in standings(CELLS)}
    assert places["c"]["chat"].is_as_good  # 0.5 below, differences of -1 and 2
    assert not places["a"]["code"].is_as_good  # 60 below on each sample
    assert places["b"]["code"].is_as_good


def test_sentences_come_from_figures() -> None:
    told = {one.policy: sentences(one, CELLS) for one in standings(CELLS)}
    best, worst = told["b"]
    assert best == "Best on code: 80 % of the bound, rank 1 of 3; a is 75 % below it."
    assert worst.startswith("It loses most on chat")
    assert "100 % decode too slowly because of steps with prefills of others" in told["c"][1]


def test_the_page_says_what_is_missing() -> None:
    text = page(Results({"attainment": 0.9}, CELLS), {"chat": ["a", "b", "c", "d"], "mixed": ["a"]})
    assert "Cells that were not played yet: chat: d; mixed: all." in text
    refused = CELLS["chat"].with_entry("d", Entry(refusal="it does not fit"))
    assert "- `d` on chat: it does not fit" in page(Results({"attainment": 0.9}, {"chat": refused}), {})
    assert "| chat | `a` | 6.25 ± 0 | 6,750 | 50.0 % | `c` | 1.0 % |" in text  # 0.9 x 50 x 3600 / 24 a dollar


# --- what a policy is tuned on, and what it is judged on --------------------------------------------------------------


def workload(*overrides: str) -> Workload:
    made: Workload = build(Configuration(("policy=chunked", *overrides)).config, "trace")
    return made


def test_halves_of_a_trace_share_no_request() -> None:
    study = read_study()
    for one in study.core_cells():
        half_s = one.load.half_s
        assert f"trace.window_s=[0,{half_s:g}]" in one.tuning
        for sample in range(1, study.replicates + 1):
            assert f"trace.window_s=[{half_s:g},{2 * half_s:g}]" in one.judged(sample)
            assert f"seed={sample}" in one.judged(sample)
            assert not any(word.startswith("seed=") for word in one.tuning)
    agents = next(one for one in study.core_cells() if one.name == "agents")
    first, second = workload(*agents.tuning), workload(*agents.judged(1)[:-1])  # the same draw, cut in two
    rows = [set(zip(one.arrival_s, one.input_tokens, one.output_tokens, strict=True)) for one in (first, second)]
    assert rows[0]
    assert rows[1]
    assert not rows[0] & rows[1]
    assert not np.array_equal(workload(*agents.judged(1)).input_tokens[:50], second.input_tokens[:50])


@pytest.mark.slow
def test_each_half_has_the_requests_of_a_run() -> None:
    for one in read_study().core_cells():
        assert len(workload(*one.tuning)) == len(workload(*one.judged(1))) == one.requests


@pytest.mark.parametrize("word", ["trace.window_s=[0,400]", "seed=0", "trace.limit=9", "objective=goodput"])
def test_nobody_can_be_judged_on_what_it_was_tuned_on(word: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert typed("league")([word, "dry=true"]) == 2
    assert "the league sets" in capfd.readouterr().err


# --- the command ------------------------------------------------------------------------------------------------------


def test_a_tiny_league(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = [*TINY, f"out={tmp_path / 'out'}", f"store={tmp_path / 'store'}"]
    assert typed("league")(["policies=chunked", *words]) == 0
    shown = capfd.readouterr()
    assert "2 of 2: chunked on roll-outs" in shown.err
    results = read(tmp_path / "out" / "league.json")
    assert set(results.cells) == {"agents", "roll_out"}
    for name, one in results.cells.items():
        assert set(one.entries) == {"chunked"}, name
        assert all(len(own.capacities_rps) == 2 and own.trials == 2 for own in one.entries.values())
        assert one.rates_rps == tuple(sorted(one.rates_rps))
    records = Store(tmp_path / "store").read()
    halves = {(record.config["seed"] > 0, record.config["trace.window_s"][0] > 0) for record in records}
    assert halves == {(False, False), (True, True)}
    assert sum(record.config["seed"] > 0 for record in records) == 2 * 2
    text = (tmp_path / "out" / "league.md").read_text()
    for own in standings(results.cells):
        row = next(line for line in text.splitlines() if line.startswith(f"| `{own.policy}` |"))
        for place in own.places.values():
            assert f"{100 * place.share:.1f}" in row
    assert (tmp_path / "out" / "share_of_bound.png").stat().st_size > 5_000

    assert typed("league")(["policies=chunked", *words]) == 0  # nothing is left
    assert "0 entries" in capfd.readouterr().err
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    assert typed("league")([f"policy={file}:Mine", "policies=chunked", *words]) == 0
    shown = capfd.readouterr()
    assert "2 of 2: Mine on roll-outs" in shown.err
    assert "\nMine: Best on" in shown.out
    again = read(tmp_path / "out" / "league.json")
    assert again.cells["agents"].entries["chunked"] == results.cells["agents"].entries["chunked"]
    assert again.cells["agents"].entries["Mine"].mean_rps > 0

    assert typed("league")(["policies=chunked", *words, "trials=3"]) == 2


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["loads=nowhere"], "loads must be"),
        (["policies=nobody"], "policies must be"),
        (["space=pd"], "space= is that of policy="),
        (["cells=other", "fraction=2"], "fraction must be"),
        (["trials=none"], "trials must be"),
        (["policy=chunked,sglang"], "one policy enters at a time"),
    ],
)
def test_bad_words_get_one_line(words: list[str], line: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert typed("league")([*words, "dry=true"]) == 2
    assert line in capfd.readouterr().err


def test_the_cost_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    assert typed("league")(["dry=true", "policies=chunked", "loads=chat", "out=nowhere"]) == 0
    shown = capfd.readouterr().out
    assert shown.startswith("1 entries, about ")
    assert "never measured" not in shown


def test_the_cost_of_what_was_never_measured_is_marked() -> None:
    plan = read_plan(Arguments(own={"policies": "chunked", "loads": "chat"}), read_study())
    pairs = [(plan.cells[0], entrant) for entrant in plan.entrants]
    assert "longer if they decide in Python at every event: 1 entries" in str(cost(pairs, plan, None))


def test_rates_must_rise(tmp_path: Path) -> None:
    for rates, first, line in (([2.0, 1.0], 0, "must rise"), ([0.0], 0, "must be positive"), ([1.0], 1, "first is")):
        with pytest.raises(InputError, match=line):
            Offered(rates, first)
    (tmp_path / "league.json").write_text(json.dumps({"cells": 3}))
    with pytest.raises(InputError, match="no results of a league"):
        read(tmp_path / "league.json")


def test_other_cells_are_drawn_by_the_seed() -> None:
    study = read_study()
    names = [one.name for one in study.other_cells(0.03, 0)]
    assert names == [one.name for one in study.other_cells(0.03, 0)]
    assert len(names) == 3 + 2
    assert [name.partition(", ")[2] for name in names[3:]] == ["burst", "failure"]
    every = study.other_cells(1.0, 0)
    assert len(every) == len({one.name for one in every}) == 7 * (2 * 2 * 2 * 2 - 1 + len(study.others["scenarios"]))
    tight = next(one for one in every if "SLO" in one.name)
    assert any(word.startswith("slo.ttft_s=") for word in tight.tuning)
    assert replace(tight, requests=80).judged(1) != tight.judged(1)


def test_every_policy_of_the_project_takes_part() -> None:
    study = read_study()
    assert set(study.policies) == {file.stem for file in (ROOT / "conf" / "policy").glob("*.yaml")}
    assert set(study.loads) == {file.stem for file in (ROOT / "conf" / "league").glob("*.yaml")}


# --- the shipped results ----------------------------------------------------------------------------------------------


def test_the_page_has_the_figures_of_the_shipped_results(tmp_path: Path) -> None:
    study, results = read_study(), read(SHIPPED)
    plan = read_plan(Arguments(own={"cells": "all"}), study)
    shown = (ROOT / "docs" / "league.md").read_text().partition(BEGIN)[2].partition(END)[0]
    assert shown.strip() == page(results, expected(plan)).strip()  # servelab league shipped=true cells=all page=...
    assert SHIPPED.stat().st_size < 200_000
    assert results.made == plan.made
    write(results, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == SHIPPED.read_bytes()
    for name, one in results.cells.items():
        for policy, own in one.entries.items():
            assert own.trials <= study.trials, (name, policy)
            assert own.refusal or len(own.capacities_rps) == study.replicates, (name, policy)
            assert own.mean_rps < one.bound_rps, (name, policy)
