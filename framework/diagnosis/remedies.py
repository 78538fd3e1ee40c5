"""Settings that may restore goodput: those available for a run, and the causes on which each acts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from framework.engine.setup.config import EngineConfig
from framework.objective.experiment import Experiment
from framework.policy.base import overrides
from framework.policy.rules import DECODE_RULES, ORDERS, PREFILL_RULES

Settings = Mapping[str, Any]
MOST = 24  # remedies of a run, at most
_LARGE_FRACTION = 0.95  # share of GPU memory
_OFTEN = (4.0, 16.0, 64.0)  # times as many ticks
_FP8 = 0.5  # share of the memory of KV in two bytes
_ANY = "any"  # cause


@dataclass(frozen=True)
class Remedy:
    """Settings with values other than the run's, by name, and the causes on which they act."""

    settings: Settings
    acts_on: tuple[str, ...]

    @property
    def text(self) -> str:
        """The setting as it stands on a command line."""
        return " ".join(f"{name}={_text(value)}" for name, value in self.settings.items())


def remedies(settings: Settings, experiment: Experiment, causes: Sequence[str]) -> list[Remedy]:
    """What may be tried for a run with these settings and causes, remedies of the first cause first."""
    every = [
        *_decisions(settings, experiment),
        *_mechanisms(settings, experiment),
        *_memory(settings),
        *_batches(settings),
        *_links(settings, experiment),
        *_clusters(settings, experiment),
        *_shapes(settings, experiment),
        *_formats(settings, experiment),
    ]
    chosen: list[Remedy] = []
    for cause in causes:
        chosen += [one for one in every if (cause in one.acts_on or _ANY in one.acts_on) and one not in chosen]
    return chosen[:MOST]


