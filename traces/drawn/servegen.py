"""ServeGen clients: read their windows and token distributions, and draw the requests that they send.

ServeGen (Xiang et al., "ServeGen: Workload Characterization and Generation of Large Language Model Serving in
Production", 2025) publishes one pair of files per client. `chunk-N-trace.csv` has for each window its start in s,
requests/s, coefficient of variation of the gaps, the family of their distribution (Gamma or Weibull), its shape and
scale; a silent client has rate 0 and no family. `chunk-N-dataset.json` has the probabilities of prompt and output
lengths from a start in s on. Clients of multimodal models have `text_tokens` in place of `input_tokens`. For images,
audio and video they have the number in a request, and the tokens of each (`image_count`, `image_tokens`): the prompt is
all of these together.
"""

from __future__ import annotations

import ast
import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.cli.reading import parsed_json, read_text
from framework.errors import InputError, shown
from traces.frame import Trace
from traces.settings import MAX_TOKENS

FAMILIES = ("Gamma", "Weibull")
BUSY = 1.6
BUSY_REQUESTS = 20_000
_MOST_RPS, _MOST_S = 1e5, 1e9
_MEDIA, _MOST_MEDIA = ("image", "audio", "video"), 1000
_MOST_ARRIVALS = 10**8  # most arrivals of a client in one window


@dataclass(frozen=True)
class Window:
    """A client's arrivals from `start_s` on: requests/s, and the family and shape of the distribution of gaps."""

    start_s: float
    rate_per_s: float
    family: str
    shape: float


Pdf = tuple[NDArray[np.int64], NDArray[np.float64]]  # values, probabilities


@dataclass(frozen=True)
class TokenLengths:
    """Independent distributions of prompt and output lengths from `start_s` on. `media`: of the number of images (or
    the like) in a request in addition to its text, and of the tokens of one.
    """

    start_s: float
    inputs: Pdf
    outputs: Pdf
    media: tuple[tuple[Pdf, Pdf], ...] = ()


@dataclass(frozen=True)
class Client:
    """One client: equally long windows in order of time, and its token distributions that are not empty."""

    number: int
    windows: tuple[Window, ...]
    lengths: tuple[TokenLengths, ...]


def read_clients(folder: Path) -> list[Client]:
    """All clients of a folder, by number. Raises InputError for a missing, wrong or incomplete pair of files."""
    found = sorted(folder.glob("chunk-*-trace.csv"), key=lambda path: (len(path.name), path.name))
    if not found:
        raise InputError(
            f"{folder}: no ServeGen client here, expected files chunk-N-trace.csv and chunk-N-dataset.json"
        )
    return [_read_client(path) for path in found]


def busy_requests(folder: Path, seed: int = 0) -> Trace:
    """BUSY_REQUESTS requests, or all if there are fewer, from a busy period: the longest run of windows with over BUSY
    times the mean rate. Each seed is another draw from the same distributions.
    """
    clients = read_clients(folder)
    rates: dict[float, float] = {}
    for window in (window for client in clients for window in client.windows):
        rates[window.start_s] = rates.get(window.start_s, 0.0) + window.rate_per_s
    mean = sum(rates.values()) / len(rates)
    best: list[float] = [max(rates, key=lambda start: rates[start])]
    run: list[float] = []
    for start in sorted(rates):
        run = [*run, start] if rates[start] > BUSY * mean else []
        best = run if len(run) > len(best) else best
    length = min(np.diff(sorted(rates)), default=0.0)
    later = (window for client in clients for window in client.windows if window.start_s >= best[0])
    sent = sum(round(window.rate_per_s * length) for window in later)
    trace = draw_requests(clients, best[0], max(1, min(BUSY_REQUESTS, sent)), seed)
    return replace(trace, name=folder.name, sha256=folder_sha256(folder))


