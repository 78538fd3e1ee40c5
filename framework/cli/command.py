"""One grammar of commands, `NAME OPERAND ... KEY=VALUE ...`, and one way to start them.

A word with `=` sets a key of the command's own, or a setting of every run. A word without `=` is an operand: a file, a
directory, a name. Flags are `--help` and, if settings are taken, `--config-dir DIR`.
"""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from framework.cli.arguments import ANY, DIRECTORIES, FILTERS, number, split_arguments, truth, whole, with_config_dirs
from framework.cli.launch import guard, take_interrupts
from framework.cli.suggest import nearest
from framework.errors import InputError

_HELP = ("-h", "--help")
_LAST_PORT = 65_535
_WIDTH = 100  # columns for the explanation of a key


@dataclass(frozen=True)
class Arguments:
    """A command line: its operands, the values of the command's own keys, settings of every run, and all arguments."""

    operands: tuple[str, ...] = ()
    own: Mapping[str, str] = field(default_factory=dict)
    settings: tuple[str, ...] = ()
    every: tuple[str, ...] = ()

    def whole(self, key: str, default: int, least: int = 1) -> int:
        """A whole number. Raises InputError for another value, as the other methods do."""
        return whole(key, self.own[key], least=least) if key in self.own else default

    def port(self, key: str, default: int) -> int:
        """A port of this machine, 0: any that is free."""
        return whole(key, self.own[key], _LAST_PORT, 0) if key in self.own else default

    def number(self, key: str, default: float) -> float:
        """A finite number."""
        return number(key, self.own[key]) if key in self.own else default

    def truth(self, key: str) -> bool:
        """True or false, which is the default."""
        return truth(key, self.own.get(key, "false"))

    def several(self, key: str) -> list[str]:
        """The values between commas; none by default."""
        return [one.strip() for one in self.own.get(key, "").split(",") if one.strip()]

    def path(self, key: str) -> Path | None:
        """A file or a directory, None by default."""
        return Path(self.own[key]).expanduser() if key in self.own else None


