"""Reads an `EndpointPickerConfig` of llm-d or the Gateway API Inference Extension: its plugins and scheduling profiles.

A profile refers to plugins by name (`pluginRef`); its filters run in order, its scorers have weights, 1 by default. A
profile without a picker takes the largest score; a file without profiles has one with all plugins. Keys other than
`plugins` and `schedulingProfiles` configure what `gateway=` has settings for, or what is not simulated. A line on
stderr names those that a file has.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from framework.checks import check_fields, require_at_least
from framework.errors import InputError, shown
from policies import _endpoint_filters as choosing
from policies import _endpoint_scorers as scoring
from policies._endpoints import Choice, Filter, Picker, Plugin, Scorer

TYPES: dict[str, type[Plugin]] = {
    "queue-scorer": scoring.QueueScorer,
    "running-requests-size-scorer": scoring.RunningRequestsScorer,
    "kv-cache-utilization-scorer": scoring.KvCacheUtilizationScorer,
    "kv-cache-scorer": scoring.KvCacheUtilizationScorer,  # its former name
    "prefix-cache-scorer": scoring.PrefixCacheScorer,
    "precise-prefix-cache-scorer": scoring.PrefixCacheScorer,
    "load-aware-scorer": scoring.LoadAwareScorer,
    "active-request-scorer": scoring.ActiveRequestScorer,
    "token-load-scorer": scoring.TokenLoadScorer,
    "lmetric-scorer": scoring.LMetricScorer,
    "session-affinity-scorer": scoring.SessionAffinityScorer,
    "no-hit-lru-scorer": scoring.NoHitLruScorer,
    "low-queue-filter": choosing.LowQueueFilter,
    "least-queue-filter": choosing.LeastQueueFilter,
    "least-kv-cache-filter": choosing.LeastKvCacheFilter,
    "active-request-filter": choosing.ActiveRequestFilter,
    "prefix-cache-affinity-filter": choosing.PrefixCacheAffinityFilter,
    "session-affinity-filter": choosing.SessionAffinityFilter,
    "max-score-picker": choosing.MaxScorePicker,
    "random-picker": choosing.RandomPicker,
    "weighted-random-picker": choosing.WeightedRandomPicker,
}
# These decide nothing here: data that views have, profiles and roles that the cluster has, adapters that no model has.
SKIPPED = (
    *("single-profile-handler", "disagg-profile-handler", "pd-profile-handler", "prefill-filter", "decode-filter"),
    *("approx-prefix-cache-producer", "inflight-load-producer", "in-flight-load-producer", "prefix-based-pd-decider"),
    *("lora-affinity-scorer", "lora-affinity-filter", "openai-parser", "disagg-headers-handler"),
)
_KIND = "EndpointPickerConfig"
_KEYS = ("apiVersion", "kind", "plugins", "schedulingProfiles")
_SKIPPED_KEYS = ("featureGates", "saturationDetector", "flowControl", "dataLayer", "data", "parser", "requestHandler")


@dataclass(frozen=True)
class Profile:
    """One way to choose an endpoint."""

    filters: tuple[Filter, ...] = ()
    scorers: tuple[tuple[Scorer, float], ...] = ()
    picker: Picker = field(default_factory=choosing.MaxScorePicker)

    def pick(self, choice: Choice, generator: np.random.Generator) -> int | None:
        """The position in the pool of the endpoint for the request; None if filters leave none."""
        for one in self.filters:
            choice = Choice(choice.request, choice.cluster, choice.pool, choice.left[one.keep(choice)])
            if len(choice) == 0:
                return None
        scores = np.zeros(len(choice))
        for scorer, weight in self.scorers:
            scores += weight * np.clip(scorer.score(choice), 0.0, 1.0)
        return int(choice.left[self.picker.pick(scores, generator)])

    def sent(self, choice: Choice, instance: int) -> None:
        """Tell the plugins which instance serves the request."""
        for plugin in (*self.filters, *(scorer for scorer, _ in self.scorers), self.picker):
            plugin.sent(choice, instance)


def read_profiles(source: str | Mapping[str, Any]) -> dict[str, Profile]:
    """The profiles of a YAML file, or of its content, by name. Prints a line about what is skipped.

    Raises:
        InputError: The file cannot be read, or is no such configuration; one line says where and what to do.
    """
    if not isinstance(source, str):
        return _profiles("policy.profile", source)
    path = Path(source).expanduser()
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not text in UTF-8 (byte {error.start + 1:,})") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(f"{path}: is no YAML ({' '.join(str(error).split())})") from None
    return _profiles(str(path), content)


def _profiles(where: str, content: Any) -> dict[str, Profile]:
    config = _mapping(where, content, (*_KEYS, *_SKIPPED_KEYS))
    if config.get("kind", _KIND) != _KIND:
        raise InputError(f"{where}: kind must be {_KIND}, got {shown(config['kind'])}")
    plugins: dict[str, Plugin | None] = {}
    for k, entry in enumerate(_sequence(where, "plugins", config.get("plugins"))):
        name, plugin = _plugin(f"{where}: plugins[{k}]", entry)
        if name in plugins:
            raise InputError(f"{where}: plugins[{k}]: a plugin {name} is there already; give one of them another name")
        plugins[name] = plugin
    everything = [{"name": "default", "plugins": [{"pluginRef": name} for name in plugins]}]
    profiles: dict[str, Profile] = {}
    for k, entry in enumerate(_sequence(where, "schedulingProfiles", config.get("schedulingProfiles", everything))):
        at = f"{where}: schedulingProfiles[{k}]"
        given = _mapping(at, entry, ("name", "plugins"))
        profiles[_name(at, given.get("name"))] = _profile(at, given.get("plugins"), plugins)
    if not profiles:
        raise InputError(f"{where}: schedulingProfiles is empty; leave it out for one profile with all plugins")
    if skipped := _skipped(config):
        _tell_once(f"note: {where}: skipped, since it decides nothing here: {', '.join(skipped)}; see docs/gateway.md")
    return profiles


def _skipped(config: Mapping[str, Any]) -> list[str]:
    """What a configuration, which has been read, says that decides nothing here."""
    found = [name for name in config if name in _SKIPPED_KEYS]
    for entry in config["plugins"]:
        kind, parameters = entry["type"], entry.get("parameters") or {}
        names = [] if kind in SKIPPED else [name for name in parameters if name in TYPES[kind].ignored]
        found += [kind] if kind in SKIPPED else [f"{name} of {kind}" for name in names]
    return list(dict.fromkeys(found))


@functools.cache
def _tell_once(line: str) -> None:
    """Print a line on stderr, once in a process: a search for a rate makes many runs."""
    print(line, file=sys.stderr)


def _plugin(at: str, entry: Any) -> tuple[str, Plugin | None]:
    """Name and plugin of an entry, None if its type decides nothing here."""
    given = _mapping(at, entry, ("name", "type", "parameters"))
    kind = _name(at, given.get("type"), "type")
    name = _name(at, given.get("name", kind))
    if kind in SKIPPED:
        return name, None
    if kind not in TYPES:
        raise InputError(f"{at}: there is no plugin {kind}; there are {', '.join(TYPES)}")
    return name, _made(f"{at}: {kind}: ", TYPES[kind], given.get("parameters") or {})


def _made(at: str, made: Any, given: Any) -> Plugin:
    """The plugin of a class with these parameters, which its fields name in snake case."""
    own = {_camel(one.name): one.name for one in fields(made) if one.init} if is_dataclass(made) else {}
    parameters = _mapping(at.rstrip(": "), given, (*own, *made.ignored))
    values = {own[name]: value for name, value in parameters.items() if name in own}
    try:
        plugin: Plugin = made(**values)
    except TypeError:
        lacking = [name for name in own if name not in parameters]
        raise InputError(f"{at}parameters lack one of {', '.join(lacking)}") from None
    if own:
        check_fields(plugin, at)
    return plugin


def _profile(at: str, references: Any, plugins: Mapping[str, Plugin | None]) -> Profile:
    chosen: list[tuple[Plugin, float]] = []
    for k, entry in enumerate(_sequence(at, "plugins", references)):
        given = _mapping(f"{at}: plugins[{k}]", entry, ("pluginRef", "weight"))
        name = _name(f"{at}: plugins[{k}]", given.get("pluginRef"), "pluginRef")
        if name not in plugins:
            raise InputError(f"{at}: plugins[{k}]: there is no plugin named {name}; there are {', '.join(plugins)}")
        weight = 1.0 if given.get("weight") is None else given["weight"]
        require_at_least(f"{at}: plugins[{k}]: weight", weight, 0.0)
        plugin = plugins[name]
        if plugin is not None:
            chosen.append((plugin, float(weight)))
    pickers = [plugin for plugin, _ in chosen if isinstance(plugin, Picker)]
    if len(pickers) > 1:
        raise InputError(f"{at}: has {len(pickers)} pickers; leave one")
    return Profile(
        tuple(plugin for plugin, _ in chosen if isinstance(plugin, Filter)),
        tuple((plugin, weight) for plugin, weight in chosen if isinstance(plugin, Scorer)),
        *pickers,
    )


def _mapping(at: str, value: Any, names: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{at}: must be a mapping, got {shown(value)}")
    for name in value:
        if name not in names:
            raise InputError(f"{at}: there is no {shown(name)} here; there are {', '.join(names) or 'no parameters'}")
    return value


def _sequence(at: str, name: str, value: Any) -> list[Any]:
    if isinstance(value, str) or not isinstance(value, (list, tuple)):
        raise InputError(f"{at}: {name} must be a list, got {shown(value)}")
    return list(value)


def _name(at: str, value: Any, what: str = "name") -> str:
    if not isinstance(value, str) or not value:
        raise InputError(f"{at}: {what} must be a text, got {shown(value)}")
    return value


def _camel(name: str) -> str:
    return re.sub("_(.)", lambda match: match.group(1).upper(), name).replace("Ttft", "TTFT")
