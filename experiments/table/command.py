"""A paper's table from the results store: means with intervals, paired differences, the best in bold.

    python -m experiments.table [KEY=VALUE ...]
    python -m experiments.table rows=policy columns=trace metric=goodput_rps,p99_ttft_ms baseline=chunked
    python -m experiments.table rows=policy,cluster.prefill columns=metric policy=ares,distserve out=table.tex

store=DIR (default results)
rows=, columns=: what tells them apart (default policy and trace): config groups and keys of the configuration, several
    joined by commas; columns=metric has no columns but the metrics
metric=: keys of summary.json, joined by commas (default goodput_rps); p99_ttft_ms@batch is that of one class of
    requests
baseline=: the row, or column, whose paired differences are tested, as in baseline=chunked
replicate=: the key in which the runs of a cell differ (default seed)
format=terminal, markdown, latex or csv; out=FILE, written whole, whose name may say the format (.md .tex .csv .txt)
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
from framework.cli.arguments import program
from framework.cli.files import write_whole
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


@dataclass(frozen=True)
class Request:
    """A command line: `own` has every key of _DEFAULTS; `filters` are the others."""

    own: dict[str, str]
    filters: dict[str, str]

    @property
    def format(self) -> str:
        """As given, else by the name of the file. Raises InputError for none of them."""
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


def read_words(words: Sequence[str]) -> Request:
    """The request that `words` make. Raises InputError for one without "=", without a value, or given twice."""
    given: dict[str, str] = {}
    for word in words:
        key, _, value = word.partition("=")
        if not key or not value:
            raise InputError(f"{word}: not understood; give KEY=VALUE, --help lists the keys")
        if key in given:
            raise InputError(f"{word}: {key} is given twice; several values are joined by commas")
        given[key] = value
    own = {key: given.pop(key, default) for key, default in _DEFAULTS.items()}
    return Request(own, given)


def tabulate(request: Request, records: Sequence[Record]) -> Figures:
    """The figures that are asked for. Raises InputError for what the records do not have."""
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
    """All runs of a store. Raises InputError where there are none."""
    records = Store(directory).read() if directory.is_dir() else []
    if not records:
        found = "holds no runs" if directory.is_dir() else "is no directory"
        raise InputError(f"store={directory}: {found}; fill it with a sweep, {program()} -m ... store={directory}")
    return records


def main(words: Sequence[str]) -> None:
    """Print or write one table."""
    if {"-h", "--help"} & set(words):
        print(__doc__)
        return
    request = read_words(words)
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
        print(f"table in {request.own['out']}", file=sys.stderr)
    else:
        sys.stdout.write(content)
