"""What cost a run its goodput, in a few lines for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from framework.cli.safe_text import printable
from framework.diagnosis.findings import Diagnosis

_MOST = 2
_WIDE = 86


def why_table(diagnosis: Diagnosis) -> RenderableType:
    """How many requests were lost and the two causes that cost most, for `rich.console.Console.print`."""
    lost = Text.assemble(("lost", "bold"), f"  {diagnosis.lost:,} of {diagnosis.offered:,} requests; ")
    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(max_width=_WIDE)
    for finding in diagnosis.findings[:_MOST]:
        line = Text.assemble((printable(finding.title), "bold"), f". {printable(finding.evidence)}")
        grid.add_row(f"{finding.lost:,}", line)
    return Group(Text(), lost.append(diagnosis.signature), grid)
