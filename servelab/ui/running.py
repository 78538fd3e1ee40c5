"""From the command line to a server that shows a store until it is interrupted."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path

from aiohttp import web

from framework.cli.command import Arguments
from framework.cli.terminal import tell
from framework.errors import InputError
from servelab.ui.again import Worker
from servelab.ui.server import Desk
from servelab.ui.watch import Watched


def run(arguments: Arguments) -> None:
    """Show the store. Raises InputError for a store that is no directory, and for a port that is taken."""
    store = arguments.path("store") or Path("results")
    port = arguments.port("port", 8765)
    if store.exists() and not store.is_dir():
        raise InputError(f"store={store}: is no directory; name the store of a sweep")
    watched = Watched(store)
    watched.refresh()
    asyncio.run(_serve(watched, port))


async def _serve(watched: Watched, port: int) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    worker = Worker()
    app = Desk(watched, worker).application()
    runner = web.AppRunner(app, access_log=None, logger=_unheard(), handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
    except OSError as error:
        raise InputError(f"port {port}: {error.strerror or error}; choose another port=") from None
    host, taken = runner.addresses[0][:2]
    runs = len(watched.columns.keys)
    held = f"{runs:,} runs of {watched.store.directory}" if runs else f"{watched.store.directory} holds no runs yet"
    print(f"http://{host}:{taken}/  {held}", flush=True)
    tell("Ctrl-C ends it")
    await stopped.wait()
    worker.stop()
    await runner.cleanup()


def _unheard() -> logging.Logger:
    """A logger without a reader: aiohttp has a traceback for each client that does not speak HTTP."""
    logger = logging.getLogger("servelab.ui")
    logger.propagate = False
    logger.handlers = [logging.NullHandler()]
    return logger
