"""What every policy must keep, whoever wrote it: inherit `PolicyConformance` and name the policy.

    from tests.conformance import PolicyConformance

    class TestMine(PolicyConformance):
        policy_name = "mine"  # conf/policy/mine.yaml; or: policy_factory = Mine

Runs are small and adverse: bursts, single-token requests, tight KV memory with either kind of preemption, prefix
caches, sessions, small budgets, on clusters of every kind that the policy accepts. All times are dyadic (small
integers times powers of two), so that results are exact however an engine groups its sums.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from framework.codes import MODES
from framework.compiler.decorators import compiled
from framework.engine.attach import DECISION
from framework.engine.config import EngineConfig
from framework.engine.mechanisms.prefix_tiers import PrefixStores, Tier
from framework.engine.mechanisms.sm_sharing import Sharing
from framework.engine.mechanisms.speculation import Speculation
from framework.errors import InputError
from framework.metrics.invariants import check_result
from framework.policy import Decision, Plan, Policy
from framework.policy.hooks import HOOK_NAMES, decode_plan
from framework.policy.predictor import Predictor
from framework.policy.view import Cluster, Request
from framework.replay.lookups import PlainEngine
from framework.result import Result
from framework.run.building import build
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.timing.affine import Affine
from framework.workload import Workload

CONF = Path(__file__).resolve().parents[1] / "conf"
FINISHED, REJECTED, FAILED = 1, 2, 3

# --- small worlds -----------------------------------------------------------------------------------------------------

MODEL = Model("small", 4, 64, 8, 8, 8, 256, 1024, max_context=4096)  # 1024 bytes of KV a token
TIMING = Affine(2.0**-6, 2.0**-14, 2.0**-24, 2.0**-12, 2.0**-19)
GPU = Gpu(
    name="small",
    peak_flops={"bf16": 1e12},
    memory_bytes=1e9,
    bandwidth_bytes_s=1e12,
    link_bytes_s=2.0**30,
    pcie_bytes_s=2.0**24,
    nic_bytes_s=2.0**24,
    tdp_w=100.0,
    idle_w=10.0,
    usd_per_hour=1.0,
)
_LINK = LinkSpec(2.0**24, 2.0**-10)  # 16,384 tokens of KV a second


def _cluster(*pools: tuple[str, str, int]) -> ClusterSpec:
    return ClusterSpec(tuple(PoolSpec(name, role, count, GPU) for name, role, count in pools), _LINK)  # type: ignore[arg-type]


CLUSTERS = {
    "one mixed": _cluster(("all", "mixed", 1)),
    "mixed": _cluster(("all", "mixed", 3)),
    "one of each": _cluster(("p", "prefill", 1), ("d", "decode", 1)),
    "disaggregated": _cluster(("p", "prefill", 2), ("d", "decode", 3)),
    "decode first": _cluster(("d", "decode", 2), ("p", "prefill", 1), ("more", "decode", 1)),
    "all roles": _cluster(("d", "decode", 1), ("m", "mixed", 2), ("p", "prefill", 1)),
}


def workload(seed: int = 0, count: int = 60, sessions: bool = False, prefixes: bool = False) -> Workload:
    """Bursts of short and long requests over some eight seconds; every sixth has a single output token."""
    random = np.random.default_rng(seed)
    input_tokens = random.integers(1, 400, count)
    output_tokens = np.where(np.arange(count) % 6 == 5, 1, random.integers(2, 160, count))
    columns: dict[str, Any] = {"priority": random.integers(0, 3, count)}
    columns["slo_class"] = tuple(("interactive", "batch")[k % 2] for k in range(count))
    if sessions:  # every request in the second half follows one of the first
        half = count // 2
        columns["previous"] = np.concatenate((np.full(half, -1), np.arange(count - half)))
        columns["think_s"] = random.integers(0, 64, count) * 2.0**-5
        columns["session_id"] = np.arange(count) % half
        columns["turn"] = np.arange(count) // half
    if prefixes:  # four families; how much of the family's prompt a request shares is drawn
        block = 32
        blocks = -(-input_tokens // block)
        shared = np.minimum(random.integers(0, 10, count), blocks)
        ids = [
            [1000 * family + j if j < common else 100_000 + 100 * r + j for j in range(total)]
            for r, (family, common, total) in enumerate(zip(random.integers(0, 4, count), shared, blocks, strict=True))
        ]
        columns["hash_ids"] = np.array([id for row in ids for id in row])
        columns["hash_offsets"] = np.concatenate(([0], np.cumsum(blocks)))
        columns["hash_block_tokens"] = block
    return Workload(
        arrival_s=np.sort(random.integers(0, 16, count)) / 2.0,  # ticks of half a second
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        name="conformance",
        **columns,
    )


@dataclass(frozen=True)
class Scenario:
    """A workload and the engine it meets."""

    workload: Workload
    engine: EngineConfig


ROOMY = EngineConfig(token_budget=512, max_batch=64, kv_tokens=65536)
_TIGHT = replace(ROOMY, kv_tokens=1024)
_STORES = PrefixStores({"near": Tier(2048, bandwidth_bytes_s=2.0**20), "far": Tier(bandwidth_bytes_s=2.0**18)})
SCENARIOS = {
    "roomy": Scenario(workload(1), ROOMY),
    "tight, recompute": Scenario(workload(2), replace(_TIGHT, preemption="recompute")),
    "tight, swap": Scenario(workload(3), replace(_TIGHT, preemption="swap")),
    "prefix cache": Scenario(workload(4, prefixes=True), replace(ROOMY, kv_tokens=2048, prefix_cache=True)),
    "prefix stores": Scenario(
        workload(7, prefixes=True), replace(ROOMY, kv_tokens=1024, prefix_cache=True, prefix_stores=_STORES)
    ),
    "sessions": Scenario(workload(5, sessions=True), replace(ROOMY, kv_tokens=2048)),
    "scheduled ahead, KV pulled": Scenario(
        workload(8, prefixes=True),
        replace(
            ROOMY,
            kv_tokens=2048,
            prefix_cache=True,
            prefix_unit="engine",
            prefix_stores=_STORES,
            asynchronous=True,
            first_token="recomputed",
            transfers="pulled",
            layerwise_tokens=128,
            speculation=Speculation(1, 0.75),
        ),
    ),
    "small budgets": Scenario(workload(6), replace(ROOMY, token_budget=48, max_batch=3, first_token="decode")),
}


def storm(seed: int, prefixes: bool = False) -> Workload:
    """96 requests at four instants, most of them with long prompts; the largest has 1,500 tokens."""
    random = np.random.default_rng(seed)
    input_tokens = np.where(np.arange(96) % 5 == 4, random.integers(1, 64, 96), random.integers(400, 1300, 96))
    output_tokens = random.integers(1, 200, 96)
    input_tokens[0], output_tokens[0] = 1300, 200
    columns: dict[str, Any] = {}
    if prefixes:  # of three families
        blocks = input_tokens // 32
        common = np.minimum(random.integers(0, 24, 96), blocks)
        names = [
            np.where(np.arange(total) < shared, 1000 * (r % 3) + np.arange(total), 100_000 * (r + 1) + np.arange(total))
            for r, (total, shared) in enumerate(zip(blocks, common, strict=True))
        ]
        offsets = np.concatenate(([0], np.cumsum(blocks)))
        columns = {"hash_ids": np.concatenate(names), "hash_offsets": offsets, "hash_block_tokens": 32}
    return Workload(np.repeat([0.0, 0.25, 1.0, 4.0], 24), input_tokens, output_tokens, name="storm", **columns)


_SMALL = EngineConfig(token_budget=512, max_batch=64, kv_tokens=3200)  # twice the largest request, and a bit
STORMS = {
    "memory for 40": Scenario(storm(1), replace(_SMALL, kv_tokens=65536)),
    "memory for two": Scenario(storm(2), _SMALL),
    "swap": Scenario(storm(3), replace(_SMALL, preemption="swap", kv_tokens=1600)),
    "prefix cache": Scenario(storm(4, prefixes=True), replace(_SMALL, prefix_cache=True, kv_tokens=4800)),
    "computed where routed": Scenario(storm(5), replace(_SMALL, recompute="routed", first_token="recomputed")),
    "few seats": Scenario(storm(6), replace(_SMALL, max_batch=2, asynchronous=True)),
    "pulled": Scenario(
        storm(7, prefixes=True),
        replace(_SMALL, transfers="pulled", prefix_cache=True, prefix_unit="engine", first_token="recomputed"),
    ),
}


class LearnedMean(Predictor):
    """Expects every request to be as long as the finished ones were on average: knows nothing that it may not."""

    def __init__(self) -> None:
        self.finished = self.tokens = 0

    def prepare(self, workload: Workload, seed: int) -> None:
        self.finished = self.tokens = 0

    def predict(self, requests: Any, generated: Any) -> tuple[Any, Any]:
        mean = self.tokens / self.finished if self.finished else 64.0
        return np.maximum(mean - generated, 1.0), np.full(len(requests), mean)

    def observe(self, request: int, output_tokens: int) -> None:
        self.finished += 1
        self.tokens += output_tokens


# --- decisions on record ----------------------------------------------------------------------------------------------


Rule = Callable[..., int]  # a compiled one
_MODE_NAMES: dict[int, Any] = {mode: name for name, mode in MODES.items()}


@dataclass(frozen=True)
class Answer:
    """One decision: which hook, about which request, instance or tick, when, and what it said."""

    hook: str
    subject: tuple[int, ...]
    now_s: float
    value: str


@dataclass
class Record:
    """Puts a recorder in front of each hook that a policy defines; compiled rules are called in the form given."""

    form: Callable[[Rule], Rule]
    answers: list[Answer] = field(default_factory=list)

    def attach(self, policy: Policy) -> Policy:
        own_state = np.zeros(16)
        for hook in HOOK_NAMES:
            rule = getattr(policy, hook)
            defined = hook in vars(policy) or getattr(type(policy), hook) is not getattr(Policy, hook)
            if isinstance(rule, Decision):
                rule = _called_from_python(self.form(rule.function), hook, policy, own_state)
            if defined or hook == "route_prefill":  # other hooks are not asked where they are not defined
                setattr(policy, hook, self._recorded(hook, rule))
        return policy

    def _recorded(self, hook: str, rule: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*arguments: Any) -> Any:
            answer = rule(*arguments)
            if hook == "on_tick":
                answer = list(answer)
            cluster = arguments[-1]
            self.answers.append(Answer(hook, _subject(arguments), cluster.now_s, repr(answer)))
            return answer

        return recorded


def _subject(arguments: tuple[Any, ...]) -> tuple[int, ...]:
    if len(arguments) == 1:
        return ()
    first = arguments[0]
    return (first.id,) if isinstance(first, Request) else tuple(int(entry) for entry in np.atleast_1d(first))


def _in_plain_python(rule: Rule) -> Rule:
    """Where an index beyond the end is an error."""
    return rule


@functools.cache
def _in_machine_code(rule: Rule) -> Rule:
    """As the engine calls it."""
    return compiled(DECISION)(rule)


def _called_from_python(
    rule: Rule, hook: str, policy: Policy, own_state: np.ndarray[Any, Any]
) -> Callable[[Any, Cluster], Any]:
    """A compiled rule as a method, which also sees to it that the rule leaves what it is shown as it was."""

    def call(subject: Any, cluster: Cluster) -> Any:
        params, view = np.asarray(policy.compiled_params, np.float64), cluster.view
        if not hasattr(rule, "py_func"):
            view = view._replace(engine=PlainEngine(cluster._engine, Sharing().slowdowns()))
        before = [array.tobytes() for array in view[:4]]
        answer = int(rule(subject.id if isinstance(subject, Request) else subject, view, params, own_state))
        assert [array.tobytes() for array in view[:4]] == before, f"{hook} wrote into the view"
        if hook == "batching":
            percent, token_budget, mode = decode_plan(answer)
            return Plan(token_budget, _MODE_NAMES[mode], percent or None)
        return answer == 0 if hook == "admit" else answer

    return call


def digest(result: Result) -> str:
    """A hash over all that a run leaves behind."""
    parts = [result.requests, result.instances, result.step_log, result.token_log]
    whole = hashlib.sha256(repr((result.reasons, result.events, result.steps)).encode())
    for part in parts:
        for name in part.dtype.names or ():
            whole.update(np.ascontiguousarray(part[name]).tobytes())
    return whole.hexdigest()


@functools.cache
def configuration(policy_name: str, config_dir: str | None) -> DictConfig:
    """The configuration of `run.py policy=<policy_name>`, `config_dir` searched as well."""
    search = [f"hydra.searchpath=[file://{config_dir}]"] if config_dir else []
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=[f"policy={policy_name}", *search])


@functools.cache
def _recipe(policy_name: str, config_dir: str | None, part: str) -> functools.partial[Any] | None:
    """What makes a part of that configuration, as often as it is called; None: there is no such part."""
    return instantiate(configuration(policy_name, config_dir)[part], _convert_="all", _partial_=True)


def _made(recipe: functools.partial[Any]) -> Any:
    """A new one: what it is made of is its own."""
    return recipe.func(*copy.deepcopy(recipe.args), **copy.deepcopy(recipe.keywords))


@contextmanager
def _eager_thread_switches() -> Iterator[None]:
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(usual_s)


# --- the suite --------------------------------------------------------------------------------------------------------

each_scenario = pytest.mark.parametrize("scenario", SCENARIOS)


class PolicyConformance:
    """The suite. Set `policy_name` (a YAML of conf/policy, or of `config_dir`/policy) or `policy_factory`.

    `policy_factory` is called without arguments, as is `predictor_factory`. With `policy_name` both come from the YAML.
    """

    policy_name: ClassVar[str | None] = None
    config_dir: ClassVar[str | None] = None
    policy_factory: ClassVar[Callable[[], Policy] | None] = None
    predictor_factory: ClassVar[Callable[[], Predictor | None]] = LearnedMean

    def new_policy(self) -> Policy:
        """A fresh policy."""
        factory = type(self).policy_factory
        if factory is not None:
            return factory()
        assert self.policy_name is not None, "set policy_name or policy_factory"
        recipe = _recipe(self.policy_name, self.config_dir, "policy")
        made = None if recipe is None else _made(recipe)
        assert isinstance(made, Policy), (
            f"policy={self.policy_name} makes {made!r}, which is no framework.policy.Policy"
        )
        return made

    def new_predictor(self) -> Predictor | None:
        """A fresh predictor, as the policy's YAML chooses it."""
        if self.policy_name is None:
            return type(self).predictor_factory()
        recipe = _recipe(self.policy_name, self.config_dir, "predictor")
        return None if recipe is None else _made(recipe)

    def usable_clusters(self) -> dict[str, ClusterSpec]:
        """The clusters of this suite that the policy's layout accepts."""
        usable = {}
        for name, cluster in CLUSTERS.items():
            try:
                self.new_policy().layout(cluster)
            except InputError:
                continue
            usable[name] = cluster
        assert usable, f"{self.new_policy().name}: layout refuses every cluster of the suite: {', '.join(CLUSTERS)}"
        return usable

    def play(
        self,
        scenario: Scenario,
        cluster: ClusterSpec,
        policy: Policy | None = None,
        predictor: Predictor | None = None,
    ) -> Result:
        """One run, of a fresh policy and a fresh predictor where none is given."""
        return simulate(
            scenario.workload,
            cluster,
            MODEL,
            TIMING,
            scenario.engine,
            policy or self.new_policy(),
            predictor or self.new_predictor(),
            seed=7,
        )

    def test_layout_accepts_or_refuses_in_one_line(self) -> None:
        """A cluster that the policy cannot use is refused before the run, by an InputError of one line."""
        usable = self.usable_clusters()
        if self.policy_name is not None:  # `python run.py policy=NAME` without more must have a cluster to run on
            self.new_policy().layout(
                instantiate(configuration(self.policy_name, self.config_dir).cluster, _convert_="all")
            )
        for name, cluster in CLUSTERS.items():
            if name in usable:
                spec = self.new_policy().layout(cluster)
                assert isinstance(spec, ClusterSpec), f"layout returned {spec!r}, which is no ClusterSpec"
                assert spec.instances >= 1
            else:
                with pytest.raises(InputError) as refusal:
                    self.play(SCENARIOS["roomy"], cluster)
                assert len(str(refusal.value).splitlines()) == 1, f"not one line: {refusal.value}"

    def test_numeric_settings_refuse_what_is_no_number(self) -> None:
        """Null, texts, lists and numbers that are none: one line, whichever numeric argument gets them."""
        kind = type(self.new_policy())
        if self.policy_name is None:  # there is no YAML whose settings could be wrong
            return
        config = configuration(self.policy_name, self.config_dir)
        own = DictConfig(OmegaConf.to_container(config, resolve=True))
        for name, was in list(own.policy.items()):
            if isinstance(was, bool) or not isinstance(was, int | float):
                continue
            may_be_null = "None" in str(inspect.signature(kind).parameters[str(name)].annotation)
            for value in (None, "text", "", [1], {"a": 1}, float("nan"), float("inf"), True):
                if value is None and may_be_null:
                    continue
                OmegaConf.update(own, f"policy.{name}", value, merge=False)
                with pytest.raises(InputError) as refusal:
                    build(own, "policy")
                assert len(str(refusal.value).splitlines()) == 1, f"not one line: {refusal.value}"
            OmegaConf.update(own, f"policy.{name}", was, merge=False)

    @each_scenario
    def test_every_request_ends_once_on_instances_that_can_serve_it(self, scenario: str) -> None:
        for cluster in self.usable_clusters().values():
            result = self.play(SCENARIOS[scenario], cluster)
            check_result(result)
            rows = result.requests
            roles = np.array([result.cluster.pools[pool].role for pool in result.cluster.pool_of_instance])
            finished = rows[rows["state"] == FINISHED]
            assert len(finished), "nothing was served at all"
            assert all(result.reasons[row["reason"]] for row in rows if row["state"] != FINISHED)
            if self.new_policy().changes_roles:
                continue  # the engine has seen to it
            assert "decode" not in roles[finished["prefill_instance"]]
            assert "prefill" not in roles[finished["decode_instance"][finished["decode_instance"] >= 0]]

    def test_nothing_fails_where_there_is_room(self) -> None:
        """With memory for everything a request is finished, or rejected by the policy's own word."""
        for cluster in self.usable_clusters().values():
            result = self.play(SCENARIOS["roomy"], cluster)
            assert not np.any(result.requests["state"] == FAILED)
            rejected = result.requests[result.requests["state"] == REJECTED]
            assert not {"context", "kv"} & {result.reasons[row["reason"]] for row in rejected}

    @pytest.mark.parametrize("name", STORMS)
    def test_a_storm_leaves_nobody_behind(self, name: str) -> None:
        """All requests fit alone: each is finished, or rejected by the policy's own word."""
        for cluster in self.usable_clusters().values():
            result = self._played_if_it_can(STORMS[name], cluster)
            if result is None:
                continue
            check_result(result)
            left = result.requests[~np.isin(result.requests["state"], (FINISHED, REJECTED))]
            assert len(left) == 0, {result.reasons[reason] for reason in left["reason"]}
            rejected = result.requests[result.requests["state"] == REJECTED]
            assert not {"context", "kv"} & {result.reasons[reason] for reason in rejected["reason"]}

    def _played_if_it_can(self, scenario: Scenario, cluster: ClusterSpec) -> Result | None:
        """The run; None where the engine's options and the batching mode of the policy exclude each other."""
        try:
            return self.play(scenario, cluster)
        except InputError as refusal:
            if "do not go together" not in str(refusal):
                raise
            return None

    def test_it_runs_without_a_predictor(self) -> None:
        """Predictions are then NaN; the policy must still decide."""
        scenario = SCENARIOS["tight, recompute"]
        for cluster in self.usable_clusters().values():
            check_result(simulate(scenario.workload, cluster, MODEL, TIMING, scenario.engine, self.new_policy()))

    @each_scenario
    def test_the_same_run_twice_gives_the_same_bytes(self, scenario: str) -> None:
        """Also in one process after other runs: nothing may linger in a class or a module."""
        for cluster in self.usable_clusters().values():
            first, second = (digest(self.play(SCENARIOS[scenario], cluster)) for _ in range(2))
            assert first == second

    def test_runs_in_threads_are_as_alone(self) -> None:
        for cluster in self.usable_clusters().values():
            names = ("tight, recompute", "sessions")
            alone = [digest(self.play(SCENARIOS[name], cluster)) for name in names]
            start = threading.Barrier(len(names))

            def together(name: str, cluster: ClusterSpec = cluster, start: threading.Barrier = start) -> str:
                start.wait()
                return digest(self.play(SCENARIOS[name], cluster))

            with _eager_thread_switches(), ThreadPoolExecutor(len(names)) as pool:
                assert list(pool.map(together, names)) == alone

    def test_a_used_policy_is_refused(self) -> None:
        """What a policy counts on `self` in one run must not reach the next one."""
        for cluster in self.usable_clusters().values():
            policy = self.new_policy()
            self.play(SCENARIOS["sessions"], cluster, policy, self.new_predictor())
            with pytest.raises(InputError, match="has served a run already"):
                self.play(SCENARIOS["sessions"], cluster, policy, self.new_predictor())

    @each_scenario
    @pytest.mark.parametrize("change", ["longer", "any"])
    def test_true_lengths_stay_hidden(self, scenario: str, change: str) -> None:
        """Other lengths of requests that have not ended change no decision made before one of them ends."""
        suite: Any = type(self)
        for title, cluster in self.usable_clusters().items():
            known, before = _known(suite, scenario, title)
            ends_s = known.requests["end_s"]
            for cut_s in (-1.0, *np.quantile(ends_s, [0.3, 0.6])):
                open_then = ends_s > cut_s
                other = replace(SCENARIOS[scenario], workload=_changed(known.workload, open_then, change))
                changed, after = self._recorded(other, cluster, _in_machine_code)
                affected_s = min(ends_s[open_then].min(), changed.requests["end_s"][open_then].min())
                expected = [answer for answer in before if answer.now_s < affected_s]
                found = [answer for answer in after if answer.now_s < affected_s]
                assert expected == found, _first_difference(expected, found)

    def _recorded(
        self, scenario: Scenario, cluster: ClusterSpec, form: Callable[[Rule], Rule]
    ) -> tuple[Result, list[Answer]]:
        record, policy = Record(form), self.new_policy()
        policy.layout(cluster)  # params of compiled rules may tell of pools
        result = self.play(scenario, cluster, record.attach(policy), LearnedMean())
        return result, record.answers


@functools.lru_cache(64)
def _known(suite: Callable[[], PolicyConformance], scenario: str, cluster: str) -> tuple[Result, list[Answer]]:
    """The run and the decisions of a policy where no length was changed: each kind of change is compared with them."""
    case = suite()
    return case._recorded(SCENARIOS[scenario], case.usable_clusters()[cluster], _in_plain_python)


def _changed(workload: Workload, which: np.ndarray[Any, Any], change: str) -> Workload:
    lengths = workload.output_tokens
    drawn = np.random.default_rng(11).integers(1, 250, len(lengths))
    other = lengths + drawn if change == "longer" else drawn
    return replace(workload, output_tokens=np.where(which, other, lengths))


def _first_difference(expected: list[Answer], found: list[Answer]) -> str:
    for one, other in zip(expected, found, strict=False):
        if one != other:
            return f"a decision changed with lengths that nobody can know yet: {one} became {other}"
    return f"{len(expected)} decisions became {len(found)} with lengths that nobody can know yet"
