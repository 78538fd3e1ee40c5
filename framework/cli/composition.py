"""Hydra's composition of a configuration, faster: shared parts are read and composed once in a process.

`composing_once` makes every Hydra of this process compose this way; a sweep's launcher asks for it with `hasten`.
"""

from __future__ import annotations

import copy
import functools
import os
import pickle
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from hydra import initialize_config_dir
from hydra._internal import defaults_list
from hydra._internal import hydra as hydra_internals
from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
from hydra.core.default_element import GroupDefault, InputDefault
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobRuntime
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from framework.cli.conf import CONF
from framework.cli.kept_compositions import Composition, Lookup, found_in, kept_or_composed, stamp
from framework.cli.merging import MergingLoader, search_path
from framework.cli.reading import leads_too_far, parsed_yaml, read_text
from framework.cli.suggest import instead_of
from framework.errors import InputError, shown

# The settings of Hydra's own that decide neither which files are read nor what other settings become.
_HYDRA_SETTINGS = ("hydra.launcher.", "hydra.mode", "hydra.run.", "hydra.sweep.")

_TURN = threading.RLock()


@contextmanager
def _interrupted_later() -> Iterator[None]:
    """A context, of a fraction of a second, whose end an interrupt waits for.

    OmegaConf would lose it: a node that is half made fails to be cleaned up, and that error is taken for an absent key.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


class Loader(ConfigLoaderImpl):
    """Composes what Hydra's own loader composes, ten times as fast if only settings differ.

    The choices of config groups decide which files are read; the rest are settings, applied one after the other. So a
    configuration without its settings is kept, pickled, for all that have the same choices and read the same files.
    """

    def __init__(self, config_search_path: Any) -> None:
        super().__init__(config_search_path)
        self.repository = _Repository(config_search_path)

    @_interrupted_later()
    def _load_configuration_impl(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        if leads_too_far(overrides):
            raise InputError("too many settings with several ${...}: name the values themselves")
        parsed, repository = self._parse_overrides_and_create_caching_repo(config_name, overrides)
        if any(override.is_sweep_override() for override in parsed):
            given = zip(overrides, parsed, strict=True)
            known = [word for word, override in given if not _is_below_a_swept_group(override, parsed)]
            swept = super()._load_configuration_impl(config_name, known, run_mode, from_shell, validate_sweep_overrides)
            _note_overrides(swept, parsed)
            return swept
        is_asking_for_the_mode = run_mode == RunMode.MULTIRUN and not validate_sweep_overrides
        settings = [override for override in parsed if _is_setting(override, repository)]
        places = _places(self.config_search_path.get_path())
        choices = tuple(str(override.input_line) for override in parsed if override not in settings)
        mode = RunMode.RUN if is_asking_for_the_mode else run_mode
        folders = [source.path for source in repository.get_sources() if source.scheme() == "file"]
        compose = functools.partial(_compose, places, folders, config_name, mode, choices)
        depends_on = (places, JobRuntime().get("name"), config_name, mode, choices)
        config: DictConfig = pickle.loads(kept_or_composed(depends_on, folders, compose))
        OmegaConf.clear_cache(config)  # it was kept with the time of its composition
        self._apply(settings, config)
        _note_overrides(config, parsed)
        return config

    def _apply(self, settings: list[Override], config: DictConfig) -> None:
        """Change these settings. Raises InputError for one that does not exist, with the nearest one that does."""
        for setting in settings:
            key = setting.key_or_group
            is_change = not (setting.is_add() or setting.is_force_add() or setting.is_delete())
            if is_change and setting.package is None and not _has(config, key):
                known = cast(dict[str, Any], OmegaConf.to_container(config))
                choices = known["hydra"]["runtime"]["choices"]
                raise InputError(f"{key}: there is no such setting{instead_of(key, known, choices)}")
            self._apply_overrides_to_config([setting], config)


class _Repository(ConfigRepository):
    """Reads a file again only if it has changed."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Repository:
        """Hydra copies it to give the copy other sources; the sources themselves never change."""
        return copy.copy(self)

    def load_config(self, config_path: str) -> ConfigResult | None:
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        if source is None or source.scheme() != "file":
            return super().load_config(config_path)
        file = Path(source.path, source._normalize_file_name(config_path))
        if not file.is_relative_to(CONF):
            _require_settings(file, stamp(file))
        result: ConfigResult | None = pickle.loads(_read(source.provider, source.path, config_path, stamp(file)))
        return result


class _Recorder(_Repository):
    """Records each lookup of it and of its copies, once."""

    def __init__(self, config_search_path: Any) -> None:
        super().__init__(config_search_path)
        self.lookups: dict[Lookup, None] = {}

    def _find_object_source(self, config_path: str, object_type: ObjectType | None) -> ConfigSource | None:
        assert object_type is not None
        self.lookups[Lookup(config_path, object_type)] = None
        return super()._find_object_source(config_path, object_type)


