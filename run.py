"""One experiment: `python run.py policy=ares trace=mooncake`; `-m` for a sweep, `--cfg job` to see every setting."""

from __future__ import annotations

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) == signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback of imports

import hydra
from omegaconf import DictConfig

from framework.cli.launch import launch


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config: DictConfig) -> float:
    """Compose, measure, write, print; returns the objective, such as the goodput in requests per second."""
    from framework.run.command import execute  # compiled code loads here, not for --help or --cfg

    return execute(config)


if __name__ == "__main__":
    launch(main)
