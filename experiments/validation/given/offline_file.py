"""Files of measured offline runs, CSV: all requests of a row are sent at once.

Columns: `server` (vllm, sglang, trtllm), `model`, `gpu` and `tp` as in run.py, `settings` (further ones, separated by
spaces, as `model.dtype=fp8 engine.max_batch=2048`), `input_tokens` and `output_tokens` of every request, `requests`,
`figure` and `measured`, its value: `tokens_per_s_gpu` (output tokens a second and GPU, from the first sending to the
last token) or `e2e_s` (mean seconds of a request). Lines that begin with # are not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import polars as pl

from framework.checks import Count, Positive, check_fields, one_of
from framework.errors import InputError

TOKENS, SECONDS = "tokens_per_s_gpu", "e2e_s"
SERVERS: Mapping[str, tuple[str, ...]] = {
    "vllm": ("policy=vllm_v1", "timing.backend=vllm"),
    "sglang": ("policy=sglang", "policy.steps=chunks_first", "timing.backend=sglang"),
    "trtllm": ("policy=vllm_v1", "timing.backend=trtllm", "server=trtllm"),
}


@dataclass(frozen=True)
class Offline:
    """One row; see the module. Raises InputError for invalid values."""

    server: Annotated[str, one_of(tuple(SERVERS))]
    model: str
    gpu: str
    tp: Count
    settings: str
    input_tokens: Count
    output_tokens: Count
    requests: Count
    figure: Annotated[str, one_of((TOKENS, SECONDS))]
    measured: Positive

    def __post_init__(self) -> None:
        check_fields(self, "")

    @property
    def overrides(self) -> tuple[str, ...]:
        """The arguments of run.py for its server."""
        own = (f"model={self.model}", f"gpu={self.gpu}", f"cluster.tp={self.tp}")
        return (*SERVERS[self.server], *own, *self.settings.split())

    def __str__(self) -> str:
        return f"{self.server} {self.model} {self.gpu} tp{self.tp} {self.input_tokens}/{self.output_tokens}"


def read_offline_file(path: Path) -> list[Offline]:
    """The rows of a file. Raises InputError for another file."""
    try:
        table = pl.read_csv(path, comment_prefix="#", schema_overrides={"settings": pl.String})
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{path}: no table of offline rows ({str(error).splitlines()[0]})") from error
    return [_row(path, at, line) for at, line in enumerate(table.iter_rows(named=True), start=1)]


def _row(path: Path, at: int, line: Mapping[str, Any]) -> Offline:
    try:
        known = dict(line)
        known["settings"] = known["settings"] or ""
        return Offline(**known)
    except (TypeError, KeyError) as error:
        raise InputError(f"{path}: no table of offline rows ({error})") from error
    except InputError as error:
        raise InputError(f"{path}, row {at}: {error}") from error
