"""Link sharing: each copy flows at its max-min fair share of its sender's, its receiver's and the fabric's bandwidth.

Copies between the same two instances have the same rate and form one channel. A channel counts the bytes that each of
its copies has been sent since it opened. It keeps its copies in the order of their ends and announces the end of the
first one only; the heap of copies holds the others at time inf. Link i is the sending side of instance i, link
`instances + i` is its receiving side, and link `2 * instances` is the fabric if its bandwidth is limited.
"""

from __future__ import annotations

import numpy as np

from framework.compiler.decorators import inner, unlikely
from framework.engine.memory.queues import copy_move, copy_push, copy_withdraw
from framework.engine.memory.state import State

_TICKS_S = 2.0**30  # the remaining time of a copy is rounded to a multiple of 1 / _TICKS_S seconds

# --- a copy ----------------------------------------------------------------------------------------------------------


@inner
def start_flow(s: State, r: int, source: int, target: int, bytes_: float) -> None:
    """Start the flow of r's bytes. Its rate is set, and the end of the copy announced, once the event is over."""
    c = _channel(s, source, target)
    q, channel = s.requests[r], s.channels[c]
    _count_sent(s, c)
    q.channel = c
    q.sent_until = channel.sent_bytes + bytes_
    before = channel.last
    while before >= 0 and _ends_before(s, r, before):
        before = s.requests[before].previous
    after = channel.first if before < 0 else s.requests[before].next
    q.previous = before
    q.next = after
    if before >= 0:
        s.requests[before].next = r
    else:
        channel.first = r
    if after >= 0:
        s.requests[after].previous = r
    else:
        channel.last = r
    if before < 0 and after >= 0:
        copy_move(s, after, np.inf)
    copy_push(s, r, np.inf)
    _change(s, c, 1)


@inner
def end_flow(s: State, r: int) -> bool:
    """End the flow of r, all bytes of which have been sent. False if its copy ends later, at an announced time."""
    q, now_s = s.requests[r], s.sim.now_s
    _leave(s, r)
    end_s = max(now_s, q.complete_s) + q.landing_s
    if end_s > now_s:
        copy_push(s, r, end_s)
        return False
    return True


@inner
def withdraw_copy(s: State, r: int) -> None:
    """Give up r's copy: the bytes that have not been sent are neither sent nor counted."""
    q = s.requests[r]
    if q.channel >= 0:
        _count_sent(s, q.channel)
        channel = s.channels[q.channel]
        s.instances[channel.sender].transferred_bytes -= max(0.0, q.sent_until - channel.sent_bytes)
        _leave(s, r)
    copy_withdraw(s, r)


@inner
def _ends_before(s: State, a: int, b: int) -> bool:
    x, y = s.requests[a].sent_until, s.requests[b].sent_until
    return x < y or (x == y and a < b)


@inner
def _leave(s: State, r: int) -> None:
    q, c = s.requests[r], s.requests[r].channel
    channel = s.channels[c]
    _count_sent(s, c)
    if q.previous >= 0:
        s.requests[q.previous].next = q.next
    else:
        channel.first = q.next
    if q.next >= 0:
        s.requests[q.next].previous = q.previous
    else:
        channel.last = q.previous
    q.channel = -1
    _change(s, c, -1)
    if channel.flows == 0:
        _close(s, c)


@inner
def _count_sent(s: State, c: int) -> None:
    """Count the bytes that each copy of a channel has been sent up to now, at its present rate."""
    channel = s.channels[c]
    channel.sent_bytes += channel.rate_bytes_s * (s.sim.now_s - channel.since_s)
    channel.since_s = s.sim.now_s


@inner
def _change(s: State, c: int, flows: int) -> None:
    """Add `flows` copies to a channel, and mark its links for new rates."""
    channel = s.channels[c]
    channel.flows += flows
    channel.changed = True
    for link in (channel.sender, channel.receiver):
        s.links[link].flows += flows
        note_change(s, link)


@inner
def note_change(s: State, link: int) -> None:
    """Mark a link: the rates of the copies on it must be set again."""
    if not s.links[link].changed:
        s.links[link].changed = True
        s.lists[s.options.changed_links_at + s.sim.changed_links] = link
        s.sim.changed_links += 1


# --- the rates -------------------------------------------------------------------------------------------------------


@inner
def share_links(s: State) -> None:
    """Set new rates for all copies that share a link, directly or not, with one that has begun or ended.

    Progressive filling repeats the same operations for all other copies, so their rates do not depend on these.
    """
    sim = s.sim
    sim.sharings += 1
    if s.options.limits_fabric:
        _fill(s, _reach_all(s))
    while sim.changed_links > 0:
        sim.changed_links -= 1
        link = s.lists[s.options.changed_links_at + sim.changed_links]
        s.links[link].changed = False
        if s.links[link].flows > 0 and s.links[link].reached != sim.sharings:
            _fill(s, _reach(s, link))


@inner
def _reach(s: State, link: int) -> int:
    """List all links that copies connect to this one, and return their number."""
    at, sharing = s.options.reached_links_at, s.sim.sharings
    s.lists[at] = link
    s.links[link].reached = sharing
    count, k = 1, 0
    while k < count:
        link = s.lists[at + k]
        c = s.links[link].first
        while c >= 0:
            other = s.channels[c].receiver if link == s.channels[c].sender else s.channels[c].sender
            if s.links[other].reached != sharing:
                s.links[other].reached = sharing
                s.lists[at + count] = other
                count += 1
            c = _next_on(s, c, link)
        k += 1
    return count


