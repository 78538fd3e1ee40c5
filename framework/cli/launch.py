"""The edge of the command line: a user's mistake becomes one line and exit code 2, a bug keeps its traceback.

Hydra prints its own exceptions over many lines and exits with 1. With HYDRA_FULL_ERROR=1 it raises them instead;
`launch` sets that, and turns what the user can fix into one line. A user who sets it sees full tracebacks.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType

from framework.cli.arguments import name_files, with_config_dirs
from framework.cli.composition import composing_once
from framework.cli.explain import explain
from framework.cli.flags import flags_first
from framework.cli.safe_text import masked
from framework.cli.streams import (
    drop_output,
    drop_unwritable_output,
    flush_output,
    has_streams,
    reader_has_gone,
    report_error,
)
from framework.errors import InputError, follows_interrupt
from framework.version import VERSION

USER_ERROR = 2
INTERRUPTED = 130  # exit code that shells give for SIGINT, and for SIGPIPE
BROKEN_PIPE = 141
_INTERRUPTED_AGAIN_S = 0.05
# The groups of conf/ from which every run has a choice.
_GROUPS = [
    "cluster",
    "engine",
    "gpu",
    "load",
    "model",
    "objective",
    "policy",
    "predictor",
    "server",
    "slo",
    "timing",
    "trace",
]
# a command keeps most of its allocations: frequent collections would take a tenth of its time
_RARELY = (100_000, 20, 100)


def launch(main: Callable[[], int | None]) -> None:
    """Call `main`, the work of a command, and end the process as its user should see it end."""
    verbose = os.environ.get("HYDRA_FULL_ERROR") == "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"
    _repeat_lost_interrupts()
    quit_when_interrupted()
    try:
        if verbose:
            with composing_once():
                _with_words(main)
        elif code := guard(lambda: _with_words(main)):
            sys.exit(code)
    finally:
        take_interrupts()


def _with_words(main: Callable[[], int | None]) -> int | None:
    """Call `main` with the arguments of the command line in the form that Hydra takes."""
    arguments = sys.argv[1:]
    if any(".py" in word for word in arguments):
        from framework.cli.outside import with_files

        arguments = with_files(arguments)
    arguments = flags_first(with_config_dirs(arguments))
    if "--version" in arguments:
        print(VERSION)
        return 0
    _refuse_left_out_groups(arguments)
    sys.argv[1:] = name_files(arguments)
    return main()


def _refuse_left_out_groups(arguments: Sequence[str]) -> None:
    """Raise InputError for ~GROUP: every run has one of each kind of part."""
    for word in arguments:
        group = word.removeprefix("~").partition("=")[0]
        if word.startswith("~") and group in _GROUPS:
            raise InputError(f"{word}: a run needs a {group}; choose one, as in {group}=NAME")


def guard(main: Callable[[], int | None], interrupted: str = "") -> int:
    """Call `main` and return the exit code. Mistakes become one line, bugs are raised; `interrupted` handles an
    interrupt.
    """
    gc.set_threshold(*_RARELY)
    sys.excepthook = _report_bug
    if not has_streams():
        return USER_ERROR
    try:
        with composing_once():
            code = main()
        flush_output()
    except KeyboardInterrupt:
        return _interrupted(interrupted)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # rich has caught it
            return BROKEN_PIPE
        raise
    except Exception as error:
        if reader_has_gone(error):
            drop_output()
            return BROKEN_PIPE
        if follows_interrupt(error):
            return _interrupted(interrupted)
        line = explain(error)
        if line is None:
            raise
        report_error(line)
        return USER_ERROR
    finally:
        drop_unwritable_output()
    return code or 0


def _report_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a traceback, as Python does, with secrets in URLs masked."""
    print(masked("".join(traceback.format_exception(kind, error, trace))), end="", file=sys.stderr)


def _interrupted(answer: str) -> int:
    if answer:
        print(answer, file=sys.stderr)
    return INTERRUPTED


def quit_when_interrupted() -> None:
    """Let an interrupt end the process at once, until `take_interrupts`: nothing has begun that would need an end.

    An exception could be lost: Hydra and OmegaConf raise others in its place, and catch those.
    """
    _answer_interrupts(lambda number, frame: os._exit(INTERRUPTED))


def take_interrupts() -> None:
    """Let an interrupt raise KeyboardInterrupt, as Python does."""
    _answer_interrupts(signal.default_int_handler)


def _answer_interrupts(answer: Callable[[int, FrameType | None], object]) -> None:
    is_ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # as a shell has it for what runs behind it
    if threading.current_thread() is threading.main_thread() and not is_ignored:
        signal.signal(signal.SIGINT, answer)


def _repeat_lost_interrupts() -> None:
    """Repeat an interrupt that was lost in a callback from C, such as the compiler's: nothing can raise there."""
    report = sys.unraisablehook

    def repeat(lost: sys.UnraisableHookArgs) -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):
            threading.Timer(_INTERRUPTED_AGAIN_S, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            report(lost)

    sys.unraisablehook = repeat
