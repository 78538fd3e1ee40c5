"""The command line of the micro-benchmark, and the models and GPUs that it names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framework.checks import require_choice, require_positive
from framework.cli.arguments import config_dirs, configured, whole
from framework.cli.command import Arguments
from framework.errors import InputError
from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.timing.microbench.cases import KEYS as OPERATIONS
from framework.timing.microbench.cases import Case, model_cases
from framework.timing.microbench.steps import step_cases

ATTENTION = ("flash_attn_interface", "flashinfer", "flash_attn", "fa3_fwd_interface", "torch")
DTYPES = ("bf16", "fp8")
_DEFAULTS = {
    "model": "",
    "tp": "1",
    "out": "measured.csv",
    "minutes": "",
    "dtypes": "",
    "ops": ",".join(OPERATIONS),
    "attention": "auto",
    "gpu": "",
    "licence": "unstated",
}
KEYS = {
    "model": "models of conf/model, joined by commas; several share the shapes they have in common",
    "tp": "GPUs that share a layer, 1 by default; several joined by commas",
    "out": "the table, measured.csv by default",
    "minutes": "stop after that long, the least useful cases last; when all are measured by default",
    "dtypes": "of the weights, most useful first; the models' own, then fp8, by default",
    "ops": f"only these operations: {' '.join(OPERATIONS)}; the last four are written next to the table",
    "attention": "flash_attn_interface (version 3), flashinfer, flash_attn (version 2), fa3_fwd_interface (version 3 "
    "without pages) or torch; auto, the default, takes the first that is installed",
    "gpu": "the name in conf/gpu; from the device's name by default",
    "licence": "of the table, as CC0-1.0; unstated by default",
}
_MEMORY_TOLERANCE = 0.1  # tolerance between what a device reports and its data sheet
_VARIANTS = ("pcie", "nvl", "mig", "max-q")  # other clocks, memory or links than the namesake in conf/gpu


@dataclass(frozen=True)
class Options:
    """What to measure and where to write it.

    An empty `gpu` stands for the one that the device's name implies, and `minutes` None for no end. `config_dirs` are
    the arguments that add directories of the user's own YAMLs.
    """

    models: tuple[Model, ...]
    tps: tuple[int, ...]
    out: Path
    minutes: float | None
    dtypes: tuple[str, ...]
    operations: tuple[str, ...]
    attention: str
    gpu: str
    licence: str
    dry_run: bool
    config_dirs: tuple[str, ...]
    arguments: tuple[str, ...]

    @classmethod
    def parse(cls, arguments: Arguments) -> Options:
        """The options of a command line. Raises InputError, in one line, for wrong ones."""
        for word in arguments.operands:
            require_choice("the operand", word, ("list",))
        given, overrides = {**_DEFAULTS, **arguments.own}, arguments.settings
        models = tuple(_load("model", name, Model, overrides) for name in _words("model", given["model"]))
        dtypes = _words("dtypes", given["dtypes"] or ",".join(dict.fromkeys([*(_own(m) for m in models), "fp8"])))
        for dtype in dtypes:
            require_choice("dtypes", dtype, DTYPES)
        operations = _words("ops", given["ops"])
        for operation in operations:
            require_choice("ops", operation, tuple(OPERATIONS))
        require_choice("attention", given["attention"], ("auto", *ATTENTION))
        return cls(
            models=models,
            tps=tuple(whole("tp", word) for word in _words("tp", given["tp"])),
            out=_out(given["out"]),
            minutes=_minutes(given["minutes"]) if given["minutes"] else None,
            dtypes=dtypes,
            operations=operations,
            attention=given["attention"],
            gpu=given["gpu"],
            licence=given["licence"],
            dry_run=bool(arguments.operands),
            config_dirs=overrides,
            arguments=arguments.every,
        )

    @property
    def budget_s(self) -> float:
        """The seconds after which to stop, inf for no end."""
        return float("inf") if self.minutes is None else 60 * self.minutes

    def cases(self) -> list[Case]:
        """The cases to measure, the most useful first."""
        cases = [*model_cases(self.models, self.tps, self.dtypes), *step_cases(self.models, self.tps)]
        return sorted((case for case in cases if case.operation in self.operations), key=lambda case: case.round)


def gpu_named(name: str, device: str, memory_bytes: float, overrides: Sequence[str] = ()) -> Gpu:
    """The entry of conf/gpu called `name`, or, without a name, that of the device.

    `device` is the name that the driver gives it, and `memory_bytes` its memory. `overrides` may add directories of the
    user's own YAMLs. Raises InputError if there is no such entry, and for a variant with other clocks or memory than
    its namesake.
    """
    if name:
        return _load("gpu", name, Gpu, overrides)
    advice = "say which of conf/gpu it is with gpu=, or describe it there first"
    name_parts = re.split(r"[^a-z0-9-]+", device.lower())
    variant = next((word for word in _VARIANTS if any(word in part for part in name_parts)), None)
    if variant is not None:
        raise InputError(f"the GPU is a {device}, a variant that its namesake does not describe; {advice}")
    parts = {part for word in name_parts for part in (word, word.split("-")[0])}
    for known in _names("gpu", overrides):
        if known in parts:
            gpu = _load("gpu", known, Gpu, overrides)
            if abs(memory_bytes / gpu.memory_bytes - 1) > _MEMORY_TOLERANCE:
                raise InputError(f"the GPU is a {device} of {memory_bytes / 1e9:.0f} GB, not a {gpu.name}; {advice}")
            return gpu
    raise InputError(f"the GPU is a {device}, which conf/gpu does not know; {advice}")


def dry_run_gpu(name: str, overrides: Sequence[str] = ()) -> Gpu:
    """The entry of conf/gpu for estimates without a GPU: the one called `name`, or an h100."""
    return _load("gpu", name or "h100", Gpu, overrides)


def _load(group: str, name: str, kind: type[Any], overrides: Sequence[str]) -> Any:
    if name not in _names(group, overrides):
        known = ", ".join(_names(group, overrides))
        raise InputError(f"{group}={name}: there is no {group} of that name; choose one of {known}")
    loaded = configured([f"{group}={name}", *overrides], [group])[group]
    if not isinstance(loaded, kind):
        raise InputError(f"{group}={name}: makes no {kind.__name__}; fix its _target_")
    return loaded


def _names(group: str, overrides: Sequence[str]) -> list[str]:
    """The YAMLs of a group, sorted."""
    return sorted({path.stem for place in config_dirs(overrides) for path in (place / group).glob("*.yaml")})


def _words(name: str, text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    if not text or not all(names):
        raise InputError(f"{name}= needs names, with commas between them; got {text!r}")
    return names


def _own(model: Model) -> str:
    return "fp8" if model.dtype == "fp8" else "bf16"


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        raise InputError(f"minutes must be a finite number above 0, got {text!r}") from None
    require_positive("minutes", minutes)
    return minutes


def _out(text: str) -> Path:
    path = Path(text)
    if path.suffix != ".csv":
        raise InputError(f"out={text}: must end in .csv")
    if not path.parent.is_dir():
        raise InputError(f"out={text}: there is no directory {path.parent}; make it first")
    return path
