"""The highest goodput that any schedule could reach on a cluster: `servelab bound policy=ares trace=mooncake rate=40`.

Nothing is simulated: the bound follows from the requests, the step times, the memory and the SLOs alone.
"""

from __future__ import annotations

from hydra import compose as compose_config

from framework.cli.arguments import ANY, name_files
from framework.cli.command import Arguments, command


@command(__doc__, settings=ANY)
def main(arguments: Arguments) -> None:
    """Print the bound and its limit. Raises InputError for wrong settings."""
    from framework.cli.composition import composing
    from framework.cli.conf import CONF
    from framework.objective.goodput import bound_of
    from framework.run.compose import compose

    with composing(CONF):
        experiment = compose(compose_config("config", overrides=name_files(arguments.settings)))
    best = bound_of(experiment)
    offered = len(experiment.workload)
    print(f"requests offered: {offered:,}")
    print(f"goodput of no schedule is above: {best.goodput:.4g} req/s")
    print(f"limited by: {best.limit}")
