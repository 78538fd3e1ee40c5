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

from framework.cli.files import read_once
from framework.errors import InputError
from traces.arrivals import ArrivalModel
from traces.frame import Trace
from traces.prefix import PrefixModel

SCHEMA = "trace-twin/1"
SUFFIX = ".json"
_FOLDER = Path(__file__).resolve().parent / "twins"


@dataclass(frozen=True)
class LengthModel:
    """Joint law of prompt and output lengths.

    `levels` (Q,) are probabilities, `input_tokens` and `output_tokens` (Q,) the quantiles there; between knots the
    quantile function is linear. `copula` (B, B) is the probability of each pair of rank classes (a checkerboard
    copula), inputs down, outputs across; every row and column sums to 1 / B. No request is longer than
    `max_total_tokens`.
    """

    levels: NDArray[np.float64]
    input_tokens: NDArray[np.float64]
    output_tokens: NDArray[np.float64]
    copula: NDArray[np.float64]
    max_total_tokens: int

    def __post_init__(self) -> None:
        """Refuse tables that do not fit together."""
        shapes = {self.levels.shape, self.input_tokens.shape, self.output_tokens.shape}
        if len(shapes) != 1 or np.diff(self.levels).min() <= 0 or min(self.input_tokens[0], self.output_tokens[0]) < 1:
            raise ValueError("levels must rise, and each needs a quantile of at least 1 token")
        if self.copula.ndim != 2 or self.copula.min() < 0 or self.copula.sum(axis=1).min() <= 0:
            raise ValueError("the copula must hold probabilities, and no row of it may be empty")

    def sample(
        self, requests: int, with_maximum: bool, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Prompt and output lengths, both (requests,), in random order; `with_maximum` puts the longest of each in."""
        input_rank, output_rank = self._ranks(requests, rng)
        if with_maximum:
            input_rank[input_rank.argmax()] = 1.0
            output_rank[output_rank.argmax()] = 1.0
        inputs = np.rint(np.interp(input_rank, self.levels, self.input_tokens)).astype(np.int64)
        outputs = np.rint(np.interp(output_rank, self.levels, self.output_tokens)).astype(np.int64)
        self._trade_outputs(inputs, outputs, rng)
        return inputs, np.minimum(outputs, np.maximum(self.max_total_tokens - inputs, 1))

    def _trade_outputs(self, inputs: NDArray[np.int64], outputs: NDArray[np.int64], rng: np.random.Generator) -> None:
        """Swaps, in place, the outputs of requests that came out too long with those of others, so that both fit."""
        for request in np.flatnonzero(inputs + outputs > self.max_total_tokens).tolist():
            others = rng.integers(len(inputs), size=64)
            longest = np.maximum(inputs[request] + outputs[others], inputs[others] + outputs[request])
            if longest.min() <= self.max_total_tokens:
                other = others[np.argmax(longest <= self.max_total_tokens)]
                outputs[request], outputs[other] = outputs[other], outputs[request]

    def _ranks(self, requests: int, rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Two stratified sets of ranks in (0, 1), paired by the copula."""
        classes = len(self.copula)
        input_rank = (rng.permutation(requests) + rng.random(requests)) / requests
        row = np.minimum((input_rank * classes).astype(np.int64), classes - 1)
        # Within a row the draws that choose the column are stratified too: sorted by row, then at random.
        order = np.lexsort((rng.random(requests), row))
        size = np.bincount(row, minlength=classes)
        start = np.concatenate(([0], size.cumsum()[:-1]))
        draw = np.empty(requests)
        draw[order] = (np.arange(requests) - start[row[order]] + rng.random(requests)) / size[row[order]]
        reach = (self.copula / self.copula.sum(axis=1, keepdims=True)).cumsum(axis=1)
        column = np.minimum((draw[:, None] >= reach[row]).sum(axis=1), classes - 1)
        output_rank = np.empty(requests)
        output_rank[np.lexsort((rng.random(requests), column))] = (
            np.arange(requests) + rng.random(requests)
        ) / requests
        return input_rank, output_rank


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
        if count < 1:
            raise InputError(f"twin {self.name}: cannot sample {count} requests, ask for at least 1")
        if seed < 0:
            raise InputError(f"twin {self.name}: the seed is {seed}, must not be negative")
        arrival_rng, length_rng, prefix_rng = (
            np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(3)
        )
        arrival = self.arrivals.sample(count, arrival_rng)
        inputs, outputs = self.lengths.sample(count, count >= self.requests, length_rng)
        frame = pl.DataFrame({"arrival_s": arrival, "input_tokens": inputs, "output_tokens": outputs})
        block = 0
        if self.prefixes is not None:
            ids, offsets = self.prefixes.sample(arrival, inputs, prefix_rng)
            frame = frame.with_columns(_lists(ids, offsets).alias("hash_ids"))
            block = self.prefixes.block_tokens
        note = f"sampled from the twin of {self.name} ({count} requests, seed {seed}), not the recorded trace"
        return Trace(frame, self.name, "twin", sha256=self.sha256, hash_block_tokens=block, notes=(note,))

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
        draft = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            draft.write_text(self.to_json())
            draft.replace(target)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise InputError(f"cannot write the twin to {target}: {error.strerror}") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Twin:
        """Reads a twin's file. Raises InputError if it is missing or not a twin."""
        try:
            return cls.from_json(Path(path).read_text(), str(path))
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not text"
            raise InputError(f"cannot read the twin {path}: {reason}") from None

    @classmethod
    def from_json(cls, text: str, where: str) -> Twin:
        """A twin from its file's content; `where` is named if it is not one."""
        try:
            content = json.loads(text)
            if content.pop("schema") != SCHEMA:
                raise KeyError("schema")
            arrivals = content.pop("arrivals")
            parts, concentration = tuple(arrivals.pop("parts")), arrivals.pop("concentration")
            finite = tuple(float("inf") if value is None else value for value in concentration)
            prefixes = content.pop("prefixes")
            return cls(
                arrivals=ArrivalModel(parts=parts, concentration=finite, **_arrays(arrivals)),
                lengths=LengthModel(**_arrays(content.pop("lengths"))),
                prefixes=None if prefixes is None else PrefixModel(**_arrays(prefixes)),
                **content,
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(f"{where} is not a twin; make one with: python -m traces.fit FILE") from None


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
    return sorted(path.stem for path in _FOLDER.glob(f"*{SUFFIX}"))


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
    return _FOLDER / f"{name}{SUFFIX}"


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


def _arrays(content: dict[str, Any]) -> dict[str, Any]:
    return {name: np.array(value) if isinstance(value, list) else value for name, value in content.items()}
