"""The server under load, with faults, and against the offline run of what it was sent."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import socket
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest
import zmq

import servelab
from servelab.serve import tokens
from tests.servelab.test_serve import asked, events, serving

pytestmark = pytest.mark.slow

_TEXT = re.compile(rb'"text":"([^"]*)"')
_NUMBER = re.compile(rb'"id":"cmpl-(\d+)-')


class Reader(asyncio.Protocol):
    """A client that sends one streamed request and keeps all that comes."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.came: list[bytes] = []
        self.ended = asyncio.get_running_loop().create_future()
        self._body = json.dumps(body).encode()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
        transport.write(head % len(self._body) + self._body)

    def data_received(self, data: bytes) -> None:
        self.came.append(data)
        if data.endswith(b"0\r\n\r\n"):
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set_result(None)


async def streamed(port: int, count: int, over_s: float) -> list[tuple[int, int, bytes]]:
    """The number, the tokens and the text of as many concurrent streams, which begin within `over_s`."""
    random = np.random.default_rng(3)
    loop, readers, lengths = asyncio.get_running_loop(), [], random.integers(100, 300, count).tolist()
    for length in lengths:
        prompt = "abcd" * int(random.integers(100, 400))
        body = {"prompt": prompt, "max_tokens": length, "ignore_eos": True, "stream": True}
        _, reader = await loop.create_connection(lambda body=body: Reader(body), "127.0.0.1", port)  # type: ignore[misc]
        readers.append(reader)
        await asyncio.sleep(over_s / count)
    await asyncio.gather(*(reader.ended for reader in readers))
    found = []
    for reader, length in zip(readers, lengths, strict=True):
        content = b"".join(reader.came)
        number = _NUMBER.search(content)
        assert number is not None, content[:300]
        found.append((int(number[1]), length, b"".join(_TEXT.findall(content))))
    return found


def lag_s(port: int, share: float) -> float:
    """The bound of the bucket in which that share of the tokens was written."""
    lines = asked(port, "/metrics", None, "GET")[1].decode().splitlines()
    buckets = [line for line in lines if line.startswith("servelab:token_lag_seconds_bucket")]
    counts = [float(line.split()[-1]) for line in buckets]
    bounds = [line.partition('le="')[2].partition('"')[0] for line in buckets]
    return next(float(bound) for bound, count in zip(bounds, counts, strict=True) if count >= share * counts[-1])


def test_two_thousand_streams_get_every_token_in_order() -> None:
    is_idle = os.getloadavg()[0] < 1.0  # else the server waits for its core
    with serving("cluster.instances=8", "scale=0.1") as (port,):
        found = asyncio.run(streamed(port, 2000, 8.0))
        assert all(text == tokens.answer(0, number, length) for number, length, text in found)
        assert len({number for number, _, _ in found}) == 2000
        if is_idle:
            assert lag_s(port, 0.99) <= 0.02


def test_what_was_served_equals_the_offline_run_of_its_record(tmp_path: Path) -> None:
    with serving("cluster.instances=2", "scale=4", f"record={tmp_path}") as (port,):
        asyncio.run(streamed(port, 150, 2.0))
    served = pl.read_parquet(tmp_path / "served.parquet")
    assert served["state"].unique().to_list() == ["finished"]
    offline = servelab.run("chunked", tmp_path / "trace.parquet", cluster__instances=2).result
    for name in ("first_token_s", "end_s"):
        since_s = served[name].to_numpy() - served["sent_s"][0]
        np.testing.assert_allclose(since_s, offline.requests[name], atol=1e-9)
    np.testing.assert_array_equal(served["cached_tokens"], offline.requests["cached_tokens"])
    assert served["cached_tokens"].sum() > 0


def test_a_port_breaks_off_and_comes_back_with_its_instance() -> None:
    crash = "engine.faults.crashes=[{instance: 0, at_s: 3.0, down_s: 3.0}]"
    with serving("cluster.instances=2", "ports=each", "engine/faults=crash", crash) as ports:
        assert len(ports) == 2
        body = {"prompt": "abcd", "max_tokens": 2000, "ignore_eos": True, "stream": True}
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            asked(ports[0], "/v1/completions", body)
        assert asked(ports[0], "/health", None, "GET")[0] == 503
        status, content = asked(ports[0], "/v1/completions", body)
        assert (status, content["error"]["code"]) == (503, "instance_down")
        assert asked(ports[1], "/health", None, "GET")[0] == 200
        assert len(events(asked(ports[1], "/v1/completions", body | {"max_tokens": 9})[1])) == 10
        until_s = time.monotonic() + 10
        while asked(ports[0], "/health", None, "GET")[0] != 200 and time.monotonic() < until_s:
            time.sleep(0.1)
        assert len(events(asked(ports[0], "/v1/completions", body | {"max_tokens": 9})[1])) == 10


def test_kv_events_name_the_blocks_that_an_instance_caches() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        kv_port = free.getsockname()[1]
    with serving("cluster.instances=1", f"kv_events={kv_port}", "engine.kv_tokens=1600", "scale=10") as (port,):
        subscriber: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
        subscriber.connect(f"tcp://127.0.0.1:{kv_port}")
        subscriber.subscribe(b"")
        cached: dict[int, list[int]] = {}
        numbers = []
        for k in range(40):
            asked(port, "/v1/completions", {"prompt": [k] * 160, "max_tokens": 2})
            while subscriber.poll(200):
                _, number, content = subscriber.recv_multipart()
                numbers.append(int.from_bytes(number, "big"))
                for change in msgspec.msgpack.decode(content)[1]:
                    if change["type"] == "BlockStored":
                        cached |= dict.fromkeys(change["block_hashes"], change["token_ids"])
                    else:
                        for name in change["block_hashes"]:
                            cached.pop(name, None)
        assert numbers == [*range(numbers[0], numbers[0] + len(numbers))]
        assert 50 <= len(cached) <= 100  # of 400 blocks that were stored, 100 fit
        assert {tuple(ids) for ids in cached.values()} >= {(k,) * 160 for k in range(35, 40)}


def test_disaggregation_reports_and_a_gateway_serve_too() -> None:
    settings = ("policy=distserve", "cluster.prefill=1", "cluster.decode=1", "gateway=flow_control", "scale=10")
    with serving(*settings) as (port,):
        for _ in range(3):
            status, answer = asked(
                port, "/v1/completions", {"prompt": "abcd" * 500, "max_tokens": 50, "ignore_eos": True}
            )
            assert (status, answer["usage"]["completion_tokens"]) == (200, 50)
