"""The best configuration of a space: drawn, run and compared, trial by trial.

    python -m experiments.tune policy=distserve trace=mooncake space=pd trials=100 seed=0

Arguments are KEY=VALUE. Keys that are not this command's own are settings of every run, as for run.py; a given setting
is not searched. A study continues where it stopped, and processes that name the same one share its work.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import optuna
from hydra.utils import instantiate

from experiments.tune.base import Configuration, with_demand
from experiments.tune.feasible import Feasibility
from experiments.tune.files import write_trials, write_tuned
from experiments.tune.goals import Goal, read_goals
from experiments.tune.pruner import PRUNERS, make_pruner, read_prefixes, rungs
from experiments.tune.report import command_line, report
from experiments.tune.result import Findings, findings
from experiments.tune.sampler import DEFAULT, SAMPLERS, SamplerKind
from experiments.tune.space import Space
from experiments.tune.space_file import of_directories, read_space, space_names
from experiments.tune.storage import Presence, dashboard, only_study, open_storage, open_study
from experiments.tune.study import Search
from framework.cli.arguments import ANY, config_dirs, program, whole
from framework.cli.command import Arguments, command
from framework.cli.files import require_writable, write_whole
from framework.cli.outside import as_typed
from framework.cli.safe_text import one_line, secrets_of, without
from framework.cli.terminal import results_console, tell
from framework.errors import InputError
from framework.metrics.figures import HEADLINE
from framework.run.live import told
from framework.run.sweep import Sweep

_TRIALS = 100
_NAME = re.compile(r"[\w][\w.-]*")
_OWN = {
    "space": "file of conf/space; its constants as space.gpus=16",
    "trials": f"configurations to run, {_TRIALS} by default; sampler=grid: all",
    "seed": "of the search; that of the runs is set by ++seed=N",
    "sampler": ", ".join(SAMPLERS),
    "objectives": f"keys of the summary, as {HEADLINE},cost_usd: their Pareto front; a sign says which way is better "
    "where a key does not, as -duration; else objective=NAME decides",
    "pruner": f"{', '.join(PRUNERS)}: gives up trials that do badly on the first part of the trace",
    "prefixes": "the parts, as [0.125,0.25,0.5]",
    "workers": "trials at a time; the number of cores with hydra/launcher=joblib, else 1",
    "name": "of the study",
    "storage": "a journal file, studies/NAME.journal by default, or the URL of a database",
    "out": "directory of the results, outputs/tune/NAME by default",
}


@command(__doc__, keys=_OWN, settings=ANY, interrupted="interrupted; the same command goes on from here")
def main(arguments: Arguments) -> None:
    """Search as the command line says and print the result."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    warnings.filterwarnings("ignore", message="Constraints have been set")  # the proposer keeps them for CmaEsSampler
    _with_storage(arguments)


def _with_storage(arguments: Arguments) -> None:
    try:
        tune(arguments)
    except optuna.exceptions.StorageInternalError as error:
        reason = without(_said(error), secrets_of(" ".join(arguments.every)))
        raise InputError(
            f"the storage cannot be reached any more ({reason}); once it can, the same command goes on from here"
        ) from error


def _said(error: BaseException) -> str:
    """The first line of the database's own message; Optuna's is a guess."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    said = [str(own).strip() for one in causes if (own := getattr(one, "orig", None)) is not None]
    return next((text.splitlines()[0] for text in [*said, str(causes[-1]).strip()] if text), "it gives no reason")


def tune(arguments: Arguments) -> None:
    """Search, print the result, write it. Raises InputError, and Hydra's errors, for impossible arguments."""
    own, (constants, overrides) = arguments.own, _constants(arguments.settings)
    base = Configuration(tuple(overrides))
    space = _space(own, constants, base)
    goals = read_goals(own.get("objectives"), base.config)
    sampler = SamplerKind(own.get("sampler", DEFAULT), _seed(own.get("seed", "0")))
    sampler.check(space, len(goals))
    prefixes = read_prefixes(own.get("prefixes"))
    pruner = make_pruner(own.get("pruner", "none"), prefixes, len(goals))
    trials = (
        math.inf if sampler.name == "grid" and "trials" not in own else whole("trials", own.get("trials", str(_TRIALS)))
    )
    workers = _workers(own.get("workers"), overrides)
    study, place = _study(own, base, space, goals)
    study.pruner = pruner
    out = Path(own.get("out", f"outputs/tune/{study.study_name}"))
    require_writable(out)
    parts = [] if own.get("pruner", "none") == "none" else rungs(prefixes, len(instantiate(base.config.trace)))
    space = with_demand(space, base)
    feasible = Feasibility(space, base)
    sweep = Sweep(overrides, out)
    name = study.study_name
    with Presence(study) as presence, told(sweep.store, f"study {name}", name, "trials") as progress:
        Search(study, space, feasible, sampler, goals, parts, sweep, presence).run(trials, workers, progress)
    _conclude(findings(study, space, feasible, goals), base, out, arguments.every)
    tell(dashboard(place))


