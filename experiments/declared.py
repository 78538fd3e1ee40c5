"""What a YAML of an experiment's own declares: the fields of a dataclass, all of them and no others."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from framework.errors import InputError


def declared(path: Path, kind: type) -> dict[str, Any]:
    """The content of a file, with the fields of `kind` as its keys. Raises InputError for unknown or missing keys."""
    content: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    names = [item.name for item in fields(kind)]
    if not isinstance(content, dict) or set(content) != set(names):
        raise InputError(f"{path}: its keys must be {', '.join(names)}")
    return content
