"""Renew the golden hashes, or compare two checkouts: `python -m tests.golden [--against DIR] [--only WORD]`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.conftest import ROOT
from tests.golden.configurations import EXACT, SAME_MACHINE, Golden
from tests.golden.fingerprint import columns, exact, moved
from tests.golden.runs import HASHES, hashes_of, known_hashes, refusals, start, unreached


def renew() -> int:
    """Run EXACT, tell what moved, write the hashes; 1 and nothing written if a run missed what it is there for."""
    known, renewed, missed = known_hashes(), {}, 0
    with tempfile.TemporaryDirectory() as folder:
        for name, golden in EXACT.items():
            renewed[name] = hashes_of(golden, Path(folder) / name)
            if names := moved(known.get(name, {}), renewed[name]):
                print(f"{name}: {', '.join(names) if name in known else 'new'}", flush=True)
        for name, golden in EXACT.items():
            if missing := unreached(golden, Path(folder) / name, renewed):
                missed += 1
                print(f"{name} does not reach: {'; '.join(missing)}", file=sys.stderr)
    gone = sorted(known.keys() - renewed.keys())
    if missed:
        return 1
    for name in gone:
        print(f"{name}: gone")
    changed = sum(known.get(name) != hashes for name, hashes in renewed.items()) + len(gone)
    lines = [f"{json.dumps(name)}: {json.dumps(hashes)}" for name, hashes in renewed.items()]
    HASHES.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(renewed)} configurations, {changed} changed")
    return 0


def compare(checkout: Path, runs: Mapping[str, Golden]) -> int:
    """Run all of `runs` there and here, tell what differs; 1 if anything does."""
    with tempfile.TemporaryDirectory() as folder:
        there, here = Path(folder) / "there", Path(folder) / "here"
        processes = start(checkout, runs, there), start(ROOT, runs, here)
        refused, refused_here = (refusals(process, runs) for process in processes)
        fingerprints = {name: columns(here / name) for name in runs if name not in refused_here}
        wrong, compared = [], 0
        for name, golden in runs.items():
            if name in refused_here:
                wrong.append(f"{name}: {refused_here[name]}")
                continue
            if golden.unlike in (*fingerprints, ""):
                missing = unreached(golden, here / name, fingerprints)
                wrong += [f"{name} does not reach: {'; '.join(missing)}"] if missing else []
            if name in refused:
                print(f"{name}: not run there ({refused[name]})")
                continue
            compared += 1
            names = moved(exact(there / name), exact(here / name))
            new = [one for one in names if one.startswith("+")]
            if new:
                print(f"{name}: only here: {', '.join(new)}")
            if len(names) > len(new):
                wrong.append(f"{name}: {', '.join(one for one in names if one not in new)}")
    if not compared:
        wrong.append("nothing was compared")
    print("\n".join(wrong) or f"{compared} of {len(runs)} configurations compared, all equal")
    return 1 if wrong else 0


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout, of an older commit say")
    parser.add_argument("--only", default="", metavar="WORD", help="with --against: configurations whose name has it")
    options = parser.parse_args()
    if options.against is None:
        return renew()
    if not (options.against / "run.py").is_file():
        print(f"error: {options.against}: there is no run.py; name a checkout of this project", file=sys.stderr)
        return 2
    runs = {name: golden for name, golden in (EXACT | SAME_MACHINE).items() if options.only in name}
    return compare(options.against, runs)


if __name__ == "__main__":
    sys.exit(main())
