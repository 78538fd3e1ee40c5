"""The gateway of a run before the first event: its flows, and the flow of each request."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from framework.codes import FAIRNESS
from framework.engine.memory.state import FLOW
from framework.system.gateway import Gateway
from framework.workload import Workload

Integers = NDArray[np.int64]


def gateway_options(gateway: Gateway) -> dict[str, float]:
    """Those of `framework.engine.memory.options`."""
    return {
        "goes_by_utilization": gateway.saturation == "utilization",
        "queue_threshold": gateway.queue_threshold,
        "kv_threshold": gateway.kv_threshold,
        "saturated_at_all": gateway.saturated_at == "all",
        "most_in_flight": gateway.most_in_flight,
        "fairness": FAIRNESS[gateway.fairness],
        "output_weight": gateway.output_weight,
        "most_gated": np.inf if gateway.most_waiting is None else gateway.most_waiting,
    }


def flows_of(gateway: Gateway, workload: Workload) -> tuple[NDArray[np.void], Integers]:
    """FLOW of each tenant of each band, band by band, and behind them one for those that arrive; the flow of each
    request, (N,).

    Without a gateway there are none. With fairness by arrival a band is one flow.
    """
    if not gateway:
        return np.zeros(1, FLOW), np.zeros(0, np.int64)
    names, bands = gateway.bands_of(workload)
    tenants = np.zeros(len(workload), np.int64)
    if gateway.fairness != "arrival" and workload.tenant is not None:
        tenants = np.unique(workload.tenant, return_inverse=True)[1]
    pairs, flow = np.unique(np.stack((bands, tenants)), axis=1, return_inverse=True)
    flows = np.zeros(pairs.shape[1] + 1, FLOW)
    flows["head"] = flows["tail"] = -1
    for band in np.unique(bands):
        own = np.flatnonzero(pairs[0] == band)
        flows["first"][own] = own[0]
        flows["turn"][own] = own[-1]
        flows["flows"][own] = len(own)
        flows["most"][own], flows["ttl_s"][own] = gateway.limits_of(names[band])
    return flows, flow.ravel()
