"""Rules about the ends of requests."""

from __future__ import annotations

from typing import Any

import numpy as np

from framework.result import STATES, Result
from servelab.testing.recording import named


def require_ends_in_place(result: Result, *, changes_roles: bool) -> None:
    """Raise unless some requests finish, others state why they did not, and the roles of instances are kept."""
    rows = result.requests
    finished = rows[rows["state"] == STATES.index("finished")]
    assert len(finished), f"nothing was served at all: {_ends(result, np.arange(len(rows)))}"
    if changes_roles:
        return  # the engine ensures it
    roles = np.array([result.cluster.pools[pool].role for pool in result.cluster.pool_of_instance])
    assert "decode" not in roles[finished["prefill_instance"]], "a decode instance has prefilled"
    decoded_at = finished["decode_instance"][finished["decode_instance"] >= 0]
    assert "prefill" not in roles[decoded_at], "a prefill instance has decoded"


def require_finished_or_rejected(result: Result) -> None:
    """Raise if a request has failed, or was rejected by the engine for its size."""
    rows = result.requests
    ended = np.isin(rows["state"], [STATES.index("finished"), STATES.index("rejected")])
    by_the_engine = np.isin(np.array(result.reasons)[rows["reason"]], ("context", "kv"))
    left = np.flatnonzero(~ended | by_the_engine)
    assert len(left) == 0, f"each request fits, yet {len(left)} of {len(rows)} were not served: {_ends(result, left)}"


def _ends(result: Result, ids: np.ndarray[Any, Any]) -> str:
    """How requests have ended, and why: `failed (stalled): requests 3, 7`."""
    rows = result.requests[ids]
    found = []
    for state, reason in sorted({(int(row["state"]), int(row["reason"])) for row in rows}):
        which = ids[(rows["state"] == state) & (rows["reason"] == reason)]
        found.append(f"{STATES[state]} ({result.reasons[reason]}): {named(which)}")
    return "; ".join(found)
