"""Which architecture serves a load best: each family tuned equally, compared on fresh samples, and where that flips.

    python -m experiments.guide preset=chat model=llama3_8b gpu=h100
    python -m experiments.guide trace=azure_conv slo.ttft_s=1 gpus=16 model=llama3_70b parts=map axes=slo,link
    python -m experiments.guide preset=agents families=chunked,disaggregated trials=20

It ranks aggregated instances with whole prompts or with chunks, disaggregated ones, and both phases on shared GPUs,
by the highest rate per GPU at which 90 % of the requests keep the SLO, and says which rules of thumb hold for the load.
Arguments are KEY=VALUE.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.guide.answer import answered
from experiments.guide.data import text_of
from experiments.guide.plan import GROUPS, OWN, read_plan
from experiments.guide.plots import draw
from experiments.guide.report import report
from framework.cli.command import Arguments, command
from framework.cli.files import require_writable, write_whole
from framework.cli.terminal import results_console, tell
from framework.run.callback import FreshDirectory
from framework.run.live import told
from framework.run.sweep import Sweep


@command(
    __doc__,
    keys=OWN,
    settings=GROUPS,
    interrupted="interrupted; the runs that ended are kept, and the same command goes on from here",
)
def main(arguments: Arguments) -> None:
    """Answer the command line."""
    guide(arguments.every)


def guide(arguments: Sequence[str]) -> None:
    """Answer, print and draw. Raises InputError, and Hydra's errors, for impossible arguments."""
    plan = read_plan(arguments)
    before = FreshDirectory.watch(plan.out)
    require_writable(plan.out)
    try:
        store = Sweep(plan.shared, plan.out).store
        with told(store, f"guide {plan.load}", plan.load, "runs") as progress:
            answer = answered(plan, progress)
        results_console().print(report(answer), highlight=False)
        write_whole(plan.out / "guide.json", text_of(answer).encode())
        draw(answer, plan.out)
    finally:
        before.discard()  # It is removed if it is still empty.
    tell(f"results in {plan.out}")
