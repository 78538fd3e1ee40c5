"""The list of bugs that are argued to change nothing: `equivalent.txt`."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import ROOT
from tests.mutants.operators import sites
from tests.mutants.rooms import key_of

EQUIVALENT = Path(__file__).with_name("equivalent.txt")


def argued() -> dict[str, str]:
    """By key, why a bug changes nothing. A line of the file is `key: reason`; `#` begins a comment."""
    lines = (line.strip() for line in EQUIVALENT.read_text().splitlines())
    pairs = (line.partition(": ") for line in lines if line and not line.startswith("#"))
    return {key: reason for key, _, reason in pairs}


def no_longer_there() -> list[str]:
    """Keys of the list that no module has a site for."""
    keys = argued()
    modules = {" ".join(key.split(" ")[:-2]) for key in keys}
    files = [ROOT / file for module in modules if (file := _file_of(module)) is not None]
    there = {key_of(file.relative_to(ROOT), site) for file in files for site in sites(file.read_text())}
    return [key for key in keys if key not in there]


def _file_of(name: str) -> Path | None:
    """The module that a dotted name of a function or of a module begins with."""
    parts = name.split(".")
    files = (Path(*parts[:count]).with_suffix(".py") for count in range(len(parts), 0, -1))
    return next((file for file in files if (ROOT / file).is_file()), None)
