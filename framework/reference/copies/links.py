"""Copies between instances (SEMANTICS.md: Links): each waits for its turn, or all share the links."""

from __future__ import annotations

import math
from collections import Counter

from framework.codes import COPY_END
from framework.reference.copies.under_way import Channel, Copy, Link
from framework.reference.simulation import Simulation
from framework.reference.state import Instance, Request

_TICKS_S = 2**30  # the remaining time of a copy is rounded to a multiple of 1 / _TICKS_S seconds


def begin_copy(
    s: Simulation, r: Request, source: Instance, target: Instance, size: float, complete_s: float, landing_s: float
) -> None:
    """Send `size` bytes of r; the last byte cannot arrive before `complete_s`, the copy ends `landing_s` later."""
    source.totals["transferred_bytes"] += size
    r.copy = Copy(r.id, complete_s, landing_s)
    if s.options.link_sharing == "fifo":
        _announce(s, r.copy, max(_claimed_until(s, source, target, size), complete_s) + landing_s)
    elif size == 0:
        _announce(s, r.copy, complete_s + landing_s)
    else:
        _join(s, r.copy, source, target, size)


def has_ended(s: Simulation, r: Request) -> bool:
    """Whether the event of r's copy was the copy's end. Otherwise its bytes have been sent, and its end is later."""
    copy = r.copy
    assert copy is not None
    copy.event = None
    if copy.channel is not None:
        _leave(s, copy)
        end_s = max(s.now_s, copy.complete_s) + copy.landing_s
        if end_s > s.now_s:
            _announce(s, copy, end_s)
            return False
    r.copy = None
    return True


def withdraw_copy(s: Simulation, r: Request) -> None:
    """Give up r's copy: the bytes that have not been sent are neither sent nor counted."""
    copy, r.copy = r.copy, None
    assert copy is not None
    _forget(s, copy)
    if copy.channel is not None:
        copy.channel.count_sent(s.now_s)
        unsent = max(0.0, copy.sent_until - copy.channel.sent_bytes)
        s.instances[copy.channel.source].totals["transferred_bytes"] -= unsent
        _leave(s, copy)


def share_links(s: Simulation) -> None:
    """Set the rates of copies after the event, and announce the resulting ends."""
    if not s.links_changed and not (s.channels and any(channel.changed for channel in s.channels.values())):
        return
    s.links_changed = False
    for channel, rate in fair_rates(s).items():
        if channel.changed or rate != channel.rate_bytes_s:
            channel.count_sent(s.now_s)
            channel.rate_bytes_s, channel.changed = rate, False
            for copy in channel.copies:
                _forget(s, copy)
            first = min(channel.copies, key=lambda copy: (copy.sent_until, copy.request))
            left_bytes = max(0.0, first.sent_until - channel.sent_bytes)
            if rate > 0:
                _announce(s, first, s.now_s + math.floor(left_bytes / rate * _TICKS_S + 0.5) / _TICKS_S)
            elif left_bytes == 0:  # otherwise its end is announced once the network is no longer cut
                _announce(s, first, s.now_s)


def fair_rates(s: Simulation) -> dict[Channel, float]:
    """Bytes a second of each copy of each channel: the max-min fair shares, by progressive filling."""
    rates: dict[Channel, float] = {}
    left = {link: s.link_bytes_s(link) for channel in s.channels.values() for link in s.links_of(channel)}
    while len(rates) < len(s.channels):
        waiting = [channel for channel in s.channels.values() if channel not in rates]
        copies = _copies_on_links(s, waiting)
        tightest = min(copies, key=lambda link: (left[link] / copies[link], link))
        rate = left[tightest] / copies[tightest]
        served = [channel for channel in waiting if tightest in s.links_of(channel)]
        rates |= dict.fromkeys(served, rate)
        for link, count in _copies_on_links(s, served).items():
            left[link] -= rate * count
    return rates


def _copies_on_links(s: Simulation, channels: list[Channel]) -> Counter[Link]:
    counts: Counter[Link] = Counter()
    for channel in channels:
        for link in s.links_of(channel):
            counts[link] += len(channel.copies)
    return counts


def _join(s: Simulation, copy: Copy, source: Instance, target: Instance, size: float) -> None:
    ends = source.id, target.id
    copy.channel = channel = s.channels.setdefault(ends, Channel(*ends, since_s=s.now_s))
    channel.count_sent(s.now_s)
    copy.sent_until = channel.sent_bytes + size
    channel.copies.append(copy)
    channel.changed = True


def _leave(s: Simulation, copy: Copy) -> None:
    channel, copy.channel = copy.channel, None
    assert channel is not None
    channel.count_sent(s.now_s)
    channel.copies.remove(copy)
    channel.changed = s.links_changed = True
    if not channel.copies:
        del s.channels[channel.source, channel.target]


def _claimed_until(s: Simulation, source: Instance, target: Instance, size: float) -> float:
    """The time until which `size` bytes claim the sender's and the receiver's side, once both are free."""
    start_s = max(s.now_s, source.egress_free_s, target.ingress_free_s)
    end_s = start_s + size / min(source.spec.bandwidth_bytes_s, target.spec.bandwidth_bytes_s)
    source.egress_free_s = target.ingress_free_s = end_s
    return end_s


def _announce(s: Simulation, copy: Copy, time_s: float) -> None:
    copy.event = s.push(time_s, COPY_END, copy.request)


def _forget(s: Simulation, copy: Copy) -> None:
    """Forget a copy whose end has been announced."""
    if copy.event is not None:
        s.withdraw(copy.event)
        copy.event = None
