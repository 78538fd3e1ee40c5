"""Environment variables with which libraries fail, or fill the screen, on import."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import MutableMapping

_COUNT, _FLAG = re.compile(r"0*[1-9]\d{0,3}"), re.compile(r"[01]")
_READ = {
    "NUMBA_NUM_THREADS": _COUNT,
    "POLARS_MAX_THREADS": _COUNT,
    "NUMBA_OPT": re.compile(r"[0-3]|max"),
    "NUMBA_DEBUG": _FLAG,
    "NUMBA_DISABLE_JIT": _FLAG,
}


def leave_out_unreadable(environment: MutableMapping[str, str]) -> None:
    """Remove from `environment` what no library could read, with a line on stderr for each."""
    for name, form in _READ.items():
        text = environment.get(name)
        if text is not None and not form.fullmatch(text):
            del environment[name]
            print(f"warning: ${name} cannot be {text[:40]!a}; it is taken as not set", file=sys.stderr)
    # numba reports wrong values of other variables with a traceback; it also takes them as not set.
    warnings.filterwarnings("ignore", "Environment variable 'NUMBA_", RuntimeWarning)
