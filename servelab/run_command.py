"""`servelab policy=ares trace=mooncake`: the work of run.py, from any directory."""

from __future__ import annotations

import hydra
from omegaconf import DictConfig

from framework.cli.conf import CONF


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def run(config: DictConfig) -> float:
    """Perform one run: compose, measure, write and print; return the figure of its objective."""
    from framework.run.command import execute  # compiled code loads here, not for --cfg

    return execute(config)
