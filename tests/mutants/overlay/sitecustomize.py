"""Puts a bug into a process from its start: of the module MUTANT_MODULE it runs the text in the file MUTANT_TEXT."""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import CodeType, ModuleType
from typing import Any


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        with open(os.environ["MUTANT_TEXT"], encoding="utf-8") as file:
            return compile(file.read(), self.path, "exec")


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if fullname != os.environ.get("MUTANT_MODULE"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            return None
        return importlib.machinery.ModuleSpec(
            fullname,
            _Loader(fullname, spec.loader.path),
            origin=spec.origin,
            is_package=spec.submodule_search_locations is not None,
        )


if "MUTANT_MODULE" in os.environ:
    sys.meta_path.insert(0, _Finder())
