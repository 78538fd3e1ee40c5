"""The highest goodput that any schedule could reach on a cluster: `servelab bound policy=ares trace=mooncake rate=40`.

The words are those of `servelab` itself, key=value. Nothing is simulated: the bound follows from the requests, the step
times, the memory and the SLOs alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from hydra import compose as compose_config


def main(words: Sequence[str]) -> int:
    """Print the bound and what limits it; the exit code. Raises InputError for settings that cannot be."""
    if any(word in ("-h", "--help") for word in words):
        print(__doc__)
        return 0
    from framework.cli.arguments import name_files
    from framework.cli.composition import composing
    from framework.objective.goodput import bound_of
    from framework.run.compose import compose
    from servelab.settings_place import CONF

    with composing(CONF):
        experiment = compose(compose_config("config", overrides=name_files(words)))
    best = bound_of(experiment)
    offered = len(experiment.workload)
    print(f"requests offered: {offered:,}")
    print(f"goodput of no schedule is above: {best.goodput:.4g} req/s")
    print(f"limited by: {best.limit}")
    return 0
