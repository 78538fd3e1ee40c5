"""KV events as vLLM publishes them (vllm/distributed/kv_events.py): which blocks each instance caches, over ZeroMQ.

Each instance has a PUB socket. A message has three parts: an empty topic, its number (8 bytes, big-endian), and a batch
in msgpack. A block's hash is its name here; its token ids are those of the prompt (`servelab.serve.tokens`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
import numpy as np
import zmq
from numpy.typing import NDArray

from framework.engine.memory.state import Memory
from framework.errors import InputError
from servelab.serve import tokens

_MEDIUM = "GPU"
_MOST_WAITING = 100_000  # messages of a subscriber that is slow


class BlockStored(msgspec.Struct, omit_defaults=True, tag=True):
    """Blocks that follow one another have entered the cache; the first follows `parent_block_hash`.

    No field has a default, which would be left out: vLLM's own reader asks for each of these.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: None
    medium: str
    lora_name: None


class BlockRemoved(msgspec.Struct, omit_defaults=True, tag=True):
    """Blocks have left the cache."""

    block_hashes: list[int]
    medium: str


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    """What has happened on one instance; `ts`: seconds since 1970."""

    ts: float
    events: list[BlockStored | BlockRemoved]
    data_parallel_rank: int | None = None


class KvEvents:
    """The publishers of all instances: that of instance i is at port + i."""

    def __init__(self, memory: Memory, blocks: tokens.Blocks, host: str, port: int) -> None:
        if memory.options["hash_blocks"][0] == 0:
            raise InputError("kv_events needs a prefix cache; leave engine.prefix_cache at auto")
        self._memory, self._blocks, self._block_tokens = memory, blocks, int(memory.options["block_tokens"][0])
        self._encode = msgspec.msgpack.Encoder().encode
        count, nodes = len(memory.instances), int(memory.options["cache_nodes"][0])
        self._known = np.full((count, nodes), -1, np.int64)
        self._seen = [(-1, -1, -1)] * count
        self._sent = [0] * count
        self._sockets = [_publisher(host, port + i) for i in range(count)]

    def publish(self) -> None:
        """Publish what has changed since the last call."""
        for i, socket in enumerate(self._sockets):
            row = self._memory.instances[i]
            seen = int(row["cache_free"]), int(row["prefill_tokens"]), int(row["evictable_blocks"])
            if seen == self._seen[i]:
                continue
            self._seen[i] = seen
            events = [*self._events(i)]
            if events:
                batch = self._encode(KVEventBatch(time.time(), events, i))
                socket.send_multipart((b"", self._sent[i].to_bytes(8, "big"), batch), zmq.NOBLOCK)
                self._sent[i] += 1

    def _events(self, i: int) -> Iterator[BlockStored | BlockRemoved]:
        before, now = self._known[i].copy(), self._cached(i)
        changed = before != now
        gone, come = before[changed & (before >= 0)], now[changed & (now >= 0)]
        self._known[i] = now
        removed = gone[~np.isin(gone, now)]  # several blocks may have one name
        stored = np.unique(come[~np.isin(come, before)])
        if len(removed):
            yield BlockRemoved(np.unique(removed).tolist(), _MEDIUM)
        yield from self._stored(stored.tolist())

    def _stored(self, names: list[int]) -> Iterator[BlockStored]:
        """An event for each run of blocks that follow one another."""
        run: BlockStored | None = None
        for name in names:
            parent, data = self._blocks.block(name)
            if run is None or parent != run.block_hashes[-1]:
                if run is not None:
                    yield run
                run = BlockStored([], parent if parent >= 0 else None, [], self._block_tokens, None, _MEDIUM, None)
            run.block_hashes.append(name)
            run.token_ids += tokens.ids_of(data)
        if run is not None:
            yield run

    def _cached(self, i: int) -> NDArray[np.int64]:
        """The name in each node of the cache of i, -1: none."""
        options, lists = self._memory.options[0], self._memory.lists
        slots_at, nodes = int(self._memory.instances["cache_at"][i]), int(options["cache_nodes"])
        keys_at = slots_at + int(options["cache_slots"])
        slots, found = lists[slots_at:keys_at], np.full(nodes, -1, np.int64)
        used = slots[slots >= 0]
        found[used] = lists[keys_at:][:nodes][used]
        return found


def _publisher(host: str, port: int) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUB)
    socket.set_hwm(_MOST_WAITING)
    try:
        socket.bind(f"tcp://{host}:{port}")
    except zmq.ZMQError as error:
        raise InputError(f"kv_events={port}: {error}; choose another port") from None
    return socket
