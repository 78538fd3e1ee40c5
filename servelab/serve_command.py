"""A simulated cluster behind the API of OpenAI and vLLM: `servelab serve policy=chunked cluster.instances=4 port=8000`.

Routers, gateways, load generators and autoscalers can be tried against it without a GPU. The text of the answers is
made up; when each token comes is simulated, in real time or scaled. Needs `pip install servelab[serve]`.
"""

from __future__ import annotations

from framework.cli.arguments import ANY, name_files
from framework.cli.command import Arguments, command
from framework.errors import InputError
from servelab.packages import is_installed

_KEYS = {
    "port": "the port, 0: any that is free (8000)",
    "host": "the address to listen at (127.0.0.1: this machine only)",
    "scale": "seconds of the simulation in a second of the wall clock (1)",
    "ports": "one: the policy chooses the instance; each: one port for each instance that takes prompts, from port on",
    "model_name": "the name of the model in the API (that of model=)",
    "record": "a directory: at the end trace.parquet has what was sent, served.parquet when it was served",
    "kv_events": "a port: instance i publishes there + i, over ZeroMQ, which blocks it caches",
    "most": "requests that the server takes in its life (200000)",
}
_NEEDED = ("aiohttp", "msgspec", "prometheus_client", "uvloop", "zmq")


@command(__doc__, keys=_KEYS, settings=ANY)
def main(arguments: Arguments) -> None:
    """Serve until it is interrupted. Raises InputError for wrong settings, or if the server's packages are missing."""
    missing = [name for name in _NEEDED if not is_installed(name)]
    if missing:
        raise InputError(f"servelab serve needs {', '.join(missing)}: pip install 'servelab[serve]'")
    from servelab.serve.running import run

    run(arguments, name_files(arguments.settings))
