"""The HTTP server: the OpenAI API, and what vLLM's server has in addition."""

from __future__ import annotations

import asyncio
import json
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiohttp import HttpVersion11, web

from framework.version import VERSION
from servelab.serve import tokens
from servelab.serve.answers import DONE, Form, event, usage
from servelab.serve.asked import ApiError, Asked, chat, completion, decoded, require_model, switched
from servelab.serve.fleet import CRASHED, Fleet, Stream, unread
from servelab.serve.metrics import CONTENT_TYPE, Exposed

MOST_BODY_BYTES = 16 << 20
_LINE = b"\r\n"
_MOST_UNREAD = 1 << 14  # chunks of an answer whose client does not read; it is closed then
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Parse = Callable[[Any, str], Asked]


@dataclass(frozen=True)
class Door:
    """One port: the cluster behind it, the instance that it leads to (-1: the policy chooses), and the model's name."""

    fleet: Fleet
    instance: int
    model: str
    exposed: Exposed

    def application(self) -> web.Application:
        """The server of this port."""
        app = web.Application(client_max_size=MOST_BODY_BYTES, middlewares=[_in_the_words_of_the_api])
        app.router.add_post("/v1/completions", partial(self._answer, completion))
        app.router.add_post("/v1/chat/completions", partial(self._answer, chat))
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{name:.+}", self._model)
        for path in ("/health", "/ping"):
            app.router.add_get(path, self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/load", self._load)
        app.router.add_get("/pools", self._pools)
        app.router.add_post("/pools", self._switch)
        app.router.add_get("/metrics", self._metrics)
        return app

    @property
    def is_up(self) -> bool:
        """Whether the simulation runs, and an instance behind this port takes prompts."""
        return self.fleet.failed is None and self.fleet.cluster.takes_prompts(self.instance)

    async def _answer(self, parse: Parse, request: web.Request) -> web.StreamResponse:
        asked = parse(decoded(await request.read()), self.model)
        if not self.is_up and (self.instance >= 0 or self.fleet.failed is not None):  # else it waits for an instance
            raise ApiError("the instance is down", status=503, code="instance_down", type="service_unavailable")
        id = f"{'chatcmpl' if asked.is_chat else 'cmpl'}-{self.fleet.engine.sent}-{uuid.uuid4().hex[:16]}"
        form = Form(id, int(time.time()), self.model, asked.is_chat, asked.token_ids)
        return await Answering(self, asked, form, request).answer()

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = decoded(await request.read())
        asked = (completion if "messages" not in body else chat)(body, self.model)
        ids = tokens.ids_of(asked.prompts[0])
        context = self.fleet.cluster.setting.model.max_context
        return _json({"count": len(ids), "max_model_len": context, "tokens": ids, "token_strs": None})

    async def _models(self, _: web.Request) -> web.Response:
        return _json({"object": "list", "data": [self._card()]})

    async def _model(self, request: web.Request) -> web.Response:
        require_model(request.match_info["name"], self.model)
        return _json(self._card())

    def _card(self) -> dict[str, Any]:
        context = self.fleet.cluster.setting.model.max_context
        return {"id": self.model, "object": "model", "created": 0, "owned_by": "servelab", "max_model_len": context}

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.is_up else 503)

    async def _version(self, _: web.Request) -> web.Response:
        return _json({"version": VERSION})

    async def _load(self, _: web.Request) -> web.Response:
        mine = [one for one in self.fleet.streams.values() if self.instance in (-1, one.pin)]
        return _json({"server_load": len(mine)})

    async def _pools(self, _: web.Request) -> web.Response:
        return _json({"pools": self.fleet.cluster.pools})

    async def _switch(self, request: web.Request) -> web.Response:
        self.fleet.switch(*switched(decoded(await request.read()), self.fleet.cluster.scalable))
        return _json({"pools": self.fleet.cluster.pools}, 202)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self.exposed.text(), headers={"Content-Type": CONTENT_TYPE})


