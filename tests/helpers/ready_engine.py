"""The engine with its machine code loaded, and nothing run: what copies of a process may begin with."""

from __future__ import annotations

from framework.compiler.decorators import prepare
from framework.engine.loop import run, run_plain

prepare(run_plain)
prepare(run)
