"""The worth of each part of a mechanism: its variants on the same samples of a trace, in one table.

    python -m experiments.ablation mooncake replicates=3

conf/ablation/NAME.yaml names the variants. Every (variant, replicate) is run once; differences are paired by replicate,
intervals are Student's t over replicates.
"""

from __future__ import annotations

from experiments.ablation.file import read_ablation
from experiments.ablation.report import lay_out, write
from experiments.ablation.run import run
from experiments.table.formats import print_table
from framework.cli.arguments import ANY
from framework.cli.command import Arguments, command
from framework.cli.files import require_writable

_KEYS = {
    "replicates": "how many, instead of the file's number",
    "out": "a directory; NAME.md, NAME.csv and NAME.json are written there, too",
}


@command(__doc__, operands="NAME", keys=_KEYS, settings=ANY)
def main(arguments: Arguments) -> None:
    """Run the ablation named on the command line and print its table."""
    ablation, out = read_ablation(arguments.operands[0]), arguments.path("out")
    replicates = arguments.whole("replicates", ablation.replicates)
    if out is not None:
        require_writable(out)
    outcome = run(ablation, replicates, arguments.settings)
    print_table(lay_out(outcome))
    if out is not None:
        write(out, outcome)
