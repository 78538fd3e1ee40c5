"""`python -m experiments.tune` from its words to its files, among others who search too, and among the dead."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4
from wsgiref.util import setup_testing_defaults

import optuna
import polars as pl
import pytest
from optuna.trial import FrozenTrial, TrialState

from experiments.tune import command as command
from experiments.tune import plots
from experiments.tune.base import Configuration
from experiments.tune.plots import draw
from experiments.tune.storage import OWNER, open_storage
from experiments.tune.study import OVERRIDES
from framework.cli.conf import CONF
from framework.metrics.figures import metric
from framework.objective.goodput import Measurement
from framework.report.numbers import number as shown
from framework.run import job
from framework.run.compose import compose as composed
from tests.conftest import ROOT
from tests.helpers import warm
from tests.helpers.launcher import typed
from tests.helpers.postgres import postgres, server
from tests.helpers.processes import Finished, eventually, finish
from tests.helpers.processes import run as run_once

SMALL = ("policy=chunked", "trace=synthetic", "trace.limit=60")
# More than some configurations serve in time.
CROWDED = (
    *SMALL[:2],
    "trace.limit=400",
    "trace.arrivals.rate=200",
    "slo.ttft_s=0.2",
)
POOLS = ("policy=splitwise", "trace=synthetic", "trace.limit=60", "trace.input.mean=4000")
SEARCH = (*SMALL, "space=chunked", "space.gpus=4")
LONGER = (*SEARCH[:2], "trace.limit=3000", "trace.arrivals.rate=60", *SEARCH[3:])
FEW = "search:\n  engine.token_budget: { powers_of_two: [512, 1024] }\n  cluster.tp: { powers_of_two: [1, 2] }\n"
Tune = Callable[..., Finished]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(plots, "draw", lambda found, out: None)  # most of the time of a short search


@pytest.fixture
def name() -> Iterator[str]:
    """Of a study; those of a test begin with it, and their winners are removed from conf/tuned."""
    name = f"test-{uuid4().hex[:8]}"
    yield name
    for path in (CONF / "tuned").glob(f"{name}*.yaml"):
        path.unlink()


@pytest.fixture
def tune(capsys: pytest.CaptureFixture[str]) -> Tune:
    """The command, in this process."""

    def run(*words: str) -> Finished:
        capsys.readouterr()
        code = typed("tune")(words)
        out, err = capsys.readouterr()
        return Finished(words, code, out, err)

    return run


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Grows by one with every simulation in this process."""
    seen: list[Any] = []
    measured = job._measured

    def counted(*parts: Any) -> Measurement:
        seen.append(parts)
        return measured(*parts)

    monkeypatch.setattr(job, "_measured", counted)
    return seen


def start(*words: str, python: str = sys.executable, **environment: str) -> subprocess.Popen[str]:
    """The command as a process, here."""
    return subprocess.Popen(
        [python, "-m", "experiments.tune", *words],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def trials_of(name: str, storage: str | None = None) -> list[FrozenTrial]:
    study = optuna.load_study(study_name=name, storage=open_storage(storage or f"studies/{name}.journal"))
    return study.get_trials()


def complete(trials: Sequence[FrozenTrial]) -> dict[str, list[float]]:
    """The values of those that were run, by their overrides; none was run twice."""
    run = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    values = {str(trial.user_attrs[OVERRIDES]): list(trial.values) for trial in run}
    assert len(values) == len(run)
    return values


def succeeded(finished: Finished) -> Finished:
    assert finished.returncode == 0, finished.stderr
    assert "Traceback" not in finished.stderr
    return finished


def refused(finished: Finished, *words: str) -> bool:
    """One line on stderr that says all of `words`, exit code 2, nothing on stdout."""
    assert finished.returncode == 2, finished.stderr
    (line,) = finished.stderr.splitlines()
    assert line.startswith("error: ")
    assert not finished.stdout
    missing = [word for word in words if word not in line]
    assert not missing, f"{missing} not in: {line}"
    return True


# --- one search -------------------------------------------------------------------------------------------------------


def test_a_study_leaves_its_best_and_is_not_run_again(
    tune: Tune, name: str, runs: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "draw", draw)
    first = succeeded(tune(*SEARCH, "trials=5", f"name={name}"))
    values = complete(trials_of(name))
    best = max(value for (value,) in values.values())
    assert len(values) == len(runs) == 5
    assert f"{name}  5 trials" in first.stdout
    assert f"best  goodput {best:.3g} req/s" in first.stdout
    assert f"python run.py +tuned={name}" in first.stdout
    out = tmp_path / "outputs" / "tune" / name
    table = pl.read_csv(out / "trials.csv")
    assert len(table) == 5
    assert table["goodput_rps"].max() == pytest.approx(best, rel=1e-12)
    assert {"history.png", "slices.png", "heatmap.png"} <= {path.name for path in out.glob("*.png")}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in out.glob("*.png"))
    assert (out / "best.yaml").read_bytes() == (CONF / "tuned" / f"{name}.yaml").read_bytes()
    files = {path.name: path.read_bytes() for path in out.iterdir()}
    again = succeeded(tune(*SEARCH, "trials=5", f"name={name}"))
    assert again.stdout == first.stdout
    assert len(runs) == 5
    assert len(trials_of(name)) == 5
    assert {path.name: path.read_bytes() for path in out.iterdir()} == files


