"""The tests that pytest is told, and the first that fails of them into a file: `python -m tests.mutants.alone FILE ...`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


class _FirstFailure:
    def __init__(self, file: Path) -> None:
        self.file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.file.exists():
            self.file.write_text(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.file.exists():
            self.file.write_text(f"{report.nodeid} cannot be collected")


if __name__ == "__main__":
    sys.exit(pytest.main(sys.argv[2:], plugins=[_FirstFailure(Path(sys.argv[1]))]))
