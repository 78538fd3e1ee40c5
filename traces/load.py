"""From a config node `trace` to the workload of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from framework.checks import Count, NotNegative, Positive, check_fields, is_number, require_count, require_whole
from framework.errors import InputError, shown
from framework.workload import Workload
from traces import catalogue, formats, transforms
from traces.drawn.names import with_tenants
from traces.formats import AS_IT_IS, BAD_RECORDS, How
from traces.formats.columns import read_columns
from traces.frame import DRAWN, Trace, to_workload
from traces.settings import MOST_REQUESTS, Rate, Requests

TWIN = "twin"  # the format of a file made by traces.fit, which is sampled, not read


@dataclass(frozen=True)
class Transforms:
    """The transforms of a trace, in this order: window, length filters, resampling, tiling, limit, tenants, Poisson,
    jitter, rate.

    The fields are the keys of the config node. `window_s` is [start, end) of the recording. `resample_s` counts seconds
    of the trace after window and filters, before it is tiled: the copies of a tiled trace are equal. `tenants` is their
    number, or their shares by name, if the trace has none. `rate` (requests/s) and `rate_scale` (a factor) exclude each
    other.
    """

    window_s: Sequence[float] | None = None
    min_input_tokens: Count | None = None
    max_input_tokens: Count | None = None
    min_output_tokens: Count | None = None
    max_output_tokens: Count | None = None
    resample_s: Positive | None = None
    tile: Requests = 1
    limit: Count | None = None
    tenants: int | Mapping[str, float] | None = None
    poisson: bool = False
    jitter_s: NotNegative = 0.0
    rate: Rate | None = None
    rate_scale: Positive = 1.0

    def __post_init__(self) -> None:
        check_fields(self, "trace.")
        if self.rate is not None and self.rate_scale != 1.0:
            raise InputError("trace.rate and trace.rate_scale exclude each other; set one of them")
        if self.window_s is not None and (not isinstance(self.window_s, Sequence) or len(self.window_s) != 2):
            raise InputError(f"trace.window_s is {self.window_s}, must be [start, end] in seconds")

    @property
    def wanted_s(self) -> tuple[float, float] | None:
        """The window, if it is one; an invalid one is reported when it is applied."""
        if self.window_s is None or not all(is_number(end) for end in self.window_s):
            return None
        return float(self.window_s[0]), float(self.window_s[1])

    @property
    def resizes(self) -> bool:
        """Whether more than `limit` decides the length of the result."""
        bounds = (self.min_input_tokens, self.max_input_tokens, self.min_output_tokens, self.max_output_tokens)
        parts = (self.window_s, self.resample_s)
        return parts != (None, None) or self.tile > 1 or bounds != (None,) * 4

    def apply(self, trace: Trace, seed: int) -> Trace:
        """The trace transformed. Raises InputError for a value out of range or if no request is left."""
        if self.window_s is not None:
            trace = transforms.window(trace, *self.window_s)
        input_tokens = (self.min_input_tokens, self.max_input_tokens)
        output_tokens = (self.min_output_tokens, self.max_output_tokens)
        trace = transforms.keep_lengths(trace, input_tokens, output_tokens)
        if self.resample_s is not None:
            trace = transforms.resample(trace, self.resample_s, seed)
        trace = transforms.tile(trace, self.tile)
        if self.limit is not None:
            trace = transforms.limit(trace, self.limit)
        trace = with_tenants(trace, self.tenants, seed)
        if self.poisson:
            trace = transforms.poisson(trace, seed)
        trace = transforms.jitter(trace, self.jitter_s, seed)
        if self.rate is not None:
            return transforms.set_rate(trace, self.rate)
        return transforms.scale_rate(trace, self.rate_scale)


def load(
    name: str | None = None,
    path: str | Path | None = None,
    format: str | None = None,
    block_tokens: int | None = None,
    columns: Mapping[str, str] | None = None,
    bad_records: float = BAD_RECORDS,
    unit: str | None = None,
    result: int | None = None,
    requests: int | None = None,
    seed: int = 0,
    **steps: Any,
) -> Workload:
    """The workload of a trace file (`path`) or of a known trace (`name`), transformed; `path` wins.

    Args:
        name: Of a known trace: "mooncake", "azure_conv" and others that `servelab list traces` names.
        path: A file in any known format.
        format: Its format, if it is not recognised.
        block_tokens: Tokens of a block of its prefix ids.
        columns: The columns of any other table, as in `traces.formats.columns`.
        bad_records: The share of records that may be unusable, and are left out.
        unit: Of its times, if the format does not fix it.
        result: Which result, of a file that holds several.
        requests: The length of a fitted trace's sample; a recording has its own length, so there it is refused.
        seed: Of a sample, and of the transforms.
        steps: The fields of `traces.load.Transforms`, such as `limit` (requests), `rate` (requests/s) and `window_s`.

    Returns:
        The workload of the trace, transformed.

    Raises:
        InputError: For a user's mistake, in one line that says what and where.

    Example:
        >>> chats = servelab.load_trace("azure_conv", limit=100, rate=8.0)
        >>> len(chats), chats.arrival_s.shape, bool((chats.input_tokens > 0).all())
        (100, (100,), True)
    """
    transform = Transforms(**steps)
    require_whole("trace.seed", seed)
    if requests is not None:
        require_count("trace.requests", requests, MOST_REQUESTS)
    how = How(block_tokens, bad_records, unit, result, transform.wanted_s, seed)
    length = transform.limit if requests is None and not transform.resizes else requests
    if path is not None:
        trace, sampled = _of_file(path, format, columns, how, length)
    elif name is not None:
        if (format, block_tokens, columns, unit, result) != (None,) * 5:
            given = "trace.format, trace.block_tokens, trace.columns, trace.unit and trace.result"
            raise InputError(f"{given} need trace.path=FILE; trace {name} has its own")
        trace = catalogue.obtain(name, length, seed)
        sampled = trace.source == "twin"
    else:
        raise InputError(f"trace: neither path nor name is set; known names: {', '.join(catalogue.CATALOGUE)}")
    if requests is not None and not sampled:
        raise InputError(f"trace.requests is for samples of a fitted trace, {trace.name} is a file: use trace.limit")
    if trace.clock.unit == DRAWN:
        trace = transforms.poisson(trace, seed)
    return to_workload(transform.apply(trace, seed))


def _of_file(
    path: str | Path, format: str | None, columns: Mapping[str, str] | None, how: How, length: int | None
) -> tuple[Trace, bool]:
    """The trace in a file, and whether it is a sample of a fitted trace."""
    if not isinstance(path, str | Path) or not str(path).strip():
        raise InputError(f"trace.path must name a file, got {shown(path)}")
    if format is not None and not isinstance(format, str):
        raise InputError(f"trace.format must be a name, got {shown(format)}")
    if format == TWIN:
        return _fitted(Path(str(path)).expanduser(), how.seed, length), True
    if columns is None:
        return from_file(str(path), format, how), False
    if format is not None:
        raise InputError("trace.format and trace.columns exclude each other; set one of them")
    return read_columns(Path(str(path)).expanduser(), columns, how), False


def load_mix(names: Sequence[str], format: str | None = None, seed: int = 0, **steps: Any) -> Workload:
    """The workload of several known traces played at once, then transformed (the fields of `Transforms`).

    `format="twin"` takes their fitted traces, even where recordings are.
    """
    transform = Transforms(**steps)
    require_whole("trace.seed", seed)
    if format not in (None, TWIN):
        raise InputError(f"trace.format of a mix must be {TWIN} or null, got {shown(format)}")
    traces = [_fitted(name, seed) if format == TWIN else catalogue.obtain(name, seed=seed) for name in names]
    return to_workload(transform.apply(transforms.mix(traces, "+".join(names)), seed))


def _fitted(name_or_path: str | Path, seed: int, length: int | None = None) -> Trace:
    from traces.fitted.fitted_trace import sample_fitted

    return sample_fitted(name_or_path, length, seed)


def from_file(path: str, format_name: str | None = None, how: How = AS_IT_IS) -> Trace:
    """The trace in a file; a published file, recognised by its sha256, gets its published name."""
    trace = formats.read(Path(str(path)).expanduser(), format_name, how)
    known = [name for name, published in catalogue.CATALOGUE.items() if published.sha256 == trace.sha256]
    return replace(trace, name=known[0]) if known else trace
