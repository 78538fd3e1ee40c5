"""How a trace file is read: `python -m traces.check FILE`."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from framework.cli.command import Arguments, command
from framework.cli.reading import parsed_yaml
from framework.cli.safe_text import one_line
from framework.errors import InputError, shown
from traces import formats
from traces.formats import How
from traces.formats.columns import read_columns
from traces.frame import DRAWN, Trace, to_workload
from traces.load import from_file
from traces.parsing.how import DATE
from traces.statistics import hash_paths, ideal_hit_ratio

_UNITS = {DATE: "dates and times", DRAWN: "none in the file; drawn when it is run", "": "drawn from distributions"}


def findings(trace: Trace, format_name: str) -> dict[str, str]:
    """How a file is read, as text, by heading."""
    workload = to_workload(trace)  # what a run would refuse is refused here
    clock = trace.clock
    span_s = float(workload.arrival_s[-1])
    rate = f", {(len(trace) - 1) / span_s:.4g} requests/s" if span_s > 0 else ""
    found = {
        "format": format_name,
        "unit of arrivals": _UNITS.get(clock.unit, clock.unit),
        "requests": f"{len(trace):,} over {span_s:,.6g} s{rate}",
        "prompt tokens": _range(workload.input_tokens),
        "output tokens": _range(workload.output_tokens),
        "sessions": "none",
        "prefixes": "none: no prompt shares one",
    }
    if workload.session_id is not None and workload.previous is not None:
        sessions = len(np.unique(workload.session_id[workload.session_id >= 0]))
        later = int((workload.previous >= 0).sum())
        found["sessions"] = f"{sessions:,}, with {later:,} later turns, sent so long after the turn before as recorded"
    if "hash_ids" in trace.has:
        inputs = trace.frame["input_tokens"].to_numpy().astype(np.float64)
        share = ideal_hit_ratio(hash_paths(trace), inputs, trace.hash_block_tokens)
        found["prefixes"] = (
            f"blocks of {trace.hash_block_tokens} tokens; {100 * share:.1f} % of all prompts came before"
        )
    others = sorted(trace.has - {"hash_ids", "session_id", "turn", "think_s"})
    if others:
        found["also read"] = ", ".join(others)
    return found


def _range(tokens: Any) -> str:
    return f"{tokens.min():,} to {tokens.max():,}, {tokens.mean():,.1f} on average"


def _columns(text: str) -> Mapping[str, str]:
    """The mapping for `trace.columns`, with or without braces."""
    text = text.strip()
    try:
        value = parsed_yaml(text if text.startswith("{") else f"{{{text}}}")
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise InputError(
            f"columns is {shown(text)}, must be as 'arrival_s: time, input_tokens: in, output_tokens: out'"
        )
    return value


def _told(trace: Trace, written: str) -> list[str]:
    """The notes of a trace, and further warnings of its reader."""
    warnings = [line.partition("WARNING: ")[2] for line in written.splitlines() if line.startswith("WARNING: ")]
    return [*trace.notes, *(line for line in warnings if not line.endswith(trace.notes or ("\n",)))]


_KEYS = {
    "format": "of the file; by content by default",
    "columns": "which column is what, as trace.columns",
    "unit": "of arrivals: s, ms, us or ns, as trace.unit",
    "result": "which of the results in the file, as trace.result",
    "block_tokens": "tokens of a hash block",
    "bad_records": f"share that may be left out, {formats.BAD_RECORDS:g} by default",
}


def _read(arguments: Arguments) -> tuple[Trace, str]:
    (file,) = arguments.operands
    result = arguments.whole("result", 0, least=0) if "result" in arguments.own else None
    block = arguments.whole("block_tokens", 1) if "block_tokens" in arguments.own else None
    bad_records = arguments.number("bad_records", formats.BAD_RECORDS)
    how, path = How(block, bad_records, arguments.own.get("unit"), result), Path(file).expanduser()
    if "columns" in arguments.own:
        return read_columns(path, _columns(arguments.own["columns"]), how), "by trace.columns"
    named = arguments.own.get("format")
    return from_file(file, named, how), named or formats.sniff(path)


@command(__doc__, operands="FILE", keys=_KEYS)
def main(arguments: Arguments) -> None:
    """Print how a file is read. Raises InputError for an unreadable one."""
    with contextlib.redirect_stderr(io.StringIO()) as written:  # shown below
        trace, name = _read(arguments)
    found = findings(trace, name)
    width = max(map(len, found)) + 2
    for heading, text in found.items():
        print(f"{heading:{width}}{one_line(text)}")
    for note in _told(trace, written.getvalue()) or ("nothing is left out, nothing is doubtful",):
        print(f"{'note':{width}}{one_line(note)}")


if __name__ == "__main__":
    main.start()