def _clusters(settings: Settings, experiment: Experiment) -> Iterator[Remedy]:
    """More instances, other shares of the same instances, and larger ones."""
    spare = settings.get("cluster.spare", 0)
    counts = _counts(settings, experiment)
    for name, count in counts.items():
        acts_on = {"prefill": ("prefill", "order", "routing", "failures"), "decode": (*_OF_DECODE, "failures")}.get(
            name, (_ANY,)
        )
        more = max(1, round(count / 4))
        yield Remedy(_counted(settings, counts | {name: count + more}), acts_on)
        if more < count:
            yield Remedy(_counted(settings, counts | {name: 2 * count}), acts_on)
        if spare:
            all_on = _counted(settings, counts | {name: count + spare})
            yield Remedy(all_on | {"cluster.spare": 0}, ("starts", "ticks", *acts_on))
            if spare > 1:
                half_on = _counted(settings, counts | {name: count + spare // 2})
                yield Remedy(half_on | {"cluster.spare": spare - spare // 2}, ("starts", "ticks"))
    if "prefill" in counts:
        for more, acts_on in ((1, ("prefill", "ticks", "order")), (-1, (*_OF_DECODE, "ticks"))):
            shifted = {"prefill": counts["prefill"] + more, "decode": counts["decode"] - more}
            if min(shifted.values()) > 0:
                yield Remedy(_counted(settings, shifted), acts_on)


def _shapes(settings: Settings, experiment: Experiment) -> Iterator[Remedy]:
    """The same GPUs as fewer and larger instances, or more and smaller ones: tensor parallelism, pipeline stages."""
    for name, count in _counts(settings, experiment).items():
        prefix = "" if name == "instances" else f"{name}_"
        for degree, larger, smaller in (("tp", *_OF_TP[name]), ("pp", *_OF_PP[name])):
            key = f"cluster.{prefix}{degree}"
            size = settings.get(key) or settings.get(f"cluster.{degree}")
            if not isinstance(size, int):
                continue
            counts = _counts(settings, experiment)
            if count % 2 == 0:
                yield Remedy({**_counted(settings, counts | {name: count // 2}), key: 2 * size}, larger)
            if size % 2 == 0:
                yield Remedy({**_counted(settings, counts | {name: 2 * count}), key: size // 2}, smaller)


def _counts(settings: Settings, experiment: Experiment) -> dict[str, int]:
    """The numbers of instances of the run: all, or those that prefill and those that decode; none if no setting states
    them.
    """
    if "cluster.prefill" in settings:
        pools = {pool.name: pool for pool in experiment.cluster.pools}
        return {name: pools[name].instances // pools[name].group for name in ("prefill", "decode")}
    instances = settings.get("cluster.instances")
    return {"instances": instances} if isinstance(instances, int) else {}


def _counted(settings: Settings, counts: Mapping[str, int]) -> dict[str, Any]:
    """The settings that make these the numbers of instances, unless they are so already."""
    wanted: dict[str, Any] = {f"cluster.{name}": count for name, count in counts.items()}
    wanted = {"cluster.instances": None} | wanted if "prefill" in counts else wanted
    return {key: value for key, value in wanted.items() if settings.get(key) != value}


_OF_DECODE = ("decode", "context", "memory", "seats")
# Causes on which larger and smaller instances of the same GPUs act, by what the instances do.
_OF_TP = {
    "instances": (("prefill", "decode", "context", "memory", "interference"), ("prefill", "seats", "routing")),
    "prefill": (("prefill",), ("prefill", "order", "routing")),
    "decode": (("decode", "context", "memory"), ("seats",)),
}
_OF_PP = {
    "instances": (("memory", "prefill"), ("prefill", "decode")),
    "prefill": (("prefill",), ("prefill",)),
    "decode": (("memory",), ("decode", "context")),
}


def _batches(settings: Settings) -> Iterator[Remedy]:
    """Other sizes of steps."""
    budget, seats = settings.get("engine.token_budget"), settings.get("engine.max_batch")
    if isinstance(budget, int):
        for size, acts_on in (
            (budget // 2, ("interference", "prefill", "decode")),
            (budget // 4, ("interference",)),
            (2 * budget, ("prefill", "order")),
            (4 * budget, ("prefill",)),
        ):
            if size > 0:
                yield Remedy({"engine.token_budget": size}, acts_on)
    if isinstance(seats, int):
        yield Remedy({"engine.max_batch": 4 * seats}, ("seats", "prefill"))
        if seats > 1:
            yield Remedy({"engine.max_batch": seats // 2}, ("decode", "context", "memory"))


def _memory(settings: Settings) -> Iterator[Remedy]:
    """Room for more KV."""
    acts_on = ("memory", "context", "eviction")
    if settings.get("engine.kv_tokens") is not None:
        yield Remedy({"engine.kv_tokens": None}, acts_on)
    elif (settings.get("engine.kv_fraction") or 1.0) < _LARGE_FRACTION:
        yield Remedy({"engine.kv_fraction": _LARGE_FRACTION}, acts_on)
    if settings.get("engine.kv_compression.memory_share", 1.0) == 1.0:
        holds_more = settings.get("engine.kv_tokens") is None
        yield Remedy({"engine.kv_compression": "fp8"}, (*(acts_on if holds_more else acts_on[1:2]), "network"))
    if settings.get("engine.preemption") == "recompute":
        yield Remedy({"engine.preemption": "swap"}, ("memory",))


def _links(settings: Settings, experiment: Experiment) -> Iterator[Remedy]:
    """Faster transfers of KV."""
    if not any(pool.role == "decode" for pool in experiment.cluster.pools):
        return
    if settings.get("cluster.link_bandwidth_bytes_s") is not None:
        yield Remedy({"cluster.link_bandwidth_bytes_s": None}, ("network",))
    if settings.get("engine.layerwise_tokens") is None:
        yield Remedy({"engine.layerwise_tokens": 1}, ("network",))


def _decisions(settings: Settings, experiment: Experiment) -> Iterator[Remedy]:
    """Other rules and another period of the policy, if its settings name them."""
    for key, rules, acts_on in (
        ("policy.routing", PREFILL_RULES, ("routing",)),
        ("policy.placement", DECODE_RULES, ("routing", "decode", "memory")),
        ("policy.order", ORDERS, ("order", "prefill")),
    ):
        for rule in rules:
            if key in settings and settings[key] != rule and _is_known(rule, experiment):
                yield Remedy({key: rule}, acts_on)
    tick_s = experiment.policy.tick_s
    if tick_s is not None and overrides(experiment.policy, "on_tick"):
        for key in [key for key, value in settings.items() if key.startswith("policy.") and value == tick_s]:
            yield from (Remedy({key: tick_s / often}, ("ticks",)) for often in _OFTEN)
            yield from (Remedy({key: tick_s * often}, ("starts",)) for often in _OFTEN)


def _is_known(rule: str, experiment: Experiment) -> bool:
    """Whether a rule has the data that it needs."""
    if rule == "shortest_predicted":
        return experiment.predictor is not None
    return rule != "highest_priority" or experiment.workload.priority is not None


def _mechanisms(settings: Settings, experiment: Experiment) -> Iterator[Remedy]:
    """Mechanisms on or off."""
    engine: EngineConfig = experiment.engine
    if engine.speculation.most > 0:
        yield Remedy({"engine.speculation": "none"}, ("drafting",))
        if not engine.speculation.adaptive:
            yield Remedy({"engine.speculation.depth": "adaptive"}, ("drafting",))
    if any(pool.parallelism.dp > 1 for pool in experiment.cluster.pools):
        for choice in ("kv", "requests"):
            if settings.get("cluster.rank_choice") not in (choice, "even"):
                yield Remedy({"cluster.rank_choice": choice}, ("ranks",))
    if experiment.workload.has_prefixes and not engine.prefix_cache:
        yield Remedy({"engine.prefix_cache": True}, ("prefill", "memory"))
    if settings.get("engine.asynchronous") is False:
        yield Remedy({"engine.asynchronous": True}, ("host",))
    if settings.get("engine.faults.crashes") and settings.get("engine.faults.recovery") != "restore":
        yield Remedy({"engine.faults.recovery": "restore"}, ("failures",))


def _formats(settings: Settings, experiment: Experiment) -> Iterator[Remedy]:
    """Places for prefixes that GPU memory drops, and KV in fewer bytes than fp8, which may cost quality."""
    if experiment.workload.has_prefixes and not experiment.engine.prefix_stores.tiers:
        for name in ("dram", "pool"):
            own = {} if experiment.engine.prefix_cache else {"engine.prefix_cache": True}
            yield Remedy({**own, "engine.prefix_stores": name}, ("eviction", "prefill", "memory", "order"))
    if settings.get("engine.kv_compression.memory_share", 1.0) >= _FP8:
        acts_on = (
            ("memory", "context", "network") if settings.get("engine.kv_tokens") is None else ("context", "network")
        )
        yield Remedy({"engine.kv_compression": "int4"}, acts_on)
    if settings.get("engine.kv_compression.copy_share", 1.0) == 1.0 and len(experiment.cluster.pools) > 1:
        yield Remedy({"engine.kv_compression": "cachegen"}, ("network",))


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)
