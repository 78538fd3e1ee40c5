"""The simulated cluster in step with the wall clock: it takes requests as they come and hands out tokens when due.

The simulation never goes beyond the present: it stops before the next event until that is due, so a request that comes
now finds the cluster as it is now. Steps that are under way end when they were to end.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from framework.codes import CANCELLED, FAILED, FINISHED, REJECTED
from framework.errors import InputError
from framework.replay.live import Sent
from servelab.serve import tokens
from servelab.serve.asked import ApiError
from servelab.serve.cluster import Simulated
from servelab.serve.kv_events import KvEvents
from servelab.serve.record import Record

LEFT, CRASHED = "left", "crash"  # reasons of cancellations
_LONGEST_SLEEP_S = 3600.0
_AT_A_TIME_S = 0.005  # wall-clock time after which others get a turn
_REFUSALS = {  # by the reason of a rejection: status, code
    "context": (400, "context_length_exceeded"),
    "kv": (400, "kv_memory_exceeded"),
    "shed": (429, "queue_full"),
    "expired": (503, "queue_timeout"),
}
_ENDS = {REJECTED: "error", FAILED: "error", CANCELLED: "abort"}


@dataclass(eq=False)
class Stream:
    """One answer. `take(stream, text)` is called with the tokens that are due; `over` is set at its end: None, or why
    there are no more.
    """

    number: int
    text: bytes
    input_tokens: int
    limit: int  # of its tokens; an answer with fewer ends by itself
    take: Take
    over: asyncio.Future[ApiError | None]
    pin: int = -1
    seen: int = 0
    sent_s: float = 0.0  # time of the run
    last_s: float = 0.0  # when its last token was due

    @property
    def end(self) -> str:
        """Why it ends, if it ends as it should."""
        return "length" if tokens.count(self.text) >= self.limit else "stop"


def unread(stream: Stream, text: bytes) -> None:
    """Tokens that nobody reads as they come."""


Take = Callable[[Stream, bytes], None]


class Watch(Protocol):
    """What is counted of tokens and answers."""

    def tokens(self, stream: Stream, count: int, due_s: float, lag_s: float, instance: int) -> None:
        """Tokens that were due at `due_s` have been written, `lag_s` of the wall clock later."""

    def ended(self, stream: Stream, row: np.void, end: str) -> None:
        """An answer has ended: by stop, length, abort or error. `row`: its record."""


class Fleet:
    """The cluster, its clock and the answers under way. `scale`: seconds of the run in a second of the wall clock."""

    def __init__(self, cluster: Simulated, scale: float, seed: int, watch: Watch, record: Record | None = None) -> None:
        engine = cluster.engine
        self.cluster, self.engine, self.scale, self.watch = cluster, engine, scale, watch
        self.record = record
        self.events: KvEvents | None = None  # publishes what instances cache
        keys = int(engine.memory.options["tier_keys"][0])  # stores have a list of so many names
        self.blocks = tokens.Blocks(engine.inspection.block_tokens, keys or tokens.MOST_NAMES)
        self.streams: dict[int, Stream] = {}
        self.failed: BaseException | None = None
        self._seed = seed
        self._outputs_count = cluster.setting.engine.shares_blocks  # blocks of outputs have names, too
        self._orders: list[Callable[[], bool]] = []  # each is carried out now, or returns False
        self._kick: asyncio.Future[None] | None = None
        self._has_news = False
        self._down = engine.inspection.instances["down"].copy()

    def start(self) -> asyncio.Task[None]:
        """Let the clock run from now on; the task ends if a hook raises."""
        self._loop = asyncio.get_running_loop()
        self._begin_s = self._loop.time()
        return self._loop.create_task(self._run())

    @property
    def now_s(self) -> float:
        """The present time of the run."""
        return (self._loop.time() - self._begin_s) * self.scale

    def wall_s(self, time_s: float) -> float:
        """The wall clock, as the loop has it, at a time of the run."""
        return self._begin_s + time_s / self.scale

    def send(
        self,
        prompt: bytes,
        limits: Callable[[int], tuple[int, int]],
        take: Take,
        pin: int = -1,
        priority: int = 0,
    ) -> Stream:
        """Send a prompt now. `limits(natural)`: tokens of an answer that would end after `natural`, and their limit.

        Raises ApiError if there is no room for another request.
        """
        number = self.engine.sent
        natural = int(self.cluster.natural_tokens[number])
        count, limit = limits(natural)
        text = tokens.answer(self._seed, number, count)
        named = prompt + text[: -tokens.BYTES] if self._outputs_count else prompt
        self.cluster.natural_tokens[number], self.cluster.pins[number] = count, pin
        now_s = self.now_s
        try:
            names = self.blocks.names(named)
            self.engine.send(Sent(tokens.count(prompt), count, names, priority), now_s)
        except InputError as error:
            raise ApiError(str(error), status=503, code="server_full") from None
        over = self._loop.create_future()
        stream = Stream(number, text, tokens.count(prompt), limit, take, over, pin, sent_s=now_s)
        self.streams[number] = stream
        if self.record is not None:
            self.record.sent(now_s, count, names)
        self._wake()
        return stream

    def leave(self, stream: Stream, reason: str = LEFT) -> None:
        """The client of an answer has gone: what it holds is freed."""
        if self.streams.get(stream.number) is stream:
            stream.take = unread
            self._order(partial(self._cancel, stream.number, reason))

    def switch(self, pool: int, instances: int) -> None:
        """Order that so many instances of a pool be on."""

        def order() -> bool:
            self.engine.scale(pool, instances)
            return True

        self._order(order)

    def _order(self, order: Callable[[], bool]) -> None:
        self._orders.append(order)
        self._wake()

    def _cancel(self, number: int, reason: str) -> bool:
        return number not in self.streams or self.engine.cancel(number, reason)

    def _wake(self) -> None:
        self._has_news = True
        if self._kick is not None and not self._kick.done():
            self._kick.set_result(None)

    async def _run(self) -> None:
        try:
            while True:
                await self._catch_up()
                self._carry_out_orders()
                await self._sleep()
        except BaseException as error:
            self.failed = error
            for stream in [*self.streams.values()]:
                self._end(stream, ApiError(f"the simulation has failed: {error}", status=500), "error")
            raise

    async def _catch_up(self) -> None:
        """Let happen what is due, event by event."""
        engine, begun_s = self.engine, self._loop.time()
        while engine.next_s <= self.now_s:
            due_s = engine.next_s
            engine.run_to(due_s)
            self._hand_out(due_s)
            if self.cluster.setting.engine.faults:
                self._note_crashes()
            if self.events is not None:
                self.events.publish()
            if self._loop.time() - begun_s > _AT_A_TIME_S:
                await asyncio.sleep(0)
                begun_s = self._loop.time()

    def _hand_out(self, due_s: float) -> None:
        news, due_wall_s = self.engine.news(), self.wall_s(due_s)
        for r, emitted, state, i in zip(*(column.tolist() for column in news), strict=True):
            stream = self.streams[r]
            count = emitted - stream.seen
            if count:
                stream.take(stream, stream.text[stream.seen * tokens.BYTES : emitted * tokens.BYTES])
                stream.seen = emitted
                self.watch.tokens(stream, count, due_s, self._loop.time() - due_wall_s, i)
                stream.last_s = due_s
            if state >= FINISHED:
                self._end(stream, self._refusal(r, state), _ENDS.get(state) or stream.end)

    def _end(self, stream: Stream, refused: ApiError | None, end: str) -> None:
        self.streams.pop(stream.number, None)
        self.watch.ended(stream, self.engine.memory.requests[stream.number], end)
        if not stream.over.done():
            stream.over.set_result(refused)

    def _refusal(self, r: int, state: int) -> ApiError | None:
        if state == FINISHED:
            return None
        reason = self.engine.reasons[int(self.engine.memory.requests["reason"][r])]
        if state in (CANCELLED, FAILED):
            return ApiError(f"the request was ended: {reason or 'policy'}", status=500, code=reason or None)
        status, code = _REFUSALS.get(reason, (503, reason or "policy"))
        kind = "" if status < 429 else "rate_limit_error" if status == 429 else "service_unavailable"
        return ApiError(f"the request was rejected: {reason}", status=status, code=code, type=kind)

    def _carry_out_orders(self) -> None:
        """Carry out what was ordered, now; what must wait, such as the end of a request on its way, is kept."""
        orders, self._orders = self._orders, []
        if orders:
            self.engine.run_to(max(min(self.now_s, self.engine.next_s), self.engine.now_s))
            self._orders += [order for order in orders if not order()]
            self._hand_out(self.engine.now_s)

    def _note_crashes(self) -> None:
        """Answers of clients that chose an instance end with it."""
        down = self.engine.inspection.instances["down"]
        fallen = np.flatnonzero(down & ~self._down)
        if len(fallen):
            for stream in [one for one in self.streams.values() if one.pin in fallen]:
                self.leave(stream, CRASHED)
        self._down = down.copy()

    async def _sleep(self) -> None:
        """Wait until the next event is due, or something comes."""
        self._kick = self._loop.create_future()
        left_s = min(self.wall_s(self.engine.next_s) - self._loop.time(), _LONGEST_SLEEP_S)
        timer = self._loop.call_later(math.ceil(left_s * 1e3) / 1e3, self._wake)  # a timer has whole milliseconds
        if not self._has_news:
            await self._kick
        self._has_news = False
        timer.cancel()
