"""The links between the instances of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from framework.checks import NotNegative, Positive, check_fields, require_positive
from framework.errors import InputError

LinkSharing = Literal["fair", "fifo"]


@dataclass(frozen=True)
class LinkSpec:
    """The network interface of an instance: bytes/s in each direction, and the latency of a transfer.

    `sharing`: with `fair`, concurrent copies share links, each at its max-min fair share; with `fifo`, a copy has both
    its ends to itself, first come, first served. `fabric_bytes_s`: bandwidth of all copies together, None: no limit.
    """

    bandwidth_bytes_s: Positive
    latency_s: NotNegative = 0.0
    sharing: LinkSharing = "fair"
    fabric_bytes_s: float | None = None

    def __post_init__(self) -> None:
        check_fields(self, "cluster.link_")
        if self.fabric_bytes_s is not None:
            require_positive("cluster.fabric_bandwidth_bytes_s", self.fabric_bytes_s)
            if self.sharing == "fifo":
                raise InputError(
                    "cluster.fabric_bandwidth_bytes_s needs copies that share links; choose cluster.link_sharing=fair"
                )
