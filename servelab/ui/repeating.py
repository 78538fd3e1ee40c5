"""The process in which stored runs are run again: it has the simulator, and keeps the last runs."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection

from framework.cli.explain import explain
from framework.cli.safe_text import one_line
from framework.diagnosis.findings import diagnose
from framework.report.numbers import number
from framework.report.page.compare_page import compare_page
from framework.report.page.run_page import run_page, why
from framework.run.again import Repeated, repeated
from framework.run.store import Record
from servelab.ui.again import Answer
from servelab.ui.sides import sides

_KEPT = 4  # runs that the process keeps
OTHER_CODE = "Other code made this run: its figures, run again today, may differ from those in the store."


def work(line: Connection) -> None:
    """The life of the process: answer what comes along the line until that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends it
    kept = Kept()
    while True:
        try:
            what, records, labels = line.recv()
        except EOFError:
            return
        try:
            answer = Answer(getattr(kept, what)(records, labels))
        except Exception as error:
            known = explain(error)
            answer = Answer(known or one_line(f"{type(error).__name__}: {error}"), failed=True)
            if known is None:
                traceback.print_exc()
        line.send(answer)


class Kept:
    """The runs of this process, the last few of which it keeps."""

    def __init__(self) -> None:
        self._known: dict[str, Repeated] = {}

    def page(self, records: Sequence[Record], _: Sequence[str]) -> str:
        """The page of one run."""
        (record,) = records
        return run_page(self._of(record).measurement, record.config, f"record {record.key} of the store")

    def why(self, records: Sequence[Record], _: Sequence[str]) -> str:
        """What cost one run its goodput, and the load, which bounds it."""
        (record,) = records
        repeated = self._of(record)
        measured = repeated.measurement
        summary = measured.evaluation.summary
        found = why(diagnose(measured.result, measured.evaluation, measured.slo))
        load_rps = number(summary["offered"] / summary["window_s"])
        window = f"{number(summary['window_s'])} s ({summary['window']})"
        found += f"<p>{summary['offered']:,} requests over {window}: no goodput exceeds {load_rps} requests/s.</p>"
        return found if repeated.key == record.key else f'<p class="note">{OTHER_CODE}</p>{found}'

    def compare(self, records: Sequence[Record], labels: Sequence[str]) -> str:
        """Runs request by request, under these labels."""
        return compare_page(sides(records, labels, [self._of(record).measurement.evaluation for record in records]))

    def _of(self, record: Record) -> Repeated:
        if record.key not in self._known:
            made = repeated(record.config)
            self._known = dict(list(self._known.items())[1 - _KEPT :]) | {record.key: made}
        return self._known[record.key]
