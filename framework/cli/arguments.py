"""Command lines of `key=value` arguments, and the parts of the configuration that they choose.

An option that names a file has a short form: `engine.attention=pod` stands for `engine/attention=pod`.

Hydra distinguishes groups of files (`/`) from settings (`.`). A group within a group is both: written as a setting with
a name as its value, it chooses the file of that name, and settings of the file can still be given with it.
"""

from __future__ import annotations

import functools
import math
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from framework.cli.conf import CONF
from framework.cli.suggest import nearest
from framework.errors import InputError

_OTHER_THAN_TEXT = re.compile(r"[-+]?[\d._]+(e[-+]?\d+)?|[-+]?(inf|nan)|true|false|null", re.IGNORECASE)  # not text
_NO_NAME = "{$['\""  # a reference to another setting, a list, or a quoted name is no bare name
_QUOTES = ("'", '"')
_OF_HYDRA = "hydra/"
_TOO_LONG = re.compile(r"\d{1000}")


def program() -> str:
    """How a run is started in this process: by the script of a checkout, or by the command of the package."""
    script = Path(sys.argv[0])
    is_command = script.name.startswith("servelab") or script.parent.name == "servelab"
    return "servelab" if is_command or not (CONF.parent / "run.py").is_file() else "python run.py"


def name_files(overrides: Sequence[str], conf: Path = CONF) -> list[str]:
    """The overrides as Hydra takes them; for a sweep, several names may replace one.

    Raises InputError for an override without a meaning.
    """
    _refuse_unread(overrides, conf)
    return [_name_file(word, conf) for word in overrides]


def _refuse_unread(overrides: Sequence[str], conf: Path) -> None:
    """Raise InputError for an added setting that nothing reads. A user's own YAMLs may read any."""
    if any(is_config_dir(word) for word in overrides):
        return
    for word in overrides:
        key, equals, _ = word.partition("=")
        name = re.split(r"[./@]", key.lstrip("+"))[0]
        if not key.startswith("+") or not equals or (conf / name).is_dir() or name in _settings(conf):
            continue
        if not any("${" + name in other for other in overrides):
            near = nearest(name, [*_settings(conf), *(path.name for path in conf.iterdir() if path.is_dir())])
            raise InputError(f"{word}: no part of a run reads {name}{near}")


@functools.cache
def _settings(conf: Path) -> tuple[str, ...]:
    """The settings of conf/config.yaml that belong to no group."""
    return tuple(re.findall(r"^(\w+):", (conf / "config.yaml").read_text(), re.MULTILINE))


def _name_file(word: str, conf: Path) -> str:
    if _TOO_LONG.search(word):
        raise InputError(f"{word[:40]}…: a number of too many digits")
    key, equals, value = word.partition("=")
    if not key.lstrip("+~"):
        raise InputError(f"{word or 'an empty word'}: a setting is written key=value")
    group = key.replace(".", "/")
    if not equals or not key[:1].isalpha() or not (key.startswith(_OF_HYDRA) or (conf / group).is_dir()):
        return word
    if not value.startswith(tuple(_NO_NAME)):
        return f"{group}={','.join(map(_as_name, value.split(',')))}"
    if group == key and "/" not in group and not value.startswith((*_QUOTES, "{")):
        raise InputError(f"{word}: a run takes one {group}, by its name; several are a sweep: -m {group}=NAME,NAME")
    return word


def _as_name(choice: str) -> str:
    """A name that also reads as a number or a truth value, in quotes."""
    return f"'{choice}'" if _OTHER_THAN_TEXT.fullmatch(choice) else choice


# --- directories of a user's own YAMLs --------------------------------------------------------------------------------


_SEARCH_PATH = "hydra.searchpath"
ANY = ("*",)  # groups: settings of every run, with any key
FILTERS = ("*=",)  # groups: settings that select finished runs
DIRECTORIES = (_SEARCH_PATH,)  # groups: none, but directories of YAMLs may be added
_CONFIG_DIR = ("--config-dir", "-cd")


