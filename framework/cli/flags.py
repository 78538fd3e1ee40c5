"""The flags of a run: arguments with a dash, anywhere among the settings."""

from __future__ import annotations

from collections.abc import Sequence

from framework.cli.suggest import nearest
from framework.errors import InputError

_SHOWN = ("job", "hydra", "all")  # values of --cfg
_FLAGS = ("--help", "--version", "--multirun", "--cfg", "--resolve")
_SHORT = {"-h": "--help", "-V": "--version", "-m": "--multirun", "-c": "--cfg"}


def flags_first(arguments: Sequence[str]) -> list[str]:
    """The arguments with the flags, by their long names, before the settings, as Hydra needs them.

    Raises InputError for an unknown flag, for a value that it does not take, and for flags that cannot be combined.
    """
    flags: dict[str, str] = {}
    settings: list[str] = []
    rest = iter(arguments)
    for word in rest:
        if not word.startswith("-"):
            settings.append(word)
            continue
        typed, equals, value = word.partition("=")
        name = _SHORT.get(typed, typed)
        if name not in _FLAGS:
            raise InputError(_unknown(word))
        if name == "--cfg":
            value = value if equals else next(rest, "")
            flags[name] = f"{name}={_shown(typed, value)}"
        elif equals:
            raise InputError(f"{word}: {typed} takes no value")
        else:
            flags[name] = name
    _refuse_misfits(flags)
    return [*flags.values(), *settings]


def _shown(typed: str, value: str) -> str:
    if value not in _SHOWN:
        raise InputError(f"{typed} {value}".rstrip() + f": written {typed} job")
    return value


def _refuse_misfits(flags: dict[str, str]) -> None:
    """Raise InputError for flags that cannot be combined."""
    if "--resolve" in flags and "--cfg" not in flags:
        raise InputError("--resolve: goes with --cfg job, which shows the settings instead of a run")
    if "--cfg" in flags and "--multirun" in flags:
        raise InputError("--cfg shows the settings of one run, and --multirun runs several; give one of them")


def _unknown(word: str) -> str:
    typed, _, value = word.partition("=")
    near = nearest(typed, _FLAGS) if typed.startswith("--") else ""
    key = typed.lstrip("-").replace("-", "_") or "key"
    return f"{word}: there is no such flag" + (
        near or f"; a setting is written without dashes: {key}={value or 'VALUE'}"
    )
