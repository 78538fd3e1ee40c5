"""The identity of a run: its settings, the code that runs them, its step times and its requests."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from hydra.utils import get_object

from framework.compiler.sources import import_closure
from framework.objective.experiment import Experiment
from framework.policy.laying_out import lay_out
from framework.workload import Workload

_ROOT = Path(__file__).resolve().parents[2]
_DIGITS = 32
CODE_DIGITS = 8  # digits of a code hash
_LIBRARIES = ("numpy", "numba", "polars", "scipy")  # libraries whose other releases may round differently


def run_key(settings: Mapping[str, Any], experiment: Experiment) -> str:
    """The key of a run: equal for runs that must give the same bytes, 32 hex digits.

    It covers the flat `settings`, the sources of every class that they name with all imports of these, the step times
    of each pool and the requests. The first digits are those of the sources alone (`is_of_this_code`).
    """
    code = code_hash(_targets(settings))
    pools = lay_out(experiment.policy, experiment.cluster).pools
    rows = [experiment.timing.row(experiment.model, pool.gpu, pool.parallelism) for pool in pools]
    parts = (
        json.dumps(settings, sort_keys=True, default=str),
        code,
        f"{experiment.timing.source} {rows!r}",
        workload_hash(experiment.workload),
    )
    return code[:CODE_DIGITS] + _digest(part.encode() for part in parts)[CODE_DIGITS:]


def is_of_this_code(key: str, settings: Mapping[str, Any]) -> bool:
    """Whether a run of these flat settings could have that key today. Raises ImportError if one of its classes
    no longer exists.
    """
    return key[:CODE_DIGITS] == code_hash(_targets(settings))[:CODE_DIGITS]


@functools.cache  # a process keeps the code that it has imported
def code_hash(targets: frozenset[str]) -> str:
    """Hash of libraries, and of the sources of objects given by dotted name with their imports in this project.

    Files are distinguished by their place within the project, so every checkout has the same hash.
    """
    files = {Path(__file__).with_name("job.py")}
    for target in targets:
        source = inspect.getsourcefile(inspect.unwrap(get_object(target)))
        if source is not None:
            files.add(Path(source).resolve())
    closure = {source for file in files for source in import_closure(file, _ROOT)}
    contents = (part for source in sorted(closure) for part in (_place(source).encode(), source.read_bytes()))
    releases = (f"{library} {version(library)}".encode() for library in _LIBRARIES)
    return _digest((*contents, *releases))


def workload_hash(workload: Workload) -> str:
    """Hash of the requests, independent of their file or distribution."""
    parts = []
    for field in fields(workload):
        if field.name in ("name", "source", "sha256", "notes", "caveat"):
            continue
        value = getattr(workload, field.name)
        content = value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
        parts += [field.name.encode(), content]
    return _digest(parts)


def _targets(settings: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(str(value) for name, value in settings.items() if name.split(".")[-1] == "_target_")


def _place(source: Path) -> str:
    return source.relative_to(_ROOT).as_posix() if source.is_relative_to(_ROOT) else source.name


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}\0".encode())
        digest.update(part)
    return digest.hexdigest()[:_DIGITS]