def with_config_dirs(arguments: Sequence[str]) -> list[str]:
    """The arguments with `--config-dir DIR` as the setting that makes Hydra and `configured` also look for YAMLs in
    DIR.

    Raises InputError if DIR is missing, is no directory, or has a config.yaml, which nothing would read.
    """
    kept: list[str] = []
    found: list[Path] = []
    rest = iter(arguments)
    for word in rest:
        key, equals, value = word.partition("=")
        if key not in _CONFIG_DIR:
            kept.append(word)
            continue
        path = Path((value if equals else next(rest, "")) or "(nothing)").expanduser()
        if not path.is_dir():
            raise InputError(f"{key} {path}: there is no such directory; it holds gpu/NAME.yaml, model/NAME.yaml ...")
        if (path / "config.yaml").exists():
            raise InputError(f"{path / 'config.yaml'}: conf/ has the one that is read; give it another name")
        found.append(path.resolve())
    if found:  # next to the other settings, since argparse needs them together
        first = next((at for at, word in enumerate(kept) if "=" in word and not word.startswith("-")), 0)
        kept.insert(first, f"{_SEARCH_PATH}=[{','.join(f'file://{path}' for path in found)}]")
    return kept


def config_dirs(overrides: Sequence[str]) -> tuple[Path, ...]:
    """The directories of YAMLs: conf/ and, after it, those that the arguments of `with_config_dirs` add."""
    added = [word.partition("=")[2].strip("[]") for word in overrides if word.startswith(f"{_SEARCH_PATH}=")]
    return (CONF, *(Path(one.removeprefix("file://")) for value in added for one in value.split(",") if one))


def is_config_dir(word: str) -> bool:
    """Whether a word adds a directory of YAMLs, in the form that `with_config_dirs` gives it."""
    return word.startswith(f"{_SEARCH_PATH}=")


# --- arguments of `key=value` -----------------------------------------------------------------------------------------


_LARGEST = 10**9
_MOST_DIGITS = 18


def split_arguments(
    arguments: Sequence[str], own: Collection[str], groups: Sequence[str], repeated: Sequence[str] = ()
) -> tuple[dict[str, str], list[str]]:
    """The values of the keys `own`, and the arguments that choose from, or override, the config groups.

    A key of `repeated` may be given several times: the last value counts here. Raises InputError for a word that is
    neither, for one that is given twice, and for a key of `own` without a value.
    """
    values: dict[str, str] = {}
    overrides: list[str] = []
    seen: set[str] = set()
    for word in arguments:
        key, _, value = word.partition("=")
        if key in own and not value:
            raise InputError(f"{word}: written {key}=VALUE")
        if key not in own and not _is_setting(word, groups):
            known = ", ".join(f"{name}=" for name in dict.fromkeys((*groups, *own)) if name != _SEARCH_PATH)
            raise InputError(f"{word}: not understood; give " + (f"any of {known}" if known else "nothing"))
        if key in seen and key not in repeated and (key in own or groups not in (ANY, FILTERS)):
            raise InputError(f"{word}: {key} is given twice")
        seen.add(key)
        if key in own:
            values[key] = value
        else:
            overrides.append(word)
    return values, overrides


def _is_setting(word: str, groups: Sequence[str]) -> bool:
    key, equals, _ = word.partition("=")
    if groups in (ANY, FILTERS):
        return bool(key) and (bool(equals) or word.startswith("~"))
    return bool(equals) and bool(groups) and (key == _SEARCH_PATH or key.split(".")[0] in groups)


def configured(overrides: Sequence[str], groups: Sequence[str]) -> Mapping[str, Any]:
    """The parts that `overrides` of conf/config.yaml choose from `groups`, built. Raises Hydra's errors for
    wrong ones.
    """
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", overrides=name_files(overrides))
    return {group: instantiate(config[group], _convert_="all") for group in groups}


def whole(name: str, text: str, largest: int = _LARGEST, least: int = 1) -> int:
    """A whole number from `least` to `largest`, underscores and commas allowed. Raises InputError for anything else."""
    digits = text.replace("_", "").replace(",", "")
    is_whole = digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS
    if not is_whole or not least <= int(digits) <= largest:
        raise InputError(f"{name} must be a whole number from {least:,} to {largest:,}, got {text!r}")
    return int(digits)


def number(name: str, text: str) -> float:
    """A finite number. Raises InputError for anything else."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{name} must be a number, got {text!r}")
    return value


def truth(name: str, text: str) -> bool:
    """True or false. Raises InputError for anything else."""
    if text.lower() not in ("true", "false"):
        raise InputError(f"{name} must be true or false, got {text!r}")
    return text.lower() == "true"
