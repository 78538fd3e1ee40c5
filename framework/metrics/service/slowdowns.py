"""When instances were slowed down, for which share of their time, and when their networks failed."""

from __future__ import annotations

from typing import Any

import numpy as np

from framework.metrics.clock import Clock
from framework.result import Result


def slowdown_figures(result: Result, clock: Clock) -> dict[str, Any]:
    """The figures of a run in which instances are slow for a while, by the summary's names; none if no instance is.

    `slowed_share`: share of the time of all instances, from the first request to the last answer, in which they were
    slowed down, with or without work. `slowdowns`, `link_faults`: one row for each that began by the last answer.
    """
    known = result.engine.faults.schedule(result.cluster)
    slowdowns, links = known.slowdowns, [one for one in known.links if one.at_s <= result.end_s]
    cut = [{"at_s": one.at_s, "instance": one.instance, "for_s": one.for_s, "share": one.share} for one in links]
    own = {"link_faults": cut} if known.links else {}
    if not slowdowns:
        return own
    first_s, whole_s = float(np.nanmin(result.requests["arrival_s"])), len(result.instances) * clock.run_s
    slow_s = sum(max(min(one.back_s, result.end_s) - max(one.at_s, first_s), 0.0) for one in slowdowns)
    begun = [one for one in slowdowns if one.at_s <= result.end_s]
    rows = [{"at_s": one.at_s, "instance": one.instance, "for_s": one.for_s, "factor": one.factor} for one in begun]
    return {"slowed_share": slow_s / whole_s if whole_s > 0 else None, "slowdowns": rows, **own}
