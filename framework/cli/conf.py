"""Where the configurations are: next to the packages, in a checkout and where they are installed."""

from __future__ import annotations

from pathlib import Path

CONF = Path(__file__).resolve().parents[2] / "conf"
