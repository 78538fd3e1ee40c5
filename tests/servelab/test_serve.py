"""The server by its ports: answers, streams, errors, clients that leave, and what it counts."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from servelab.serve import tokens
from tests.conftest import ROOT

SERVE = (sys.executable, "-m", "servelab", "serve", "port=0", "policy=chunked", "trace=azure_conv", "trace.limit=100")


@contextmanager
def serving(*arguments: str) -> Iterator[list[int]]:
    """The ports of a server, which ends well when it is interrupted, and in any case."""
    process = subprocess.Popen([*SERVE, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    ports = []
    for line in process.stdout:
        ports.append(int(line.split("/v1")[0].rpartition(":")[2]))
        if " of " not in line or f"port {len(ports)} of {len(ports)}" in line:
            break
    try:
        yield ports
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
    finally:
        process.kill()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving("cluster.instances=2", "scale=20") as (port,):
        yield port


def asked(port: int, path: str, body: Any = None, method: str = "POST") -> tuple[int, Any]:
    """Status and body of a request; JSON is parsed."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    connection.request(method, path, data)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    is_json = response.headers.get("Content-Type", "").startswith("application/json")
    return response.status, json.loads(content) if is_json else content


def events(content: bytes) -> list[Any]:
    """The chunks of a stream, whose end is checked."""
    parts = content.decode().split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""]
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]


def text_of(id: str, count: int) -> str:
    """The answer of the request that the id names, as seed 0 makes it."""
    return tokens.answer(0, int(id.split("-")[1]), count).decode()


def test_a_completion_has_its_tokens_and_their_count(port: int) -> None:
    body = {"model": "llama3_8b", "prompt": "a prompt of six tokens!", "max_tokens": 12, "ignore_eos": True}
    status, answer = asked(port, "/v1/completions", body)
    assert status == 200
    assert answer["choices"][0]["text"] == text_of(answer["id"], 12)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["prompt_tokens"] == 6
    assert answer["usage"]["completion_tokens"] == 12


def test_a_stream_has_each_token_once_in_order(port: int) -> None:
    body = {"prompt": [5, 6, 7], "max_tokens": 30, "min_tokens": 30, "stream": True}
    status, content = asked(port, "/v1/completions", body | {"stream_options": {"include_usage": True}})
    *chunks, end, usage = events(content)
    assert status == 200
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text_of(end["id"], 30)
    assert end["choices"][0]["finish_reason"] == "length"
    assert usage["usage"]["prompt_tokens"] == 3
    assert usage["choices"] == []
    assert asked(port, "/tokenize", {"prompt": "eight bytes"})[1]["count"] == 3


def test_the_next_turn_of_a_chat_finds_the_turn_before_in_the_cache(port: int) -> None:
    said = [{"role": "user", "content": "What is known of the weather on the other side of the moon? " * 20}]
    body = {"messages": said, "max_tokens": 40, "ignore_eos": True, "stream": True}
    first = events(asked(port, "/v1/chat/completions", body)[1])
    assert first[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    reply = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in first)
    assert reply == text_of(first[0]["id"], 40)
    said += [{"role": "assistant", "content": reply}, {"role": "user", "content": "And of the rest of it?"}]
    status, answer = asked(port, "/v1/chat/completions", {"messages": said, "max_tokens": 5})
    assert status == 200
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 288


