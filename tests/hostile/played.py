"""Commands played through the launcher: in a copy of a process that has all loaded, or in a Python of their own."""

from __future__ import annotations

import gc
import hashlib
import json
import math
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from framework.cli.launch import INTERRUPTED
from framework.compiler.user_cache import user_directory
from tests.conftest import ROOT
from tests.hostile.drawn import CACHES, Command
from tests.hostile.settings import warm

LIMIT_S = 20.0  # of processor time: the machine may be busy
_PATIENCE = 6  # times as long on the clock
LOADED = (  # of a run; none of them starts a thread
    *("framework.run.command", "framework.run.callback", "framework.cli.outside", "servelab.run_command"),
    *("traces.load", "traces.fitted.fitted_trace", "traces.drawn.synthetic", "framework.report.run_table"),
    *("framework.diagnosis.findings", "framework.report.why_table", "framework.timing.measured"),
    *("framework.timing.roofline", "framework.sizing.by_load", "framework.objective.goodput", "framework.run.store"),
    *("hydra._internal.core_plugins.basic_launcher", "hydra._internal.core_plugins.basic_sweeper"),
    *(f"policies.{name}" for name in ("chunked", "ares", "distserve", "vllm_v1", "nexus", "deepseek")),
)
_INTERNAL = re.compile(
    r"\bHydra\b|\bhydra(?![/.\w-])|[Oo]mega[Cc]onf|\bnumba\b|\bpolars\b|PanicException|ComputeError|GlobalHydra|Lexer\w+"
    r"|Config group|\bInterpolation|set_int_max_str|<class |object at 0x|pickl|pyo3|DictConfig|InstantiationEx"
)
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]")


def load() -> None:
    """Import all that a run needs and load its compiled code, so that copies of this process have it."""
    from framework.compiler.decorators import prepare

    for name in LOADED:
        import_module(name)
    with get_context("fork").Pool(1) as copy:  # a run starts threads, which copies of this process would lack
        needed = copy.apply(_needed)
    for name, function in _functions().items():
        prepare(function)
        for signature in needed.get(name, []):
            if signature not in function.signatures:
                function.compile(signature)


def _needed() -> dict[str, list[Any]]:
    """The signatures of each compiled function that a run asks for."""
    warm((("policy=chunked",), ("policy=distserve",)))
    return {name: list(function.signatures) for name, function in _functions().items() if function.signatures}


def _functions() -> dict[str, Any]:
    from framework.compiler.dispatchers import Function

    found = [one for one in gc.get_objects() if isinstance(one, Function)]
    return {f"{one.py_func.__module__}.{one.py_func.__qualname__}": one for one in found}


def wrong_with(command: Command, limit_s: float = LIMIT_S) -> str | None:
    """What is wrong with what came of a command; None where it ran, or was refused, as it should."""
    folder = Path(tempfile.mkdtemp(prefix="hostile-"))
    try:
        _lay(folder, command)
        _lend_compiled_code(folder, command)
        if command.damage is not None:
            _run(folder, command, 5 * limit_s)
            _damage(folder, command.damage)
        code, seconds = _run(folder, command, limit_s * (4 if command.is_apart else 1))
        return _judged(folder, command, code, seconds, limit_s)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _lay(folder: Path, command: Command) -> None:
    for name, (kind, content) in command.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "directory":
            path.mkdir(exist_ok=True)
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "loop":
            path.symlink_to(path.name)
        else:
            path.write_bytes(content)
            path.chmod(0 if kind == "unreadable" else 0o644)


def _lend_compiled_code(folder: Path, command: Command) -> None:
    """Have what is compiled in each cache that a command moves into its folder: compiling takes half a minute."""
    bases = [folder / (value or "") / CACHES[name] for name, value in command.environment.items() if name in CACHES]
    for base in [folder / "cache", *bases]:
        with suppress(OSError, ValueError):
            if base.is_relative_to(folder) and (own := user_directory("compiled")):
                (base / "servelab").mkdir(parents=True)
                (base / "servelab" / "compiled").symlink_to(own)


