"""Runs `run.py` of another checkout again and again: `python worker.py CHECKOUT`, overrides of each run on stdin.

The modules of the two checkouts may have other names, so run.py is all that this knows of one. Most of what a short run
costs is its start; therefore each run is a copy of a process that has imported whatever the first run did, and that has
run nothing itself, because threads do not survive in a copy. Reads a JSON list of lists of overrides, prints a JSON
list of [exit code, stderr].
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path


def main(checkout: str) -> None:
    """Answer stdin. The standard library alone is imported before the first run."""
    sys.path[0] = checkout
    script, runs = str(Path(checkout) / "run.py"), json.load(sys.stdin)
    answers = []
    with tempfile.TemporaryDirectory() as folder:
        errors, names, prepared = Path(folder) / "stderr", Path(folder) / "names", False
        for overrides in runs:
            code = _in_a_copy(partial(_run, script, overrides, names), errors)
            answers.append((code, errors.read_text()))
            if names.exists() and not prepared:
                _import_all(json.loads(names.read_text()))
                prepared = True
    print(json.dumps(answers))


def _run(script: str, overrides: list[str], names: Path) -> None:
    sys.argv = [script, *overrides]
    runpy.run_path(script, run_name="__main__")
    if not names.exists():
        names.write_text(json.dumps(sorted(sys.modules)))


def _import_all(names: list[str]) -> None:
    for name in names:
        if name != "__main__":
            with suppress(Exception):  # some are made while others are imported
                importlib.import_module(name)
    gc.freeze()


def _in_a_copy(task: Callable[[], None], errors: Path) -> int:
    """The exit code of a copy of this process that does `task`; its stderr goes to a file, its stdout nowhere."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    try:
        task()
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1])
