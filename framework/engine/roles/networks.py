"""Faults of networks: the network of an instance is slow, or cut off."""

from __future__ import annotations

from framework.compiler.decorators import inner
from framework.engine.copies.link_sharing import note_change
from framework.engine.memory.state import State


@inner
def limit_network(s: State, i: int, bytes_s: float) -> None:
    """Set the bandwidth of i's network from now on, in each direction; 0: a partition."""
    s.sim.awaited += int(bytes_s == 0.0) - int(s.links[i].bandwidth_bytes_s == 0.0)
    for link in (i, s.options.instances + i):
        s.links[link].bandwidth_bytes_s = bytes_s
        note_change(s, link)
