"""The arguments of the guide's command line, and the plan that they describe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.guide.families import DECODE_GPU, FAMILIES, OTHER_DECODE_GPU
from framework.checks import require_choice
from framework.cli.arguments import split_arguments, whole
from framework.cli.conf import CONF
from framework.errors import InputError

PARTS = ("knobs", "batch", "map", "hits", "limits")  # parts in addition to the ranking, which is always included
AXES = ("load", "prompt", "output", "slo", "link", "hits")
OWN = {
    "preset": "a load of conf/guide, in place of trace= and slo.*",
    "gpus": "GPUs that every candidate has, 8 by default",
    "trials": "configurations that each family may try, 12 by default",
    "cell_trials": "the same of each cell of the map, from there on, 8 by default",
    "replicates": "fresh samples on which the best of each family are compared, 6 by default; at least 4",
    "cell_replicates": "the same of each cell of the map, 4 by default; at least 4",
    "seed": "of the first sample and of the searches, 0 by default",
    "families": f"those compared, of {','.join(one.name for one in FAMILIES)}, all by default",
    "decode_gpu": f"GPU on which families=unlike decodes, {DECODE_GPU} by default; gpu= is that of all others",
    "parts": f"of the answer in addition to the ranking: {','.join(PARTS)}, none by default, or all",
    "axes": f"of the map: {','.join(AXES)}, all by default",
    "out": "directory of the results, outputs/guide/NAME by default",
}
GROUPS = (
    *("model", "gpu", "timing", "engine", "server", "slo", "cluster", "trace", "objective", "store", "force"),
    *("predictor", "hydra/launcher"),
)
_FEWEST = 4  # replicates: fewer never show a difference at 5 %
_CAPACITY = ("objective=capacity", "objective.tolerance=0.03", "objective.most_requests=160000")
_SERVER = ("server=vllm_v1", "engine.transfers=sent")  # server of all families, unless the user chooses another


@dataclass(frozen=True)
class Plan:
    """The plan of a guide.

    `load`: the preset or the trace. `shared`: the settings of every run; `capacity`: those of a search for the highest
    rate.
    """

    load: str
    gpus: int
    trials: int
    cell_trials: int
    replicates: int
    cell_replicates: int
    seed: int
    families: tuple[str, ...]
    decode_gpu: str
    parts: tuple[str, ...]
    axes: tuple[str, ...]
    shared: tuple[str, ...]
    capacity: tuple[str, ...]
    arguments: tuple[str, ...]
    out: Path

    @property
    def most_requests(self) -> int:
        """The most requests of a run of a search."""
        given = [word.partition("=")[2] for word in self.capacity if word.startswith("objective.most_requests=")]
        return int(given[-1])


def presets() -> list[str]:
    """The loads of conf/guide."""
    return sorted(path.stem for path in (CONF / "guide").glob("*.yaml"))


def read_plan(arguments: Sequence[str]) -> Plan:
    """The plan that `arguments` describe. Raises InputError for arguments without a meaning."""
    own, overrides = split_arguments(arguments, tuple(OWN), GROUPS)
    chosen = dict(word.split("=", 1) for word in overrides)
    load = _load(own, chosen)
    if "objective" in chosen:
        raise InputError("objective= is the guide's own: rates are searched, and runs at one rate with them")
    server = () if "server" in chosen else _SERVER
    families = _several(own, "families", tuple(one.name for one in FAMILIES))
    preset = (f"+guide={own['preset']}",) if "preset" in own else ()
    return Plan(
        load=load,
        gpus=_number(own, "gpus", 8),
        trials=_number(own, "trials", 12),
        cell_trials=_number(own, "cell_trials", 8),
        replicates=_replicates(own, "replicates", 6),
        cell_replicates=_replicates(own, "cell_replicates", 4),
        seed=0 if own.get("seed", "0") == "0" else whole("seed", own["seed"]),
        families=families,
        decode_gpu=_decode_gpu(own, families, chosen.get("gpu", "h100")),
        parts=_parts(own),
        axes=_several(own, "axes", AXES),
        shared=(*server, *preset, *(word for word in overrides if not word.startswith("objective."))),
        capacity=(*_CAPACITY, *(word for word in overrides if word.startswith("objective."))),
        arguments=tuple(word for word in arguments if not word.startswith("out=")),
        out=Path(own.get("out", f"outputs/guide/{_name(load, chosen)}")).expanduser(),
    )


def _load(own: Mapping[str, str], chosen: Mapping[str, str]) -> str:
    if ("preset" in own) == ("trace" in chosen):
        raise InputError(f"give the load once, as preset=NAME ({', '.join(presets())}) or as trace=NAME")
    if "preset" in own:
        require_choice("preset", own["preset"], tuple(presets()))
        return own["preset"]
    return chosen["trace"]


def _parts(own: Mapping[str, str]) -> tuple[str, ...]:
    words: dict[str, tuple[str, ...]] = {"none": (), "all": PARTS}
    named = own.get("parts", "none")
    return words[named] if named in words else _several(own, "parts", PARTS)


def _decode_gpu(own: Mapping[str, str], families: Sequence[str], gpu: str) -> str:
    found = own.get("decode_gpu", OTHER_DECODE_GPU if gpu == DECODE_GPU else DECODE_GPU)
    if "unlike" not in families:
        if "decode_gpu" in own:
            raise InputError(f"decode_gpu={found} is of families=unlike, which is not compared; name it too")
        return found
    require_choice("decode_gpu", found, tuple(sorted(path.stem for path in (CONF / "gpu").glob("*.yaml"))))
    if found == gpu:
        raise InputError(f"families=unlike needs two kinds of GPU, and gpu and decode_gpu are both {gpu}; name another")
    return found


def _name(load: str, chosen: Mapping[str, str]) -> str:
    return "-".join((load, chosen.get("model", "llama3_8b"), chosen.get("gpu", "h100")))


def _number(own: Mapping[str, str], key: str, default: int) -> int:
    return whole(key, own[key], 10_000) if key in own else default


def _replicates(own: Mapping[str, str], key: str, default: int) -> int:
    found = _number(own, key, default)
    if found < _FEWEST:
        raise InputError(f"{key}={found}: fewer than {_FEWEST} never tell a difference at 5 %; give more")
    return found


def _several(own: Mapping[str, str], key: str, known: tuple[str, ...]) -> tuple[str, ...]:
    named = own[key].split(",") if key in own else list(known)
    for one in named:
        require_choice(key, one, known)
    return tuple(one for one in known if one in named)