def _conclude(found: Findings, base: Configuration, out: Path, arguments: Sequence[str]) -> None:
    """Write the files of a study and print its report."""
    write_trials(found, out / "trials.csv")
    if not found.ranked:
        raise InputError(f"none of the {len(found.rows)} trials could be run; {out / 'trials.csv'} says why")
    best = base.with_overrides(found.ranked[0].point.overrides)
    values = ", ".join(
        f"{goal.key} {value:.6g}" for goal, value in zip(found.goals, found.ranked[0].values, strict=True)
    )
    path = write_tuned(found.name, best, one_line(f"{values}: python -m experiments.tune {' '.join(arguments)}"))
    write_whole(out / "best.yaml", path.read_bytes())
    console, commands = results_console(), _replays(found.name, best)
    for part in report(found, commands, console.width):
        console.print(part, highlight=False)
    from experiments.tune.page.study_page import (
        study_page,  # The library of pictures takes long to load, and so does Matplotlib.
    )
    from experiments.tune.plots import draw

    draw(found, out)
    write_whole(out / "study.html", study_page(found, commands).encode())
    tell(f"results in {out}")


def _replays(name: str, best: Configuration) -> list[str]:
    """The commands that run the best point again, by the name of its file if that is enough, and in full."""
    given = [word for word in best.overrides if not word.lstrip("+~").startswith("hydra")]
    own = [_as_typed(word, best) for word in given]
    tuned = [f"{program()} +tuned={name}"] if own == given else []  # no YAML names a class of a file
    return [*tuned, command_line(own)]


def _as_typed(word: str, configuration: Configuration) -> str:
    """An override; one that chooses a class of a user's file, with the path to it from here."""
    group, _, choice = word.partition("=")
    return f"{group}={as_typed(choice, configuration.config[group])}" if ".py:" in choice else word


# --- reading the command line -----------------------------------------------------------------------------------------


def _constants(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Constants of the space, and overrides of the configuration."""
    constants: dict[str, str] = {}
    overrides = []
    for word in arguments:
        key, _, value = word.partition("=")
        name = key.removeprefix("space.")
        if name == key:
            overrides.append(word)
        elif name in constants:
            raise InputError(f"{word}: {key} is given twice")
        elif not value:
            raise InputError(f"{word}: written {key}=VALUE")
        else:
            constants[name] = value
    return constants, overrides


def _space(own: Mapping[str, str], constants: Mapping[str, str], base: Configuration) -> Space:
    if "space" not in own:
        raise InputError(f"space=NAME is missing; there are {', '.join(space_names())}")
    given = [word.partition("=")[0].lstrip("+") for word in base.overrides]
    name = of_directories(own["space"], config_dirs(base.overrides))
    return read_space(name, {**base.choices, **base.settings}, given, constants)


def _study(
    own: Mapping[str, str], base: Configuration, space: Space, goals: Sequence[Goal]
) -> tuple[optuna.Study, str]:
    """The study of this command, and its storage."""
    default = "-".join((base.choices["policy"], base.choices["trace"], space.name, *_unusual(own, base)))
    name = own.get("name", default)
    if not _NAME.fullmatch(name):
        raise InputError(f"name={name}: give it a name of letters, digits, points, hyphens and underscores")
    place = own.get("storage", f"studies/{name}.journal")
    storage = open_storage(place)
    if "storage" in own and "name" not in own:
        name = only_study(storage, default)
    identity = {"space": space.name, **space.described, "objectives": " ".join(map(str, goals)), **base.settings}
    return open_study(storage, name, [goal.direction for goal in goals], identity), place


def _unusual(own: Mapping[str, str], base: Configuration) -> list[str]:
    """The additional name of a study with other than the usual search."""
    parts = [base.choices["objective"]] if base.choices["objective"] != "goodput" else []
    parts += [own["sampler"]] if own.get("sampler", DEFAULT) != DEFAULT else []
    return parts + ([f"seed{own['seed']}"] if own.get("seed", "0") != "0" else [])


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InputError(f"seed must be a whole number of at least 0, got {text!r}")
    return int(text)


def _workers(text: str | None, overrides: Sequence[str]) -> int:
    if text is not None:
        return whole("workers", text)
    return os.cpu_count() or 1 if "hydra/launcher=joblib" in overrides else 1
