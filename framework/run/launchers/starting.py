"""The start of workers on this machine: as copies of one process that has imported what their jobs need.

Importing takes each process more than a second. On systems without such copies each worker imports by itself.
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
    "servelab",  # first: from then on no package of the user's precedes those of this installation
    *("framework.run.launchers.jobs", "framework.run.job", "framework.report.run_table", "scipy.optimize"),
)
_GRACE_S = 2.0  # seconds left for the present job after the launching process has died


def how_to_start() -> dict[str, Any]:
    """Arguments of loky's executor. The process to copy is running when this returns, and ends after its last
    worker.
    """
    known: dict[str, Any] = {"initializer": _begin, "initargs": (dict(os.environ) | SINGLE_THREADED,)}
    if not _copies():
        return known | {"env": SINGLE_THREADED}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_IMPORTED))
    outer = dict(os.environ)
    # Libraries read the first ones when they are loaded; the last one keeps the working directory from coming first.
    os.environ.update(SINGLE_THREADED, PYTHONPATH=module_path(), PYTHONSAFEPATH="1")
    try:
        forkserver.ensure_running()
    finally:
        _become(outer)
    return known | {"context": context}


def _copies() -> bool:
    return "forkserver" in multiprocessing.get_all_start_methods()


def _begin(environment: Mapping[str, str]) -> None:
    """Prepare a worker: restore the environment of the launch, ignore interrupts, and end with the launching
    process.
    """
    _become(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launching process receives it too, and ends this one
    if _copies():
        threading.Thread(target=_end_with_parent, daemon=True).start()


def _become(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def _end_with_parent() -> None:
    """End this worker soon after the launching process, which may not be able to end it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        time.sleep(_GRACE_S)
        os._exit(1)
