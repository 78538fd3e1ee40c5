"""The axes along which the answer may flip: five values of each, and their settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # factors of mean lengths
_LIMITS = (0.4, 0.7, 1.0, 1.5, 2.5)  # factors of the limits of the SLO
_HITS = (0.0, 0.25, 0.5, 0.75, 0.9)  # share of a prompt that is cached
_LINKS_GB_S = (0.5, 2.0, 5.0, 20.0, None)  # of an instance in each direction; None: the ports of its GPUs
_LONG = "trace.tile=8"  # length of a run at one rate: an overload takes time to show
_LOADS = (0.3, 0.6, 0.8, 0.95, 1.15)  # loads, as shares of the highest rate of the best
TITLES = {
    "load": "load (share of the\nhighest rate)",
    "prompt": "prompt length\n(mean, tokens)",
    "output": "output length\n(mean, tokens)",
    "slo": "SLO (both limits\ntimes this)",
    "link": "link of an instance\n(GB/s)",
    "hits": "share of prompts\nthat is cached",
}


@dataclass(frozen=True)
class Value:
    """One value of an axis: its name, and its settings."""

    axis: str
    label: str
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Axis:
    """`values` in order; `missing` says why there are none."""

    name: str
    values: tuple[Value, ...]
    missing: str = ""


def axis(name: str, settings: Mapping[str, Any], best_rps: float) -> Axis:
    """The axis of that name around a flat configuration whose best sustains `best_rps`."""
    if name == "load":
        return _of_load(best_rps)
    if name == "link":
        return Axis(name, tuple(_link(value) for value in _LINKS_GB_S))
    if name == "slo":
        return Axis(name, tuple(_slo(factor, settings) for factor in _LIMITS))
    if settings.get("trace.input.mean") is None or settings.get("trace.output.mean") is None:
        return Axis(name, (), "a recording, or a distribution without a mean, keeps its lengths and its hits")
    if name == "output":
        return Axis(name, tuple(_output(factor, settings) for factor in _FACTORS))
    if name == "prompt":
        return Axis(name, tuple(_prompt(factor, settings) for factor in _FACTORS))
    if settings.get("trace.sessions.block_tokens") is None:
        return Axis(name, (), "hits need a trace of sessions, as trace=synthetic_sessions")
    return Axis(name, tuple(hits(share, settings) for share in _HITS))


def all_hits(settings: Mapping[str, Any]) -> tuple[Value, ...]:
    """The values of the axis of hits; none if the trace has none."""
    return axis("hits", settings, 0.0).values


def hits(share: float, settings: Mapping[str, Any]) -> Value:
    """Prompts of unchanged length with that share as a common prefix, in whole blocks."""
    block = int(settings["trace.sessions.block_tokens"])
    prefix, whole = _prefix(settings), _prefix(settings) + float(settings["trace.input.mean"])
    shared = block * round(share * whole / block)
    scale = (whole - shared) / (whole - prefix)
    arguments = (*_scaled("trace.input", scale, settings), f"trace.sessions.prefix_tokens={shared}")
    return Value("hits", f"{share:.0%}".replace("%", " %"), (*arguments, "engine.prefix_cache=true"))


def _of_load(best_rps: float) -> Axis:
    values = (
        Value("load", f"{100 * share:.0f} %", ("objective=goodput", _LONG, f"trace.rate={best_rps * share:.6g}"))
        for share in _LOADS
    )
    return Axis("load", tuple(values))


def _link(speed_gb_s: float | None) -> Value:
    if speed_gb_s is None:
        return Value("link", "own ports", ())
    return Value("link", f"{speed_gb_s:g}", (f"cluster.link_bandwidth_bytes_s={speed_gb_s * 1e9:g}",))


def _slo(factor: float, settings: Mapping[str, Any]) -> Value:
    limits = ((name, settings.get(name)) for name in ("slo.ttft_s", "slo.tpot_s"))
    arguments = (f"{name}={limit * factor:.6g}" for name, limit in limits if limit is not None)
    return Value("slo", f"× {factor:g}", () if factor == 1 else tuple(arguments))


def _output(factor: float, settings: Mapping[str, Any]) -> Value:
    mean = settings["trace.output.mean"] * factor
    return Value("output", f"{mean:,.0f}", () if factor == 1 else _scaled("trace.output", factor, settings))


def _prompt(factor: float, settings: Mapping[str, Any]) -> Value:
    """The cached share stays, as far as whole blocks allow."""
    prefix = _prefix(settings)
    label = f"{(prefix + settings['trace.input.mean']) * factor:,.0f}"
    if factor == 1:
        return Value("prompt", label, ())
    arguments = _scaled("trace.input", factor, settings)
    if prefix:
        block = int(settings["trace.sessions.block_tokens"])
        arguments = (*arguments, f"trace.sessions.prefix_tokens={block * round(factor * prefix / block)}")
    return Value("prompt", label, arguments)


def _scaled(prefix: str, factor: float, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """A distribution whose mean and upper end are `factor` times as large."""
    arguments = [f"{prefix}.mean={settings[f'{prefix}.mean'] * factor:.8g}"]
    if settings.get(f"{prefix}.high") is not None:
        arguments.append(f"{prefix}.high={settings[f'{prefix}.high'] * factor:.8g}")
    return tuple(arguments)


def _prefix(settings: Mapping[str, Any]) -> int:
    return int(settings.get("trace.sessions.prefix_tokens") or 0)