def draw_requests(clients: list[Client], start_s: float, requests: int, seed: int) -> Trace:
    """The first `requests` requests that the clients send from `start_s` on.

    A client sends rate x length requests in each window, as the rate was counted there; their gaps follow the window's
    distribution, scaled to fill it. Raises InputError if the clients' windows end too early.
    """
    rng = np.random.default_rng(seed)
    starts = sorted({window.start_s for client in clients for window in client.windows})
    length = min(np.diff(starts), default=0.0)
    parts: list[tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
    held = 0
    for begin in (start for start in starts if start + length > start_s):
        for client in clients:
            window = next((window for window in client.windows if window.start_s == begin), None)
            if window is None or window.rate_per_s <= 0:
                continue
            arrival = begin + _gaps_in(window, float(length), rng)
            arrival = arrival[arrival >= start_s]
            one = _lengths_at(client, begin)
            inputs, outputs = (rng.choice(values, len(arrival), p=odds) for values, odds in (one.inputs, one.outputs))
            for counts, tokens in one.media:
                inputs = inputs + _media_tokens(counts, tokens, len(arrival), rng)
            inputs = np.maximum(inputs, 1)
            parts.append((arrival, inputs, outputs, np.full(len(arrival), client.number)))
            held += len(arrival)
        if held >= requests:
            break
    if held < requests:
        raise InputError(f"the ServeGen clients send {held} requests from {start_s:g} s on, {requests} were requested")
    arrival, inputs, outputs, client_number = (np.concatenate([part[k] for part in parts]) for k in range(4))
    order = np.argsort(arrival, kind="stable")[:requests]
    rows = {"arrival_s": np.round(arrival[order] - arrival[order[0]], 6)}
    rows |= {"input_tokens": inputs[order], "output_tokens": outputs[order]}
    tenant = pl.Series("tenant", client_number[order]).cast(pl.String)
    note = f"{requests} requests drawn from {len(clients)} ServeGen clients from {start_s:g} s on, seed {seed}"
    return Trace(pl.DataFrame(rows).with_columns(tenant), "servegen", "synthetic", notes=(note,))


def _media_tokens(counts: Pdf, tokens: Pdf, requests: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """The tokens of all images (or the like) of each request."""
    count = rng.choice(counts[0], requests, p=counts[1])
    each = rng.choice(tokens[0], int(count.sum()), p=tokens[1])
    total: NDArray[np.int64] = np.bincount(np.repeat(np.arange(requests), count), each, requests).astype(np.int64)
    return total


def folder_sha256(folder: Path) -> str:
    """Checksum of a folder's client files: sha256 of the output of `LC_ALL=C; sha256sum chunk-*` in it."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(folder.glob("chunk-*"), key=lambda path: path.name)
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _gaps_in(window: Window, length_s: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Arrivals within a window of `length_s`, from its start."""
    count = round(window.rate_per_s * length_s)
    if count > _MOST_ARRIVALS:
        raise InputError(f"a ServeGen client sends {count:,} requests in the window from {window.start_s:g} s on")
    gaps = (
        rng.standard_gamma(window.shape, count + 1)
        if window.family == "Gamma"
        else rng.weibull(window.shape, count + 1)
    )
    times = np.cumsum(gaps)
    return length_s * times[:-1] / max(times[-1], 1e-300)


def _lengths_at(client: Client, time_s: float) -> TokenLengths:
    """The distribution in force, or the next one if none is known so early."""
    if not client.lengths:
        raise InputError(f"ServeGen client {client.number} sends requests but has no token lengths")
    past = [one for one in client.lengths if one.start_s <= time_s]
    return past[-1] if past else client.lengths[0]


def _read_client(path: Path) -> Client:
    named = path.name.removeprefix("chunk-").removesuffix("-trace.csv")
    if not (named.isascii() and named.isdigit() and len(named) < 10):
        raise InputError(f"{path}: a client is called by a number, as chunk-7-trace.csv")
    number = int(named)
    lines = read_text(path, "ServeGen client").split("\n")
    windows = tuple(_read_window(path, row, line.strip()) for row, line in enumerate(lines, start=1) if line.strip())
    if not windows:
        raise InputError(f"{path}: has no windows")
    data = path.with_name(f"chunk-{number}-dataset.json")
    if not data.exists():
        raise InputError(f"{data}: missing, it belongs to {path.name}")
    try:
        content = parsed_json(read_text(data, "ServeGen dataset"))
        lengths = [_token_lengths(start, one) for start, one in content.items()]
    except (ValueError, KeyError, TypeError, SyntaxError, AttributeError, RecursionError, MemoryError) as error:
        raise InputError(f"{data}: not a ServeGen dataset ({type(error).__name__}: {error})") from None
    lengths = [one for one in lengths if len(one.inputs[0]) and len(one.outputs[0])]
    return Client(number, windows, tuple(sorted(lengths, key=lambda one: one.start_s)))


def _read_window(path: Path, row: int, line: str) -> Window:
    where = f"{path}, line {row}"
    fields = line.split(",")
    if len(fields) != 6:
        raise InputError(
            f"{where}: {len(fields)} columns, a ServeGen window has 6 (start, rate, cv, family, shape, scale)"
        )
    try:
        start, rate, shape = float(fields[0]), float(fields[1]), float(fields[4])
    except ValueError:
        raise InputError(f"{where}: start, rate and shape must be numbers") from None
    if not (math.isfinite(rate) and rate >= 0 and math.isfinite(start)):
        raise InputError(f"{where}: start {fields[0]} and rate {fields[1]} must be finite, the rate not negative")
    if rate > _MOST_RPS or not 0 <= start <= _MOST_S:
        raise InputError(f"{where}: start {fields[0]} or rate {fields[1]} is too large, or the start negative")
    if rate > 0 and (fields[3] not in FAMILIES or not 1e-6 < shape < 1e6):
        raise InputError(
            f"{where}: gaps of family {fields[3]!r} and shape {fields[4]}; known: {', '.join(FAMILIES)}, shape above 0"
        )
    return Window(start, rate, fields[3], shape)


def _token_lengths(start: str, one: Any) -> TokenLengths:
    if "input_tokens" in one:
        return TokenLengths(_start(start), _pdf(one["input_tokens"]), _pdf(one["output_tokens"]))
    kinds = [kind for kind in _MEDIA if f"{kind}_tokens" in one]
    media = [(_pdf(one.get(f"{kind}_count", "{1: 1.0}"), 0), _pdf(one[f"{kind}_tokens"])) for kind in kinds]
    for counts, tokens in media:
        if len(counts[0]) and (counts[0].max() > _MOST_MEDIA or (not len(tokens[0]) and counts[0].max())):
            raise ValueError(f"{int(counts[0].max())} images or the like in a request")
    return TokenLengths(
        _start(start),
        _pdf(one["text_tokens"], 0),
        _pdf(one["output_tokens"]),
        tuple((counts, tokens) for counts, tokens in media if len(counts[0]) and len(tokens[0])),
    )


def _start(text: str) -> float:
    start_s = float(text)
    if not math.isfinite(start_s):
        raise ValueError("a start that is not finite")
    return start_s


def _pdf(text: str, least: int = 1) -> Pdf:
    """{length: probability} written as text; lengths below `least` tokens are left out."""
    table = {int(length): float(odds) for length, odds in ast.literal_eval(text).items() if int(length) >= least}
    if table and max(table) > MAX_TOKENS:
        raise ValueError(f"a length of {shown(max(table))} tokens")
    values, odds = np.array(sorted(table), np.int64), np.array([table[length] for length in sorted(table)])
    if len(odds) and not (np.all(np.isfinite(odds)) and np.all(odds >= 0) and odds.sum() > 0):
        raise ValueError("probabilities must be finite and not negative")
    return values, odds / odds.sum() if len(odds) else odds
