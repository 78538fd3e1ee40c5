"""Reading conf/space/NAME.yaml, or a file of the user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from experiments.tune.expression import Expression, Number
from experiments.tune.space import PREFILL_GPUS, Dimension, Distribution, Space
from framework.checks import is_numeric
from framework.cli.arguments import program
from framework.cli.conf import CONF
from framework.cli.reading import parsed_yaml, read_text
from framework.errors import InputError

_FOLDER = CONF / "space"
_SECTIONS = ("search", "set", "optional", "require", "start")
_FORMS = "{low: A, high: B}, {low: A, high: B, log: true}, {powers_of_two: [A, B]} or {choices: [A, B, ...]}"


def read_space(
    name: str,
    settings: Mapping[str, Any],
    given: Sequence[str] = (),
    constants: Mapping[str, str] | None = None,
    folder: Path = _FOLDER,
) -> Space:
    """The space of that name; a name that ends in .yaml is the path of a file.

    `settings`: those of the configuration, flat. `given`: names of settings that the user fixed; they are not searched.
    `constants`: numbers that replace the file's. Raises InputError for a missing or wrong file, for unknown names in
    it, and for a space in which nothing is left to search.
    """
    path = _file(name, folder)
    content, name = _content(path), path.stem
    own = {key: value for key, value in content.items() if key not in _SECTIONS}
    fixed: dict[str, Any] = {key: _number(f"space {name}: {key}", value) for key, value in own.items()}
    for key, text in (constants or {}).items():
        if key not in fixed:
            raise InputError(f"space.{key}: space {name} has no such constant; it has {', '.join(fixed) or 'none'}")
        fixed[key] = _number(f"space.{key}", _yaml_value(f"space.{key}", text))
    _require_own(name, given, content["set"], settings)
    fixed |= {key: settings[key] for key in given if key in content["search"]}
    missing = tuple(key for key in content["search"] if key in content["optional"] and key not in settings)
    space = Space(
        name=name,
        fixed=fixed,
        dimensions=tuple(
            _dimension(name, key, form, fixed)
            for key, form in content["search"].items()
            if key not in {*fixed, *missing}
        ),
        derived={key: Expression(text) for key, text in content["set"].items()},
        required=tuple(Expression(text) for text in content["require"]),
        starts=tuple({key: Expression(text) for key, text in start.items()} for start in content["start"]),
        settings=settings,
        missing=missing,
    )
    _check_names(space, [*content["search"], *content["set"]])
    return space


def space_names(folder: Path = _FOLDER) -> list[str]:
    """The available spaces."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def of_directories(name: str, directories: Sequence[Path]) -> str:
    """A space's name; for one of a user's own in DIR/space, its path. The first directory that has it counts."""
    found = [path for path in (one / "space" / f"{name}.yaml" for one in directories) if path.is_file()]
    return name if not found or found[0].parent == _FOLDER else str(found[0])


def _file(name: str, folder: Path) -> Path:
    if name.endswith(".yaml") and Path(name).is_file():
        return Path(name)
    if name not in space_names(folder):
        raise InputError(
            f"space={name}: there is no space of that name; choose one of {', '.join(space_names(folder))}, or write"
            " one of your own: space=PATH.yaml, or DIR/space/NAME.yaml with --config-dir DIR"
        )
    return folder / f"{name}.yaml"


