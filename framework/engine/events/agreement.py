"""A check, in plain Python only, that counts and lists agree at every question to a policy."""

from __future__ import annotations

from framework.codes import DECODING, PAUSED, PREFILLING, WAITING
from framework.compiler.decorators import inner
from framework.compiler.dispatchers import numba_config
from framework.engine.kv.spans import kv_elsewhere
from framework.engine.memory.state import State

if numba_config.DISABLE_JIT:

    def require_agreement(s: State) -> None:
        """Raise AssertionError if the lists of an instance do not match its counts and its requests."""
        for i in range(s.options.instances):
            inst = s.instances[i]
            running = [s.lists[inst.running_at + j] for j in range(inst.running)]
            prefilling = [s.lists[inst.prefilling_at + j] for j in range(inst.prefilling)]
            waiting = [*_queue(s, inst.waiting_root), *_chain(s, inst.inbox_head)]
            _require_state(s, i, running, (DECODING, PAUSED))
            _require_state(s, i, prefilling, (PREFILLING,))
            _require_state(s, i, waiting, (WAITING,))
            joining = len(_chain(s, inst.joining_head)) + len(_chain(s, inst.computed_head))
            coming = len(_chain(s, inst.incoming_head)) + inst.reserved
            counts = inst.queued, inst.joining, inst.incoming, inst.swapped, inst.decode_kv
            found = len(waiting), joining, coming, len(_chain(s, inst.swapped_head)), sum(_kv(s, r) for r in running)
            assert counts == found, f"instance {i} counts {counts}, its lists have {found}"

    def _require_state(s: State, i: int, listed: list[int], states: tuple[int, ...]) -> None:
        assert len(set(listed)) == len(listed), f"instance {i} lists a request twice: {listed}"
        for r in listed:
            q = s.requests[r]
            assert q.state in states, f"instance {i} lists {r}, which is in state {q.state}"
            assert q.instance == i, f"instance {i} lists {r}, which is on {q.instance}"

    def _queue(s: State, root: int) -> list[int]:
        found = [root] if root >= 0 else []
        for r in found:  # The loop extends the list that it goes through.
            found += _chain(s, s.requests[r].child)
        return found

    def _chain(s: State, head: int) -> list[int]:
        found = []
        while head >= 0:
            found.append(head)
            head = s.requests[head].next
        return found

    def _kv(s: State, r: int) -> int:
        q, elsewhere = s.requests[r], kv_elsewhere(s, r) if s.options.spans else 0
        return int((q.kv if q.state == PAUSED else q.offset + s.instances[q.instance].decode_steps) - elsewhere)

else:

    @inner
    def require_agreement(s: State) -> None:
        """Check nothing, in compiled code."""
