"""Do the quick tests see bugs in numbers? `make mutants ARGS="--of numbers"`.

Tries the named bugs of `named.py` and a sample of what the operators of `operators.py` make, over the rooms of
`rooms.py`, each with the quick tests of its room. Prints a line for each that lives, and what was seen by room. What
was tried is kept in outputs/mutants, so that a run that was ended goes on where it was; a bug is tried again once its
module or the tests that judged it have changed. `equivalent.txt` argues of bugs that change nothing why; the exit code
is 1 if one lives of which nobody does, if one dies of which somebody does, or if less than 95 % of the sample die.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from tests.conftest import ROOT
from tests.mutants.listed import argued, no_longer_there
from tests.mutants.operators import sites
from tests.mutants.rooms import ROOMS, Bug, Room, bug_at, drawn_bugs, drawn_keys, key_of, named_bugs, quotas
from tests.mutants.trial import LIVES, Trials

KEPT = ROOT / "outputs" / "mutants" / "numbers.json"
SAMPLE, SEED, ENOUGH = 300, 0, 0.95


@dataclass
class Fates:
    """What became of bugs, as it is kept in a file: by key the fate, and the hashes of the code and tests it is of."""

    file: Path
    known: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> Fates:
        """Those that a file has, none if it is not there."""
        return cls(file, json.loads(file.read_text()) if file.exists() else {})

    def of(self, bug: Bug, room: Room) -> str | None:
        """The fate of a bug if neither its module nor what judged it has changed."""
        fate, code, tests = self.known.get(bug.key, ["", "", ""])
        return fate if (code, tests) == (_hash([bug.text]), _judges(fate, room)) else None

    def first(self) -> dict[str, str]:
        """By bug the test that saw it last."""
        return {key: fate for key, (fate, *_) in self.known.items() if "::" in fate}

    def keep(self, bug: Bug, room: Room, fate: str) -> None:
        """Note a fate, and write the file."""
        self.known[bug.key] = [fate, _hash([bug.text]), _judges(fate, room)]
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self.known, indent=0, sort_keys=True) + "\n")


def _hash(texts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def _judges(fate: str, room: Room) -> str:
    """The hash of the tests that a fate is due to: the file of the one that failed, or all of the room."""
    file = ROOT / fate.partition("::")[0]
    if "::" in fate and file.exists():
        return _hash([file.read_text()])
    paths = (ROOT / test for test in room.tests)
    files = (file for path in paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path]))
    return _hash(file.read_text() for file in files)


def bugs_of(room: Room, sample: int, seed: int) -> list[Bug]:
    """The named ones, the drawn ones, and those that are argued to change nothing."""
    chosen = [*named_bugs(room), *drawn_bugs(room, sample, seed)]
    keys = {bug.key for bug in chosen}
    return chosen + [bug for bug in _listed(room) if bug.key not in keys]


def _listed(room: Room) -> list[Bug]:
    listed, found = argued(), []
    for file in room.modules:
        text = (ROOT / file).read_text()
        found += [bug_at(file, site) for site in sites(text) if key_of(file, site) in listed]
    return found


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants --of numbers", description=__doc__)
    parser.add_argument("--sample", type=int, default=SAMPLE, help=f"how many to draw (default {SAMPLE})")
    parser.add_argument("--seed", type=int, default=SEED, help=f"of the sample (default {SEED})")
    parser.add_argument("--only", default="", metavar="WORD", help="the room of that name, or bugs whose key has it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at a time (default: one for each core)")
    parser.add_argument("--anew", action="store_true", help="try those again whose fate is known")
    chosen = parser.parse_args(arguments)
    console, start_s = Console(soft_wrap=True, highlight=False, file=os.fdopen(os.dup(1), "w")), time.monotonic()
    fates, reasons, shares = Fates.read(KEPT), argued(), quotas(ROOMS, chosen.sample)
    tallies, wrong = [], [f"no longer there: {key}" for key in no_longer_there()]
    named = [room for room in ROOMS if room.name == chosen.only]
    for room in named or ROOMS:
        bugs = bugs_of(room, shares[room.name], chosen.seed)
        if not named:
            bugs = [bug for bug in bugs if chosen.only in bug.key]
        if bugs:
            found = _tried(room, bugs, fates, chosen.jobs, chosen.anew, console)
            drawn = drawn_keys(room, shares[room.name], chosen.seed) & {bug.key for bug in bugs}
            lives = {key for key in drawn if found.get(key, LIVES) == LIVES}
            tallies.append((room.name, len(drawn), len(lives), len(lives & reasons.keys())))
            wrong += _wrong(bugs, found, reasons)
    return _told(tallies, wrong, time.monotonic() - start_s, console)


def _tried(room: Room, bugs: Sequence[Bug], fates: Fates, jobs: int, anew: bool, console: Console) -> dict[str, str]:
    """The fate of each."""
    found = {} if anew else {bug.key: fate for bug in bugs if (fate := fates.of(bug, room)) is not None}
    left = [bug for bug in bugs if bug.key not in found]
    console.print(f"{room.name}: {len(bugs)} bugs, {len(left)} of them to try", markup=False)

    def reported(bug: Bug, fate: str) -> None:
        found[bug.key] = fate
        fates.keep(bug, room, fate)
        mark = "LIVES" if fate == LIVES else "dies "
        console.print(f"{mark} {bug.key}: {bug.change[:150]}  [{fate[:100]}]", markup=False)
        console.file.flush()

    if left:
        Trials(room, fates.first(), jobs, reported).of(left)
    return found


def _wrong(bugs: Sequence[Bug], found: dict[str, str], reasons: dict[str, str]) -> list[str]:
    """What the list of equivalents lacks, and what it has in error."""
    lives = {key for key, fate in found.items() if fate == LIVES}
    unargued = [f"lives: {bug.key}: {bug.change}" for bug in bugs if bug.key in lives and bug.key not in reasons]
    dead = [key for key in found if key in reasons and key not in lives]
    return unargued + [f"is said to change nothing, and dies: {key} ({found[key]})" for key in dead]


def _told(tallies: Sequence[tuple[str, int, int, int]], wrong: Sequence[str], seconds: float, console: Console) -> int:
    """Shares are of the sample alone: named bugs are to die, and those of the list to live."""
    for line in wrong:
        console.print(line, markup=False)
    total, living, argued_ = (sum(column) for column in list(zip(*tallies, strict=True))[1:])
    for name, count, live, known in (*tallies, ("all", total, living, argued_)):
        share = f"{(count - live) / count:6.1%}" if count else "     -"
        console.print(f"{name:<12}{count:5d} drawn, {live:3d} live, {known:2d} of these argued, {share} die")
    console.print(f"{seconds / 60:.1f} minutes")
    console.file.flush()
    return int(bool(wrong) or total - living < ENOUGH * total)