@inner
def _reach_all(s: State) -> int:
    """List all links that have copies, the fabric last, and return their number."""
    count, fabric = 0, 2 * s.options.instances
    s.links[fabric].flows = 0
    for link in range(fabric):
        if s.links[link].flows > 0:
            s.links[link].reached = s.sim.sharings
            s.lists[s.options.reached_links_at + count] = link
            count += 1
            if link < s.options.instances:
                s.links[fabric].flows += s.links[link].flows
    s.lists[s.options.reached_links_at + count] = fabric
    return count + 1


@inner
def _fill(s: State, count: int) -> None:
    """Fill progressively: fix the rates on the link with the least bandwidth for each of its copies, and repeat."""
    at, fabric = s.options.reached_links_at, 2 * s.options.instances
    for k in range(count):
        link = s.links[s.lists[at + k]]
        link.left_bytes_s = link.bandwidth_bytes_s
        link.unserved = link.flows
    tightest = _tightest(s, count)
    while tightest >= 0:
        rate = s.links[tightest].left_bytes_s / s.links[tightest].unserved
        if tightest == fabric:
            for k in range(count - 1):
                _serve(s, s.lists[at + k], rate)
            return
        if s.options.limits_fabric:
            s.links[fabric].left_bytes_s -= rate * s.links[tightest].unserved
            s.links[fabric].unserved -= s.links[tightest].unserved
        _serve(s, tightest, rate)
        tightest = _tightest(s, count)


@inner
def _tightest(s: State, count: int) -> int:
    """The listed link with the least bandwidth for each copy without a rate; -1 if all copies have a rate."""
    found, least = -1, np.inf
    for k in range(count):
        number = s.lists[s.options.reached_links_at + k]
        link = s.links[number]
        if link.unserved > 0:
            share = link.left_bytes_s / link.unserved
            if share < least or (share == least and number < found):
                found, least = number, share
    return found


@inner
def _serve(s: State, link: int, rate: float) -> None:
    """Give this rate to each copy on a link that has no rate yet."""
    c = s.links[link].first
    while c >= 0:
        channel = s.channels[c]
        if channel.served != s.sim.sharings:
            channel.served = s.sim.sharings
            for end in (channel.sender, channel.receiver):
                s.links[end].left_bytes_s -= rate * channel.flows
                s.links[end].unserved -= channel.flows
            if channel.changed or rate != channel.rate_bytes_s:
                _set_rate(s, c, rate)
        c = _next_on(s, c, link)


@inner
def _set_rate(s: State, c: int, rate: float) -> None:
    """Set the rate of each copy of a channel from now on, and announce the end of the first copy."""
    channel = s.channels[c]
    _count_sent(s, c)
    channel.rate_bytes_s = rate
    channel.changed = False
    left_bytes = max(0.0, s.requests[channel.first].sent_until - channel.sent_bytes)
    if unlikely(rate == 0.0):  # a partition has cut the network
        copy_move(s, channel.first, np.inf if left_bytes > 0.0 else s.sim.now_s)
        return
    left_s = left_bytes / rate
    copy_move(s, channel.first, s.sim.now_s + np.floor(left_s * _TICKS_S + 0.5) / _TICKS_S)


# --- the channels of a link ------------------------------------------------------------------------------------------


@inner
def _channel(s: State, source: int, target: int) -> int:
    """The channel between two instances; opens one if there is none."""
    receiver = s.options.instances + target
    c = s.links[source].first
    while c >= 0 and s.channels[c].receiver != receiver:
        c = s.channels[c].next_of_sender
    return c if c >= 0 else _open(s, source, receiver)


@inner
def _next_on(s: State, c: int, link: int) -> int:
    """The channel after c on one of its links."""
    return int(s.channels[c].next_of_sender if link == s.channels[c].sender else s.channels[c].next_of_receiver)


@inner
def _open(s: State, sender: int, receiver: int) -> int:
    c = s.sim.unused_channel
    if c >= 0:
        s.sim.unused_channel = s.channels[c].next_of_sender
    else:
        c = s.sim.channels
        s.sim.channels += 1
    channel, source, target = s.channels[c], s.links[sender], s.links[receiver]
    channel.sender = sender
    channel.receiver = receiver
    channel.flows = 0
    channel.sent_bytes = 0.0
    channel.rate_bytes_s = 0.0
    channel.since_s = s.sim.now_s
    channel.first = channel.last = -1
    channel.previous_of_sender = channel.previous_of_receiver = -1
    channel.next_of_sender = source.first
    channel.next_of_receiver = target.first
    if source.first >= 0:
        s.channels[source.first].previous_of_sender = c
    if target.first >= 0:
        s.channels[target.first].previous_of_receiver = c
    source.first = target.first = c
    return int(c)


@inner
def _close(s: State, c: int) -> None:
    channel = s.channels[c]
    before, after = channel.previous_of_sender, channel.next_of_sender
    if before >= 0:
        s.channels[before].next_of_sender = after
    else:
        s.links[channel.sender].first = after
    if after >= 0:
        s.channels[after].previous_of_sender = before
    before, after = channel.previous_of_receiver, channel.next_of_receiver
    if before >= 0:
        s.channels[before].next_of_receiver = after
    else:
        s.links[channel.receiver].first = after
    if after >= 0:
        s.channels[after].previous_of_receiver = before
    channel.next_of_sender = s.sim.unused_channel
    s.sim.unused_channel = c
