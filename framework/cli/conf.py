"""The directory of configurations, and what they ask Hydra for by name: parts of run directories, and launchers.

It is next to the packages, in a checkout and in an installation.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

CONF = Path(__file__).resolve().parents[2] / "conf"
_LONGEST_NAME = 60  # characters: the name of a directory has more parts


def _played(choice: str, path: Any) -> str:
    """The trace's name in run directories: that of a user's file, which overrides the choice of the group."""
    return choice if path is None else Path(str(path)).name[:_LONGEST_NAME]


OmegaConf.register_new_resolver("played", _played, replace=True)
# With the time in microseconds, no two processes of a machine share a name.
OmegaConf.register_new_resolver("pid", os.getpid, use_cache=True, replace=True)

# Hydra looks for launchers in every portion of the package `hydra_plugins` on the path; later portions win.
sys.path.append(str(Path(__file__).parents[1] / "plugins"))