@contextmanager
def composing_once() -> Iterator[None]:
    """A context in which every new Hydra composes with a `Loader`."""
    internals: Any = hydra_internals
    before = internals.ConfigLoaderImpl
    internals.ConfigLoaderImpl = Loader
    try:
        yield
    finally:
        internals.ConfigLoaderImpl = before


def hasten(context: HydraContext) -> None:
    """Let a sweep compose its jobs with a `Loader`."""
    if type(context.config_loader) is ConfigLoaderImpl:
        context.config_loader = Loader(context.config_loader.get_search_path())


@contextmanager
def composing(directory: Path) -> Iterator[None]:
    """Let `hydra.compose` read from `directory`; threads take turns, since Hydra keeps one state for a process."""
    with _TURN, composing_once(), initialize_config_dir(str(directory), version_base="1.3"):
        yield


def _compose(
    places: tuple[tuple[str, str], ...],
    folders: list[str],
    config_name: str | None,
    run_mode: RunMode,
    choices: tuple[str, ...],
) -> Composition:
    """A configuration from choices alone, without settings."""
    path = search_path(places)
    loader = MergingLoader(path)
    loader.repository = repository = _Recorder(path)
    with _mapping_choices_where_asked():
        try:
            config = loader._load_configuration_impl(config_name, list(choices), run_mode)
        except RecursionError:
            raise InputError("the defaults of a YAML in --config-dir lead to that YAML again") from None
    lookups = tuple(repository.lookups)
    return Composition(pickle.dumps(config), lookups, found_in(folders, lookups))


@contextmanager
def _mapping_choices_where_asked() -> Iterator[None]:
    """A context in which Hydra records the choices made so far only for defaults lists that interpolate them.

    Hydra does so for each file that it reads, in a quarter of its time. Another thread may call either function: the
    results are the same.
    """
    internals: Any = defaults_list
    every = internals._create_interpolation_map

    def where_asked(overrides: Any, defaults: list[InputDefault], self_added: bool) -> DictConfig:
        asked = any(_is_interpolated(default) for default in defaults)
        return cast(DictConfig, every(overrides, defaults, self_added)) if asked else DictConfig({})

    internals._create_interpolation_map = where_asked
    try:
        yield
    finally:
        internals._create_interpolation_map = every


def _is_interpolated(default: InputDefault) -> bool:
    is_list = isinstance(default, GroupDefault) and default.is_options()
    return not default.is_self() and not is_list and default.is_interpolation()


@functools.lru_cache(None)
def _require_settings(file: Path, state: tuple[int, int] | None) -> None:
    """Raise InputError for a user's YAML that holds no settings, or more than anybody would write."""
    if state is None:
        return
    try:
        found = parsed_yaml(read_text(file))
    except ValueError as error:
        raise InputError(f"{file}: cannot be read ({error})") from error
    if not isinstance(found, dict | None):
        raise InputError(f"{file}: must hold settings, as name: value, got {shown(found)}")


@functools.lru_cache(None)
def _read(provider: str, place: str, config_path: str, state: tuple[int, int] | None) -> bytes:
    """The content of a configuration's file, pickled."""
    return pickle.dumps(ConfigRepository(search_path([(provider, place)])).load_config(config_path))


def _has(config: DictConfig, key: str) -> bool:
    """Whether a key can be changed: it exists, or it is Hydra's own."""
    parent, _, last = key.rpartition(".")
    try:
        node = OmegaConf.select(config, parent) if parent else config
    except OmegaConfBaseException:
        return True
    return last in node if isinstance(node, DictConfig) else node is not None


def _places(path: Any) -> tuple[tuple[str, str], ...]:
    return tuple((element.provider, element.path) for element in path)


def _is_setting(override: Override, repository: CachingConfigRepository) -> bool:
    """Whether Hydra would apply it to the composed configuration, by the rule of its defaults list."""
    if override.package is not None:
        return False
    if override.is_hydra_override():
        return override.key_or_group.startswith(_HYDRA_SETTINGS)
    return isinstance(override.value(), dict) or not repository.group_exists(override.key_or_group)


def _is_below_a_swept_group(setting: Override, overrides: Sequence[Override]) -> bool:
    """Whether each run of a sweep decides whether there is such a setting: `engine.prefix_stores=a,b` does of its
    `tiers.host`.
    """
    swept = (one.key_or_group.replace("/", ".") for one in overrides if one.is_sweep_override())
    return any(setting.key_or_group.startswith(f"{group}.") for group in swept)


def _note_overrides(config: DictConfig, parsed: list[Override]) -> None:
    """Record in the configuration what it was made of, as Hydra does."""
    tasks = [override for override in parsed if not override.is_hydra_override()]
    config.hydra.overrides.task = [override.input_line for override in tasks]
    config.hydra.overrides.hydra = [override.input_line for override in parsed if override.is_hydra_override()]
    config.hydra.job.override_dirname = get_overrides_dirname(tasks, **config.hydra.job.config.override_dirname)
    config.hydra.runtime.cwd = os.getcwd()