def _damage(folder: Path, content: bytes) -> None:
    sealed = content.removeprefix(b"sealed")
    if sealed != content or content == b"sealed":  # as a cache would have it
        content = hashlib.sha256(sealed).digest() + sealed
    for path in (folder / "cache").rglob("*"):
        if path.is_file() and "compiled" not in path.parts:
            path.write_bytes(content)


def _run(folder: Path, command: Command, limit_s: float) -> tuple[int, float]:
    """The exit code, -9 where it was killed, and the seconds of processor time, or on the clock where it slept."""
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        _as_child(folder, command)
    while time.monotonic() - began < _PATIENCE * limit_s:
        ended, status, used = os.wait4(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
        time.sleep(0.005)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -9, time.monotonic() - began


def _as_child(folder: Path, command: Command) -> None:
    """Give the command, in this copy of the process or instead of it, and end."""
    code = 70
    try:
        os.setpgid(0, 0)
        os.chdir(folder)
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for name, value in _environment(folder, command).items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
        arguments = [word.replace("\x00", "") for word in command.arguments]
        if command.is_apart:
            os.execv(sys.executable, [sys.executable, "-m", "servelab", *arguments])
        code = _main(arguments)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _main(arguments: Sequence[str]) -> int:
    """What `python -m servelab` does."""
    import atexit

    from servelab.__main__ import main

    sys.argv = [str(ROOT / "servelab" / "__main__.py"), *arguments]
    try:
        code: object = main()
    except SystemExit as end:
        code = end.code
    atexit._run_exitfuncs()
    return code if isinstance(code, int) else 0 if code is None else 1


def _environment(folder: Path, command: Command) -> Mapping[str, str | None]:
    own: dict[str, str | None] = {"PYTHONPATH": str(ROOT), "TRACES_OFFLINE": "1", "COLUMNS": "120"}
    if command.damage is not None:
        own |= {"NUMBA_CACHE_DIR": None, "XDG_CACHE_HOME": str(folder / "cache")}
    return own | dict(command.environment)


def _judged(folder: Path, command: Command, code: int, seconds: float, limit_s: float) -> str | None:
    out, err = ((folder / name).read_bytes().decode(errors="replace") for name in ("out", "err"))
    text, last = out + err, (err.strip().splitlines() or [""])[-1][:300]
    typed = " ".join([*command.arguments, *map(str, command.environment.values())])
    if code == -9 or (seconds > limit_s and "compil" not in err):
        return f"hang: {seconds:.0f} s; {last}"
    if "Traceback" in text:
        return f"traceback: {last}"
    is_interrupted = any(b"raise KeyboardInterrupt" in content for _, content in command.files.values())
    if code not in (0, 2) and not (code == INTERRUPTED and is_interrupted):
        return f"exit code {code}: {last}"
    if code == 2 and not any(line.startswith(("error: ", "usage: ")) for line in err.splitlines()):
        return f"refused without a line: {last}"
    found = next((one[0] for one in _INTERNAL.finditer(text) if one[0] not in typed), None)
    if found is not None:
        line = next(line for line in text.splitlines() if found in line)
        return f"name of an internal, {found}: {line[:300]}"
    if unseen := _UNSEEN.search(text):
        return f"raw {unseen[0]!r} in the output: {text[max(0, unseen.start() - 80) : unseen.end() + 40]!r}"
    if "RuntimeWarning" in err:
        return f"silent overflow: {last}"
    return _odd_figure(folder) if code == 0 else None


def _odd_figure(folder: Path) -> str | None:
    """A figure of the run that is no number, or below 0."""
    for file in folder.rglob("summary.json"):
        for name, value in json.loads(file.read_bytes()).items():
            if isinstance(value, int | float) and not (math.isfinite(value) and value >= 0):
                return f"silent: {name} is {value}"
    return None
