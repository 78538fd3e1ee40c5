"""From the command line to a server that runs until it is interrupted."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import uvloop
from aiohttp import web
from hydra import compose as compose_config

from framework.cli.command import Arguments
from framework.cli.composition import composing
from framework.cli.conf import CONF
from framework.errors import InputError
from framework.run.compose import compose
from servelab.serve.cluster import Doors, Simulated, simulated, warm
from servelab.serve.fleet import Fleet
from servelab.serve.http import Door
from servelab.serve.kv_events import KvEvents
from servelab.serve.metrics import Counted, Exposed
from servelab.serve.record import Record

_MOST_SCALE, _LEAST_SCALE = 1e4, 1e-4


@dataclass(frozen=True)
class Place:
    """Where the server listens, and how fast its clock runs."""

    host: str
    port: int
    scale: float
    doors: Doors
    model: str
    most: int
    record: Path | None
    kv_events: int | None


def run(arguments: Arguments, settings: Sequence[str]) -> None:
    """Serve the cluster that the settings describe. Raises InputError for wrong ones."""
    place = _place(arguments)
    with composing(CONF):
        config = compose_config("config", overrides=list(settings))
        experiment = compose(config)
    place = replace(place, model=place.model or experiment.model.name)
    warm(experiment, config.engine.prefix_cache)
    cluster = simulated(experiment, place.most + 1, config.engine.prefix_cache, place.doors)
    uvloop.run(_serve(cluster, place, experiment.seed))


def _place(arguments: Arguments) -> Place:
    own, scale = arguments.own, arguments.number("scale", 1.0)
    port, ports = arguments.port("port", 8000), own.get("ports", "one")
    doors = {str(one): one for one in get_args(Doors)}
    if not _LEAST_SCALE <= scale <= _MOST_SCALE:
        raise InputError(f"scale must be from {_LEAST_SCALE:g} to {_MOST_SCALE:g}, got {scale:g}")
    if ports not in doors:
        raise InputError(f"ports must be {' or '.join(doors)}, got {ports}")
    kv_events = arguments.whole("kv_events", 0) if "kv_events" in own else None
    most = arguments.whole("most", 200_000, least=2)
    host, model = own.get("host", "127.0.0.1"), own.get("model_name", "")
    return Place(host, port, scale, doors[ports], model, most, arguments.path("record"), kv_events)


def _unheard() -> logging.Logger:
    """A logger without a reader: aiohttp has a traceback for each client that does not speak HTTP."""
    logger = logging.getLogger("servelab.serve")
    logger.propagate = False
    logger.handlers = [logging.NullHandler()]
    return logger


async def _serve(cluster: Simulated, place: Place, seed: int) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    counted = Counted(len(cluster.engine.inspection.instances))
    record = None if place.record is None else Record(place.record)
    fleet = Fleet(cluster, place.scale, seed, counted, record)
    if place.kv_events is not None:
        fleet.events = KvEvents(cluster.engine.memory, fleet.blocks, place.host, place.kv_events)
    running = fleet.start()
    running.add_done_callback(lambda _: stopped.set())
    runners = []
    doors = cluster.entrances if place.doors == "each" else [-1]
    for k, instance in enumerate(doors):
        door = Door(fleet, instance, place.model, Exposed(fleet, counted, instance, place.model))
        runner = web.AppRunner(
            door.application(), access_log=None, logger=_unheard(), handler_cancellation=True, shutdown_timeout=1.0
        )
        await runner.setup()
        runners.append(runner)
        site = web.TCPSite(runner, place.host, place.port + k if place.port else 0, backlog=4096)
        try:
            await site.start()
        except OSError as error:
            raise InputError(f"port {place.port + k}: {error.strerror or error}; choose another port=") from None
        where = runner.addresses[0]
        whose = f"{len(cluster.engine.inspection.instances)} instances"
        whose = f"instance {instance}, port {k + 1} of {len(doors)}" if instance >= 0 else whose
        print(f"http://{where[0]}:{where[1]}/v1  {place.model}, {whose}, policy {cluster.policy.name}", flush=True)
    gc.freeze()
    await stopped.wait()
    for runner in runners:
        await runner.cleanup()
    if summary := counted.summary():
        print(summary)
    if record is not None:
        record.write(cluster.engine)
    if running.done():
        running.result()
    running.cancel()
