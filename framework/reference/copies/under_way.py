"""Copies of KV under way, and the channels that they share."""

from __future__ import annotations

from dataclasses import dataclass, field

Link = int  # a sending side, a receiving side, or the fabric


@dataclass(eq=False)
class Copy:
    """A copy of KV under way: it has a channel while its bytes flow, and an event if its end is announced."""

    request: int
    complete_s: float  # time before which its last byte cannot arrive
    landing_s: float  # seconds between its last byte and its end
    channel: Channel | None = None
    sent_until: float = 0.0  # count of that channel's bytes at which all of its own have been sent
    event: int | None = None


@dataclass(eq=False)
class Channel:
    """The copies whose bytes flow from one instance to another, which all have one rate."""

    source: int
    target: int
    since_s: float  # time up to which `sent_bytes` is counted
    sent_bytes: float = 0.0  # bytes sent to a copy that has been there since the channel opened
    rate_bytes_s: float = 0.0
    copies: list[Copy] = field(default_factory=list)
    changed: bool = False  # a copy has begun or ended since its rate was set

    def count_sent(self, now_s: float) -> None:
        self.sent_bytes += self.rate_bytes_s * (now_s - self.since_s)
        self.since_s = now_s
