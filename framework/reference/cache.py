"""KV blocks of an instance with the prefixes that they hold, and the stores below them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any


class Cache:
    """Blocks of one instance: free, private to a request, or holding a cached trace block."""

    def __init__(self, total: int, blocks_per_id: int) -> None:
        self.total = total
        self.free = total
        self.blocks_per_id = blocks_per_id
        self.private: dict[int, int] = {}  # request -> blocks
        self.held: dict[int, list[int]] = {}  # request -> ids it references, first block first
        self.references: dict[int, int] = {}  # cached id -> requests that reference it
        self.unreferenced: list[int] = []  # cached ids that no request references, oldest first
        self.ranks: dict[Any, int] = {}  # of cached ids, or of copies, if not 0
        self.write_back: Callable[[int], None] | None = None  # called with each id that is evicted

    @property
    def available(self) -> int:
        return self.free + self.evictable

    @property
    def evictable(self) -> int:
        return len(self.unreferenced) * self.blocks_per_id

    @property
    def used(self) -> int:
        return self.total - self.free - self.evictable

    def idle_blocks(self, ids: list[int]) -> int:
        return self.blocks_per_id * sum(id in self.unreferenced for id in ids)

    def reference(self, request: int, ids: list[int]) -> None:
        for id in ids:
            if self.references[id] == 0:
                self.unreferenced.remove(id)
            self.references[id] += 1
        self.held[request] = [*self.held.get(request, []), *ids]

    def give_back(self, request: int, blocks: int) -> None:
        """Free some of the private blocks of a request."""
        self.private[request] -= blocks
        self.free += blocks

    def take(self, request: int, blocks: int) -> None:
        while self.free < blocks:
            id = self.pop_first(self.unreferenced)
            del self.references[id]
            if self.write_back is not None:
                self.write_back(id)
            self.free += self.blocks_per_id
        self.free -= blocks
        self.private[request] = self.private.get(request, 0) + blocks

    def pop_first(self, idle: list[Any]) -> Any:
        """Take out what is evicted first: of the lowest rank, the oldest."""
        first = min(idle, key=lambda one: self.ranks.get(one, 0))
        idle.remove(first)
        self.ranks.pop(first, None)
        return first

    def rank(self, ids: list[int], rank: int) -> None:
        """Give these cached ids a rank, from the last on; those that no request references become its youngest."""
        for id in reversed(ids):
            self.ranks[id] = rank
            if id in self.unreferenced:
                self.unreferenced.remove(id)
                self.unreferenced.append(id)

    def register(self, request: int, id: int) -> None:
        """Enter a computed trace block into the cache, unless a copy is there already."""
        if id not in self.references:
            self.references[id] = 1
            self.held.setdefault(request, []).append(id)
            self.private[request] -= self.blocks_per_id

    def sort_held(self, request: int, ids: list[int]) -> None:
        """Sort what a request references by the order of its ids."""
        self.held[request].sort(key=ids.index)

    def free_kv(self, request: int) -> None:
        for id in reversed(self.held.pop(request, [])):
            self.references[id] -= 1
            if self.references[id] == 0:
                self.unreferenced.append(id)
        self.free += self.private.pop(request, 0)

    def names_of_all(self, requests: list[int]) -> set[int]:
        """Ids that find a block which one of these requests references."""
        return {id for request in requests for id in self.held.get(request, [])}

    def blocks_of_all(self, requests: list[int]) -> int:
        """Blocks that these requests have together."""
        shared = {id for request in requests for id in self.held.get(request, [])}
        return sum(self.private.get(request, 0) for request in requests) + len(shared) * self.blocks_per_id

    def clear(self) -> None:
        """Forget all cached blocks; nothing is referenced."""
        self.references, self.unreferenced, self.ranks, self.free = {}, [], {}, self.total


class Copy:
    """A block of a name; several may have the same name."""

    def __init__(self, name: int) -> None:
        self.name = name
        self.references = 1


class BlockCache(Cache):
    """A `Cache` that also takes a block whose name is known already, behind the other."""

    def __init__(self, total: int, blocks_per_id: int) -> None:
        super().__init__(total, blocks_per_id)
        self.copies: dict[int, list[Copy]] = {}
        self.held_copies: dict[int, list[Copy]] = {}
        self.idle: list[Copy] = []  # copies that no request references, oldest first

    @property
    def evictable(self) -> int:
        return len(self.idle)

    def idle_blocks(self, ids: list[int]) -> int:
        return sum(self.copies[id][0].references == 0 for id in ids)

    def reference(self, request: int, ids: list[int]) -> None:
        found = [self.copies[id][0] for id in ids]
        for copy in found:
            if copy.references == 0:
                self.idle.remove(copy)
            copy.references += 1
        self.held_copies[request] = [*self.held_copies.get(request, []), *found]
        self.held[request] = [*self.held.get(request, []), *ids]

    def take(self, request: int, blocks: int) -> None:
        while self.free < blocks:
            oldest = self.pop_first(self.idle)
            self.copies[oldest.name].remove(oldest)
            if not self.copies[oldest.name]:
                del self.copies[oldest.name], self.references[oldest.name]
            if self.write_back is not None:
                self.write_back(oldest.name)
            self.free += 1
        self.free -= blocks
        self.private[request] = self.private.get(request, 0) + blocks

    def rank(self, ids: list[int], rank: int) -> None:
        for copy in [self.copies[id][0] for id in reversed(ids)]:
            self.ranks[copy] = rank
            if copy in self.idle:
                self.idle.remove(copy)
                self.idle.append(copy)

    def register(self, request: int, id: int) -> None:
        copy = Copy(id)
        self.copies.setdefault(id, []).append(copy)
        self.references[id] = 1  # its name is now known
        self.held_copies.setdefault(request, []).append(copy)
        self.held.setdefault(request, []).append(id)
        self.private[request] -= 1

    def sort_held(self, request: int, ids: list[int]) -> None:
        super().sort_held(request, ids)
        self.held_copies[request].sort(key=lambda copy: ids.index(copy.name))

    def free_kv(self, request: int) -> None:
        for copy in reversed(self.held_copies.pop(request, [])):
            copy.references -= 1
            if copy.references == 0:
                self.idle.append(copy)
        self.held.pop(request, None)
        self.free += self.private.pop(request, 0)

    def names_of_all(self, requests: list[int]) -> set[int]:
        copies = [copy for request in requests for copy in self.held_copies.get(request, [])]
        return {copy.name for copy in copies if copy is self.copies[copy.name][0]}

    def blocks_of_all(self, requests: list[int]) -> int:
        shared = {id(copy) for request in requests for copy in self.held_copies.get(request, [])}
        return sum(self.private.get(request, 0) for request in requests) + len(shared)

    def clear(self) -> None:
        super().clear()
        self.copies, self.idle = {}, []


class Store:
    """Trace blocks, or chunks of them, least recently used first; a chunk has the id of its last block."""

    def __init__(
        self,
        capacity: int,
        chunk: int = 1,
        write_after: int = 1,
        write: str = "through",
        outputs: str = "left",
    ) -> None:
        self.capacity = capacity
        self.chunk = chunk
        self.write_after = write_after
        self.on_eviction = write == "back"
        self.takes_outputs = outputs == "written"
        self.ids: list[int] = []
        self.uses: Counter[int] = Counter()

    def name_of(self, ids: list[int], j: int) -> int | None:
        """Under what id it keeps block j of these; None if they do not fill that chunk."""
        last = (j // self.chunk + 1) * self.chunk - 1
        return ids[last] if last < len(ids) else None

    def has(self, ids: list[int], j: int) -> bool:
        return self.name_of(ids, j) in self.ids

    def keep(self, id: int) -> int | None:
        """Make a block the youngest; return the one that leaves."""
        if id in self.ids:
            self.ids.remove(id)
        self.ids.append(id)
        return self.ids.pop(0) if len(self.ids) > self.capacity else None