def test_more_trials_go_on_from_those_that_there_are(tune: Tune, name: str) -> None:
    succeeded(tune(*SEARCH, "trials=1", f"name={name}"))
    succeeded(tune(*SEARCH, "trials=2", f"name={name}"))
    succeeded(tune(*SEARCH, "trials=2", f"name={name}-whole"))
    assert complete(trials_of(name)) == complete(trials_of(f"{name}-whole"))


@pytest.mark.slow  # tests/house/test_readme.py replays one
def test_the_winner_replays(tune: Tune, name: str, tmp_path: Path) -> None:
    finished = succeeded(tune(*SEARCH, "trials=4", f"name={name}"))
    best = max(value for (value,) in complete(trials_of(name)).values())
    (printed,) = re.findall(r"python run\.py (policy=chunked .*\S)", finished.stdout.replace("\\\n", ""))
    assert Configuration(tuple(printed.split())).settings == Configuration((f"+tuned={name}",)).settings
    python = str(warm.path() / "python")
    succeeded(run_once(tmp_path, f"+tuned={name}", "hydra.run.dir=replayed", python=python))
    assert json.loads((tmp_path / "replayed" / "summary.json").read_text())["goodput_rps"] == best


@pytest.mark.parametrize(
    "sampler", ["tpe", *(pytest.param(one, marks=pytest.mark.slow) for one in ("cmaes", "nsga", "qmc", "random"))]
)
def test_a_seed_decides_the_trials(tune: Tune, name: str, sampler: str) -> None:
    for study in (name, f"{name}-same"):
        succeeded(tune(*SEARCH, "trials=3", f"sampler={sampler}", "seed=1", f"name={study}", f"storage=here/{study}"))
    first, same = (complete(trials_of(study, f"here/{study}")) for study in (name, f"{name}-same"))
    assert list(first.items()) == list(same.items())
    assert len(first) == 3


@pytest.mark.slow
def test_another_seed_gives_other_trials(tune: Tune, name: str) -> None:
    for seed in (1, 2):
        succeeded(tune(*SEARCH, "trials=2", f"seed={seed}", f"name={name}-{seed}"))
    assert complete(trials_of(f"{name}-1")).keys() != complete(trials_of(f"{name}-2")).keys()


def test_several_objectives_give_a_front(tune: Tune, name: str) -> None:
    Path("few.yaml").write_text("search:\n  cluster.tp: { powers_of_two: [1, 8] }\n")  # more GPUs: faster, dearer
    goals = ("objectives=p99_tpot_ms,cost_usd", "trials=4")
    finished = succeeded(tune(*SMALL, "space=few.yaml", *goals, f"name={name}"))
    values = list(complete(trials_of(name)).values())
    front = [one for one in values if not any(a <= one[0] and b <= one[1] and [a, b] != one for a, b in values)]
    assert len(front) > 1
    assert f"{len(front)} trials are on the Pareto front" in finished.stdout
    _, table = re.split(r"the Pareto front *\n", finished.stdout)
    assert len(re.findall(r"(?m)^ *\d+ ", table)) == len(front)


def test_the_best_of_a_study_is_where_its_figure_is_better(tune: Tune, name: str) -> None:
    """Without a sign as METRICS says; with one as it says."""
    Path("few.yaml").write_text("search:\n  cluster.tp: { powers_of_two: [1, 8] }\n")
    best = {"p99_tpot_ms": min, "-share_of_bound": min, "+p99_tpot_ms": max}
    for number, (goal, choose) in enumerate(best.items()):
        found = succeeded(tune(*CROWDED, "space=few.yaml", "trials=3", f"objectives={goal}", f"name={name}-{number}"))
        values = [value for (value,) in complete(trials_of(f"{name}-{number}")).values()]
        assert len(set(values)) > 1
        figure = metric(goal.lstrip("+-"))
        assert f"best  {figure.name} {shown(figure.scale * choose(values))} {figure.unit}" in found.stdout


