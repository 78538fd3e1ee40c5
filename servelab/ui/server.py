"""The HTTP server: the page, its data, and answers of runs that are run again. It reads, and changes nothing."""

from __future__ import annotations

import asyncio
import functools
import html
import json
import re
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any

from aiohttp import web

from framework.checks import is_numeric
from framework.errors import InputError, shown
from framework.report.arms import Arm, unlike
from framework.report.page.compared import changed, figures
from framework.report.page.markup import Sheet, text
from framework.report.page.script import is_interactive, library
from framework.report.page.style import STYLE
from framework.report.page.words import in_words, setup
from framework.run.live import running_in
from framework.run.store import Record
from servelab.ui.again import Worker
from servelab.ui.columns import FIGURES, SLO, STATE, slo_words
from servelab.ui.sides import sides
from servelab.ui.watch import Watched

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_SCRIPTS = ("main", "state", "parts", "filters", "picked", "table", "pivot", "pareto", "detail", "live")
_KEY = re.compile(r"[\w.-]{1,64}")
_MOST_FIGURES, _MOST_KEYS, _MOST_QUERY = 40, 2, 4000
_HERE = ("127.0.0.1", "localhost", "[::1]")
_POLICY = "; ".join((
    "default-src 'none'", "script-src 'self'", "style-src 'self' 'unsafe-inline'", "connect-src 'self'",
    "img-src data:", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
))  # fmt: skip
_HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"}


