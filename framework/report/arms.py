"""The differences between compared runs other than the policy, in one line."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from framework.cli.safe_text import printable
from framework.system.split import INSTANCES

_NAMES = {
    "server.name": "server",
    "policy.routing": "router",
    "policy.placement": "router to decode",
    "engine.prefix_cache": "prefix cache",
    "engine.asynchronous": "asynchronous scheduling",
    "engine.first_token": "first token",
    "engine.transfers": "transfers",
}
_FIRST = ("server", "router", "router to decode", "prefix cache", "cluster", "predictor", "transfers")
_SAME_AS = ("timing.server.", "cluster.gpu.")  # settings that repeat others
_REPEATED = ("server.asynchronous", "server.seats", "server._target_", "objective._target_")
_IN_PART = ("engine", "server", "cluster")  # groups whose settings are named one by one; others are named as a group
_POOLS = {"mixed": ("instances",), "disaggregated": ("prefill", "decode")}
_PARALLEL = ("tp", "pp", "ep", "dp")
_SHAPE = (
    *("cluster._target_", "cluster.instances", "cluster.prefill", "cluster.decode"),
    *(f"cluster.{pool}{name}" for pool in ("", "prefill_", "decode_") for name in _PARALLEL),
)
_ROUTERS = ("policy.routing", "policy.placement")
_OWN_ROUTER = "its own"  # router of a policy whose source says how it routes
_UNSEEN = "\0"  # what follows this character distinguishes values, and is not shown
_MOST_ITEMS, _MOST_LABELS, _MOST_VALUES = 12, 3, 4


@dataclass(frozen=True)
class Arm:
    """A run of a comparison: its `label`, and its flat `settings` with those that its requests decided.

    Only arms of one `group` are compared. `given`: settings by which the user distinguished the arms, and their parts.
    """

    label: str
    settings: Mapping[str, Any]
    group: Hashable = ()
    given: Collection[str] = ()


def unlike(arms: Sequence[Arm]) -> str | None:
    """How the arms differ beyond policy, seed and given settings; None if they do not.

    The most common value comes first, the others with the labels of their arms.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for group in dict.fromkeys(arm.group for arm in arms):
        own = [(arm, _items(arm)) for arm in arms if arm.group == group]
        for name in dict.fromkeys(name for _, items in own for name in items):
            values = [(arm.label, items.get(name, "none")) for arm, items in own]
            if len({value for _, value in values} - {_OWN_ROUTER}) > 1:
                for label, value in values:
                    labels = found.setdefault(name, {}).setdefault(value, [])
                    labels += [label] if label not in labels else []
    if not found:
        return None
    names = sorted(found, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
    texts = [f"{name}{_values_text(found[name])}" for name in names[:_MOST_ITEMS]]
    texts += [f"{len(names) - _MOST_ITEMS} more"] if len(names) > _MOST_ITEMS else []
    return printable(f"Besides the policy, runs differ in {', '.join(texts)}.")


def _items(arm: Arm) -> dict[str, str]:
    """The compared values by name, each as text."""
    settings = {
        name: value for name, value in arm.settings.items() if value is not None and not _is_left_out(name, arm)
    }
    items = {_NAMES[name]: _text(settings[name]) for name in _NAMES if name in settings}
    items |= {_NAMES[name]: _OWN_ROUTER for name in _ROUTERS if name not in settings and not _is_given(name, arm.given)}
    if not any(_is_given(name, arm.given) for name in _SHAPE):
        items["cluster"] = _shape(settings)
    predictor = [(name, value) for name, value in settings.items() if name.startswith("predictor")]
    items["predictor"] = f"{_module(settings)}{_UNSEEN}{predictor!r}"
    parts: dict[str, list[tuple[str, Any]]] = {}
    for name, value in settings.items():
        group, _, rest = name.partition(".")
        if group not in ("policy", "predictor") and name not in (*_NAMES, *_SHAPE):
            part = f"{group}.{rest.partition('.')[0]}" if group in _IN_PART else group
            parts.setdefault(part, []).append((name, value))
    return items | {part: _of_part(part, own) for part, own in parts.items()}


def _module(settings: Mapping[str, Any]) -> str:
    """The module of a predictor, which has the name of its option."""
    return str(settings.get("predictor._target_", "none")).split(".")[-2:][0]


def _is_left_out(name: str, arm: Arm) -> bool:
    is_repeated = name.startswith(_SAME_AS) or name in _REPEATED or name == "seed" or name.endswith(".seed")
    return is_repeated or _is_given(name, arm.given)


def _is_given(name: str, given: Collection[str]) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in given)


def _shape(settings: Mapping[str, Any]) -> str:
    """The pools of a cluster, as `5 mixed` or `3 prefill + 2 decode`, each with its degrees of parallelism beyond 1."""
    kind = str(settings.get("cluster._target_")).rpartition(".")[2]
    texts = []
    for pool in _POOLS.get(kind, ()):
        degrees = {one: settings.get(f"cluster.{pool}_{one}", settings.get(f"cluster.{one}", 1)) for one in _PARALLEL}
        name = "mixed" if pool == "instances" else pool
        beyond = [f"{key}={one}" for key, one in degrees.items() if one != 1]
        texts.append(" ".join([str(settings.get(f"cluster.{pool}")), name, *beyond]))
    if settings.get("cluster.prefill") == "auto":
        return f"{settings.get('cluster.instances') or INSTANCES} prefill and decode, split by load"
    return " + ".join(texts) or kind


def _of_part(part: str, own: Sequence[tuple[str, Any]]) -> str:
    """The value of a setting; for several settings their name, if they have one, and what distinguishes them."""
    if len(own) == 1 and own[0][0] == part:
        return _text(own[0][1])
    names = [str(value) for name, value in own if name == f"{part}.name"]
    return f"{''.join(names)}{_UNSEEN}{own!r}"


def _values_text(values: Mapping[str, list[str]]) -> str:
    """The values in brackets, the most common first, then the others with their arms; arms alone if texts are equal."""
    ordered = sorted(values, key=lambda value: -len(values[value]))
    shown = [value.partition(_UNSEEN)[0] for value in ordered]
    if len(set(shown) - {""}) < 2 and any(_UNSEEN in value for value in ordered):
        return f" ({_labels([label for value in ordered[1:] for label in values[value]])})"
    texts = [shown[0]]
    texts += [
        f"{word}: {_labels(values[value])}" for word, value in zip(shown[1:_MOST_VALUES], ordered[1:], strict=False)
    ]
    texts += ["..."] if len(ordered) > _MOST_VALUES else []
    return f" ({'; '.join(texts)})"


def _labels(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - _MOST_LABELS} more" if len(labels) > _MOST_LABELS else ""
    return ", ".join(labels[:_MOST_LABELS]) + more


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
