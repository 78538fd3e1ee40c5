"""A paper's table from the results store: means with intervals, paired differences, the best in bold.

    python -m experiments.table rows=policy columns=trace metric=goodput_rps,p99_ttft_ms baseline=chunked
    python -m experiments.table rows=policy,cluster.prefill columns=metric policy=ares,distserve out=table.tex

Any other KEY=VALUE,VALUE keeps only runs with such a value, and orders them: policy=chunked,ares trace.rate_scale=2
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.table.cells import Figures, figures, read_baseline
from experiments.table.metrics import read_metrics
from experiments.table.select import kept, select
from framework.cli.arguments import FILTERS, name_files, program
from framework.cli.command import Arguments, command
from framework.cli.files import write_whole
from framework.cli.safe_text import printable
from framework.cli.terminal import tell
from framework.errors import InputError
from framework.metrics.figures import HEADLINE
from framework.run.store import Record, Store

_DEFAULTS = {
    "store": "results",
    "rows": "policy",
    "columns": "trace",
    "metric": HEADLINE,
    "baseline": "",
    "replicate": "seed",
    "format": "",
    "out": "",
}
_FORMATS = {"terminal": ".txt", "markdown": ".md", "latex": ".tex", "csv": ".csv"}
_FILE_COLUMNS = 100


_KEYS = {
    "store": "the directory of the store, results by default",
    "rows": "what tells rows apart, policy by default: groups and keys of the configuration, joined by commas",
    "columns": "the same of columns, trace by default; columns=metric has no columns but the metrics",
    "metric": f"keys of summary.json, joined by commas, {HEADLINE} by default; p99_ttft_ms@batch: of one class",
    "baseline": "the row, or column, whose paired differences are tested, as in baseline=chunked",
    "replicate": "the key in which the runs of a cell differ, seed by default",
    "format": f"one of {', '.join(_FORMATS)}",
    "out": "a file, written whole, whose name may say the format (.md .tex .csv .txt)",
}


@dataclass(frozen=True)
class Request:
    """A command line: `own` has every key of _DEFAULTS; `filters` are the others."""

    own: dict[str, str]
    filters: dict[str, str]

    @property
    def format(self) -> str:
        """The given format, else that of the file name. Raises InputError for any other."""
        name, suffix = self.own["format"], Path(self.own["out"]).suffix
        if name in _FORMATS:
            return name
        if name:
            raise InputError(f"format={name}: choose one of {', '.join(_FORMATS)}")
        if not self.own["out"]:
            return "terminal"
        for known, ending in _FORMATS.items():
            if suffix == ending:
                return known
        raise InputError(f"out={self.own['out']}: add format=, one of {', '.join(_FORMATS)}")


def read_request(arguments: Arguments) -> Request:
    """The request of `arguments`. Raises InputError for a filter without a value, or given twice."""
    return Request({**_DEFAULTS, **arguments.own}, filters(arguments.settings))


def filters(arguments: Sequence[str]) -> dict[str, str]:
    """The values that each key of KEY=VALUE,VALUE may have. Raises InputError as `read_request` does."""
    found: dict[str, str] = {}
    for word in name_files(arguments):
        key, _, value = word.partition("=")
        if not value:
            raise InputError(f"{printable(word)}: not understood; give KEY=VALUE, --help lists the keys")
        if key in found:
            raise InputError(f"{printable(word)}: {key} is given twice; several values are joined by commas")
        found[key] = value
    return found


def tabulate(request: Request, records: Sequence[Record]) -> Figures:
    """The requested figures. Raises InputError for what the records do not have."""
    own, filters = request.own, request.filters
    rows, columns = own["rows"].split(","), own["columns"].split(",")
    columns = [] if columns == ["metric"] else columns
    twice = [key for key in (*rows, *columns) if (rows + columns).count(key) > 1]
    if twice:
        raise InputError(f"rows={own['rows']} columns={own['columns']}: {twice[0]} is given twice")
    if own["replicate"] in (*rows, *columns):
        raise InputError(f"replicate={own['replicate']}: is a row or column already; give another replicate=")
    metrics = read_metrics(own["metric"], kept(records, filters))
    selection = select(records, rows, columns, own["replicate"], filters)
    baseline = read_baseline(own["baseline"], selection) if own["baseline"] else None
    return figures(selection, metrics, baseline)


def read_store(directory: Path) -> list[Record]:
    """All runs of a store. Raises InputError if there are none."""
    records = Store(directory).read() if directory.is_dir() else []
    if not records:
        found = "holds no runs" if directory.is_dir() else "is no directory"
        raise InputError(f"store={directory}: {found}; fill it with a sweep, {program()} -m ... store={directory}")
    return records


@command(__doc__, keys=_KEYS, settings=FILTERS)
def main(arguments: Arguments) -> None:
    """Print or write one table."""
    request = read_request(arguments)
    layout = request.format
    found = tabulate(request, read_store(Path(request.own["store"]).expanduser()))
    from experiments.table.csv_file import as_csv
    from experiments.table.formats import as_latex, as_markdown, as_text, print_table
    from experiments.table.sheet import lay_out

    sheet = lay_out(found, request.filters)
    if layout == "terminal" and not request.own["out"]:
        print_table(sheet)
        return
    makers = {"markdown": as_markdown, "latex": as_latex}
    if layout == "terminal":
        content = as_text(sheet, _FILE_COLUMNS)
    else:
        content = as_csv(found) if layout == "csv" else makers[layout](sheet)
    if request.own["out"]:
        write_whole(Path(request.own["out"]).expanduser(), content.encode())
        tell(f"table in {request.own['out']}")
    else:
        sys.stdout.write(content)