def _content(path: Path) -> dict[str, Any]:
    name = path.stem
    try:
        content = parsed_yaml(read_text(path, "space"))
    except ValueError as error:
        raise InputError(f"space {path}: cannot be read ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict):
        raise InputError(f"space {name}: it must map names to numbers and have a section search")
    kinds = {"search": dict, "set": dict, "optional": list, "require": list, "start": list}
    content = {**{section: kind() for section, kind in kinds.items()}, **content}
    for section, kind in kinds.items():
        if not isinstance(content[section], kind):
            raise InputError(f"space {name}: {section} must be a {'mapping' if kind is dict else 'list'}")
    if not all(isinstance(start, dict) for start in content["start"]):
        raise InputError(f"space {name}: each of start must be a mapping of what is searched to values")
    return content


def _yaml_value(where: str, text: str) -> Any:
    try:
        return parsed_yaml(text)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None


def _number(where: str, value: Any) -> Number:
    if not is_numeric(value):
        raise InputError(f"{where} must be a number, got {value!r}")
    return value


def _dimension(space: str, name: str, form: Any, fixed: Mapping[str, Any]) -> Dimension:
    where = f"space {space}: {name}"
    match form:
        case {"choices": list(choices), **rest} if choices and not rest:
            return Dimension(name, _choices(where, choices))
        case {"powers_of_two": [low, high], **rest} if not rest:
            exponents = [_exponent(where, Expression(bound)(fixed)) for bound in (low, high)]
            return Dimension(name, _range(where, exponents[0], exponents[1], log=False), is_exponent=True)
        case {"low": low, "high": high, **rest} if set(rest) <= {"log"} and isinstance(rest.get("log", False), bool):
            return Dimension(
                name, _range(where, Expression(low)(fixed), Expression(high)(fixed), log=rest == {"log": True})
            )
    raise InputError(f"{where} must be {_FORMS}, got {form!r}")


def _choices(where: str, choices: Sequence[Any]) -> Distribution:
    if not all(choice is None or isinstance(choice, (str, bool, int, float)) for choice in choices):
        raise InputError(f"{where}: choices must be names, numbers, true, false or null, got {choices!r}")
    if len({(type(choice), choice) for choice in choices}) < len(choices):
        raise InputError(f"{where}: a choice is named twice in {choices!r}")
    return CategoricalDistribution(choices)


def _range(where: str, low: Number, high: Number, *, log: bool) -> Distribution:
    if low > high:
        raise InputError(f"{where}: nothing lies between {low} and {high}")
    if log and low <= 0:
        raise InputError(f"{where}: a logarithmic range begins above 0, not at {low}")
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=log)
    return FloatDistribution(float(low), float(high), log=log)


def _exponent(where: str, bound: Number) -> int:
    if not isinstance(bound, int) or bound < 1 or bound.bit_count() != 1:
        raise InputError(f"{where}: powers_of_two has two of 1, 2, 4, ...; got {bound}")
    return bound.bit_length() - 1


def _require_own(space: str, given: Sequence[str], derived: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise InputError if the user fixed a setting that the space derives from its draws."""
    fixed = [f"{key}={settings[key]}" for key in given if key in derived]
    if fixed:
        raise InputError(f"{' and '.join(fixed)}: space {space} works that out from what it draws; leave it out")


def _check_names(space: Space, named: Sequence[str]) -> None:
    """Check that every name is a setting, or a used helper, and that expressions use earlier names only."""
    if not space.dimensions:
        raise InputError(f"space {space.name}: nothing is left to search")
    known = {*space.fixed, *(dimension.name for dimension in space.dimensions)}
    used: set[str] = set()
    for where, expression in (*space.derived.items(), *(("require", required) for required in space.required)):
        for name in sorted(expression.names - known):
            raise InputError(f"space {space.name}: {where} needs {name}, which is not named before it")
        used |= expression.names
        known.add(where)
    searched = [dimension.name for dimension in space.dimensions]
    for name in sorted({name for start in space.starts for name in start} - set(named)):
        raise InputError(f"space {space.name}: start names {name}, which is not searched")
    needed = {name for start in space.starts for value in start.values() for name in value.names}
    for name in sorted(needed - {*space.fixed, PREFILL_GPUS}):
        raise InputError(f"space {space.name}: start needs {name}, which is neither a constant nor {PREFILL_GPUS}")
    for name in (*searched, *space.derived):
        if name not in space.settings and ("." in name or name not in used):
            raise InputError(
                f"space {space.name}: {name} is no setting of this configuration; {program()} --cfg job shows all"
            )
