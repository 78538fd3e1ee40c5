"""Compositions kept in memory and on disk, each until something that it was composed of changes."""

from __future__ import annotations

import functools
import os
import pickle
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hydra import __version__ as hydra_version
from hydra.core.object_type import ObjectType
from omegaconf import __version__ as omegaconf_version

from framework.compiler.user_cache import kept_file, read_back, write_back

_IN_MEMORY, _ON_DISK = 64, 1024  # each about 30 KB


class Lookup(NamedTuple):
    """A file or a folder that a composition looked up, by its path in config groups: ("policy/ares", CONFIG)."""

    path: str
    kind: ObjectType


@dataclass(frozen=True)
class Composition:
    """A pickled configuration, what was looked up for it in each folder, and what was found."""

    config: bytes
    lookups: tuple[Lookup, ...]
    found: tuple[tuple[int, int] | None, ...]

    def holds(self, folders: Sequence[str]) -> bool:
        """Whether everything that it depends on is unchanged."""
        return self.found == found_in(folders, self.lookups)


def found_in(folders: Sequence[str], lookups: Iterable[Lookup]) -> tuple[tuple[int, int] | None, ...]:
    """Age and size of the file that each lookup finds in each folder, None without one."""
    return tuple(_state(os.path.join(folder, lookup.path), lookup.kind) for lookup in lookups for folder in folders)


def kept_or_composed(
    depends_on: tuple[object, ...], folders: Sequence[str], compose: Callable[[], Composition]
) -> bytes:
    """The configuration that `depends_on` and the files in `folders` determine, pickled."""
    slot = _slot(depends_on)
    if slot and slot[0].holds(folders):
        return slot[0].config
    file = kept_file("compositions", repr((depends_on, hydra_version, omegaconf_version)), _ON_DISK)
    composition = _read(file)
    if composition is None or not composition.holds(folders):
        composition = compose()
        if file is not None and not any(_asks_the_environment(folders, one) for one in composition.lookups):
            with suppress(OSError):
                file.unlink(missing_ok=True)
            write_back(file, pickle.dumps(composition))
    slot[:] = [composition]
    return bytes(composition.config)


def _read(file: Path | None) -> Composition | None:
    """The kept composition; None if other code kept it, whose classes differ, or if it is damaged."""
    kept = read_back(file)
    if kept is None:
        return None
    try:
        composition = pickle.loads(kept)
        pickle.loads(composition.config)
    except Exception:  # pickle may raise any exception, depending on the bytes
        return None
    return composition if isinstance(composition, Composition) else None


@functools.lru_cache(_IN_MEMORY)
def _slot(depends_on: tuple[object, ...]) -> list[Composition]:
    """A place in memory for what depends on that."""
    return []


def _state(path: str, kind: ObjectType) -> tuple[int, int] | None:
    if kind == ObjectType.GROUP:
        return (0, 0) if os.path.isdir(path) else None
    return stamp(_with_ending(path))


def stamp(file: str | Path) -> tuple[int, int] | None:
    """Age and size of a file, None if there is none."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _with_ending(path: str) -> str:
    return path if path.endswith((".yaml", ".yml")) else f"{path}.yaml"


def _asks_the_environment(folders: Sequence[str], lookup: Lookup) -> bool:
    """Whether the file's content may depend on environment variables."""
    if lookup.kind == ObjectType.GROUP:
        return False
    files = [Path(folder, _with_ending(lookup.path)) for folder in folders]
    with suppress(OSError):
        return any(b"oc.env" in file.read_bytes() for file in files if file.is_file())
    return True
