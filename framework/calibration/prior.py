"""The terms of a calibration, and what is known of each before a server was measured.

Kernels run nearly as they were measured alone; communication is half as certain. framework.timing.server explains the
server's terms: the named server gives their centres, and the widths allow for one that is three times as slow. If the
host works between steps, its time cannot be separated from other time of a step, so `step_s` stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from framework.calibration.optimise import Term
from framework.timing.calibration_terms import SERVER_TERMS, Calibration
from framework.timing.server import Server

_FACTORS = (
    Term("kernel", 1.0, width=0.15, lowest=0.3, highest=3.0, factor=True),
    Term("compute", 1.0, width=0.15, lowest=0.5, highest=2.0, factor=True),
    Term("communication", 1.0, width=0.3, lowest=0.2, highest=5.0, factor=True),
)
_WIDTHS = {  # terms, and the largest value of each, in seconds
    "step_s": (1e-3, 0.05),
    "message_s": (4e-6, 1e-4),
    "host_s": (2e-3, 0.05),
    "host_sequence_s": (1e-5, 1e-3),
    "eager_layer_s": (1e-4, 1e-3),
    "request_s": (0.05, 10.0),
    "token_s": (5e-6, 1e-3),
}


def prior(server: Server) -> tuple[Term, ...]:
    """The terms to fit to a server that is assumed to be like this one."""
    terms = [name for name in SERVER_TERMS if server.asynchronous or name != "step_s"]
    return (*_FACTORS, *(_term(name, getattr(server, name)) for name in terms))


def calibration_of(values: Mapping[str, float], server: Server) -> Calibration:
    """The calibration with these terms, by name; the server's other terms stay as they are."""
    return Calibration(**({name: getattr(server, name) for name in SERVER_TERMS} | dict(values)))


def _term(name: str, centre: float) -> Term:
    width, highest = _WIDTHS[name]
    return Term(name, centre, width, lowest=0.0, highest=max(highest, 2 * centre))
