"""The links between the instances of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from framework.errors import InputError, require_at_least, require_choice, require_positive

LinkSharing = Literal["fair", "fifo"]
LINK_SHARINGS: tuple[str, ...] = ("fair", "fifo")


@dataclass(frozen=True)
class LinkSpec:
    """The network interface of an instance: bytes/s in each direction, and the latency of a transfer.

    `sharing`: `fair`, copies that are under way at once share links, each at its max-min fair share; `fifo`, a copy has
    both its ends to itself, first come, first served. `fabric_bytes_s`: what all copies together may have, None: no
    limit.
    """

    bandwidth_bytes_s: float
    latency_s: float = 0.0
    sharing: LinkSharing = "fair"
    fabric_bytes_s: float | None = None

    def __post_init__(self) -> None:
        require_positive("link.bandwidth_bytes_s", self.bandwidth_bytes_s)
        require_at_least("link.latency_s", self.latency_s, 0)
        require_choice("cluster.link_sharing", self.sharing, LINK_SHARINGS)
        if self.fabric_bytes_s is not None:
            require_positive("cluster.fabric_bandwidth_bytes_s", self.fabric_bytes_s)
            if self.sharing == "fifo":
                raise InputError(
                    "cluster.fabric_bandwidth_bytes_s needs copies that share links; choose cluster.link_sharing=fair"
                )
