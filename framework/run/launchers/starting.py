"""How workers of this machine start: as copies of one process that has imported what their jobs need.

A process that imports for itself takes more than a second for it. Where the system knows no such copies each does.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Mapping
from multiprocessing import forkserver
from typing import Any

from framework.run.launchers.jobs import SINGLE_THREADED, module_path

_IMPORTED = (
    "servelab",  # first: from then on no package of the user's stands before those of this installation
    *("framework.run.launchers.jobs", "framework.run.job", "framework.report.run_table", "scipy.optimize"),
)
_GRACE_S = 2.0  # seconds for the job at hand when the process that gives out the jobs is gone


def how_to_start() -> dict[str, Any]:
    """Arguments of loky's executor. The process to copy runs when this returns, and ends after its last worker."""
    known: dict[str, Any] = {"initializer": _begin, "initargs": (dict(os.environ) | SINGLE_THREADED,)}
    if not _copies():
        return known | {"env": SINGLE_THREADED}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_IMPORTED))
    outer = dict(os.environ)
    # Libraries read the former as they are loaded; the last keeps the working directory from standing first.
    os.environ.update(SINGLE_THREADED, PYTHONPATH=module_path(), PYTHONSAFEPATH="1")
    try:
        forkserver.ensure_running()
    finally:
        _become(outer)
    return known | {"context": context}


def _copies() -> bool:
    return "forkserver" in multiprocessing.get_all_start_methods()


def _begin(environment: Mapping[str, str]) -> None:
    """Prepare a worker: as its environment was when the jobs were given out, deaf to interrupts, and mortal."""
    _become(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that gives out the jobs hears it too, and ends this one
    if _copies():
        threading.Thread(target=_end_with_parent, daemon=True).start()


def _become(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def _end_with_parent() -> None:
    """End this worker soon after the process that gives out the jobs, which may have had no chance to end it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        time.sleep(_GRACE_S)
        os._exit(1)
