"""Runs tests in a process of its own: `python -m tests.mutants.alone ASKED TOLD TEMPORARY`.

ASKED has the tests and their seconds as JSON; the first that fails is written to TOLD.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.mutants.trial import first_failure

if __name__ == "__main__":
    asked, told, temporary = map(Path, sys.argv[1:])
    tests, seconds = json.loads(asked.read_text())
    told.write_text(first_failure(tests, temporary, seconds))
