"""Least times of programs: by recursion over what a call waits for, and never above what a run takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from framework.bound.bound import any_role, any_stream, shortest_programs_s, shortest_time_s
from framework.bound.requests import least_needs, make_pools
from framework.bound.setting import Setting
from framework.metrics.service.programs import program_slowdowns
from framework.metrics.slo import Slo
from framework.result import FINISHED
from tests.helpers.bounds import retimed
from tests.helpers.differences import run_engine
from tests.helpers.drawing import Draw
from tests.helpers.programs_family import programs
from tests.helpers.scenarios import Scenario

SEEDS = 12


def setting_of(scenario: Scenario) -> Setting:
    cluster = any_stream(any_role(scenario.cluster))
    return Setting(
        scenario.workload, cluster, scenario.model, scenario.timing, scenario.engine, scenario.load, slo=Slo(None, None)
    )


def drawn(seed: int) -> Scenario:
    return retimed(programs(Draw(seed)), np.random.default_rng(seed))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_call_begins_when_all_that_it_waits_for_have_ended(seed: int) -> None:
    setting = setting_of(drawn(seed))
    workload = setting.workload
    needs = least_needs(setting, make_pools(setting))
    joins = [] if workload.joins is None else workload.joins.tolist()
    ends_s: list[float] = []
    for k in range(len(workload)):  # what a call waits for comes before it
        before = -1 if workload.previous is None else int(workload.previous[k])
        awaited = [before, *(other for call, other in joins if call == k)]
        begin_s = float(workload.arrival_s[k])
        if before >= 0:
            begin_s = max(ends_s[other] for other in awaited)
            begin_s += 0.0 if workload.think_s is None else float(workload.think_s[k])
        ends_s.append(begin_s + (float(needs.total_s[k]) if needs.served[k] else 0.0))
    firsts = np.unique(workload.openers)
    expected = [
        max(end_s for end_s, first in zip(ends_s, workload.openers, strict=True) if first == opener)
        - workload.arrival_s[opener]
        for opener in firsts
    ]
    assert shortest_programs_s(setting) == pytest.approx(np.maximum(expected, 0.0))


def test_no_run_is_faster() -> None:
    compared = joined = 0
    for seed in range(SEEDS):
        scenario = drawn(seed)
        result, _ = run_engine(scenario)
        setting = setting_of(scenario)
        least_s = shortest_programs_s(setting)
        done = result.requests["state"] == FINISHED
        if done.all():
            run_s = float(result.requests["end_s"].max() - np.nanmin(result.requests["arrival_s"]))
            assert run_s >= shortest_time_s(setting) * (1 - 1e-9)
        told = replace(result, workload=replace(result.workload, trigger=np.ones(len(done), np.int8)))
        if len(told.workload) != len(scenario.workload):
            continue  # a closed load that ended before all was sent
        for first, shortest_s in zip(np.unique(told.workload.openers), least_s, strict=True):
            own = np.arange(len(done)) == first
            found = program_slowdowns(told, own, least_s)["mean_program_slowdown"]
            if found is not None:
                compared, joined = compared + 1, joined + int(scenario.workload.joins is not None)
                assert found >= 1 - 1e-9, (seed, first, shortest_s)
    assert compared >= 20
    assert joined >= 10