@pytest.mark.slow
def test_a_pruner_gives_up_what_does_badly_on_a_part(tune: Tune, name: str) -> None:
    finished = succeeded(tune(*CROWDED, *SEARCH[3:], "trials=8", "pruner=median", "prefixes=[0.5]", f"name={name}"))
    trials = trials_of(name)
    pruned = [trial for trial in trials if trial.state == TrialState.PRUNED]
    assert len(trials) == 8
    assert 0 < len(pruned) < 8
    assert f"{8 - len(pruned)} trials, {len(pruned)} pruned" in finished.stdout
    bar = sorted(trial.intermediate_values[1] for trial in trials)[len(trials) // 2]
    assert all(trial.intermediate_values[1] <= bar for trial in pruned)
    table = pl.read_csv(f"outputs/tune/{name}/trials.csv")
    assert table.filter(pl.col("outcome") == "pruned")["goodput_rps"].null_count() == len(pruned)


def test_a_grid_has_every_point_of_a_file_of_ones_own(tune: Tune, name: str) -> None:
    Path("few.yaml").write_text(FEW)
    succeeded(tune(*SMALL, "space=few.yaml", "sampler=grid", f"name={name}"))
    expected = {f"engine.token_budget={budget} cluster.tp={tp}" for budget in (512, 1024) for tp in (1, 2)}
    assert complete(trials_of(name)).keys() == expected


def test_what_does_not_fit_is_not_run(tune: Tune, name: str, runs: list[Any]) -> None:
    Path("few.yaml").write_text(FEW.replace("[1, 2]", "[1, 4]"))
    words = (*SMALL, "model=llama3_70b", "space=few.yaml", "trials=50", f"name={name}")
    assert succeeded(tune(*words)).stdout == succeeded(tune(*words)).stdout
    assert {re.sub(r".*cluster", "cluster", one) for one in complete(trials_of(name))} == {
        "cluster.tp=2",
        "cluster.tp=4",
    }
    assert len(runs) == len(trials_of(name)) == 4


def test_a_search_of_pools_begins_at_the_split_that_the_load_asks_for(tune: Tune, name: str) -> None:
    of_eight = composed(Configuration((*POOLS, "cluster.instances=8")).config)
    words = (*POOLS, "space=pd", "trials=3", f"name={name}")
    assert "the policy has no policy.order" in " ".join(succeeded(tune(*words)).stdout.split())
    (asked,) = (pool.instances for pool in of_eight.cluster.pools if pool.name == "prefill")
    wanted = [asked, max(1, asked - 1), min(7, asked + 1)]
    splits = [re.search(r"cluster.prefill=(\d)", str(one.user_attrs[OVERRIDES])) for one in trials_of(name)]
    assert [int(split[1]) for split in splits if split] == wanted


def test_an_unfinished_line_of_a_journal_is_dropped(tune: Tune, name: str) -> None:
    succeeded(tune(*SEARCH, "trials=2", f"name={name}"))
    with Path(f"studies/{name}.journal").open("a") as journal:
        journal.write('{"op_code": 5, "worker')
    succeeded(tune(*SEARCH, "trials=4", f"name={name}"))
    assert len(complete(trials_of(name))) == 4


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), ("space=NAME", "chunked", "pd")),
        (("space=nonesuch",), ("nonesuch", "chunked", "pd")),
        (("space=nonesuch.yaml",), ("nonesuch.yaml", "chunked", "pd")),
        (("space=chunked", "sampler=nonesuch"), ("sampler", "nonesuch", "cmaes")),
        (("space=chunked", "objectives=nonesuch"), ("nonesuch", "goodput_rps")),
        (("space=chunked", "objectives=+nonesuch"), ("nonesuch", "goodput_rps")),
        (("space=chunked", "objectives=shareofbound"), ("shareofbound", "did you mean share_of_bound?")),
        (("space=chunked", "objectives=cost_usd,goodput_bound"), ("goodput_bound is better; write +goodput_bound",)),
        (("space=chunked", "objectives=capacity_half_width"), ("neither more nor less of capacity_half_width",)),
        (("space=chunked", "pruner=median", "objectives=goodput_rps,cost_usd"), ("pruner=median", "2 objectives")),
        (("space=chunked", "trials=none"), ("trials",)),
        (("space=chunked", "seed=-1"), ("seed",)),
        (("space=chunked", "space.nonesuch=4"), ("space.nonesuch", "gpus")),
        (("space=chunked", "engine.nonesuch=4"), ("engine.nonesuch",)),
        (("space=chunked", "policy=nonesuch"), ("policy=nonesuch", "chunked")),
        (("space=chunked", "space.gpus=1", "model=llama3_70b", "cluster.tp=1"), ("points is feasible", "does not fit")),
    ],
    ids=lambda value: " ".join(value[-1:]) if isinstance(value, tuple) else None,
)
def test_a_mistake_is_one_line(tune: Tune, name: str, words: tuple[str, ...], said: tuple[str, ...]) -> None:
    assert refused(tune(*SMALL, "trials=2", f"name={name}", *words), *said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "section search"),
        ("search: {}", "nothing is left to search"),
        ("search: [", "cannot be read"),
        (FEW.replace("token_budget", "token_budgets"), "engine.token_budgets is no setting"),
        (FEW.replace("[512, 1024]", "[1024, 512]"), "engine.token_budget: nothing lies between"),
        (FEW + "require:\n  - nonesuch - 1\n", "nonesuch, which is not named"),
        (FEW + "start:\n  - {engine.token_budget: nonesuch}\n", "start needs nonesuch"),
    ],
)
def test_a_space_that_is_none_is_one_line(tune: Tune, name: str, text: str, said: str) -> None:
    Path("own.yaml").write_text(text)
    assert refused(tune(*SMALL, "trials=2", f"name={name}", "space=own.yaml"), "own", said)


