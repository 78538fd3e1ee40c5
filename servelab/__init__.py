"""Replay a trace through a scheduling policy on a simulated GPU cluster: `servelab.run("ares", "mooncake").summary`.

The names of this module are loaded when they are first used. The console command is `servelab`, or `python -m
servelab`.
"""

from __future__ import annotations

import os
import sys

_places = sys.path[:]
sys.path[:] = [place for place in _places if place.startswith(os.path.dirname(os.__file__))]
from servelab import rooms  # noqa: E402 (a re.py of the user's hides nothing that this needs itself)

sys.path[:] = _places
rooms.come_first()

from importlib import import_module  # noqa: E402
from typing import Any  # noqa: E402

_ROOMS = {
    "servelab.run_one": ("Run", "run"),
    "servelab.run_many": ("capacity", "sweep"),
    "experiments.judge.score": ("judge",),
    "framework.policy": (
        *("Action", "Aggregated", "Cancel", "Cluster", "Decision", "Disaggregated", "Migrate", "Plan", "Policy"),
        *(
            "Preempt",
            "Request",
            "Requeue",
            "Resume",
            "Retain",
            "Scale",
            "SetDrafts",
            "SetMaxBatch",
            "SetRole",
            "SetTokenBudget",
        ),
        "Span",
        *("View", "decision"),
    ),
    "framework.policy.predictor": ("Predictor",),
    "framework.simulate": ("simulate",),
    "framework.metrics.summary": ("Evaluation", "evaluate"),
    "framework.metrics.slo": ("Slo",),
    "framework.workload": ("Workload",),
    "framework.errors": ("InputError",),
    "framework.version": ("VERSION",),
    "traces.load": ("load_trace",),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}
_OTHER_NAMES = {"load_trace": "load", "__version__": "VERSION"}
__all__ = sorted(_ROOM_OF)  # noqa: PLE0605 (the stub next to this file lists them for type checkers)


def __getattr__(name: str) -> Any:
    room = _ROOM_OF.get("VERSION" if name == "__version__" else name)
    if room is None:
        raise AttributeError(f"module 'servelab' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(room), _OTHER_NAMES.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
