"""Twins: small fitted descriptions of traces that can be sampled to any length.

A twin holds tables with a fixed number of knots and no row of the trace it was fitted to: the arrivals per window
and how they cluster below it, the quantile functions of prompt and output lengths with the copula that ties them,
and the model of shared prefixes (`traces.prefix`). Sampled lengths are stratified: a sample as long as the trace
has the trace's quantiles and counts per window, and two samples differ in which lengths meet, in what order, when
within a window, and in who shares a prefix with whom.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.cli.files import read_once, write_whole
from framework.cli.reading import read_text
from framework.errors import InputError
from traces.arrivals import ArrivalModel
from traces.frame import Trace
from traces.lengths import LengthModel
from traces.prefix import PrefixModel
from traces.settings import MOST_REQUESTS
from traces.twin_file import SCHEMA, parts_of_twin

SUFFIX = ".json"
FOLDER = Path(__file__).resolve().parent / "twins"


@dataclass(frozen=True)
class Twin:
    """A fitted description of a trace. `requests` is the trace's length, `statistics` are its published figures.

    `original` is where the trace comes from, `original_sha256` the checksum of that file.
    """

    name: str
    requests: int
    arrivals: ArrivalModel
    lengths: LengthModel
    prefixes: PrefixModel | None = None
    statistics: Mapping[str, float] = field(default_factory=dict)
    original: str = ""
    original_sha256: str = ""
    licence: str = ""
    citation: str = ""
    note: str = ""

    def sample(self, requests: int | None = None, seed: int = 0) -> Trace:
        """A trace of `requests` rows (default: as many as the original). The same seed gives the same rows."""
        count = self.requests if requests is None else requests
        if not 1 <= count <= MOST_REQUESTS:
            raise InputError(f"twin {self.name}: cannot sample {count:,} requests, ask for 1 to {MOST_REQUESTS:,}")
        if seed < 0:
            raise InputError(f"twin {self.name}: the seed is {seed}, must not be negative")
        arrival, inputs, outputs = (rows[:count] for rows in self._rows(-(-count // self.requests), seed))
        frame = pl.DataFrame({"arrival_s": arrival, "input_tokens": inputs, "output_tokens": outputs})
        block = 0
        if self.prefixes is not None:
            ids, offsets = self.prefixes.sample(arrival, inputs, np.random.default_rng([seed, 1]))
            frame = frame.with_columns(_lists(ids, offsets).alias("hash_ids"))
            block = self.prefixes.block_tokens
        note = f"sampled from the twin of {self.name} ({count} requests, seed {seed}), not the recorded trace"
        return Trace(frame, self.name, "twin", sha256=self.sha256, hash_block_tokens=block, notes=(note,))

    def _rows(
        self, periods: int, seed: int
    ) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
        """Arrivals, prompts and outputs of so many periods in a row; a longer sample begins as a shorter one does."""
        parts = []
        for period in range(periods):
            rng = np.random.default_rng([seed, 0, period])
            arrival = period * self.arrivals.period_s + self.arrivals.sample(rng)
            parts.append((arrival, *self.lengths.sample(self.arrivals.counts, rng)))
        arrival, inputs, outputs = (np.concatenate(column) for column in zip(*parts, strict=True))
        arrival[0] = 0.0  # the others keep their places in the windows
        return np.round(arrival, 6), inputs, outputs

    @property
    def sha256(self) -> str:
        """Checksum of the twin's file content."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """The file's content: the same twin gives the same bytes."""
        return json.dumps(_plain(self), indent=None, separators=(",", ":"), allow_nan=False) + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the twin as JSON. Raises InputError if that cannot be done."""
        target = Path(path)
        if not target.absolute().parent.is_dir():
            raise InputError(f"cannot write the twin to {target}: there is no such directory")
        write_whole(target, self.to_json().encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Twin:
        """Reads a twin's file. Raises InputError if it is missing or not a twin."""
        return cls.from_json(read_text(Path(path), "twin"), str(path))

    @classmethod
    def from_json(cls, text: str, where: str) -> Twin:
        """A twin from its file's content; InputError, naming `where`, if it is not one."""
        return cls(**parts_of_twin(text, where))


def sample_twin(name_or_path: str | os.PathLike[str], requests: int | None = None, seed: int = 0) -> Trace:
    """Samples a shipped twin by name, or one in a file. Raises InputError for an unknown name or a bad file.

    A process draws a sample again only if the file has changed.
    """
    trace = _sample(_path(name_or_path), requests, seed)
    return trace.with_frame(trace.frame.clone())  # a frame can be altered in place, its columns cannot


def load_twin(name_or_path: str | os.PathLike[str]) -> Twin:
    """A shipped twin by name, or one in a file (anything that ends in .json or holds a path separator)."""
    return Twin.load(_path(name_or_path))


def shipped() -> list[str]:
    """Names of the twins that come with the project."""
    return sorted(path.stem for path in FOLDER.glob(f"*{SUFFIX}"))


@read_once(keep=8)
def _sample(path: Path, requests: int | None, seed: int) -> Trace:
    return Twin.load(path).sample(requests, seed)


def _path(name_or_path: str | os.PathLike[str]) -> Path:
    name = os.fspath(name_or_path)
    if name.endswith(SUFFIX) or os.sep in name:
        return Path(name)
    if name not in shipped():
        raise InputError(
            f"no twin is called {name!r}; shipped: {', '.join(shipped())}; or give a path to a {SUFFIX} file"
        )
    return FOLDER / f"{name}{SUFFIX}"


def _lists(ids: NDArray[np.int64], offsets: NDArray[np.int64]) -> pl.Series:
    rows = pl.DataFrame({"row": np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)), "id": ids})
    return rows.group_by("row", maintain_order=True).agg("id")["id"]


def _plain(value: Any) -> Any:
    """A model as JSON values: six significant digits, infinity as null."""
    if isinstance(value, Twin):
        return {"schema": SCHEMA} | {name: _plain(item) for name, item in vars(value).items()}
    if isinstance(value, ArrivalModel | LengthModel | PrefixModel):
        return {name: _plain(item) for name, item in vars(value).items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        short = float(f"{value:.6g}")
        return None if not np.isfinite(value) else int(short) if short.is_integer() else short
    return value