@pytest.mark.parametrize(
    "storage",
    [
        "sqlite:///missing/x.db",
        "postgresql+psycopg://nobody:secret@127.0.0.1:1/x",
        "nonesuch://127.0.0.1/x",
        "text",
        "line",
        "entry",
        "bytes",
        "folder",
        "text/x",
    ],
)
def test_a_storage_that_is_none_is_one_line(tune: Tune, name: str, storage: str) -> None:
    if storage.startswith("postgresql"):
        pytest.importorskip("psycopg", reason="psycopg is not installed")
    files = {"text": b"no journal", "line": b"no journal\n", "entry": b'{"no": "journal"}\n', "bytes": b"\xff\x00" * 99}
    for file, content in files.items():
        Path(file).write_bytes(content)
    Path("folder").mkdir()
    finished = tune(*SEARCH, "trials=2", f"name={name}", f"storage={storage}")
    assert refused(finished, "text" if storage == "text/x" else "storage=")
    assert "secret" not in finished.stderr
    assert {file: Path(file).read_bytes() for file in files} == files


def test_a_study_of_something_else_is_left_alone(tune: Tune, name: str) -> None:
    succeeded(tune(*SEARCH, "trials=2", f"name={name}"))
    Path("few.yaml").write_text(FEW)
    before = Path(f"studies/{name}.journal").read_bytes()
    others = (
        ((*SMALL, "space=few.yaml"), ("space: chunked there, few here",)),
        ((*SEARCH, "++seed=5"), ("seed: 0 there, 5 here",)),
        ((*SEARCH, "cluster.tp=2"), ("space.cluster.tp",)),
        ((*SEARCH, "objectives=cost_usd"), ("objectives", "-cost_usd here")),
    )
    for words, said in others:
        assert refused(tune(*words, "trials=4", f"name={name}"), name, "name=NAME", *said)
    assert len(complete(trials_of(name))) == 2
    assert Path(f"studies/{name}.journal").read_bytes().startswith(before)


def test_a_mistake_ends_the_process_with_2(tmp_path: Path) -> None:
    assert refused(finish(start(*SMALL, python=str(warm.path() / "python"))), "space=NAME")


# --- in company -------------------------------------------------------------------------------------------------------


def search_together(name: str, storage: str) -> None:
    """Two processes on one study: its trials are shared, and both tell the same."""
    words = (*LONGER, "trials=40", f"name={name}", f"storage={storage}")
    processes = [start(*words) for _ in range(2)]
    first, second = (succeeded(finish(process)) for process in processes)
    trials = trials_of(name, storage)
    assert len(complete(trials)) == 40
    assert not [trial for trial in trials if trial.state not in (TrialState.COMPLETE, TrialState.FAIL)]
    assert len({trial.user_attrs[OWNER] for trial in trials if trial.state == TrialState.COMPLETE}) == 2
    assert first.stdout == second.stdout
    assert f"{name}  40 trials" in first.stdout


@pytest.mark.slow
def test_two_processes_share_a_journal(name: str) -> None:
    search_together(name, f"studies/{name}.journal")


@pytest.mark.slow
def test_two_processes_share_a_database(name: str) -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    with postgres() as url:
        search_together(name, url)


