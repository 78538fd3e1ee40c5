"""The rules that every policy must keep: `PolicyConformance`."""

from __future__ import annotations

import functools
import inspect
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from framework.errors import InputError
from framework.metrics.invariants import check_result
from framework.result import Result
from framework.run.building import build
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec
from servelab.testing.contexts import eager_thread_switches, titled
from servelab.testing.ends import require_ends_in_place, require_finished_or_rejected
from servelab.testing.named import configuration
from servelab.testing.policy_runs import PolicyRuns
from servelab.testing.recording import (
    Answer,
    LearnedMean,
    Record,
    Rule,
    SeenError,
    Shown,
    first_change,
    first_difference,
    in_machine_code,
    in_plain_python,
)
from servelab.testing.worlds import CLUSTERS, CRASHES, MODEL, SCENARIOS, STORMS, TIMING, Scenario, with_other_lengths

_WRONG: tuple[Any, ...] = (None, "text", "", [1], {"a": 1}, float("nan"), float("inf"), True)  # no numbers
_ONE_SEED = "draw random numbers from a numpy Generator that __init__ seeds; keep counts on self, not on the class"

each_scenario = pytest.mark.parametrize("scenario", SCENARIOS)


class PolicyConformance(PolicyRuns):
    """The rules that every policy keeps, as tests of pytest: inherit it in a test module.

    Attributes:
        policy_name: A YAML of conf/policy, or of `config_dir`/policy; policy and predictor come from it.
        config_dir: A folder of your own YAMLs.
        policy_factory: In place of a name: called without arguments, makes a policy.
        predictor_factory: Called without arguments, makes a predictor or None.

    Raises:
        AssertionError: By each test whose rule the policy breaks.

    Example:
        >>> from servelab.testing import PolicyConformance
        >>> class TestMine(PolicyConformance):
        ...     policy_factory = servelab.Aggregated
        >>> sorted(TestMine().usable_clusters())[:1]
        ['mixed']
    """

    def test_layout_accepts_or_refuses_in_one_line(self) -> None:
        """A cluster that the policy cannot use is refused before the run, by an InputError of one line."""
        usable = self.usable_clusters()
        if self.policy_name is not None:  # `python run.py policy=NAME` alone must have a cluster to run on
            self.new_policy().layout(
                instantiate(configuration(self.policy_name, self.config_dir).cluster, _convert_="all")
            )
        for name, cluster in CLUSTERS.items():
            if name in usable:
                spec = self.new_policy().layout(cluster)
                assert isinstance(spec, ClusterSpec), f"layout returned {spec!r}; return a ClusterSpec"
                assert spec.instances >= 1, f"layout leaves no instance of cluster {name!r}"
            else:
                with pytest.raises(InputError) as refusal:
                    self.play(SCENARIOS["roomy"], cluster)
                assert len(str(refusal.value).splitlines()) == 1, f"not one line: {refusal.value}"

    def test_numeric_settings_refuse_what_is_no_number(self) -> None:
        """Null, texts, lists, NaN and infinities get one line, whichever numeric argument they are given to."""
        if self.policy_name is None:  # There is no YAML whose settings could be wrong.
            return
        parameters = inspect.signature(type(self.new_policy())).parameters
        own = DictConfig(OmegaConf.to_container(configuration(self.policy_name, self.config_dir), resolve=True))
        for name, was in list(own.policy.items()):
            if isinstance(was, bool) or not isinstance(was, int | float):
                continue
            may_be_null = "None" in str(parameters[str(name)].annotation)
            for value in _WRONG[may_be_null:]:
                OmegaConf.update(own, f"policy.{name}", value, merge=False)
                with pytest.raises(InputError) as refusal:
                    build(own, "policy")
                assert len(str(refusal.value).splitlines()) == 1, f"not one line: {refusal.value}"
            OmegaConf.update(own, f"policy.{name}", was, merge=False)

    @each_scenario
    def test_every_request_ends_once_on_instances_that_can_serve_it(self, scenario: str) -> None:
        """In every small world, on every cluster that the policy accepts."""
        for title, cluster in self.usable_clusters().items():
            with titled(scenario, title):
                result = self.play(SCENARIOS[scenario], cluster)
                check_result(result)
                require_ends_in_place(result, changes_roles=self.new_policy().changes_roles)

    def test_nothing_fails_where_there_is_room(self) -> None:
        """With memory for everything each request is finished, or the policy itself rejects it."""
        for title, cluster in self.usable_clusters().items():
            with titled("roomy", title):
                require_finished_or_rejected(self.play(SCENARIOS["roomy"], cluster))

    @pytest.mark.parametrize("name", STORMS)
    def test_a_storm_leaves_nobody_behind(self, name: str) -> None:
        """All requests fit alone: each is finished, or the policy itself rejects it."""
        for title, cluster in self.usable_clusters().items():
            with titled(f"storm: {name}", title):
                result = self.played_if_it_can(STORMS[name], cluster)
                if result is not None:
                    check_result(result)
                    require_finished_or_rejected(result)

    @pytest.mark.parametrize("crashes", CRASHES)
    @pytest.mark.parametrize("scenario", ["roomy", "scheduled ahead, KV pulled", "storm: swap", "storm: prefix cache"])
    def test_crashes_of_instances_leave_nobody_behind(self, scenario: str, crashes: str) -> None:
        """Requests of crashed instances are served elsewhere, or once one is back; none is sent to one that is down."""
        for title, cluster in self.usable_clusters().items():
            with titled(f"{scenario}, crashes {crashes}", title):
                world = _world(scenario)
                faults = CRASHES[crashes](self.new_policy().layout(cluster))
                result = self.played_if_it_can(replace(world, engine=replace(world.engine, faults=faults)), cluster)
                if result is not None:
                    check_result(result)
                    require_finished_or_rejected(result)

    @pytest.mark.parametrize("crashes", CRASHES)
    @pytest.mark.parametrize("scenario", ["roomy", "storm: swap"])
    def test_no_view_shows_an_instance_that_is_down(self, scenario: str, crashes: str) -> None:
        """An instance that is down takes no work, has none, and has nothing in its memory, in each view and column at
        each question.
        """
        for title, cluster in self.usable_clusters().items():
            with titled(f"{scenario}, crashes {crashes}", title):
                world, policy = _world(scenario), self.new_policy()
                laid_out = policy.layout(cluster)
                faults = CRASHES[crashes](laid_out)
                together = {i: group for group in laid_out.groups for i in group}
                shown = Shown(
                    [
                        (i, one.detected_s, one.back_s)
                        for one in faults.schedule(laid_out).crashes
                        for i in together[one.instance]
                    ]
                )
                Record(in_machine_code, look=shown.note).attach(policy)
                world = replace(world, engine=replace(world.engine, faults=faults))
                result = self.played_if_it_can(world, cluster, policy)
                for crash in () if result is None else result.crashes:  # no instance crashes that is off
                    for i in range(crash["instance"], crash["instance"] + crash["instances"]):
                        seen = shown.at(i, crash["noticed_s"], crash["back_s"])
                        assert not seen, f"instance {i} is down, and yet views show {seen[0]}, and {len(seen) - 1} more"

    def test_it_runs_without_a_predictor(self) -> None:
        """Predictions are then NaN; the policy must still decide."""
        scenario = SCENARIOS["tight, recompute"]
        for title, cluster in self.usable_clusters().items():
            with titled("tight, recompute, without a predictor", title):
                check_result(simulate(scenario.workload, cluster, MODEL, TIMING, scenario.engine, self.new_policy()))

    @each_scenario
    def test_the_same_run_twice_gives_the_same_bytes(self, scenario: str) -> None:
        """This also holds in one process after other runs: nothing may stay in a class or a module."""
        for title, cluster in self.usable_clusters().items():
            with titled(scenario, title):
                first, second = (self.play(SCENARIOS[scenario], cluster) for _ in range(2))
                difference = first_difference(first, second)
                assert difference is None, f"the same run, a second time, is another: {difference}; {_ONE_SEED}"

    def test_runs_in_threads_are_as_alone(self) -> None:
        """Runs of one process share nothing that changes."""
        names = ("tight, recompute", "sessions")
        for title, cluster in self.usable_clusters().items():
            alone = [self.play(SCENARIOS[name], cluster) for name in names]
            start = threading.Barrier(len(names))

            def together(name: str, cluster: ClusterSpec = cluster, start: threading.Barrier = start) -> Result:
                start.wait()
                return self.play(SCENARIOS[name], cluster)

            with eager_thread_switches(), ThreadPoolExecutor(len(names)) as pool:
                concurrent = list(pool.map(together, names))
            for name, one, other in zip(names, alone, concurrent, strict=True):
                with titled(name, title):
                    difference = first_difference(one, other)
                    assert difference is None, f"with another run, in a thread, it is another: {difference}"

    def test_a_used_policy_is_refused(self) -> None:
        """Counters on `self` of one run must not reach the next one."""
        for cluster in self.usable_clusters().values():
            policy = self.new_policy()
            self.play(SCENARIOS["sessions"], cluster, policy, self.new_predictor())
            with pytest.raises(InputError, match="has served a run already"):
                self.play(SCENARIOS["sessions"], cluster, policy, self.new_predictor())

    @each_scenario
    def test_views_stay_as_they_are(self, scenario: str) -> None:
        """An error names a hook that changes what it is shown, by a way that numpy does not refuse."""
        suite: Any = type(self)
        for title in self.usable_clusters():
            with titled(scenario, title):
                _known(suite, scenario, title)

    @each_scenario
    @pytest.mark.parametrize("change", ["longer", "any"])
    def test_true_lengths_stay_hidden(self, scenario: str, change: str) -> None:
        """Other lengths of unfinished requests change no decision before one of them ends."""
        suite: Any = type(self)
        for title, cluster in self.usable_clusters().items():
            known, before = _known(suite, scenario, title)
            ends_s = known.requests["end_s"]
            early_s, late_s = np.quantile(ends_s, [0.3, 0.6])
            for cut_s in (-1.0, late_s) if change == "longer" else (early_s,):
                open_then = ends_s > cut_s
                end_s = ends_s[open_then].min()
                other = replace(SCENARIOS[scenario], workload=with_other_lengths(known.workload, open_then, change))
                # With any lengths some requests end before `end_s`, with fewer tokens than are known by then.
                until_s = end_s if change == "longer" else math.inf
                with titled(scenario, title):
                    changed, after = self._recorded(other, cluster, in_machine_code, until_s)
                    if changed is not None:
                        end_s = min(end_s, changed.requests["end_s"][open_then].min())
                    expected = [answer for answer in before if answer.now_s < end_s]
                    found = [answer for answer in after if answer.now_s < end_s]
                    assert expected == found, first_change(expected, found)

    def _recorded(
        self, scenario: Scenario, cluster: ClusterSpec, form: Callable[[Rule], Rule], until_s: float = math.inf
    ) -> tuple[Result | None, list[Answer]]:
        """The run and its decisions; no run if it stops at `until_s`."""
        record, policy = Record(form, until_s=until_s), self.new_policy()
        # A deployer states the longest lengths of requests, independent of these.
        cluster = replace(cluster, longest_request_tokens=MODEL.max_context)
        policy.layout(cluster)  # params of compiled rules may depend on pools
        result = None
        with suppress(SeenError):
            result = self.play(scenario, cluster, record.attach(policy), LearnedMean())
        return result, record.answers


@functools.lru_cache(64)
def _known(suite: Callable[[], PolicyConformance], scenario: str, cluster: str) -> tuple[Result, list[Answer]]:
    """The run and the decisions of a policy with unchanged lengths, with which each kind of change is compared."""
    case = suite()
    result, answers = case._recorded(SCENARIOS[scenario], case.usable_clusters()[cluster], in_plain_python)
    assert result is not None
    return result, answers


def _world(name: str) -> Scenario:
    """One of the scenarios, or of the storms."""
    return {**SCENARIOS, **{f"storm: {storm}": world for storm, world in STORMS.items()}}[name]