class Answering:
    """One request and its answers, streamed or whole.

    The first tokens of a stream are written by the request's own task, which sends the headers first, so that a refusal
    still has its status. Later ones go to the connection as they fall due, each as a chunk of HTTP that is ready but
    for its text; they wait in `_unread` while the client does not read.
    """

    def __init__(self, door: Door, asked: Asked, form: Form, request: web.Request) -> None:
        self._door, self._asked, self._form, self._request = door, asked, form, request
        self._response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        self._choices: dict[int, int] = {}  # by the number of the stream
        self._heads: list[tuple[bytes, bytes]] = []  # what stands around the text of each choice
        self._before_one = self._after = b""  # what stands around a single token, as a chunk of HTTP
        self._opened: set[int] = set()
        self._unread: list[bytes] = []
        self._changed = asyncio.Event()  # something waits, or an answer has ended
        self._transport: asyncio.Transport | None = None  # once tokens may go there

    async def answer(self) -> web.StreamResponse:
        """The response. Raises ApiError if the cluster refuses the request before its first token."""
        streams: list[Stream] = []
        try:
            self._send(streams)
            if self._asked.stream:
                return await self._stream(streams)
            for stream in streams:
                if (refused := await self._end(stream)) is not None:
                    raise refused
            ended = [(stream.text, stream.end) for stream in streams]
            return _json(self._form.whole(ended, usage(*self._used(streams))))
        finally:
            for stream in streams:
                self._door.fleet.leave(stream)

    def _send(self, streams: list[Stream]) -> None:
        """Send all that is asked for, and note it in `streams`."""
        fleet, asked = self._door.fleet, self._asked
        context = fleet.cluster.setting.model.max_context
        take = self._take if asked.stream else unread
        for prompt in asked.prompts:
            asked.limits(1, prompt, context)  # all are refused if one is
        for prompt in asked.prompts:
            for _ in range(asked.n):
                length = partial(asked.limits, prompt=prompt, max_context=context)
                stream = fleet.send(prompt, length, take, self._door.instance, -asked.priority)
                self._heads.append(self._form.head(len(streams)))
                self._choices[stream.number] = len(streams)
                streams.append(stream)

    def _take(self, stream: Stream, text: bytes) -> None:
        """Write the tokens that are due without waiting for the client."""
        transport = self._transport
        if transport is not None and transport.is_closing():
            return
        if transport is None or self._unread or transport.get_write_buffer_size():
            self._keep(self._chunk(stream, text))
        elif len(text) == tokens.BYTES:
            transport.write(self._before_one + text + self._after)
        else:
            before, _ = self._heads[0]
            size = len(before) + len(text) + len(self._after) - len(_LINE)
            transport.write(b"%x%b%b%b%b" % (size, _LINE, before, text, self._after))

    def _keep(self, chunk: bytes) -> None:
        """Let a chunk wait until the request's own task writes it; break off if the client reads none of many."""
        self._unread.append(chunk)
        self._changed.set()
        if len(self._unread) > _MOST_UNREAD and self._request.transport is not None:
            self._request.transport.abort()

    def _chunk(self, stream: Stream, text: bytes) -> bytes:
        index = self._choices[stream.number]
        before, after = self._heads[index]
        opening = b"" if index in self._opened else self._form.opening(index)
        self._opened.add(index)
        return opening + (self._form.words(index, text) if self._form.token_ids else before + text + after)

    async def _flush(self) -> None:
        """Write what has waited for the client to read."""
        while self._unread:
            data, self._unread = b"".join(self._unread), []
            await self._response.write(data)

    async def _stream(self, streams: list[Stream]) -> web.StreamResponse:
        for stream in streams:
            stream.over.add_done_callback(lambda _: self._changed.set())
        await self._changed.wait()
        if not self._unread:
            refused = next(filter(None, (stream.over.result() for stream in streams if stream.over.done())), None)
            if refused is not None:
                await self._end(streams[0])
                raise refused
        await self._response.prepare(self._request)
        await self._flush()
        self._let_tokens_through(streams)
        for index, stream in enumerate(streams):
            refused = await self._read_to_the_end(stream)
            ending = self._form.closing(index, stream.end) if refused is None else event(refused.body())
            await self._response.write(ending)
        if self._asked.usage:
            await self._response.write(self._form.usage(*self._used(streams)))
        await self._response.write(DONE)
        await self._response.write_eof()
        return self._response

    def _let_tokens_through(self, streams: list[Stream]) -> None:
        """From now on the tokens of a single choice go to the connection directly, if that has chunks."""
        if self._request.version < HttpVersion11 or self._form.token_ids or len(streams) > 1:
            return
        before, after = self._heads[0]
        self._before_one = b"%x%b%b" % (len(before) + tokens.BYTES + len(after), _LINE, before)
        self._after = after + _LINE
        self._transport = self._request.transport

    async def _read_to_the_end(self, stream: Stream) -> ApiError | None:
        """Wait for the end of an answer, and write what has waited meanwhile."""
        while not stream.over.done():
            await self._changed.wait()
            self._changed.clear()
            await self._flush()
        await self._flush()
        return await self._end(stream)

    async def _end(self, stream: Stream) -> ApiError | None:
        """Why an answer ended early. The connection of a client that chose an instance breaks with that instance."""
        refused = await stream.over
        if refused is not None and refused.code == CRASHED and stream.pin >= 0 and self._request.transport is not None:
            self._request.transport.abort()
        return refused

    def _used(self, streams: list[Stream]) -> tuple[int, int, int]:
        """Tokens of prompts, cached ones of these, tokens of answers."""
        cached = self._door.fleet.engine.memory.requests["cached_tokens"]
        first = streams[:: self._asked.n]  # the prompt of several answers counts once
        return (
            sum(stream.input_tokens for stream in first),
            int(sum(cached[stream.number] for stream in first)),
            sum(stream.seen for stream in streams),
        )


@web.middleware
async def _in_the_words_of_the_api(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors as the API's own JSON."""
    try:
        return await handler(request)
    except ApiError as refused:
        return _refusal(refused)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        words = {404: f"there is no {request.path}", 405: f"{request.path} does not take {request.method}"}
        words[413] = f"the body is larger than {MOST_BODY_BYTES:,} bytes"
        response = _refusal(ApiError(words.get(error.status, error.reason), status=error.status))
        if isinstance(error, web.HTTPMethodNotAllowed):
            response.headers["Allow"] = error.headers["Allow"]
        return response
    except (asyncio.CancelledError, ConnectionError):
        raise
    except Exception as error:
        traceback.print_exc()
        return _refusal(ApiError(f"the server has failed: {type(error).__name__}: {error}", status=500))


def _refusal(refused: ApiError) -> web.Response:
    return _json(refused.body(), refused.status)


def _json(content: Any, status: int = 200) -> web.Response:
    return web.Response(body=json.dumps(content).encode(), status=status, content_type="application/json")
