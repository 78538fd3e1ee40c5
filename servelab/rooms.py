"""The packages of this installation come first, for any working directory.

`policies` and `traces` are common names. A package with such a name next to a user's script, or in the working
directory of a notebook, precedes this installation on sys.path. `come_first` lets imports find the installation's own.
A random.py or a numpy.py there would replace a module that this installation needs; that is prevented too.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

ROOMS = ("experiments", "framework", "policies", "predictors", "traces")
NEEDED = (  # packages of pyproject.toml, by the names of their modules
    *("cmaes", "highspy", "hydra", "joblib", "llvmlite", "matplotlib", "numba", "numpy", "omegaconf", "optuna"),
    *("polars", "rich", "scipy", "yaml"),
)
_UNSHADOWED = (sys.stdlib_module_names | {*NEEDED}) - {"test"}  # Many projects call the folder of their own tests so.
_ROOT = Path(__file__).resolve().parents[1]
_REPORTED = "SERVELAB_HIDES"  # what this process or its parent has reported


class _OwnRooms:  # not an importlib.abc.MetaPathFinder: that imports random
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in ROOMS:
            return PathFinder.find_spec(name, [str(_ROOT)])
        return _unshadowed(name) if name in _UNSHADOWED else None


@functools.cache  # reported once
def _unshadowed(name: str) -> ModuleSpec | None:
    """The module that a user's file would replace, reported by a line on stderr; None if no file would."""
    folders = _users_folders()
    shadows = [place for folder in folders for place in _places(folder, name) if place.is_file()]
    if not shadows:
        return None
    others = [entry for entry in sys.path if Path(entry or os.getcwd()).resolve() not in folders]
    found = PathFinder.find_spec(name, others)
    if found is None or found.origin is None:  # a module of the interpreter's own, which nothing hides
        return None
    print(
        f"note: {shadows[0]}: is not imported, for servelab needs the module {name} itself; rename it", file=sys.stderr
    )
    return found


def _users_folders() -> list[Path]:
    """The working directory and that of the script, if Python looks for modules there by default."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    folders = {Path.cwd(), *(() if script is None else (Path(script).resolve().parent,))}
    return [folder for folder in folders if folder not in (_ROOT, Path(os.__file__).parent)]


def _places(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.py", folder / name / "__init__.py"


def come_first() -> None:
    """Let imports find ROOMS where this package is from now on; report once, in a line on stderr, which modules that
    hides.
    """
    if any(type(finder).__qualname__ == _OwnRooms.__qualname__ for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _OwnRooms())
    hidden = sorted({*_forgotten(), *_on_the_path()})
    names = os.pathsep.join(hidden)
    if hidden and os.environ.get(_REPORTED) != names:
        os.environ[_REPORTED] = names
        line = f"{', '.join(hidden)}: cannot be imported with servelab, which has a package of that name; rename it"
        print(f"note: {line}", file=sys.stderr)


def _forgotten() -> Iterator[str]:
    """Forget modules of these names that were imported before; imports then find the installation's."""
    for room in ROOMS:
        module = sys.modules.get(room)
        places = [module.__file__] if module and module.__file__ else list(getattr(module, "__path__", ()))
        if module is None or any(Path(place).resolve().is_relative_to(_ROOT / room) for place in places):
            continue
        for name in [name for name in sys.modules if name == room or name.startswith(f"{room}.")]:
            del sys.modules[name]
        place = Path(places[0] if places else room)
        yield str(place.parent if place.name == "__init__.py" else place)


def _on_the_path() -> Iterator[str]:
    """The files and folders of these names that Python would find before this installation."""
    for entry in sys.path:
        folder = Path(entry or os.getcwd())
        if folder.resolve() == _ROOT:
            return
        if folder.resolve().is_relative_to(_ROOT):  # a checkout's own: tests/
            continue
        for place in (folder / end for room in ROOMS for end in (room, f"{room}.py")):
            if place.is_file() if place.suffix else any(place.glob("*.py")):
                yield str(place)
