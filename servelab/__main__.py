"""The console command: `servelab policy=ares trace=mooncake`, `servelab list policies`, `servelab tune ...`."""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

# Command -> the module that does its work, and what it does in a line.
COMMANDS = {
    "list": ("servelab.list_command", "what there is: policies, traces, models, gpus, options, predictors, metrics"),
    "diagnose": (
        "servelab.diagnose_command",
        "what limits the goodput of a run, by running it again without each cause",
    ),
    "report": ("servelab.report_command", "a page that compares finished runs, request by request"),
    "tune": ("experiments.tune", "search settings with Optuna: P:D ratios, chunk sizes, budgets"),
    "table": ("experiments.table", "tables of stored runs, for a terminal, a paper or a spreadsheet"),
    "curve": ("experiments.curve", "goodput and latency over the load, as a picture"),
    "plot": ("experiments.plot", "pictures for papers: cdf, series, bars, pareto, slo"),
    "placement": ("experiments.placement", "which parallelism and how many instances serve a rate"),
    "guide": ("experiments.guide", "which architecture serves a load best, and where that flips"),
    "optimum": ("experiments.optimum", "the best of all configurations of a space, and how near searches come"),
    "ablation": ("experiments.ablation", "a policy without each of its mechanisms in turn"),
    "claims": ("experiments.claims", "what papers claim, beside what is simulated in their regimes"),
    "fidelity": ("experiments.fidelity", "measured deployments beside their simulation"),
    "bench": ("experiments.bench", "requests simulated per CPU second"),
    "timing": ("framework.report.show_step", "what a step takes, part by part"),
    "bound": ("servelab.bound_command", "the highest goodput that any schedule could reach"),
    "calibrate": ("framework.calibration", "fit step times to a server that was measured"),
    "measure": ("framework.timing.microbench", "time the kernels of a model on this machine's GPU"),
    "traces": ("traces", "fetch, describe and fit traces"),
}
_GROUPS = ("policy", "trace", "model", "gpu")  # whose names may be typed without them
HELP = """servelab: replay a trace through an LLM-serving scheduler on a simulated GPU cluster.

  servelab policy=ares trace=mooncake              one run: a table, and its files below outputs/
  servelab policy=distserve cluster.prefill=4      any setting, as key=value
  servelab -m policy=chunked,ares "seed=range(5)"  a sweep: each run once, kept in results/
  servelab --cfg job                               every setting with its default

Commands, each with a --help of its own:
{commands}
"""


def main(words: Sequence[str] | None = None) -> int:
    """The exit code."""
    given = list(sys.argv[1:] if words is None else words)
    if not given or given[0] in ("-h", "--help", "help"):
        width = max(map(len, COMMANDS))
        print(HELP.format(commands="\n".join(f"  {name:{width}}  {what}" for name, (_, what) in COMMANDS.items())))
        return 0
    if given[0] in ("-V", "--version"):
        from framework.version import VERSION

        print(VERSION)
        return 0
    if given[0] in COMMANDS:
        return _other(given[0], given[1:])
    if given[0].isidentifier():
        return _unknown(given[0])
    sys.argv[1:] = given
    from framework.cli.launch import launch
    from servelab.run_command import run

    launch(run)
    return 0


def _other(name: str, words: list[str]) -> int:
    """Do what `python -m MODULE` does with these words."""
    module = COMMANDS[name][0]
    if module.startswith("servelab."):
        from framework.cli.launch import guard

        return guard(lambda: importlib.import_module(module).main(words))
    sys.argv = [f"servelab {name}", *words]
    try:
        runpy.run_module(module, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        raise
    return 0


def _unknown(word: str) -> int:
    import difflib

    conf = Path(__file__).resolve().parents[1] / "conf"
    near = difflib.get_close_matches(word, COMMANDS, 1)
    group = next((group for group in _GROUPS if (conf / group / f"{word}.yaml").is_file()), None)
    if group:
        advice = f"did you mean {group}={word}?"
    elif (conf / word).is_dir():
        advice = f"did you mean {word}=NAME?"
    else:
        advice = f"did you mean servelab {near[0]}?" if near else "servelab --help lists the commands"
    print(f"error: {word}: there is no such command, and a setting is written key=value; {advice}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
