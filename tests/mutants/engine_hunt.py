"""Do the differential tests see bugs of the engine? `python -m tests.mutants [--examples N] [--drawn N] [--only WORD]`.

Each mutant of `seeds.py`, and so many `--drawn` of those that the operators of `operators.py` make, is seeded into a
copy of the engine, which runs as plain Python against the reference over N scenarios of each family until they
differ, or over a tenth of them where it is argued to change nothing. Prints a line for each; the exit code is 1 if one
lives that should not.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree, ignore_patterns

from rich.console import Console

from tests.conftest import ROOT
from tests.helpers.families import FAMILIES
from tests.mutants.hunt import SURVIVED, save_runs
from tests.mutants.listed import argued
from tests.mutants.operators import Site, mutated
from tests.mutants.rooms import Room, drawn_sites, key_of
from tests.mutants.seeds import ENGINE, MUTANTS, Mutant

SEEN_BEFORE = Path(__file__).with_name("seen_before.json")
_LONGEST_S = 3600.0
_ARGUED_SHARE = 0.1  # of the runs, for a mutant that is argued to change nothing: it takes all that it is given
_RUN = re.compile(r"\((\w+ \d+)\)")


@dataclass(frozen=True)
class Drawn:
    """A bug that an operator makes at `site` in `file` of the engine."""

    name: str
    file: str
    site: Site
    equivalent: str

    def text(self) -> str:
        """The file with the bug."""
        return mutated((ROOT / ENGINE / self.file).read_text(), self.site).text


def drawn_mutants(count: int, seed: int) -> list[Drawn]:
    """So many of the engine, over its modules in proportion to their statements."""
    files = (file.relative_to(ROOT) for file in (ROOT / ENGINE).rglob("*.py"))
    drawn = drawn_sites(Room("engine", tuple(map(str, sorted(files))), ()), count, seed) if count else []
    reasons = argued()
    keys = [(key_of(file, site), str(file.relative_to(ENGINE)), site) for file, site in drawn]
    return [Drawn(key, file, site, reasons.get(key, "")) for key, file, site in keys]


def fate(mutant: Mutant | Drawn, runs: Path, first: str = "", most: int = sys.maxsize) -> str:
    """What became of a mutant: when it was seen and by what, or `survived`.

    `runs`: a file of `save_runs`, of which `first` is the one to begin with, and the first `most` are tried.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        _copy_project(root)
        (root / ENGINE / mutant.file).write_text(mutant.text())
        command = [sys.executable, "-m", "tests.mutants.hunt", str(runs), str(most), first]
        environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            ended = subprocess.run(
                command, cwd=root, env=environment, capture_output=True, text=True, timeout=_LONGEST_S, check=False
            )
        except subprocess.TimeoutExpired:
            return f"no end within {_LONGEST_S} s"
    if ended.returncode:
        return f"breaks: {ended.stderr.strip().splitlines()[-1][:150]}"
    return ended.stdout.strip().splitlines()[-1]


def _copy_project(root: Path) -> None:
    """All of the project as links, but the engine, of which there is a copy."""
    for source in (ROOT, ROOT / ENGINE.parent):
        target = root / source.relative_to(ROOT)
        target.mkdir(exist_ok=True)
        for entry in source.iterdir():
            if entry not in (ROOT / ENGINE.parent, ROOT / ENGINE) and not entry.name.startswith("."):
                (target / entry.name).symlink_to(entry)
    copytree(ROOT / ENGINE, root / ENGINE, ignore=ignore_patterns("__pycache__"))


def hunted(mutants: Sequence[Mutant | Drawn], examples: int, jobs: int) -> int:
    """Hunt each and tell of it; how many live that should not."""
    console, living = Console(soft_wrap=True), 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        runs = Path(folder, "runs")
        save_runs(runs, examples)
        before = seen_before()
        shares = {one.name: _ARGUED_SHARE if one.equivalent else 1.0 for one in mutants}
        most = {name: math.ceil(share * examples) * len(FAMILIES) for name, share in shares.items()}
        fates = pool.map(lambda one: fate(one, runs, before.get(one.name, ""), most[one.name]), mutants)
        for mutant, found in zip(mutants, fates, strict=True):
            if run := _RUN.search(found):
                before[mutant.name] = run[1]
                _keep(before)
            lives = found == SURVIVED
            living += lives and not mutant.equivalent
            mark, text = ("LIVES", found) if lives else ("seen ", found)
            if lives and mutant.equivalent:
                mark, text = "same ", mutant.equivalent
            console.print(f"{mark}  {mutant.name}: {text}", markup=False)
    return living


def seen_before() -> dict[str, str]:
    """By mutant, the run by which the last hunt saw it: where the next one begins."""
    seen: dict[str, str] = json.loads(SEEN_BEFORE.read_text())
    return seen


def _keep(seen: dict[str, str]) -> None:
    known = {mutant.name: seen[mutant.name] for mutant in MUTANTS if mutant.name in seen}
    SEEN_BEFORE.write_text(json.dumps(known, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--examples", type=int, default=80, help="scenarios of each family (default 80)")
    parser.add_argument("--drawn", type=int, default=0, metavar="N", help="as many more that operators make")
    parser.add_argument("--seed", type=int, default=0, help="of those that are drawn")
    parser.add_argument("--only", default="", metavar="WORD", help="mutants whose name or file has it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at a time (default: one for each core)")
    chosen = parser.parse_args(arguments)
    known: list[Mutant | Drawn] = [*MUTANTS, *drawn_mutants(chosen.drawn, chosen.seed)]
    mutants = [mutant for mutant in known if chosen.only in mutant.name or chosen.only in mutant.file]
    start_s = time.monotonic()
    living = hunted(mutants, chosen.examples, chosen.jobs)
    print(f"{len(mutants)} mutants, {living} live; {(time.monotonic() - start_s) / 60:.1f} minutes")
    return 1 if living else 0


if __name__ == "__main__":
    sys.exit(main())