class RefusedError(Exception):
    """A request without an answer: its status, and one line."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status


@dataclass(frozen=True)
class Desk:
    """The page of one store."""

    watched: Watched
    worker: Worker

    def application(self) -> web.Application:
        """The server."""
        app = web.Application(middlewares=[_guarded])
        gets: Mapping[str, Handler] = {
            "/": self._shell,
            "/look.css": self._look,
            "/vega.js": self._library,
            "/runs": self._runs,
            "/live": self._live,
            "/run": self._run,
            "/why": functools.partial(self._again, "why"),
            "/page": functools.partial(self._again, "page"),
            "/compare": functools.partial(self._again, "compare"),
        }
        for path, handler in gets.items():
            app.router.add_get(path, handler)
        for name in _SCRIPTS:
            app.router.add_get(f"/{name}.js", functools.partial(self._script, f"{name}.js"))
        return app

    async def _shell(self, _: web.Request) -> web.Response:
        store = str(self.watched.store.directory)
        content = _resource("index.html").replace("{store}", html.escape(store))
        return web.Response(
            text=content, content_type="text/html", headers={**_HEADERS, "Content-Security-Policy": _POLICY}
        )

    async def _look(self, _: web.Request) -> web.Response:
        return web.Response(text=STYLE + _resource("look.css"), content_type="text/css", headers=_HEADERS)

    async def _library(self, _: web.Request) -> web.Response:
        content = await asyncio.to_thread(library)
        return _compressed(web.Response(text=content, content_type="text/javascript", headers=_HEADERS))

    async def _script(self, name: str, _: web.Request) -> web.Response:
        return web.Response(text=_resource(name), content_type="text/javascript", headers=_HEADERS)

    async def _runs(self, request: web.Request) -> web.Response:
        """The runs from `since` on of `epoch`, all of them if that has ended, with these `figures`."""
        asked = _query(request, ("epoch", "since", "figures"))
        since, epoch = _count(asked, "since"), _count(asked, "epoch")
        names = [name for name in asked.get("figures", "").split(",") if name] or list(FIGURES)
        if len(names) > _MOST_FIGURES:
            raise RefusedError(400, f"figures: at most {_MOST_FIGURES} at a time, got {len(names)}")
        watched, columns = self.watched, self.watched.columns
        unknown = [name for name in names if name not in columns.figures and name not in FIGURES]
        if unknown:
            raise RefusedError(400, f"figures: no run has {shown(unknown[0])}")
        first = since if epoch == watched.epoch else 0
        content = {
            "epoch": watched.epoch,
            "since": first,
            "known": columns.known(),
            "slo": columns.settings[SLO].values if SLO in columns.settings else [],
            "states": columns.settings[STATE].values if STATE in columns.settings else [],
            **columns.since(first, names, watched.varying),
        }
        return _compressed(_json(content))

    async def _live(self, _: web.Request) -> web.Response:
        """What runs now, and how many runs there are."""
        self.watched.refresh()
        watched = self.watched
        running = [asdict(one) for one in running_in(watched.store.directory)]
        known = {"epoch": watched.epoch, "runs": len(watched.columns.keys), "running": running}
        return _json({**known, "trouble": watched.trouble, "has_pictures": is_interactive()})

    async def _run(self, request: web.Request) -> web.Response:
        """One run, or two side by side: what differs, their figures, all settings."""
        records = self._records(request)
        runs = sides(records, self.watched.labels(records))
        told = self.watched.varying  # the table below has these
        said = unlike([Arm(run.label, run.settings, given=told) for run in runs]) if len(runs) > 1 else ""
        lines = [setup([run.settings for run in runs], [run.summary["gpus"] for run in runs]), said or ""]
        limits = dict.fromkeys(slo_words(record.config) for record in records)
        lines.append(f"SLO: {'; '.join(limits)}")
        parts = [f'<p class="sub">{text(line)}</p>' for line in lines if line]
        if len(runs) > 1:
            columns = ["setting", *(run.label for run in runs)]
            parts += ["<h3>Settings that differ</h3>", Sheet(columns, self.watched.differing(records)).html()]
            parts.append(f"<details><summary>With what they bring along</summary>{changed(runs).html()}</details>")
        parts += ["<h3>Figures</h3>", figures(runs).html(), *map(_everything, records)]
        return web.Response(text="".join(parts), content_type="text/html", headers=_HEADERS)

    async def _again(self, what: str, request: web.Request) -> web.Response:
        """What only running again can tell."""
        records = self._records(request)
        if (what == "compare") != (len(records) > 1):
            raise RefusedError(400, f"keys: {what} takes {'two runs' if what == 'compare' else 'one run'}")
        try:
            answer = await self.worker.ask(what, records, self.watched.labels(records))
        except InputError as error:
            raise RefusedError(503, str(error)) from None
        if answer.failed:
            raise RefusedError(422, f"the run cannot be run again here: {answer.content}")
        return _compressed(web.Response(text=answer.content, content_type="text/html", headers=_HEADERS))

    def _records(self, request: web.Request) -> list[Record]:
        """The runs that a request names. Raises RefusedError for others."""
        keys = _query(request, ("keys",)).get("keys", "").split(",")
        if keys == [""] or len(keys) > _MOST_KEYS or len(set(keys)) < len(keys):
            raise RefusedError(400, f"keys: one run, or {_MOST_KEYS} that differ, are written keys=KEY,KEY")
        return [self._record(key) for key in keys]

    def _record(self, key: str) -> Record:
        record = self.watched.get(key) if _KEY.fullmatch(key) else None
        if record is None:
            raise RefusedError(404, f"keys: the store has no run {shown(key)}")
        return record


def _everything(record: Record) -> str:
    """All settings and figures of a run, folded away."""
    settings = [[name, json.dumps(value)] for name, value in in_words(record.config).items()]
    numbers = [
        [key, value if is_numeric(value) else str(value)]
        for key, value in record.summary.items()
        if not isinstance(value, list | dict)
    ]
    tables = (("settings", settings), ("figures", numbers))
    return "".join(
        f"<details><summary>All {len(rows)} {name} of {text(record.key)}</summary>"
        f"{Sheet([name.removesuffix('s'), 'value'], [[row[0], str(row[1])] for row in rows]).html()}</details>"
        for name, rows in tables
    )


# --- requests and responses -------------------------------------------------------------------------------------------


@web.middleware
async def _guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
    """One clear line for each request that cannot be answered."""
    try:
        _require_own_page(request)
        return await handler(request)
    except RefusedError as refused:
        return _line(refused.status, str(refused))
    except InputError as error:
        return _line(500, str(error))
    except web.HTTPException as error:
        known = {404: "there is no such page", 405: "this server only shows, with GET"}
        return _line(error.status, known.get(error.status, error.reason))
    except (asyncio.CancelledError, ConnectionError):
        raise
    except Exception as error:
        traceback.print_exc()
        return _line(500, f"the server has failed: {type(error).__name__}: {error}")


def _require_own_page(request: web.Request) -> None:
    """Raise RefusedError for a request that another site or another name of this machine led here."""
    host = request.headers.get("Host", "")
    name, _, port = host.rpartition(":")
    if (name or host) not in _HERE or (name and not port.isdigit()):
        raise RefusedError(403, f"this server answers to 127.0.0.1 and localhost alone, not to {shown(host)}")
    if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        raise RefusedError(403, "another site asks; open the page itself")
    if len(request.query_string) > _MOST_QUERY:
        raise RefusedError(414, f"the question is longer than {_MOST_QUERY:,} characters")


def _query(request: web.Request, known: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in request.query.items():
        if name not in known:
            raise RefusedError(400, f"{shown(name)}: not understood; there is {', '.join(known)}")
        if name in found:
            raise RefusedError(400, f"{name}: is given twice")
        found[name] = value
    return found


def _count(asked: Mapping[str, str], name: str) -> int:
    word = asked.get(name, "0")
    if not word.isascii() or not word.isdigit() or len(word) > 9:
        raise RefusedError(400, f"{name} must be a whole number of at least 0, got {shown(word)}")
    return int(word)


def _line(status: int, line: str) -> web.Response:
    return web.Response(text=f"{line}\n", status=status, content_type="text/plain", headers=_HEADERS)


def _json(content: Any) -> web.Response:
    body = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return web.Response(text=body, content_type="application/json", headers=_HEADERS)


def _compressed(response: web.Response) -> web.Response:
    response.enable_compression()
    return response


@functools.cache
def _resource(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text()
