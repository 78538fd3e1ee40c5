"""Chromium without a window, driven through its own protocol over two pipes: it needs no other program and no network.

The protocol: https://chromedevtools.github.io/devtools-protocol/ (messages are JSON, each ended by a zero byte).
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Json = dict[str, Any]
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--remote-debugging-pipe",
)
_PATIENCE_S = 120.0
_TROUBLES = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")


def program() -> str | None:
    """The browser of this machine, if it has one."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Tab:
    """One page of a browser."""

    def __init__(self, commands: int, replies: int) -> None:
        self._commands, self._replies = commands, replies
        self._rest, self._count, self._session = b"", 0, ""
        self.troubles: list[str] = []  # what the pages wrote to the console, and errors that they did not handle
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def open(self, address: str) -> None:
        """Begin to load a page."""
        self._call("Page.navigate", url=address)

    def ask(self, expression: str) -> Any:
        """The value of an expression in the page, awaited if it is a promise; must be JSON.

        Raises RuntimeError where the page raises.
        """
        answer = self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Until an expression is true in the page; TimeoutError if it is not within two minutes."""
        end_s = time.monotonic() + _PATIENCE_S
        while not self.ask(f"Boolean({expression})"):
            if time.monotonic() > end_s:
                raise TimeoutError(f"the page never came to {expression}")
            time.sleep(0.1)

    def resize(self, width: int, height: int) -> None:
        """Show the page in a window of so many pixels."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, scheme: str) -> None:
        """Show pages as to a reader who prefers this colour scheme, light or dark."""
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def move(self, x: float, y: float) -> None:
        """Move the mouse to a place in the window."""
        self._mouse("mouseMoved", x, y)

    def click(self, x: float, y: float) -> None:
        """Press and release the mouse's left button."""
        self.drag((x, y), (x, y))

    def drag(self, begin: tuple[float, float], end: tuple[float, float]) -> None:
        """Move the mouse between two places with its left button pressed."""
        self.move(*begin)
        self._mouse("mousePressed", *begin, button="left", clickCount=1)
        for part in (0.25, 0.5, 0.75, 1.0):
            at = [first + part * (last - first) for first, last in zip(begin, end, strict=True)]
            self._mouse("mouseMoved", *at, button="left", buttons=1)
        self._mouse("mouseReleased", *end, button="left", clickCount=1)

    def tap(self, x: float, y: float) -> None:
        """Put a finger down and lift it."""
        self._call("Emulation.setTouchEmulationEnabled", enabled=True)
        self._call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self._call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def _mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def picture(self) -> bytes:
        """What the window shows once that no longer changes, as PNG; TimeoutError if it changes for two minutes."""
        end_s, before, shown = time.monotonic() + _PATIENCE_S, b"", self._shown()
        while shown != before:
            if time.monotonic() > end_s:
                raise TimeoutError("the page never came to rest")
            time.sleep(1.0)
            before, shown = shown, self._shown()
        return shown

    def _shown(self) -> bytes:
        return base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])

    def _call(self, method: str, **params: Any) -> Json:
        self._count += 1
        message: Json = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._next()
            if reply.get("id") == self._count:
                if "error" in reply:
                    raise RuntimeError(f"{method}: {reply['error']['message']}")
                result: Json = reply["result"]
                return result

    def _next(self) -> Json:
        """The next message of the browser, an answer or an event."""
        while b"\0" not in self._rest:
            if not select.select([self._replies], [], [], _PATIENCE_S)[0]:
                raise TimeoutError("the browser does not answer")
            part = os.read(self._replies, 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended")
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        found: Json = json.loads(message)
        if found.get("method") in _TROUBLES:
            self.troubles.append(json.dumps(found["params"])[:1000])
        return found


@contextmanager
def tab(browser: str, home: Path) -> Iterator[Tab]:
    """A page of a browser that runs meanwhile, with its profile below `home`."""
    wired = 'exec "$@" 3<&0 4>&1 < /dev/null > /dev/null'  # it reads commands from file 3 and answers on file 4
    words = ["sh", "-c", wired, "sh", browser, *_OPTIONS, f"--user-data-dir={home / 'profile'}", "about:blank"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, bufsize=0, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        try:
            yield Tab(running.stdin.fileno(), running.stdout.fileno())
        finally:
            running.terminate()
