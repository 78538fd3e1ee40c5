"""From a config node `trace` to the workload of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from framework.errors import InputError
from framework.workload import Workload
from traces import catalogue, formats, transforms
from traces.frame import Trace, to_workload


@dataclass(frozen=True)
class Transforms:
    """What is done to a trace, in this order: window, length filters, tiling, limit, Poisson, jitter, rate.

    `rate` (requests/s) and `rate_scale` (factor) exclude each other. `window_s` is [start, end) of the recording.
    """

    window_s: Sequence[float] | None = None
    input_tokens: tuple[int | None, int | None] = (None, None)
    output_tokens: tuple[int | None, int | None] = (None, None)
    tile: int = 1
    limit: int | None = None
    poisson: bool = False
    jitter_s: float = 0.0
    rate: float | None = None
    rate_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.rate is not None and self.rate_scale != 1.0:
            raise InputError("trace.rate and trace.rate_scale exclude each other; set one of them")
        if self.window_s is not None and len(self.window_s) != 2:
            raise InputError(f"trace.window_s is {list(self.window_s)}, must be [start, end] in seconds")

    @property
    def drops_rows(self) -> bool:
        """Whether a window or a filter may leave rows out."""
        return self.window_s is not None or (*self.input_tokens, *self.output_tokens) != (None,) * 4

    def apply(self, trace: Trace, seed: int) -> Trace:
        """The trace transformed. Raises InputError for a value out of range or if no request is left."""
        if self.window_s is not None:
            trace = transforms.window(trace, *self.window_s)
        trace = transforms.keep_lengths(trace, self.input_tokens, self.output_tokens)
        trace = transforms.tile(trace, self.tile)
        if self.limit is not None:
            trace = transforms.limit(trace, self.limit)
        if self.poisson:
            trace = transforms.poisson(trace, seed)
        trace = transforms.jitter(trace, self.jitter_s, seed)
        if self.rate is not None:
            return transforms.set_rate(trace, self.rate)
        return transforms.scale_rate(trace, self.rate_scale)


def load(
    name: str | None = None,
    path: str | None = None,
    format: str | None = None,
    block_tokens: int | None = None,
    requests: int | None = None,
    seed: int = 0,
    limit: int | None = None,
    rate: float | None = None,
    rate_scale: float = 1.0,
    tile: int = 1,
    window_s: Sequence[float] | None = None,
    min_input_tokens: int | None = None,
    max_input_tokens: int | None = None,
    min_output_tokens: int | None = None,
    max_output_tokens: int | None = None,
    poisson: bool = False,
    jitter_s: float = 0.0,
) -> Workload:
    """The workload of a trace file (`path`, any known format) or of a known trace (`name`); `path` wins.

    `requests` is the length of a twin's sample; a recording has its own, so there it is refused. The flat
    parameters are the keys of the config node; `Transforms` says what those after `seed` do.
    Raises InputError for whatever the user can set right: one line that says what and where.
    """
    steps = Transforms(
        window_s=window_s,
        input_tokens=(min_input_tokens, max_input_tokens),
        output_tokens=(min_output_tokens, max_output_tokens),
        tile=tile,
        limit=limit,
        poisson=poisson,
        jitter_s=jitter_s,
        rate=rate,
        rate_scale=rate_scale,
    )
    if path is not None:
        trace = from_file(path, format, block_tokens)
    elif name is not None:
        if format is not None:
            raise InputError(f"trace.format={format} needs trace.path=FILE; trace {name} has a format of its own")
        length = requests if steps.drops_rows or tile > 1 or requests is not None else limit
        trace = catalogue.obtain(name, length, seed, block_tokens)
    else:
        raise InputError(f"trace: neither path nor name is set; known names: {', '.join(catalogue.CATALOGUE)}")
    if requests is not None and (path is not None or trace.source != "twin"):
        raise InputError(
            f"trace.requests sets the length of a twin's sample, {trace.name} is {trace.source}: use trace.limit"
        )
    return to_workload(steps.apply(trace, seed))


def from_file(path: str, format_name: str | None = None, block_tokens: int | None = None) -> Trace:
    """The trace in a file; a file that is a published one by its sha256 goes by that name."""
    trace = formats.read(Path(path).expanduser(), format_name, block_tokens)
    known = [name for name, published in catalogue.CATALOGUE.items() if published.sha256 == trace.sha256]
    return replace(trace, name=known[0]) if known else trace
