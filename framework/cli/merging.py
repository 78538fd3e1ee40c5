"""Hydra's merging of the files that a configuration consists of, faster: what all begin with is merged once."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra.core.default_element import ResultDefault
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import DictConfig

from framework.cli.kept_compositions import stamp

# A file: its path in config groups, its package, is_self, primary, and its age and size (None: it never changes).
_File = tuple[str, str | None, bool, bool, tuple[int, int] | None]


class MergingLoader(ConfigLoaderImpl):
    """Composes as Hydra's own loader; files up to the primary one, of which most are Hydra's own, are merged once."""

    _beginning: tuple[ResultDefault, bytes] | None = None

    def _compose_config_from_defaults_list(self, defaults: list[ResultDefault], repo: Any) -> DictConfig:
        last = next((i for i, default in enumerate(defaults) if default.primary), None)
        if last is None:
            return super()._compose_config_from_defaults_list(defaults, repo)
        places = tuple((source.provider, f"{source.scheme()}://{source.path}") for source in repo.get_sources())
        files = tuple(_file(default, repo.delegate) for default in defaults[: last + 1])
        self._beginning = defaults[last], _merged(places, files)
        return super()._compose_config_from_defaults_list(defaults[last:], repo)

    def _load_single_config(self, default: ResultDefault, repo: Any) -> ConfigResult:
        if self._beginning is None or default is not self._beginning[0]:
            return super()._load_single_config(default, repo)
        return ConfigResult("main", "", pickle.loads(self._beginning[1]), header={})


def search_path(places: Sequence[tuple[str, str]]) -> ConfigSearchPathImpl:
    """From the provider and the URL of each place."""
    path = ConfigSearchPathImpl()
    for provider, place in places:
        path.append(provider, place)
    return path


def _file(default: ResultDefault, repository: Any) -> _File:
    path = str(default.config_path)
    source: ConfigSource | None = repository._find_object_source(path, ObjectType.CONFIG)
    is_file = source is not None and source.scheme() == "file"
    state = stamp(Path(source.path, source._normalize_file_name(path))) if source is not None and is_file else None
    return path, default.package, bool(default.is_self), default.primary, state


@functools.lru_cache(16)
def _merged(places: tuple[tuple[str, str], ...], files: tuple[_File, ...]) -> bytes:
    """These files, merged and pickled."""
    loader = ConfigLoaderImpl(search_path(places))
    defaults = [
        ResultDefault(config_path=path, package=package, is_self=is_self, primary=primary)
        for path, package, is_self, primary, _ in files
    ]
    return pickle.dumps(loader._compose_config_from_defaults_list(defaults, loader.repository))
