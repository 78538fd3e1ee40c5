"""Runs tests in a process of its own: `python -m tests.mutants.alone ASKED RESULT TEMPORARY`.

ASKED has a module's file and the tests as JSON. The module is imported first, and its compiled functions are plain
Python. The first test that fails is written to RESULT.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

from tests.mutants.operators import module_name
from tests.mutants.seeding import run_as_python
from tests.mutants.trial import first_failure

if __name__ == "__main__":
    asked, result, temporary = map(Path, sys.argv[1:])
    file, tests = json.loads(asked.read_text())
    import_module(module_name(Path(file)))
    run_as_python(Path(file))
    result.write_text(first_failure(tests, temporary, {}))
