"""Profiles: the parts of all setups of one model on one GPU and backend, as small files that ship with the package.

A profile is `<directory>/<gpu>/<backend>/<model>.json.gz`: JSON of a header (where its times come from) and entries,
one `StepParts` each (framework.timing.shipped.profile_entry). The same profile is the same bytes.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from framework.cli.files import read_once, user_cache, write_whole
from framework.cli.reading import parsed_json, read_file
from framework.errors import InputError
from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.timing.profile import Setup, StepParts
from framework.timing.shipped.profile_entry import decoded, encoded

_FORMAT = "servelab timing profile 1"
_SUFFIX = ".json.gz"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FREE = ("name", "dtype", "kv_dtype", "max_context", "experts.dtype")  # may differ between a model and its profile
# Sizes that profiles leave out where a model has these: older profiles do not have them.
_LATER = {"linear": None, "sparse": None, "output_gate": False, "local": None}


@dataclass(frozen=True)
class Origin:
    """The origin of a profile's times.

    `device` is the GPU as conf/gpu had it, by which the times are scaled to others. `shape` has the sizes of the model,
    as `shape_of` gives them. `version` is that of the backend, and `versions` are those of each kernel table.
    """

    model: str
    backend: str
    version: str
    versions: Mapping[str, str]
    device: Gpu
    shape: Mapping[str, Any]
    source: str
    licence: str
    citation: str
    command: str
    project: str


@dataclass(frozen=True, eq=False)
class Profile:
    """The measured step times of one model on one GPU and backend, one entry for each setup."""

    origin: Origin
    entries: tuple[StepParts, ...]

    def find(self, setup: Setup) -> StepParts | None:
        """The entry of that setup, None if it was not measured."""
        return next((parts for parts in self.entries if parts.setup == setup), None)

    def require_shape(self, model: Model, path: Path) -> None:
        """Raise InputError if `model` has other sizes than the measured one."""
        shape = shape_of(model)
        for name in dict.fromkeys((*self.origin.shape, *shape)):
            measured = self.origin.shape.get(name)
            if shape.get(name) != measured:
                raise InputError(
                    f"{path} is of a {self.origin.model} with {name} = {measured}, this one has {shape.get(name)}:"
                    " give it another model.name and make its profile with python -m framework.timing.kernels.build"
                )


@dataclass(frozen=True)
class Found:
    """An entry of a profile, and its profile."""

    parts: StepParts
    origin: Origin


def shape_of(model: Model) -> dict[str, Any]:
    """The sizes of a model on which step times depend, by name; each entry of a profile states its data types
    itself.
    """
    flat: dict[str, Any] = {}
    for name, value in asdict(model).items():
        nested = value.items() if isinstance(value, dict) else ()
        flat |= {f"{name}.{inner}": deep for inner, deep in nested} if nested else {name: value}
    sizes = {name: value for name, value in flat.items() if name not in _FREE}
    return {name: value for name, value in sizes.items() if name not in _LATER or value != _LATER[name]}


def profile_path(directory: Path, model: str, gpu: str, backend: str) -> Path:
    """The file of a model's profile in a directory of profiles. Raises InputError for names that no file can have."""
    for what, name in (("model.name", model), ("gpu.name", gpu), ("timing.backend", backend)):
        if not _NAME.fullmatch(name):
            raise InputError(f"{what} = {name!r} cannot name a profile: letters, digits, dots, - and _ only")
    return directory / gpu / backend / f"{model}{_SUFFIX}"


def directories(own: Path | None = None) -> tuple[Path, ...]:
    """The directories to look for profiles in, first to last: the user's own one, the user's cache, those that ship.

    Raises InputError if `own` is no directory.
    """
    if own is not None and not own.is_dir():
        raise InputError(f"timing.profiles = {own}: there is no such directory")
    return (*([own] if own is not None else []), cache_directory(), shipped_directory())


def cache_directory() -> Path:
    """The directory of the profiles that the user made."""
    return user_cache() / "profiles"


def shipped_directory() -> Path:
    """The directory of the profiles that ship with the package."""
    return Path(__file__).resolve().parent.parent / "profiles"


def find(places: Iterable[Path], model: Model, gpu: str, backend: str, setup: Setup) -> Found | None:
    """The first entry of that setup, in the order of `places`; None if there is none.

    Raises InputError for a file that cannot be read, and for one of a model with other sizes.
    """
    for profile, path in _profiles(places, model.name, gpu, backend):
        parts = profile.find(setup)
        if parts is not None:
            profile.require_shape(model, path)
            return Found(parts, profile.origin)
    return None


def setups(places: Iterable[Path], model: str, gpu: str, backend: str) -> tuple[Setup, ...]:
    """All setups of a model that the profiles of one GPU and backend hold."""
    found = {parts.setup: None for profile, _ in _profiles(places, model, gpu, backend) for parts in profile.entries}
    return tuple(found)


def platforms(places: Iterable[Path], model: str) -> tuple[tuple[str, str], ...]:
    """The (GPU, backend) pairs that have a profile of a model, sorted."""
    files = (path for place in places for path in place.glob(f"*/*/{model}{_SUFFIX}"))
    return tuple(sorted({(path.parent.parent.name, path.parent.name) for path in files}))


def has_any(places: Iterable[Path], gpu: str) -> bool:
    """Whether there is a profile of any model on a GPU, by any backend."""
    return bool(_NAME.fullmatch(gpu)) and any(True for place in places for _ in place.glob(f"{gpu}/*/*{_SUFFIX}"))


def write_profile(directory: Path, profile: Profile) -> Path:
    """Write a profile below `directory`, completely or not at all, and return its path.

    Raises InputError if it cannot be written.
    """
    origin = profile.origin
    path = profile_path(directory, origin.model, origin.device.name, origin.backend)
    content = {
        "format": _FORMAT,
        "origin": asdict(origin),
        "entries": [encoded(parts) for parts in profile.entries],
    }
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    write_whole(path, gzip.compress(text.encode(), compresslevel=9, mtime=0))
    return path


@read_once(keep=16)
def read_profile(path: Path) -> Profile:
    """The profile in a file, which a process reads again only if it has changed.

    Raises InputError, naming the file, if it cannot be read or has other content.
    """
    try:
        content = parsed_json(read_file(path, "timing profile"))
        if content["format"] != _FORMAT:
            raise ValueError(f"its format is {content['format']!r}")
        origin = content["origin"]
        return Profile(Origin(**{**origin, "device": Gpu(**origin["device"])}), tuple(map(decoded, content["entries"])))
    except InputError as error:
        raise InputError(f"{error}; {_MEND}" if str(path) in str(error) else _not_one(path, error)) from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise InputError(_not_one(path, error)) from error


def _not_one(path: Path, error: Exception) -> str:
    return f"{path}: not a timing profile, or damaged ({error}); {_MEND}"


_MEND = "remove it, or make it again with python -m framework.timing.kernels.build"


def _profiles(places: Iterable[Path], model: str, gpu: str, backend: str) -> Iterator[tuple[Profile, Path]]:
    for place in places:
        path = profile_path(place, model, gpu, backend)
        if path.is_file():
            yield read_profile(path), path