@dataclass(frozen=True)
class Command:
    """A command: its function, and the arguments that it takes.

    `text`: the docstring of its module. `operands`: as help shows them, [OPTIONAL] or SEVERAL ...; `keys`: its own
    keys, each with its meaning; `repeated`: keys that may be given several times. `settings`: as the groups of
    `split_arguments`. `interrupted` handles an interrupt.
    """

    work: Callable[[Arguments], int | None]
    text: str | None
    operands: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)
    repeated: Sequence[str] = ()
    settings: Sequence[str] = ()
    interrupted: str = ""

    def __call__(self, arguments: Sequence[str], typed: str = "") -> int:
        """Run the command; return the exit code. Raises InputError, or an error of Hydra's, for arguments without a
        meaning.
        """
        if set(_HELP) & set(arguments):
            print(self.help(typed))
            return 0
        return self.work(self.read(arguments)) or 0

    def finish(self, arguments: Sequence[str], typed: str) -> int:
        """Run the command as its user sees it; return the exit code; a mistake is one line."""
        take_interrupts()
        return guard(lambda: self(arguments, typed), self.interrupted)

    def start(self) -> None:
        """Run the command line of this process, and end the process."""
        sys.exit(self.finish(sys.argv[1:], _typed()))

    def read(self, arguments: Sequence[str]) -> Arguments:
        """The arguments, sorted. Raises InputError for those that this command does not take."""
        if self.settings == ANY and any(".py" in word for word in arguments):
            from framework.cli.outside import with_files

            arguments = with_files(arguments)
        arguments = with_config_dirs(arguments) if self.settings not in ((), FILTERS) else arguments
        operands = [word for word in arguments if self._is_operand(word)]
        self._require_operands(operands)
        rest = [word for word in arguments if word not in operands]
        for word in rest:
            self._refuse_flag(word)
        own, settings = split_arguments(rest, self.keys, self.settings, self.repeated)
        return Arguments(tuple(operands), own, tuple(settings), tuple(arguments))

    def help(self, typed: str) -> str:
        """The output of `--help`, with the command as it was typed."""
        module = self.work.__module__
        typed = typed or f"python -m {module.removesuffix('.command')}"
        ends = [self.operands, "[KEY=VALUE ...]" if self.keys or self.settings else ""]
        text = (self.text or "").strip().replace(f"python -m {module.removesuffix('.command')}", typed)
        parts = [f"usage: {' '.join([typed, *filter(None, ends)])}", text]
        if self.keys:
            width = max(map(len, self.keys)) + 3
            parts.append("\n".join(["keys:", *(_line(key, meaning, width) for key, meaning in self.keys.items())]))
        if self.settings == ANY:
            parts.append("All other arguments are settings of every run, as policy=NAME or trace.rate=8.")
        elif self.settings not in ((), DIRECTORIES, FILTERS):
            parts.append(f"Settings of a run: {', '.join(f'{group}=' for group in self.settings)}, as gpu.KEY=VALUE.")
        if self.settings not in ((), FILTERS):
            parts.append("--config-dir DIR: YAMLs of your own, as DIR/gpu/NAME.yaml, in addition to those of conf/.")
        return "\n\n".join(parts)

    def _is_operand(self, word: str) -> bool:
        key, equals, _ = word.partition("=")
        if not self.operands or word.startswith(("-", "~")):
            return False
        return not equals or "," in key or (key not in self.keys and Path(word).expanduser().exists())

    def _require_operands(self, given: Sequence[str]) -> None:
        least, several = 0 if not self.operands or self.operands.startswith("[") else 1, "..." in self.operands
        if len(given) < least:
            raise InputError(f"{self.operands} is missing; --help says what it is")
        if self.operands and len(given) > 1 and not several:
            raise InputError(f"{given[1]}: not understood; there is one {self.operands.strip('[]')}, {given[0]}")

    def _refuse_flag(self, word: str) -> None:
        """Raise InputError for a word with a dash."""
        key = word.lstrip("-").partition("=")[0].replace("-", "_")
        if word.startswith("-"):
            written = f"written {key}=VALUE" if key in self.keys else "a setting is written without dashes, key=VALUE"
            raise InputError(f"{word}: there is no such flag; {written}")


def command(text: str | None, **grammar: Any) -> Callable[[Callable[[Arguments], int | None]], Command]:
    """A decorator that makes a function a command; `grammar` are the other fields."""
    return lambda work: Command(work, text, **grammar)


@dataclass(frozen=True)
class Menu:
    """Several commands under one name; `modules` has the module of each, whose `main` it is."""

    text: str | None
    modules: Mapping[str, str]

    def finish(self, arguments: Sequence[str], typed: str) -> int:
        """Hand the arguments after the first to the command that the first one names; return the exit code."""
        if not arguments or arguments[0] in _HELP:
            print((self.text or "").strip())
            return 0
        name, *others = arguments
        if name not in self.modules:
            return guard(lambda: self._refuse(name))
        code: int = importlib.import_module(self.modules[name]).main.finish(others, f"{typed} {name}")
        return code

    def start(self) -> None:
        """Run the command line of this process, and end the process."""
        sys.exit(self.finish(sys.argv[1:], _typed()))

    def _refuse(self, name: str) -> int:
        near = nearest(name, self.modules) or ";"
        raise InputError(f"{name}: there is no such command{near} choose one of {', '.join(self.modules)}")


def _line(key: str, meaning: str, width: int) -> str:
    return textwrap.fill(f"  {key + '=':{width}}{meaning}", _WIDTH, subsequent_indent=" " * (width + 2))


def _typed() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return f"python -m {spec.name.removesuffix('.__main__')}" if spec else Path(sys.argv[0]).name
