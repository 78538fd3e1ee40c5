"""Makes profiles from measured kernel times.

    python -m framework.timing.kernels.build
    python -m framework.timing.kernels.build model=llama3_8b gpu=h100 backend=vllm tp=16 dtype=fp8 kv_dtype=fp8

Without arguments it makes all shipped profiles, in the package. With arguments it writes to the user's cache, where
timing=measured finds them. Existing entries of a profile stay if they come from the same tables. Models and GPUs are
those of conf/. Kernel times come from the package aiconfigurator-core (NVIDIA, Apache-2.0): pip install '.[kernels]'.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from framework.checks import require_choice
from framework.cli.arguments import configured, is_config_dir, whole
from framework.cli.command import Arguments, command
from framework.cli.terminal import progress_line, results_console
from framework.errors import InputError
from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.kernels.read_aiconfigurator import load_package
from framework.timing.kernels.read_csv import load_csv, read_text
from framework.timing.kernels.read_vidur import is_vidur, load_vidur
from framework.timing.kernels.table import Kernels, Provenance
from framework.timing.kernels.tabulate import tabulate
from framework.timing.profile import Setup, StepParts
from framework.timing.shipped import profile_files
from framework.timing.shipped.profile_files import Origin, Profile
from framework.timing.shipped.scale import same_speed
from framework.timing.shipped.shipped_setups import BACKENDS, GPUS, PLANS, Types, fitting, plan_of

_SIZES = ("tp", "pp", "dp", "ep")
_TYPES = ("dtype", "expert_dtype", "kv_dtype")
_KEYS = {
    **dict.fromkeys(("model", "gpu", "backend"), "names, several joined by commas"),
    **dict.fromkeys(_SIZES, "of one instance; those that people use if none is given"),
    **dict.fromkeys(_TYPES, "those that ship, or the model's own, by default"),
    "kernels": "a CSV of one's own (framework/timing/kernels/read_csv.py) or the profiles of the simulator Vidur",
    "missing": "roofline: operations that were not measured come from the datasheet, and the profile names them",
    "out": "a directory other than the user's cache",
}
_MISSING = ("refuse", "roofline")
_PACKAGE = "package"
_CITATIONS = {
    "aiconfigurator-core": "NVIDIA, aiconfigurator-core {version}, github.com/ai-dynamo/aiconfigurator: kernel times"
    " measured on {gpu} with {backend} {backend_version}",
}
_CITATION = "{source}: kernel times measured on {gpu} with {backend} {backend_version}"


@dataclass(frozen=True)
class Request:
    """Which profiles to make, and where.

    `parallelisms` and `types` are None for the shipped ones. `kernels` is "package" or a file, as for `load_kernels`.
    With `estimates`, what was not measured is taken from the datasheet. With `keep`, existing entries at `out` stay.
    """

    models: tuple[Model, ...]
    gpus: tuple[Gpu, ...]
    backends: tuple[str, ...]
    parallelisms: tuple[Parallelism, ...] | None
    types: Types | None
    kernels: str
    estimates: bool
    keep: bool
    out: Path
    command: str


@dataclass
class Made:
    """The result of a request: the files, their total number of entries, and by reason what could not be made."""

    paths: list[Path] = field(default_factory=list)
    entries: int = 0
    missing: dict[str, list[str]] = field(default_factory=dict)

    def miss(self, reason: str, what: str) -> None:
        """Note that `what` could not be made for that reason."""
        self.missing.setdefault(reason, []).append(what)


def load_kernels(source: str, gpu: Gpu, backend: str | None = None) -> Kernels:
    """Kernel tables of `gpu` from "package" (aiconfigurator-core), a user's CSV, or profiles of Vidur.

    Vidur's are a directory, or a file recognised by its columns. `backend` may be None for a CSV that states it. Raises
    InputError for unusable input.
    """
    path = Path(source)
    if source != _PACKAGE and not path.is_dir() and not is_vidur(read_text(path)):
        return load_csv(path, gpu, backend)
    if backend is None:
        raise InputError(f"kernel times from {source} need a backend")
    return load_package(gpu.name, backend) if source == _PACKAGE else load_vidur(path, gpu, backend)


def build(request: Request, progress: Callable[[int, int], None] | None = None) -> Made:
    """Make the profiles of a request. Profiles that lack measured kernels are listed in the result, not refused.

    `progress(done, total)` counts profiles. Raises InputError for a file that cannot be written.
    """
    made = Made()
    platforms = [(gpu, backend) for gpu in request.gpus for backend in request.backends]
    total = len(platforms) * len(request.models)
    for at, (gpu, backend) in enumerate(platforms):
        try:
            kernels = load_kernels(request.kernels, gpu, backend)
        except InputError as error:
            made.miss(str(error), f"{gpu.name} {backend}")
            continue
        for done, model in enumerate(request.models):
            profile = _profile(request, kernels, model, gpu, made)
            if profile is not None:
                made.paths.append(profile_files.write_profile(request.out, profile))
            if progress is not None:
                progress(at * len(request.models) + done + 1, total)
    return made


def _profile(request: Request, kernels: Kernels, model: Model, gpu: Gpu, made: Made) -> Profile | None:
    entries: dict[Setup, StepParts] = {}
    for candidate, setup in _candidates(request, model, gpu):
        estimated: set[str] = set()
        asked = replace(kernels, estimated=estimated if request.estimates else None)
        try:
            parts = tabulate(asked, candidate, gpu, setup.parallelism)
            entries[setup] = replace(parts, estimated=tuple(sorted(estimated)))
        except InputError as error:
            made.miss(str(error), f"{model.name} {gpu.name} {kernels.provenance.backend} {setup}")
    if not entries:
        return None
    made.entries += len(entries)
    origin = _origin(kernels.provenance, model, gpu, request.command)
    kept = _kept(request.out, origin) if request.keep else {}
    return Profile(origin, tuple((kept | entries).values()))


def _candidates(request: Request, model: Model, gpu: Gpu) -> Iterator[tuple[Model, Setup]]:
    types, parallelisms = plan_of(model)
    if request.types is not None:
        types = (request.types,)
    if request.parallelisms is not None:
        parallelisms = request.parallelisms
    return fitting(model, gpu, types, parallelisms, anyway=request.parallelisms is not None)


def _kept(out: Path, origin: Origin) -> dict[Setup, StepParts]:
    """The entries that a profile at `out` already has from the same tables."""
    path = profile_files.profile_path(out, origin.model, origin.device.name, origin.backend)
    if not path.is_file():
        return {}
    there = profile_files.read_profile(path)
    known = replace(there.origin, command=origin.command, project=origin.project, device=origin.device)
    if known != origin or not same_speed(there.origin.device, origin.device):
        return {}
    return {parts.setup: parts for parts in there.entries}


def _origin(provenance: Provenance, model: Model, gpu: Gpu, command: str) -> Origin:
    package = _version(provenance.source)
    citation = _CITATIONS.get(provenance.source, _CITATION).format(
        source=provenance.source,
        version=package,
        gpu=gpu.name,
        backend=provenance.backend,
        backend_version=provenance.version,
    )
    return Origin(
        model=model.name,
        backend=provenance.backend,
        version=provenance.version,
        versions=dict(provenance.versions),
        device=gpu,
        shape=profile_files.shape_of(model),
        source=f"{provenance.source} {package}".strip(),
        licence=provenance.licence,
        citation=citation,
        command=command,
        project=_project_version(),
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # tables from a file
        return ""


def _project_version() -> str:
    """This project's version, installed or run from a checkout."""
    declared = Path(__file__).resolve().parents[3] / "pyproject.toml"
    if declared.is_file():
        return str(tomllib.loads(declared.read_text("utf-8"))["project"]["version"])
    return _version("servelab")


