"""The tail of requests that are all sent at once, as roll-outs are: how long the last of them take."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from framework.result import FINISHED, Result

_BEFORE = 0.9  # share of the requests before the tail, as in Seer (arXiv 2511.14617, section 2)


def tail_figures(result: Result) -> dict[str, Any]:
    """`tail_s`: seconds after 90 % of the completed requests had ended until the last of them did.

    None without a completed request; no key unless a run sends all of its several requests at one time. Their makespan
    is `duration`.
    """
    sent_s = result.requests["arrival_s"]
    if len(sent_s) < 2 or np.isnan(sent_s).any() or sent_s.min() < sent_s.max():
        return {}
    end_s = np.sort(result.requests["end_s"][result.requests["state"] == FINISHED])
    return {"tail_s": float(end_s[-1] - end_s[math.ceil(_BEFORE * len(end_s)) - 1]) if len(end_s) else None}
