"""Hydra's composition of a configuration, with what configurations of one process share read and composed once.

`composing_once` makes every Hydra of this process compose so, and a sweep's launcher asks for it with `hasten`.
"""

from __future__ import annotations

import functools
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from hydra import __version__ as hydra_version
from hydra import initialize_config_dir
from hydra._internal import hydra as hydra_internals
from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobRuntime
from hydra.plugins.config_source import ConfigResult
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf import __version__ as omegaconf_version
from omegaconf.errors import OmegaConfBaseException

from framework.cli.suggest import instead_of
from framework.compiler.user_cache import kept_file, read_back, write_back
from framework.errors import InputError

# Of Hydra's own settings, those that decide neither which files are read nor what the others become.
_HYDRA_SETTINGS = ("hydra.launcher.", "hydra.mode", "hydra.run.", "hydra.sweep.")
_KEPT, _KEPT_FILES = 64, 256  # configurations without their settings, each some 30 KB: in memory, on disk


class Loader(ConfigLoaderImpl):
    """Composes what Hydra's own loader composes, ten times as fast where only settings differ.

    The choices of config groups decide which files are read; the rest are settings, applied one after the other. So a
    configuration without its settings is kept, pickled, for all that have the same choices and read the same files.
    """

    def __init__(self, config_search_path: Any) -> None:
        super().__init__(config_search_path)
        self.repository = _Repository(config_search_path)

    def _load_configuration_impl(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        parsed = OverridesParser.create().parse_overrides(overrides)
        if any(override.is_sweep_override() for override in parsed):
            return super()._load_configuration_impl(
                config_name, overrides, run_mode, from_shell, validate_sweep_overrides
            )
        is_asking_for_the_mode = run_mode == RunMode.MULTIRUN and not validate_sweep_overrides
        _, repository = self._parse_overrides_and_create_caching_repo(config_name, overrides)
        settings = [override for override in parsed if _is_setting(override, repository)]
        config: DictConfig = pickle.loads(
            _composed(
                _places(self.config_search_path.get_path()),
                _files(repository),
                JobRuntime().get("name"),
                config_name,
                RunMode.RUN if is_asking_for_the_mode else run_mode,
                tuple(str(override.input_line) for override in parsed if override not in settings),
            )
        )
        self._apply(settings, config)
        _note_overrides(config, parsed)
        return config

    def _apply(self, settings: list[Override], config: DictConfig) -> None:
        """Change these settings. Raises InputError for one that there is not, with what there is instead."""
        for setting in settings:
            key = setting.key_or_group
            is_change = not (setting.is_add() or setting.is_force_add() or setting.is_delete())
            if is_change and setting.package is None and not _has(config, key):
                known = cast(dict[str, Any], OmegaConf.to_container(config))
                raise InputError(f"{key}: there is no such setting{instead_of(key, known)}")
            self._apply_overrides_to_config([setting], config)


class _Repository(ConfigRepository):
    """Reads a file again only when it has changed."""

    def load_config(self, config_path: str) -> ConfigResult | None:
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        if source is None or source.scheme() != "file":
            return super().load_config(config_path)
        file = Path(source.path, source._normalize_file_name(config_path))
        result: ConfigResult | None = pickle.loads(_read(source.provider, source.path, config_path, _stamp(file)))
        return result


@contextmanager
def composing_once() -> Iterator[None]:
    """A context in which every Hydra that is created composes with a `Loader`."""
    internals: Any = hydra_internals
    before = internals.ConfigLoaderImpl
    internals.ConfigLoaderImpl = Loader
    try:
        yield
    finally:
        internals.ConfigLoaderImpl = before


def hasten(context: HydraContext) -> None:
    """Have a sweep compose its jobs with a `Loader`."""
    if type(context.config_loader) is ConfigLoaderImpl:
        context.config_loader = Loader(context.config_loader.get_search_path())


@contextmanager
def composing(directory: Path) -> Iterator[None]:
    """Let `hydra.compose` read configurations from `directory`."""
    with composing_once(), initialize_config_dir(str(directory), version_base="1.3"):
        yield


@functools.lru_cache(_KEPT)
def _composed(
    places: tuple[tuple[str, str], ...],
    files: tuple[tuple[str, int, int], ...],
    job_name: str,
    config_name: str | None,
    run_mode: RunMode,
    choices: tuple[str, ...],
) -> bytes:
    """A configuration with nothing but choices, pickled. `files` and `job_name` only say what else it depends on."""
    depends_on = (places, files, job_name, config_name, run_mode, choices, hydra_version, omegaconf_version)
    file = kept_file("compositions", repr(depends_on), _KEPT_FILES)
    composed = read_back(file) or _compose(places, config_name, run_mode, choices)
    if file is not None and not any(_asks_the_environment(Path(name)) for name, _, _ in files):
        write_back(file, composed)
    return composed


def _asks_the_environment(file: Path) -> bool:
    """Whether what a configuration is may depend on variables of the environment; one that has gone by now may."""
    try:
        return b"oc.env" in file.read_bytes()
    except OSError:
        return True


def _compose(
    places: tuple[tuple[str, str], ...], config_name: str | None, run_mode: RunMode, choices: tuple[str, ...]
) -> bytes:
    path = ConfigSearchPathImpl()
    for provider, place in places:
        path.append(provider, place)
    loader = ConfigLoaderImpl(path)
    loader.repository = _Repository(path)
    return pickle.dumps(loader._load_configuration_impl(config_name, list(choices), run_mode))


@functools.lru_cache(None)
def _read(provider: str, place: str, config_path: str, stamp: tuple[int, int]) -> bytes:
    """What the file of a configuration holds, pickled."""
    path = ConfigSearchPathImpl()
    path.append(provider, place)
    return pickle.dumps(ConfigRepository(path).load_config(config_path))


def _has(config: DictConfig, key: str) -> bool:
    """Whether a key can be changed: it is there, or it is Hydra's own to judge."""
    parent, _, last = key.rpartition(".")
    try:
        node = OmegaConf.select(config, parent) if parent else config
    except OmegaConfBaseException:
        return True
    return last in node if isinstance(node, DictConfig) else node is not None


def _places(path: Any) -> tuple[tuple[str, str], ...]:
    return tuple((element.provider, element.path) for element in path)


def _files(repository: CachingConfigRepository) -> tuple[tuple[str, int, int], ...]:
    """Every file that a choice could read, with its age and size."""
    folders = [source.path for source in repository.get_sources() if source.scheme() == "file"]
    files = (
        os.path.join(folder, name)
        for top in folders
        for folder, _, names in os.walk(top)
        for name in names
        if name.endswith((".yaml", ".yml"))
    )
    return tuple((file, *_stamp(file)) for file in files)


def _stamp(file: Path | str) -> tuple[int, int]:
    status = os.stat(file)
    return status.st_mtime_ns, status.st_size


def _is_setting(override: Override, repository: CachingConfigRepository) -> bool:
    """Whether Hydra would apply it to the composed configuration, by the rule of its defaults list."""
    if override.package is not None:
        return False
    if override.is_hydra_override():
        return override.key_or_group.startswith(_HYDRA_SETTINGS)
    return isinstance(override.value(), dict) or not repository.group_exists(override.key_or_group)


def _note_overrides(config: DictConfig, parsed: list[Override]) -> None:
    """Let the configuration tell what it was made of, as Hydra does."""
    tasks = [override for override in parsed if not override.is_hydra_override()]
    config.hydra.overrides.task = [override.input_line for override in tasks]
    config.hydra.overrides.hydra = [override.input_line for override in parsed if override.is_hydra_override()]
    config.hydra.job.override_dirname = get_overrides_dirname(tasks, **config.hydra.job.config.override_dirname)
    config.hydra.runtime.cwd = os.getcwd()