# --- the command ----------------------------------------------------------------------------------------------------


def parse(arguments: Arguments) -> Request:
    """The request of a command line. Raises InputError, or an error of Hydra's, for a wrong one."""
    own, overrides = arguments.own, arguments.settings
    models = _chosen("model", own, PLANS, overrides)
    sizes = {name: whole(name, own[name]) for name in _SIZES if name in own}
    if set(own) & {"expert_dtype", "kv_dtype"} and "dtype" not in own:
        raise InputError("give dtype= with expert_dtype= and kv_dtype=")
    types = Types(own["dtype"], own.get("kv_dtype", "bf16"), own.get("expert_dtype")) if "dtype" in own else None
    out = arguments.path("out")
    if out is None:
        out = profile_files.cache_directory() if arguments.every else profile_files.shipped_directory()
    return Request(
        models=models,
        gpus=_chosen("gpu", own, GPUS, overrides),
        backends=tuple(dict.fromkeys(own["backend"].split(","))) if "backend" in own else BACKENDS,
        parallelisms=(Parallelism(**sizes),) if sizes else None,
        types=types,
        kernels=own.get("kernels", _PACKAGE),
        estimates=_estimates(own.get("missing", "refuse")),
        keep=bool(set(own) - {"out"}),
        out=out,
        command=" ".join(
            (
                "python -m framework.timing.kernels.build",
                *(word for word in arguments.every if not word.startswith("out=")),
            )
        ),
    )


def _estimates(missing: str) -> bool:
    require_choice("missing", missing, _MISSING)
    return missing == "roofline"


def _chosen(group: str, own: Mapping[str, str], default: Iterable[str], overrides: Sequence[str]) -> Any:
    """The entries of conf/ with the given names of a group, or all shipped ones."""
    names = dict.fromkeys(own[group].split(",") if group in own else default)
    further = [word for word in overrides if word.startswith(f"{group}.") or is_config_dir(word)]
    return tuple(configured([f"{group}={name}", *further], [group])[group] for name in names)


@command(__doc__, keys=_KEYS, settings=("model", "gpu"))
def main(arguments: Arguments) -> None:
    """Make what the command line asks for and print the result. Raises InputError if nothing could be made."""
    request = parse(arguments)
    with progress_line("timing", "profiles") as progress:
        made = build(request, progress)
    if not made.paths:
        reasons = "; ".join(made.missing) or "no such instance has room for weights and KV, or computes in such types"
        raise InputError(f"nothing to write: {reasons}")
    results_console().print(_summary(request, made), highlight=False, soft_wrap=True)


def _summary(request: Request, made: Made) -> str:
    size = sum(path.stat().st_size for path in made.paths)
    lines = [f"{made.entries:,} entries in {len(made.paths):,} profiles, {size / 1e6:.2f} MB, in {request.out}"]
    for reason, what in sorted(made.missing.items()):
        lines.append(f"not made ({len(what)}, such as {what[0]}): {reason}")
    return "\n".join(lines)


if __name__ == "__main__":
    main.start()
