"""Fitted traces: small descriptions of traces that can be sampled to any length.

A fitted trace (`twin` in options and file names) holds tables and no row of its trace: every number in it is a count, a
mean or a quantile over some dozens of requests. The trace is cut into windows of at least LEAST_REQUESTS requests. Each
keeps its width, its count, and the means of what work and memory depend on, so a sample drifts as the trace does. Below
a window, arrivals cluster as they did, and lengths come from the quantile functions and the copula of the whole trace.
Shared prefixes are a separate model (`traces.fitted.prefix`). Two samples differ in which lengths meet, in their order
and times within a window, and in which requests share a prefix.
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

from framework.cli.files import kept_or_made, read_once, write_whole
from framework.cli.reading import read_text
from framework.errors import InputError
from traces.beginning import Rows, unlike
from traces.fitted.arrivals import ArrivalModel
from traces.fitted.lengths import LengthModel
from traces.fitted.prefix import PrefixModel
from traces.fitted.trace_file import SCHEMA, parts_of_file
from traces.frame import Trace
from traces.settings import MOST_REQUESTS

SUFFIX = ".json"
FOLDER = Path(__file__).resolve().parent.parent / "twins"


@dataclass(frozen=True)
class FittedTrace:
    """A fitted description of a trace. `requests` is the trace's length, `statistics` are its published figures.

    `original` is the origin of the trace, `original_sha256` the checksum of that file. Samples are numbered from
    `first_seed`: the sample of seed 0 is then one that was compared with the recording.
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
    first_seed: int = 0

    def sample(self, requests: int | None = None, seed: int = 0) -> Trace:
        """A trace of `requests` rows (default: as many as the original). The same seed gives the same rows.

        A shorter sample is the beginning of a longer one.
        """
        count = self.requests if requests is None else requests
        if not 1 <= count <= MOST_REQUESTS:
            raise InputError(
                f"fitted trace {self.name}: cannot sample {count:,} requests, ask for 1 to {MOST_REQUESTS:,}"
            )
        if seed < 0:
            raise InputError(f"fitted trace {self.name}: the seed is {seed}, must not be negative")
        drawn = self.first_seed + seed
        periods = [self._period(period, drawn) for period in range(-(-count // self.requests))]
        arrival = np.concatenate([one.arrival_s for one in periods])[:count]
        inputs = np.concatenate([one.input_tokens for one in periods])[:count]
        outputs = np.concatenate([one.output_tokens for one in periods])[:count]
        frame = pl.DataFrame({"arrival_s": arrival, "input_tokens": inputs, "output_tokens": outputs})
        block = 0
        if self.prefixes is not None:
            place = np.arange(count) % self.requests / self.requests
            ids, offsets = self.prefixes.sample(arrival, inputs, place, drawn)
            frame = frame.with_columns(_lists(ids, offsets).alias("hash_ids"))
            block = self.prefixes.block_tokens
        note = f"sampled from the fitted trace of {self.name} ({count} requests, seed {seed}), not the recorded trace"
        return Trace(
            frame,
            self.name,
            "twin",
            sha256=self.sha256,
            hash_block_tokens=block,
            notes=(note,),
            caveat=unlike(Rows(arrival, inputs, outputs), periods[0]) if count < self.requests else "",
        )

    def _period(self, number: int, seed: int) -> Rows:
        """The requests of one period of the trace; the first arrival of the trace is at 0 s."""
        rng = np.random.default_rng([seed, 0, number])
        arrival = number * self.arrivals.period_s + self.arrivals.sample(rng)
        if number == 0:
            arrival[0] = 0.0  # the others keep their places in the windows
        return Rows(np.round(arrival, 6), *self.lengths.sample(self.arrivals.counts, rng))

    @property
    def sha256(self) -> str:
        """Checksum of the fitted trace's file content."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """The file's content: the same fitted trace gives the same bytes."""
        return json.dumps(_plain(self), indent=None, separators=(",", ":"), allow_nan=False) + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted trace as JSON. Raises InputError if that fails."""
        target = Path(path)
        if not target.absolute().parent.is_dir():
            raise InputError(f"cannot write the fitted trace to {target}: there is no such directory")
        write_whole(target, self.to_json().encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> FittedTrace:
        """Read a fitted trace's file. Raises InputError if it is missing or not a fitted trace."""
        return cls.from_json(read_text(Path(path), "fitted trace"), str(path))

    @classmethod
    def from_json(cls, text: str, where: str) -> FittedTrace:
        """A fitted trace from its file's content. Raises InputError, naming `where`, if it is not one."""
        return cls(**parts_of_file(text, where))


def sample_fitted(name_or_path: str | os.PathLike[str], requests: int | None = None, seed: int = 0) -> Trace:
    """Sample a shipped fitted trace by name, or one in a file. Raises InputError for an unknown name or a bad file.

    A process draws a sample again only if the file has changed.
    """
    trace = _sample(_path(name_or_path), requests, seed)
    return trace.with_frame(trace.frame.clone())  # a frame can be changed in place, its columns cannot


def load_fitted(name_or_path: str | os.PathLike[str]) -> FittedTrace:
    """A shipped fitted trace by name, or one in a file (anything that ends in .json or holds a path separator)."""
    return FittedTrace.load(_path(name_or_path))


def shipped() -> list[str]:
    """Names of the fitted traces that come with the project."""
    return sorted(path.stem for path in FOLDER.glob(f"*{SUFFIX}"))


@read_once(keep=8)
def _sample(path: Path, requests: int | None, seed: int) -> Trace:
    content = read_text(path, "fitted trace")
    depends_on = hashlib.sha256(content.encode()).hexdigest(), requests, seed, np.__version__, pl.__version__
    return kept_or_made(  # drawing a sample takes a sixth of a short run
        Trace, depends_on, Path(__file__), lambda: FittedTrace.from_json(content, str(path)).sample(requests, seed)
    )


def _path(name_or_path: str | os.PathLike[str]) -> Path:
    name = os.fspath(name_or_path)
    if name.endswith(SUFFIX) or os.sep in name:
        return Path(name)
    if name not in shipped():
        raise InputError(
            f"no fitted trace is called {name!r}; shipped: {', '.join(shipped())}; or give a path to a {SUFFIX} file"
        )
    return FOLDER / f"{name}{SUFFIX}"


def _lists(ids: NDArray[np.int64], offsets: NDArray[np.int64]) -> pl.Series:
    rows = pl.DataFrame({"row": np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)), "id": ids})
    return rows.group_by("row", maintain_order=True).agg("id")["id"]


def _plain(value: Any) -> Any:
    """A model as JSON values: six significant digits, infinity as null."""
    if isinstance(value, FittedTrace):
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
