"""The compared families of architectures: the settings that each fixes, and the space in which it is tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from experiments.guide import rules
from experiments.guide.rules import Rule
from framework.errors import InputError

_ROUTER = "policy.routing=least_queued"  # router of prompts, the same for all families
_SEQUENCES = "engine.max_batch=1024"  # seats of an instance: enough that memory and limits decide
_BETWEEN = "engine.asynchronous=false"
_PROMPTS = "engine.token_budget=8192"  # token budget of a step with prefills alone


@dataclass(frozen=True)
class Family:
    """One architecture: `fixed` are its settings in addition to those that `space` (conf/space) searches.

    `knob`: the family's particular dimension of the space, a name in conf/space; `knob_label`: its name for readers.
    `rule`: the field's rule of thumb on it; `caveat`: what its rates leave out.
    """

    name: str
    label: str
    fixed: tuple[str, ...]
    space: str
    knob: str
    knob_label: str
    unmoved_by: str = "cluster.link"  # settings with this prefix change nothing here: no KV is copied
    rule: Rule | None = None
    caveat: str = ""

    def arguments(self, overrides: Sequence[str]) -> tuple[str, ...]:
        """Its own settings, then those of `overrides` that affect it."""
        return (*self.fixed, *(one for one in overrides if not self.unmoved_by or not one.startswith(self.unmoved_by)))

    @property
    def given(self) -> tuple[str, ...]:
        """The settings that it fixes, by name."""
        return tuple(word.partition("=")[0] for word in self.fixed)


DECODE_GPU, OTHER_DECODE_GPU = "a100", "h100"  # where `unlike` decodes; the latter if all others have the former
_DECODE_GPU = "+gpu@cluster.decode_gpu="
_DISAGGREGATED = (_ROUTER, "policy.placement=least_kv", _SEQUENCES, _PROMPTS)
FAMILIES = (
    Family(
        "whole",
        "whole prompts",
        ("policy=continuous", _ROUTER, "policy.order=fcfs", _SEQUENCES),
        "whole",
        "engine.token_budget",
        "tokens of a step",
        rule=rules.WHOLE,
    ),
    Family(
        "chunked",
        "chunked prefill",
        ("policy=chunked", _ROUTER, "policy.order=fcfs", _SEQUENCES),
        "chunked",
        "engine.token_budget",
        "tokens of a step (chunk size)",
        rule=rules.CHUNKED,
    ),
    Family(
        "disaggregated",
        "disaggregated",
        ("policy=distserve", "policy.order=fcfs", *_DISAGGREGATED),
        "pd",
        "prefill_gpus",
        "P:D (instances)",
        rule=rules.DISAGGREGATED,
        unmoved_by="",
    ),
    Family(
        "shared",
        "shared GPU",
        # docs/guide.md has this family with the host's work between steps. A tuned static split does as well as the
        # policy's controller, and is simulated in half the time.
        ("policy=nexus", _ROUTER, "policy.queue=fcfs", "policy.split=static", _SEQUENCES, _PROMPTS, _BETWEEN),
        "shared",
        "policy.prefill_percent",
        "SMs that prefill (%)",
        rule=rules.SHARED,
    ),
    Family(
        "pod",
        "chunks, POD attention",
        ("policy=chunked", _ROUTER, "policy.order=fcfs", _SEQUENCES, "engine.attention=pod"),
        "chunked",
        "engine.token_budget",
        "tokens of a step (chunk size)",
        rule=rules.POD,
    ),
    Family(
        "ares",
        "disaggregated, rescheduled",
        ("policy=ares", *_DISAGGREGATED),  # first come first served; its predictor is that of conf/policy/ares.yaml
        "pd",
        "prefill_gpus",
        "P:D (instances)",
        rule=rules.ARES,
        unmoved_by="",
    ),
    Family(
        "hack",
        "disaggregated, HACK",
        ("policy=distserve", "policy.order=fcfs", *_DISAGGREGATED, "engine.kv_compression=hack"),
        "pd",
        "prefill_gpus",
        "P:D (instances)",
        rule=rules.HACK,
        unmoved_by="",
        caveat="rates leave out what KV of 2 bits costs in quality",
    ),
    Family(
        "unlike",
        "disaggregated, two kinds of GPU",
        ("policy=distserve", "policy.order=fcfs", *_DISAGGREGATED, _DECODE_GPU + DECODE_GPU),
        "pd",
        "prefill_gpus",
        "P:D (instances)",
        rule=rules.UNLIKE,
        unmoved_by="",
    ),
)


def chosen(names: Sequence[str], decode_gpu: str = DECODE_GPU, gpus: int = 2) -> tuple[Family, ...]:
    """The families of these names that `gpus` are enough for: one GPU cannot be divided into prefill and decode.

    `decode_gpu`: the second kind of GPU, of the family that has two. Raises InputError if none is left.
    """
    found = [family for family in FAMILIES if family.name in names and (gpus > 1 or family.space != "pd")]
    if not found:
        raise InputError(f"gpus={gpus}: {', '.join(names)} need two GPUs, one that prefills and one that decodes")
    return tuple(_with_decode_gpu(family, decode_gpu) for family in found)


def _with_decode_gpu(family: Family, name: str) -> Family:
    fixed = (_DECODE_GPU + name if word.startswith(_DECODE_GPU) else word for word in family.fixed)
    return replace(family, fixed=tuple(fixed))


def described(settings: Mapping[str, Any]) -> str:
    """The settings of a point of a family's space, for a reader."""
    if "cluster.prefill" in settings:
        pools = (
            (settings["cluster.prefill"], settings["cluster.prefill_tp"]),
            (
                settings["cluster.decode"],
                settings["cluster.decode_tp"],
            ),
        )
        return f"P:D {pools[0][0]}:{pools[1][0]}, TP {pools[0][1]} and {pools[1][1]}"
    size = f"{settings['cluster.instances']} × TP {settings['cluster.tp']}"
    if "policy.prefill_percent" in settings:
        return f"{size}, {settings['policy.prefill_percent']} % prefill"
    return f"{size}, {settings['engine.token_budget']:,} tokens"


def short(settings: Mapping[str, Any]) -> str:
    """The settings in the few letters of a map's cell: TP only beyond 1."""
    if "cluster.prefill" in settings:
        degrees = settings["cluster.prefill_tp"], settings["cluster.decode_tp"]
        found = f"{settings['cluster.prefill']}:{settings['cluster.decode']}"
        return found if degrees == (1, 1) else f"{found} TP{degrees[0]},{degrees[1]}"
    if "policy.prefill_percent" in settings:
        found = f"{settings['policy.prefill_percent']} %"
    else:
        found = f"{settings['engine.token_budget']:,}"
    return found if settings["cluster.tp"] == 1 else f"{found} TP{settings['cluster.tp']}"