def test_several_prompts_and_answers_are_choices_of_one_body(port: int) -> None:
    body = {"prompt": ["one", "two"], "n": 2, "max_tokens": 3, "ignore_eos": True}
    _, whole = asked(port, "/v1/completions", body | {"return_token_ids": True})
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    assert all(len(choice["token_ids"]) == 3 for choice in whole["choices"])
    assert (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]) == (2, 12)
    chunks = events(asked(port, "/v1/completions", body | {"stream": True})[1])
    found = ["", "", "", ""]
    for chunk in chunks:
        found[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    first = int(chunks[0]["id"].split("-")[1])
    assert found == [tokens.answer(0, first + k, 3).decode() for k in range(4)]


HOSTILE: list[tuple[str, Any, int, str | None]] = [
    ("/v1/completions", b"{", 400, None),
    ("/v1/completions", b"[" * 100_000, 400, None),
    ("/v1/completions", b"[1]", 400, None),
    ("/v1/completions", b"\xff\xfe", 400, None),
    ("/v1/completions", b"", 400, None),
    ("/v1/completions", {}, 400, "prompt"),
    ("/v1/completions", {"prompt": ""}, 400, "prompt"),
    ("/v1/completions", {"prompt": []}, 400, "prompt"),
    ("/v1/completions", {"prompt": [1, -2]}, 400, "prompt"),
    ("/v1/completions", {"prompt": [[1], 3]}, 400, "prompt"),
    ("/v1/completions", {"prompt": {"a": 1}}, 400, "prompt"),
    ("/v1/completions", {"prompt": "a", "max_tokens": -1}, 400, "max_tokens"),
    ("/v1/completions", {"prompt": "a", "max_tokens": 1.5}, 400, "max_tokens"),
    ("/v1/completions", {"prompt": "a", "max_tokens": True}, 400, "max_tokens"),
    ("/v1/completions", {"prompt": "a", "max_tokens": 10**6}, 400, "max_tokens"),
    ("/v1/completions", {"prompt": "a" * 4 * 131_072, "max_tokens": 1}, 400, "prompt"),
    ("/v1/completions", {"prompt": "a", "min_tokens": 50}, 400, "min_tokens"),
    ("/v1/completions", {"prompt": "a", "n": 1000}, 400, "n"),
    ("/v1/completions", {"prompt": "a", "stream": "yes"}, 400, "stream"),
    ("/v1/completions", {"prompt": "a", "stream_options": {"include_usage": True}}, 400, "stream_options"),
    ("/v1/completions", {"prompt": "a", "temperature": 9}, 400, "temperature"),
    ("/v1/completions", {"prompt": "a", "model": "gpt-7"}, 404, "model"),
    ("/v1/completions", {"prompt": "a", "model": ["x"]}, 400, "model"),
    ("/v1/chat/completions", {"messages": "hi"}, 400, "messages"),
    ("/v1/chat/completions", {"messages": [{"content": "hi"}]}, 400, "messages[0]"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content"),
    ("/v1/completions", b" " * ((16 << 20) + 1), 413, None),
    ("/v1/embeddings", {"input": "a"}, 404, None),
]


def test_hostile_requests_get_the_errors_of_the_api(port: int) -> None:
    for path, body, status, param in HOSTILE:
        found, content = asked(port, path, body)
        error = content["error"]
        assert (found, error["param"]) == (status, param), (path, str(body)[:80], content)
        assert error["message"]
        assert error["type"] == "invalid_request_error"
    assert asked(port, "/v1/completions", None, "GET")[0] == 405
    assert asked(port, "/v1/models/gpt-7", None, "GET")[1]["error"]["code"] == "model_not_found"
    assert asked(port, "/health", None, "GET") == (200, b"")
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GARBAGE\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.0 400 ")


def metric(port: int, name: str) -> float:
    """The sum of a metric over its labels."""
    lines = asked(port, "/metrics", None, "GET")[1].decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"vllm:{name}{{"))


def test_a_client_that_leaves_frees_what_it_held(port: int) -> None:
    waiting = {name: metric(port, name) for name in ("num_requests_running", "kv_cache_usage_perc")}
    assert waiting == {"num_requests_running": 0, "kv_cache_usage_perc": 0}
    body = json.dumps({"prompt": "a" * 40_000, "max_tokens": 100_000, "ignore_eos": True, "stream": True}).encode()
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    assert b"data: " in client.recv(65536) + client.recv(65536)
    assert metric(port, "num_requests_running") == 1
    assert metric(port, "kv_cache_usage_perc") > 0.01
    client.close()
    until_s = time.monotonic() + 5
    while metric(port, "num_requests_running") and time.monotonic() < until_s:
        time.sleep(0.02)
    assert {name: metric(port, name) for name in waiting} == waiting
    lines = asked(port, "/metrics", None, "GET")[1].decode().splitlines()
    assert sum(float(one.split()[-1]) for one in lines if 'finished_reason="abort"' in one) == 1


def test_instances_go_off_and_come_back(port: int) -> None:
    assert asked(port, "/pools", {"instances": 3})[1]["error"]["param"] == "instances"
    assert asked(port, "/pools", {"pool": "x", "instances": 1})[1]["error"]["param"] == "pool"
    for count in (1, 2):
        assert asked(port, "/pools", {"instances": count})[0] == 202
        until_s = time.monotonic() + 5
        while (pool := asked(port, "/pools", None, "GET")[1]["pools"][0])["ready"] != count:
            assert time.monotonic() < until_s
        assert pool == {"pool": "mixed", "instances": 2, "on": count, "ready": count}
        assert asked(port, "/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 200


def test_without_its_packages_it_says_what_to_install() -> None:
    words = (
        "import sys; sys.modules['aiohttp'] = None; sys.argv = ['servelab', 'serve']; import servelab.__main__ as m;"
        " sys.exit(m.main())"
    )
    process = subprocess.run([sys.executable, "-c", words], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 2
    assert process.stderr == "error: servelab serve needs aiohttp: pip install 'servelab[serve]'\n"
