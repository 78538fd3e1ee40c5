"""Command lines of `key=value` words, and the parts of the configuration that they choose.

Options that name a file: `engine.attention=pod` is short for `engine/attention=pod`.

Hydra tells groups of files (`/`) from settings (`.`). A group within a group is both: what is written as a setting, but
with a name as its value, chooses the file of that name, so that settings of the file can still be given beside it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from framework.errors import InputError

_CONF = Path(__file__).resolve().parents[2] / "conf"
_NO_NAME = "{$"  # settings written out, a reference to another setting


def program() -> str:
    """How a run is started where this process is: by the script of a checkout, or by the command of the package."""
    script = Path(sys.argv[0])
    is_command = script.name.startswith("servelab") or script.parent.name == "servelab"
    return "servelab" if is_command or not (_CONF.parent / "run.py").is_file() else "python run.py"


def name_files(overrides: Sequence[str], conf: Path = _CONF) -> list[str]:
    """The same overrides, as Hydra wants them; several names for a sweep may stand where one may."""
    return [_name_file(word, conf) for word in overrides]


def _name_file(word: str, conf: Path) -> str:
    key, equals, value = word.partition("=")
    group = key.replace(".", "/")
    if not equals or group == key or value.startswith(tuple(_NO_NAME)):
        return word
    return f"{group}={value}" if key[0].isalpha() and (conf / group).is_dir() else word


# --- directories of a user's own YAMLs --------------------------------------------------------------------------------


_SEARCH_PATH = "hydra.searchpath"
_CONFIG_DIR = ("--config-dir", "-cd")


def with_config_dirs(words: Sequence[str]) -> list[str]:
    """The words with `--config-dir DIR` as the setting by which Hydra, and `configured`, look for YAMLs in DIR as well.

    Raises InputError where DIR is missing or is no directory.
    """
    kept: list[str] = []
    found: list[Path] = []
    rest = iter(words)
    for word in rest:
        key, equals, value = word.partition("=")
        if key not in _CONFIG_DIR:
            kept.append(word)
            continue
        path = Path((value if equals else next(rest, "")) or "(nothing)").expanduser()
        if not path.is_dir():
            raise InputError(f"{key} {path}: there is no such directory; it holds gpu/NAME.yaml, model/NAME.yaml ...")
        found.append(path.resolve())
    if found:  # beside the other settings, which argparse wants together
        first = next((at for at, word in enumerate(kept) if "=" in word and not word.startswith("-")), 0)
        kept.insert(first, f"{_SEARCH_PATH}=[{','.join(f'file://{path}' for path in found)}]")
    return kept


def add_config_dir(parser: argparse.ArgumentParser) -> None:
    """Let the parser of a command take `--config-dir DIR`, once or several times, into `config_dirs`."""
    text = "a directory of YAMLs of your own, as gpu/NAME.yaml, beside those of conf/"
    parser.add_argument(*_CONFIG_DIR, dest="config_dirs", action="append", default=[], metavar="DIR", help=text)


def word_parser(program: str, described: str | None, keys: Mapping[str, str]) -> argparse.ArgumentParser:
    """The parser of a command of KEY=VALUE words: `words` and `config_dirs`.

    `described`: the docstring of its module, of which what stands before the examples is shown; `keys`: what its own
    keys mean.
    """
    width = max(map(len, keys)) + 2
    told = "\n".join(f"  {key + '=':{width}}{text}" for key, text in keys.items())
    parser = argparse.ArgumentParser(
        program,
        description=(described or "").partition("\n\n    python")[0],
        epilog=f"keys:\n{told}\nall other words are settings of every run, as for run.py",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE")
    add_config_dir(parser)
    return parser


def all_words(words: Sequence[str], directories: Sequence[str]) -> list[str]:
    """The words of a command, and those that add its `config_dirs`. Raises InputError for what is no directory."""
    return with_config_dirs([*words, *(f"{_CONFIG_DIR[0]}={directory}" for directory in directories)])


def config_dirs(overrides: Sequence[str]) -> tuple[Path, ...]:
    """The directories of YAMLs: conf/ and, after it, those that the words of `with_config_dirs` add."""
    added = [word.partition("=")[2].strip("[]") for word in overrides if word.startswith(f"{_SEARCH_PATH}=")]
    return (_CONF, *(Path(one.removeprefix("file://")) for value in added for one in value.split(",") if one))


def is_config_dir(word: str) -> bool:
    """Whether a word adds a directory of YAMLs, in the form that `with_config_dirs` gives it."""
    return word.startswith(f"{_SEARCH_PATH}=")


# --- words of `key=value` ---------------------------------------------------------------------------------------------


_LARGEST = 10**9
_MOST_DIGITS = 18


def split_arguments(
    words: Sequence[str], own: Sequence[str], groups: Sequence[str]
) -> tuple[dict[str, str], list[str]]:
    """The values of the keys `own`, and the words that choose from, or override, the config groups.

    InputError for a word that is neither, and for one that is given twice.
    """
    values: dict[str, str] = {}
    overrides: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        kept = values if key in own else overrides
        if not equals or (key not in own and key != _SEARCH_PATH and key.split(".")[0] not in groups):
            known = ", ".join(f"{name}=" for name in dict.fromkeys((*groups, *own)))
            raise InputError(f"{word}: not understood; give any of {known}")
        if key in kept:
            raise InputError(f"{word}: {key} is given twice")
        kept[key] = value
    return values, [f"{key}={value}" for key, value in overrides.items()]


def configured(overrides: Sequence[str], groups: Sequence[str]) -> Mapping[str, Any]:
    """What `overrides` of conf/config.yaml choose from `groups`, built. Hydra's errors where they cannot be."""
    with initialize_config_dir(str(_CONF), version_base="1.3"):
        config = compose("config", overrides=name_files(overrides))
    return {group: instantiate(config[group], _convert_="all") for group in groups}


def whole(name: str, text: str, largest: int = _LARGEST) -> int:
    """A whole number from 1 to `largest`, underscores and commas allowed; InputError for anything else."""
    digits = text.replace("_", "").replace(",", "")
    if not digits.isascii() or not digits.isdigit() or len(digits) > _MOST_DIGITS or not 1 <= int(digits) <= largest:
        raise InputError(f"{name} must be a whole number from 1 to {largest:,}, got {text!r}")
    return int(digits)


def truth(name: str, text: str) -> bool:
    """True or false; InputError for anything else."""
    if text.lower() not in ("true", "false"):
        raise InputError(f"{name} must be true or false, got {text!r}")
    return text.lower() == "true"
