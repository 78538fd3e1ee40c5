"""A stored run again, in a process of its own: its page, why it lost goodput, and two of them request by request.

The store keeps figures and settings; requests and steps come from running the same configuration again, which gives the
same bytes with the same code.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from framework.errors import InputError
from framework.run.store import Record

MOST_WAITING = 4


@dataclass(frozen=True)
class Answer:
    """HTML, or one line that says why there is none."""

    content: str
    failed: bool = False


class Worker:
    """The process, started when it is first needed; it does one thing at a time."""

    def __init__(self) -> None:
        self._busy = asyncio.Lock()
        self._waiting = 0
        self._process: Any = None
        self._line: Connection | None = None

    async def ask(self, what: str, records: Sequence[Record], labels: Sequence[str]) -> Answer:
        """The `what` (page, why, compare) of these runs, which have `labels`. Raises InputError if too many wait."""
        if self._waiting >= MOST_WAITING:
            raise InputError("other runs are being run again; try once they have ended")
        self._waiting += 1
        try:
            async with self._busy:
                return await asyncio.to_thread(self._exchange, (what, [*records], [*labels]))
        finally:
            self._waiting -= 1

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()

    def _exchange(self, asked: tuple[str, list[Record], list[str]]) -> Answer:
        if self._process is None or not self._process.is_alive():
            context = multiprocessing.get_context("spawn")
            self._line, theirs = context.Pipe()
            self._process = context.Process(target=_work, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
        assert self._line is not None
        try:
            self._line.send(asked)
            answer: Answer = self._line.recv()
        except (EOFError, OSError):
            return Answer("the process that runs it again has died; most likely memory ran out", failed=True)
        return answer


def _work(line: Connection) -> None:
    """The life of the process, which alone loads the simulator."""
    from servelab.ui.repeating import work

    work(line)
