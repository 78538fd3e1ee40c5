"""The console command: `servelab policy=ares trace=mooncake`, `servelab list policies`, `servelab tune ...`."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Callable, Sequence

# Command -> the module that does its work, and its purpose in a line.
COMMANDS = {
    "list": ("servelab.list_command", "what there is: policies, traces, models, gpus, options, predictors, metrics"),
    "diagnose": (
        "servelab.diagnose_command",
        "what limits the goodput of a run, by running it again without each cause",
    ),
    "report": ("servelab.report_command", "a page that compares finished runs, request by request"),
    "tune": ("experiments.tune.command", "search settings with Optuna: P:D ratios, chunk sizes, budgets"),
    "table": ("experiments.table.command", "tables of stored runs, for a terminal, a paper or a spreadsheet"),
    "curve": ("experiments.curve.command", "goodput and latency over the load, as a picture"),
    "plot": ("experiments.plot.command", "pictures for papers: cdf, series, bars, pareto, slo"),
    "placement": ("experiments.placement.command", "which parallelism and how many instances serve a rate"),
    "guide": ("experiments.guide.command", "which architecture serves a load best, and where that flips"),
    "league": ("experiments.league.command", "which system wins on which load, and by how much"),
    "judge": ("experiments.judge.command", "a score for a policy that is given as text, for programs that search"),
    "ablation": ("experiments.ablation.command", "a policy without each of its mechanisms in turn"),
    "predictors": ("experiments.predictors.command", "how right each predictor of output lengths is, on each trace"),
    "textbook": ("experiments.textbook.command", "the field's arithmetic and effects, next to what is measured"),
    "timing": ("framework.report.show_step", "what a step takes, part by part"),
    "profiles": ("framework.timing.kernels.build", "make profiles from measured kernels"),
    "ui": ("servelab.ui_command", "a local web page over a results store: filter, rank, pivot, compare, follow"),
    "serve": ("servelab.serve_command", "a simulated cluster behind the API of OpenAI and vLLM, for routers and loads"),
    "bound": ("servelab.bound_command", "the highest goodput that any schedule could reach"),
    "calibrate": ("framework.calibration.command", "fit step times to a server that was measured"),
    "measure": ("framework.timing.microbench.command", "time the kernels of a model on this machine's GPU"),
    "prune": ("framework.run.prune", "remove from a store what no run would reuse"),
    "traces": ("traces.__main__", "fetch, check, describe and fit traces"),
}
_GROUPS = ("policy", "trace", "model", "gpu")  # groups whose names may be typed without them
HELP = """servelab: replay a trace through an LLM-serving scheduler on a simulated GPU cluster.

  servelab policy=ares trace=mooncake              one run: a table, and its files below outputs/
  servelab policy=distserve cluster.prefill=4      any setting, as key=value
  servelab -m policy=chunked,ares "seed=range(5)"  a sweep: each run once, kept in results/
  servelab --cfg job                               every setting with its default

Commands, each with a --help of its own:
{commands}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler and arguments is None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback of imports
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help", "help"):
        return _print(_help)
    if given[0] in ("-V", "--version"):
        return _print(_version)
    if given[0] in COMMANDS:
        name, *arguments = given
        code: int = importlib.import_module(COMMANDS[name][0]).main.finish(arguments, f"servelab {name}")
        return code
    if given[0].isidentifier():
        return _unknown(given[0])
    sys.argv[1:] = given
    from framework.cli.launch import launch
    from servelab.run_command import run

    launch(run)
    return 0


def _print(text: Callable[[], str]) -> int:
    from framework.cli.launch import guard

    return guard(lambda: print(text()))


def _help() -> str:
    width = max(map(len, COMMANDS))
    return HELP.format(commands="\n".join(f"  {name:{width}}  {what}" for name, (_, what) in COMMANDS.items()))


def _version() -> str:
    from framework.version import VERSION

    return VERSION


def _unknown(word: str) -> int:
    import difflib

    from framework.cli.conf import CONF

    near = difflib.get_close_matches(word, COMMANDS, 1)
    group = next((group for group in _GROUPS if (CONF / group / f"{word}.yaml").is_file()), None)
    if group:
        advice = f"did you mean {group}={word}?"
    elif (CONF / word).is_dir():
        advice = f"did you mean {word}=NAME?"
    else:
        advice = f"did you mean servelab {near[0]}?" if near else "servelab --help lists the commands"
    print(f"error: {word}: there is no such command, and a setting is written key=value; {advice}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