@pytest.mark.slow
def test_a_killed_search_goes_on_as_if_it_had_not_been(name: str) -> None:
    words = (*LONGER, "trials=20")
    process = start(*words, f"name={name}")
    assert eventually(lambda: Path("results/records").exists() and len(os.listdir("results/records")) >= 5)
    process.send_signal(signal.SIGKILL)
    finish(process)
    before = len(complete(trials_of(name)))
    assert before < 20
    succeeded(finish(start(*words, f"name={name}")))
    after = trials_of(name)
    assert not [trial for trial in after if trial.state == TrialState.RUNNING]
    succeeded(finish(start(*words, f"name={name}-whole")))
    assert complete(after) == complete(trials_of(f"{name}-whole"))


@pytest.mark.slow  # as an unfinished line of a journal does
def test_a_trial_that_was_begun_by_a_process_that_died_at_once_changes_nothing(name: str, tune: Tune) -> None:
    succeeded(tune(*SEARCH, "trials=2", f"name={name}"))
    optuna.load_study(study_name=name, storage=open_storage(f"studies/{name}.journal")).ask()  # it said nothing more
    succeeded(tune(*SEARCH, "trials=4", f"name={name}"))
    succeeded(tune(*SEARCH, "trials=4", f"name={name}-whole"))
    assert complete(trials_of(name)) == complete(trials_of(f"{name}-whole"))


@pytest.mark.slow
def test_the_lock_of_a_dead_process_blocks_nobody_for_good(name: str) -> None:
    succeeded(finish(start(*SEARCH, "trials=2", f"name={name}")))
    journal = Path(f"studies/{name}.journal").absolute()
    journal.with_name(f"{journal.name}.lock").symlink_to(journal)
    process = start(*SEARCH, "trials=4", f"name={name}")
    try:
        assert eventually(lambda: process.poll() is not None)
    finally:
        process.kill()
    succeeded(finish(process))
    assert len(complete(trials_of(name))) == 4


@pytest.mark.slow
def test_a_database_that_goes_away_is_one_line(name: str) -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    with postgres() as url:
        process = start(*LONGER, "trials=2000", f"name={name}", f"storage={url}")
        assert eventually(lambda: Path("results/records").exists() and len(os.listdir("results/records")) >= 3)
    finished = finish(process)
    assert refused(finished, "storage", "the same command goes on")
    assert "invalid data" not in finished.stderr, "what Optuna guesses"


@pytest.mark.slow
def test_a_search_goes_on_after_its_database_was_restarted(name: str) -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    with server() as database:
        words = (*LONGER, "trials=20", f"storage={database.url}")
        process = start(*words, f"name={name}")
        assert eventually(lambda: Path("results/records").exists() and len(os.listdir("results/records")) >= 5)
        database.restart()
        finished = finish(process)
        if finished.returncode:  # it was in the middle of a question
            assert refused(finished, "storage", "the same command goes on")
            succeeded(finish(start(*words, f"name={name}")))
        succeeded(finish(start(*words, f"name={name}-whole")))
        after = trials_of(name, database.url)
        assert not [trial for trial in after if trial.state == TrialState.RUNNING]
        assert complete(after) == complete(trials_of(f"{name}-whole", database.url))


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["joblib", "ray"])
def test_launchers_give_the_same_trials(name: str, launcher: str) -> None:
    own: tuple[str, ...] = ("hydra.launcher.n_jobs=2",)
    if launcher == "ray":
        pytest.importorskip("ray", reason="Ray is not installed")
        own = ("hydra.launcher.ray.init.address=local",)
    words = (*SEARCH, "trials=8", "workers=2")
    succeeded(finish(start(*words, f"name={name}-basic")))
    succeeded(finish(start(*words, f"name={name}", "store=other", f"hydra/launcher={launcher}", *own)))
    assert len(os.listdir("other/records")) == 8
    assert complete(trials_of(name)) == complete(trials_of(f"{name}-basic"))


@pytest.mark.slow
def test_the_dashboard_lists_a_study(tune: Tune, name: str) -> None:
    dashboard = pytest.importorskip("optuna_dashboard", reason="optuna-dashboard is not installed")
    succeeded(tune(*SEARCH, "trials=3", f"name={name}"))
    request: dict[str, Any] = {"PATH_INFO": "/api/studies"}
    setup_testing_defaults(request)
    answers: list[str] = []

    def begin(status: str, headers: object, error: object = None) -> None:
        answers.append(status)

    body = dashboard.wsgi(open_storage(f"studies/{name}.journal"))(request, begin)
    listed = json.loads(b"".join(body))
    assert answers == ["200 OK"]
    assert name in [study["study_name"] for study in listed["study_summaries"]]
