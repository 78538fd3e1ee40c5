"""The directory of configurations: next to the packages, in a checkout and in an installation."""

from __future__ import annotations

from pathlib import Path

CONF = Path(__file__).resolve().parents[2] / "conf"
