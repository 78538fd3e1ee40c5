"""Names drawn by their shares: the class or the tenant of each request of a trace without them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from framework.checks import require_at_least, require_count, require_positive
from framework.errors import InputError, shown
from framework.workload import dense
from traces.frame import Trace
from traces.settings import MOST_REQUESTS

_STREAMS = {"slo_class": 12, "tenant": 13}  # streams of random numbers, one for each column


def with_names(trace: Trace, column: str, setting: str, shares: Mapping[str, float], seed: int) -> Trace:
    """The trace with a name in `column` for each request, or for each session if there are sessions.

    `shares` maps names to shares, which need not add up to 1; `setting` is the name in errors.
    """
    if not isinstance(shares, Mapping) or not all(isinstance(name, str) for name in shares):
        raise InputError(f"{setting} is {shown(shares)}, must map names to shares")
    for name, share in shares.items():
        require_at_least(f"{setting}.{name}", share, 0)
    require_positive(f"the sum of {setting}", sum(shares.values()))
    weights = np.array(list(shares.values()), dtype=np.float64)
    unit = np.arange(len(trace))
    if "session_id" in trace.has:
        sessions = trace.frame["session_id"]
        alone = sessions.is_null().to_numpy()  # each is its own unit
        named = dense(sessions.fill_null(sessions.min() or 0).to_numpy())
        unit = np.where(alone, named.max() + 1 + unit, named)
    drawn = np.random.default_rng([seed, _STREAMS[column]]).choice(
        len(weights), size=int(unit.max()) + 1, p=weights / weights.sum()
    )
    names = np.array(list(shares))[drawn[unit]]
    return trace.with_frame(trace.frame.with_columns(pl.Series(column, names.tolist(), pl.String())))


def with_tenants(trace: Trace, tenants: int | Mapping[str, float] | None, seed: int) -> Trace:
    """The trace with a tenant for each request or session: one of a number, equally likely, or one of those named by
    their shares; None leaves it as it is. Raises InputError for a trace that has tenants of its own.
    """
    if tenants is None:
        return trace
    if "tenant" in trace.has:
        raise InputError(f"trace {trace.name} has tenants of its own; leave trace.tenants out")
    shares = tenants
    if not isinstance(shares, Mapping):
        require_count("trace.tenants", tenants, MOST_REQUESTS)
        width = len(str(int(shares) - 1))  # Names of one width are in the order of their numbers.
        shares = {f"t{number:0{width}}": 1.0 for number in range(int(shares))}
    drawn = with_names(trace, "tenant", "trace.tenants", shares, seed)
    note = f"{len(shares)} tenants drawn by their shares (seed {seed}): the requests do not tell theirs"
    return drawn.with_frame(drawn.frame, note)
