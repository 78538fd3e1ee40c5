"""Puts a bug into a process from its start: of the module MUTANT_MODULE it runs the text in the file MUTANT_TEXT."""

from __future__ import annotations

import importlib.machinery
import importlib.util
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
        return importlib.util.spec_from_file_location(
            fullname,
            spec.loader.path,
            loader=_Loader(fullname, spec.loader.path),
            submodule_search_locations=spec.submodule_search_locations,
        )


if "MUTANT_MODULE" in os.environ:
    sys.meta_path.insert(0, _Finder())
