"""What a search says and reads, to the letter: its report, its files, its pictures, its spaces and its words."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from omegaconf import OmegaConf
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.study import StudyDirection
from rich.console import Console

from experiments.tune import command, files, plots
from experiments.tune.base import Configuration
from experiments.tune.command import _constants, _seed, _unusual
from experiments.tune.expression import Expression
from experiments.tune.goals import Goal, read_goals
from experiments.tune.report import command_line, report
from experiments.tune.result import Findings, Row
from experiments.tune.sampler import SamplerKind
from experiments.tune.space import Dimension, Space
from experiments.tune.space_file import of_directories, read_space, space_names
from framework.cli.conf import CONF
from framework.errors import InputError

LONG = "longest_prefill_first_come"
SPACE = Space(
    "pd",
    {"gpus": 8},
    (
        Dimension("cluster.tp", IntDistribution(0, 3), is_exponent=True),
        Dimension("policy.order", CategoricalDistribution(["fcfs", LONG])),
        Dimension("engine.token_budget", IntDistribution(0, 99)),
    ),
    {"cluster.pp": Expression("4")},
    (),
    (),
    dict.fromkeys(("cluster.tp", "policy.order", "engine.token_budget", "cluster.pp")),
)
GOODPUT, COST = Goal("goodput_rps"), Goal("cost_usd", maximize=False)


def row(
    number: int,
    tp: int,
    order: str,
    budget: float,
    values: tuple[float, ...],
    outcome: str = "complete",
    **figures: Any,
) -> Row:
    drawn = {"log2 cluster.tp": tp, "policy.order": order, "engine.token_budget": budget}
    return Row(number, outcome, values, SPACE.point(drawn), figures)


ROWS = (
    row(0, 0, "fcfs", 25, (40.0,), slo_attainment=0.5, cost_usd=2.0),
    row(1, 1, LONG, 50, (39.8,), slo_attainment=0.975, cost_usd=2.0),
    row(2, 1, LONG, 50, (), "infeasible", refusal="no"),
    row(3, 2, "fcfs", 9, (20.0,), slo_attainment=None, cost_usd=2.0),
    row(4, 3, "fcfs", 9, (), "pruned"),
    row(5, 3, "fcfs", 7, (), "pruned"),
)
SHARES = {"policy.order": 0.515, "cluster.tp": 0.25, "engine.token_budget": 0.0}
FOUND = Findings("mine", replace(SPACE, missing=("a", "b")), 1234, (GOODPUT,), ROWS, SHARES)


def shown(found: Findings, replay: Sequence[str] = (), columns: int = 100) -> str:
    console = Console(width=columns, file=io.StringIO())
    for part in report(found, replay, columns):
        console.print(part, highlight=False)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())  # type: ignore[attr-defined]


def test_a_report_to_the_letter() -> None:
    replay = ["python run.py +tuned=mine", "python run.py " + " ".join(f"key{k}=value{k}" for k in range(14))]
    assert (
        shown(FOUND, replay, 120)
        == """\
mine  3 trials, 2 pruned, 1 infeasible; space pd: 800 points, 1,234 configurations that fit; the policy has no a or b

best  goodput 40.0 req/s, SLO met 50.0 % (trial 0)
      python run.py +tuned=mine
      python run.py key0=value0 key1=value1 key2=value2 key3=value3 key4=value4 key5=value5 key6=value6 \\
        key7=value7 key8=value8 key9=value9 key10=value10 key11=value11 key12=value12 key13=value13
      2 of 3 configurations (67 %) are within 1 % of it, itself included
flat: what is searched here makes little difference to this objective

importance         policy.order  52 %  ███████████████
                     cluster.tp  25 %  ████████
            engine.token_budget  0 %

the best 3
      goodput   SLO                token
trial   req/s met % tp      order budget
────────────────────────────────────────
    0    40.0  50.0  1       fcfs     25
    1    39.8  97.5  2   longest_     50
                         prefill_
                       first_come
    3    20.0     –  4       fcfs      9
"""
    )


@pytest.mark.parametrize(
    ("columns", "shows", "leaves"),
    [
        (41, "order tp budget", ""),
        (40, "order tp", "engine.token_budget"),
        (34, "order tp", "engine.token_budget"),
        (33, "order", "cluster.tp, engine.token_budget"),
    ],
)
def test_settings_that_matter_least_find_no_room(columns: int, shows: str, leaves: str) -> None:
    text = shown(FOUND, columns=columns).split("the best 3")[1]
    heading = text.splitlines()[2].split()
    assert [word for word in ("tp", "order", "budget") if word in heading] == sorted(
        shows.split(), key="tp order budget".find
    )
    words = " ".join(text.split())
    assert words.endswith(f"not shown: {leaves} (see trials.csv)") if leaves else "not shown" not in words


def test_a_report_of_one_trial_that_serves_all() -> None:
    only = Findings("mine", SPACE, None, (GOODPUT,), (row(7, 0, "fcfs", 25, (40.0,), slo_attainment=0.971),), {})
    assert (
        shown(only, columns=120)
        == """\
mine  1 trials; space pd

best  goodput 40.0 req/s, SLO met 97.1 % (trial 7)
      1 of 1 configurations (100 %) is within 1 % of it, itself included
flat: the best serves nearly all that is offered, so none can be much better; raise trace.rate, or set
objective=capacity

the best 1
      goodput
trial   req/s
─────────────
    7    40.0
"""
    )
    less = replace(only, rows=(row(7, 0, "fcfs", 25, (40.0,), slo_attainment=0.97),))
    assert "flat" not in shown(less)  # nor where there is nothing to compare with
    assert "flat" not in shown(replace(only, goals=(Goal("request_goodput"),)))


def test_a_report_of_a_front() -> None:
    rows = tuple(row(k, k % 4, "fcfs", k, (40.0 - k, 30.0 - k), p99_ttft_ms=8.0 + (k > 20)) for k in range(22))
    text = shown(Findings("mine", SPACE, None, (GOODPUT, COST), rows, {})).splitlines()
    assert text[2:5] == [
        "best  goodput 40.0 req/s, cost 30.0 USD (trial 0)",
        "      22 trials are on the Pareto front; the best by goodput is shown",
        "",
    ]
    assert text[5:9] == [
        "the Pareto front, 20 of 22",
        "      goodput cost     token",
        "trial   req/s    $ tp budget",
        "─" * 28,
    ]
    assert [line.split() for line in text[9:29]] == [
        [str(k), f"{40 - k}.0", f"{30 - k}.0", str(2 ** (k % 4)), str(k)] for k in range(20)
    ]
    one = Findings("mine", SPACE, None, (GOODPUT, COST), (*rows[:1], row(1, 1, "fcfs", 1, (39.0, 31.0))), {})
    assert "      1 trial is on the Pareto front; the best by goodput is shown" in shown(one)
    assert shown(one).splitlines()[5] == "the Pareto front"
    other = replace(one, goals=(Goal("fairness"), COST))
    lines = shown(other).split("the Pareto front\n")[1].splitlines()
    assert [line.split() for line in lines[:2]] == [["cost", "token"], ["trial", "fairness", "$", "tp", "budget"]]


def test_the_best_ten_are_shown() -> None:
    rows = tuple(row(k, k % 4, "fcfs", k, (40.0 - k,)) for k in range(12))
    table = shown(Findings("mine", SPACE, None, (GOODPUT,), rows, {})).split("the best 10\n")[1]
    assert [line.split()[0] for line in table.splitlines()[3:]] == [str(k) for k in range(10)]


def test_a_command_is_quoted_for_the_shell() -> None:
    assert command_line(["a=1", "b=[x, y]"]) == "python run.py a=1 'b=[x, y]'"


# --- files ------------------------------------------------------------------------------------------------------------


def test_every_trial_has_a_row(tmp_path: Path) -> None:
    files.write_trials(FOUND, tmp_path / "trials.csv")
    table = pl.read_csv(tmp_path / "trials.csv")
    assert table.columns == [
        *("trial", "outcome", "goodput_rps", "slo_attainment", "p99_ttft_ms", "p99_tpot_ms", "cost_usd"),
        *("cluster.pp", "cluster.tp", "policy.order", "engine.token_budget", "refusal"),
    ]
    assert table.row(1) == (1, "complete", 39.8, 0.975, None, None, 2.0, 4, 2, LONG, 50, "")
    assert table.row(2) == (2, "infeasible", None, None, None, None, None, 4, 2, LONG, 50, "no")
    assert table["outcome"].to_list() == ["complete", "complete", "infeasible", "complete", "pruned", "pruned"]


def test_what_differs_is_written() -> None:
    into: dict[str, Any] = {}
    one = {"a": {"b": 1, "c": {"d": 2}}, "e": 3, "f": {"g": 4}, "h": [1]}
    files._differing(one, {"a": {"b": 1, "c": {"d": 5}}, "e": 3, "f": 6, "h": [1, 2], "i": {"j": None}}, into)
    assert into == {"a": {"c": {"d": 5}}, "f": 6, "h": [1, 2], "i": {"j": None}}


def test_the_winner_is_a_file_that_chooses_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    best = Configuration(("policy=chunked", "trace=synthetic", "trace.limit=60", "report=null", "engine.max_batch=7"))
    lines = files._tuned(best, "a title").splitlines()
    assert lines[:3] == ["# @package _global_", "# a title", "defaults:"]
    assert "- override /policy: chunked" in lines
    end = lines.index("- _self_")
    assert sorted(lines[end + 1 :]) == ["  limit: 60", "  max_batch: 7", "engine:", "trace:"]
    removed = Configuration((*best.overrides, "~trace.limit"))
    monkeypatch.setattr(files, "CONF", tmp_path)
    monkeypatch.setattr(
        files, "Configuration", lambda overrides: removed if "+tuned=x" in overrides else Configuration(overrides)
    )
    with pytest.raises(InputError, match=r"x\.yaml: the best configuration cannot be written as one"):
        files.write_tuned("x", best, "a title")
    assert list((tmp_path / "tuned").glob("*.yaml")) == []
    assert files.write_tuned("x", removed, "a title").read_text().startswith("# @package _global_\n# a title\n")


# --- the words of a command -------------------------------------------------------------------------------------------


def test_constants_of_a_space_are_told_from_settings() -> None:
    words = ["trace.limit=60", "space.gpus=16", "spaces=2", "space.share=0.5"]
    assert _constants(words) == ({"gpus": "16", "share": "0.5"}, ["trace.limit=60", "spaces=2"])
    with pytest.raises(InputError, match=r"space\.gpus=8: space\.gpus is given twice"):
        _constants(["space.gpus=16", "space.gpus=8"])
    with pytest.raises(InputError, match=r"space\.gpus=: written space\.gpus=VALUE"):
        _constants(["space.gpus="])


@pytest.mark.parametrize("text", ["-1", "1.5", "", "x", "1" * 19, "²"])
def test_a_seed_is_a_whole_number(text: str) -> None:
    with pytest.raises(InputError, match="seed must be a whole number of at least 0, got"):
        _seed(text)
    assert [_seed("0"), _seed("007"), _seed("9" * 18)] == [0, 7, 10**18 - 1]


def test_a_study_is_called_by_what_is_unusual() -> None:
    base = Configuration(("policy=chunked", "trace=synthetic"))
    assert _unusual({}, base) == []
    assert _unusual({"sampler": "tpe", "seed": "0"}, base) == []
    other = base.with_overrides(["objective=capacity"])
    assert _unusual({"sampler": "gp", "seed": "3"}, other) == ["capacity", "gp", "seed3"]


def test_a_study_is_named_and_kept_as_the_command_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    base = Configuration(("policy=chunked", "trace=synthetic"))
    study, place = command._study({"seed": "3"}, base, SPACE, (GOODPUT,))
    assert place == "studies/chunked-synthetic-pd-seed3.journal"
    assert study.study_name == "chunked-synthetic-pd-seed3"
    assert (tmp_path / "studies" / "chunked-synthetic-pd-seed3.journal").is_file()
    identity = study.user_attrs["identity"]
    assert (identity["space"], identity["objectives"], identity["space.gpus"]) == ("pd", "+goodput_rps", "8")
    assert identity["trace.name"] == base.settings["trace.name"] if "trace.name" in base.settings else True
    own = {"name": "own.name-1", "storage": "kept/all"}
    assert command._study(own, base, SPACE, (COST,))[0].direction == StudyDirection.MINIMIZE
    assert command._study({"storage": "kept/all"}, base, SPACE, (COST,))[0].study_name == "own.name-1"
    for name in ("", "-a", "a b", "a/b"):
        with pytest.raises(InputError, match="give it a name of letters, digits, points, hyphens and underscores"):
            command._study({"name": name}, base, SPACE, (GOODPUT,))


def test_a_space_is_read_without_what_the_user_set() -> None:
    base = Configuration(("policy=chunked", "trace=synthetic", "cluster.tp=1"))
    found = command._space({"space": "chunked"}, {"gpus": "4"}, base)
    assert (found.name, found.fixed["gpus"], found.fixed["cluster.tp"]) == ("chunked", 4, 1)
    assert "cluster.tp" not in [one.name for one in found.dimensions]
    with pytest.raises(InputError, match=r"space=NAME is missing; there are apex, ares, chunked"):
        command._space({}, {}, base)


def test_goals_are_keys_with_signs() -> None:
    config = Configuration(("policy=chunked", "trace=synthetic")).config
    assert read_goals(None, config) == (GOODPUT,)
    text = "[goodput_rps, cost_usd,-duration,+p99_ttft_ms]"
    assert read_goals(text, config) == (GOODPUT, COST, Goal("duration", maximize=False), Goal("p99_ttft_ms"))
    assert [str(goal) for goal in (GOODPUT, COST)] == ["+goodput_rps", "-cost_usd"]
    assert [goal.direction for goal in (GOODPUT, COST)] == [StudyDirection.MAXIMIZE, StudyDirection.MINIMIZE]
    for text, words in (
        ("goodput_rps,,cost_usd", "it names keys of the summary, as goodput_rps,cost_usd"),
        ("+goodput_rps,-goodput_rps", "a key is named twice"),
        ("duration", r"write \+duration for the more the better, -duration for the less"),
    ):
        with pytest.raises(InputError, match=words):
            read_goals(text, config)
    with pytest.raises(InputError, match=r"^objective: collections.Counter names no key of the summary$"):
        read_goals(None, OmegaConf.create({"objective": {"_target_": "collections.Counter"}}))


def test_samplers_have_a_stream_for_each_rank() -> None:
    assert SamplerKind("gp", 1).optuna_sampler(0) is SamplerKind("grid", 1).optuna_sampler(0) is None
    kinds = {"tpe": "TPE", "cmaes": "CmaEs", "nsga": "NSGAII", "nsgaiii": "NSGAIII", "qmc": "QMC", "random": "Random"}
    for name, kind in kinds.items():
        assert type(SamplerKind(name, 1).optuna_sampler(0)).__name__ == f"{kind}Sampler"
    with pytest.raises(InputError, match="sampler"):
        SamplerKind("best", 0)

    def state(seed: int, rank: int) -> Any:
        sampler: Any = SamplerKind("random", seed).optuna_sampler(rank)
        return sampler._rng.rng.get_state()[1][:4].tolist()

    expected = np.random.RandomState(int(np.random.SeedSequence((5, 2)).generate_state(1)[0]))
    assert state(5, 2) == expected.get_state()[1][:4].tolist()  # type: ignore[index]
    assert len({tuple(state(*asked)) for asked in ((5, 2), (5, 3), (6, 2))}) == 3


# --- files of spaces --------------------------------------------------------------------------------------------------

FILE = """
gpus: 8
share: 0.5
search:
  cluster.tp: { powers_of_two: [1, gpus // 2] }
  policy.order: { choices: [fcfs, null, true, 3, 0.5] }
  engine.token_budget: { low: 64, high: gpus * 64, log: true }
  weight: { low: share, high: 2 }
  policy.only: { low: 1, high: 3 }
  policy.lacks: { low: 1, high: 3 }
set: { engine.max_batch: gpus * 4, helper: engine.max_batch // 3, cluster.pp: helper + weight }
optional: [policy.only, policy.lacks]
require: [gpus - cluster.tp, cluster.pp - 1]
start: [{ cluster.tp: gpus // 4 }, { weight: load_prefill_gpus }]
"""
SETTINGS = {
    "cluster.tp": 1,
    "policy.order": "fcfs",
    "engine.token_budget": 128,
    "policy.only": 2,
    "engine.max_batch": 9,
    "cluster.pp": 1,
}


def read(folder: Path, text: str, *given: str, constants: Mapping[str, str] | None = None) -> Space:
    (folder / "own.yaml").write_text(text)
    return read_space("own", SETTINGS, given, constants, folder)


def test_a_space_is_what_its_file_says(tmp_path: Path) -> None:
    own = read(tmp_path, FILE, "policy.only", "trace.limit", constants={"gpus": "16"})
    assert (own.name, own.fixed, own.missing) == (
        "own",
        {"gpus": 16, "share": 0.5, "policy.only": 2},
        ("policy.lacks",),
    )
    assert own.dimensions == (
        Dimension("cluster.tp", IntDistribution(0, 3), is_exponent=True),
        Dimension("policy.order", CategoricalDistribution(["fcfs", None, True, 3, 0.5])),
        Dimension("engine.token_budget", IntDistribution(64, 1024, log=True)),
        Dimension("weight", FloatDistribution(0.5, 2.0)),
    )
    ranges = {f"space.{one.name}": str(one.distribution) for one in own.dimensions}
    assert own.described == ranges | {
        "space.gpus": "16",
        "space.share": "0.5",
        "space.policy.only": "2",
        "space.engine.max_batch": "gpus * 4",
        "space.helper": "engine.max_batch // 3",
        "space.cluster.pp": "helper + weight",
        "space.require": "gpus - cluster.tp; cluster.pp - 1",
    }
    point = own.point({"log2 cluster.tp": 2, "policy.order": None, "engine.token_budget": 99, "weight": 1.5})
    assert point.settings == {
        "engine.max_batch": 64,
        "cluster.pp": 22.5,
        "cluster.tp": 4,
        "policy.order": None,
        "engine.token_budget": 99,
    }
    assert [start.drawn for start in replace(own, asked={"load_prefill_gpus": 1}).first_points()] == [
        {"log2 cluster.tp": 2, "policy.order": "fcfs", "engine.token_budget": 128, "weight": 1.25},
        {"log2 cluster.tp": 0, "policy.order": "fcfs", "engine.token_budget": 128, "weight": 1.0},
    ]
    assert read_space(str(tmp_path / "own.yaml"), SETTINGS).name == "own"
    (tmp_path / "space").mkdir()
    (tmp_path / "space" / "mine.yaml").write_text((tmp_path / "own.yaml").read_text())
    assert read_space(of_directories("mine", (CONF, tmp_path)), SETTINGS).name == "mine"
    assert [of_directories(name, (CONF, tmp_path)) for name in ("pd", "none")] == ["pd", "none"]
    (tmp_path / "another.yaml").write_text("")
    assert space_names(tmp_path) == ["another", "own"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1]", "space own: it must map names to numbers and have a section search"),
        ("search: [", r"space .*own\.yaml: cannot be read \("),
        ("search: [a]", "space own: search must be a mapping"),
        ("search: { cluster.tp: { low: 1, high: 2 } }\nrequire: { a: 1 }", "space own: require must be a list"),
        (
            "search: { cluster.tp: { low: 1, high: 2 } }\nstart: [1]",
            "space own: each of start must be a mapping of what",
        ),
        ("gpus: many", "space own: gpus must be a number, got 'many'"),
        ("gpus: 8", "space own: nothing is left to search"),
        ("search: { cluster.tp: 3 }", r"space own: cluster\.tp must be \{low: A, high: B\}, .*\}, got 3"),
        ("search: { cluster.tp: { choices: [] } }", "must be {low"),
        ("search: { cluster.tp: { choices: [1], log: true } }", "must be {low"),
        ("search: { cluster.tp: { low: 1, high: 2, log: 3 } }", "must be {low"),
        ("search: { cluster.tp: { low: 1, high: 2, most: 3 } }", "must be {low"),
        ("search: { cluster.tp: { powers_of_two: [1, 2], log: true } }", "must be {low"),
        ("search: { cluster.tp: { low: 3, high: 2 } }", r"space own: cluster\.tp: nothing lies between 3 and 2"),
        ("search: { cluster.tp: { low: 0, high: 2, log: true } }", "a logarithmic range begins above 0, not at 0"),
        ("search: { cluster.tp: { powers_of_two: [1, 3] } }", r"powers_of_two has two of 1, 2, 4, \.\.\.; got 3"),
        ("search: { cluster.tp: { powers_of_two: [0, 4] } }", "powers_of_two has two of .* got 0"),
        ("search: { cluster.tp: { powers_of_two: [0.5, 4] } }", r"powers_of_two has two of .* got 0\.5"),
        ("search: { cluster.tp: { choices: [[1], 2] } }", "choices must be names, numbers, true, false or null"),
        ("search: { cluster.tp: { choices: [2, 1, 2] } }", r"cluster\.tp: a choice is named twice in \[2, 1, 2\]"),
        (
            "search: { cluster.tp: { low: 1, high: 2 } }\nset: { helper: a + 1 }",
            "helper needs a, which is not",
        ),
        (
            "search: { cluster.tp: { low: 1, high: 2 } }\nrequire: [cluster.pp]",
            r"require needs cluster\.pp, which is not",
        ),
        ("search: { cluster.tp: { low: 1, high: 2 } }\nstart: [{ a: 1 }]", "start names a, which is not searched"),
        (
            "search: { cluster.tp: { low: 1, high: 2 } }\nstart: [{ cluster.tp: a }]",
            "start needs a, which is neither a",
        ),
        (
            "search: { helper: { low: 1, high: 2 } }",
            "space own: helper is no setting of this configuration; python run",
        ),
        ("search: { policy.lacks: { low: 1, high: 2 } }\nrequire: [policy.lacks]", r"policy\.lacks is no setting"),
        (
            "search: { cluster.tp: { low: 1, high: 2 } }\nset: { cluster.pp: '2' }",
            r"cluster\.pp=1: space own works that",
        ),
    ],
)
def test_spaces_that_cannot_be(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read(tmp_path, text, "cluster.pp")


def test_constants_and_names_that_a_space_has_not(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"space\.gpu: space own has no such constant; it has gpus, share$"):
        read(tmp_path, FILE, constants={"gpu": "8"})
    with pytest.raises(InputError, match=r"space\.gpus must be a number, got 'x'"):
        read(tmp_path, FILE, constants={"gpus": "x"})
    with pytest.raises(InputError, match=r"space\.gpus: "):
        read(tmp_path, FILE, constants={"gpus": "["})
    with pytest.raises(
        InputError, match=r"^space=two: there is no space of that name; choose one of own, or write one"
    ):
        read_space("two", SETTINGS, folder=tmp_path)


# --- pictures ---------------------------------------------------------------------------------------------------------


def test_pictures_are_those_for_which_there_is_something_to_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsaved(figure: Any, folder: Path, name: str, formats: Sequence[str], dpi: float) -> list[Path]:
        assert (formats, dpi) == (("png",), 150)
        return [folder / f"{name}.png"]

    monkeypatch.setattr(plots, "save", unsaved)

    def names(found: Findings) -> list[str]:
        return [path.relative_to(tmp_path).as_posix() for path in plots.draw(found, tmp_path)]

    assert names(FOUND) == ["history.png", "slices.png", "importances.png", "heatmap.png"]
    one = replace(SPACE, dimensions=SPACE.dimensions[:1])
    several = Findings("mine", one, None, (GOODPUT, COST), (row(0, 0, "fcfs", 1, (1.0, 2.0)),), {})
    assert names(several) == ["history.png", "slices.png", "pareto.png"]


def test_the_course_marks_what_was_not_run() -> None:
    figure = plots._history(FOUND)
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("trial", "goodput_rps")
    trials, pruned, infeasible = (np.asarray(one.get_offsets()).tolist() for one in axes.collections)
    assert trials == [[0, 40.0], [1, 39.8], [3, 20.0]]
    assert (pruned, infeasible) == ([[4, 20.0], [5, 20.0]], [[2, 20.0]])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "trial",
        "best so far",
        "pruned",
        "infeasible",
    ]


def test_each_dimension_has_a_slice() -> None:
    wide = Dimension("engine.share", FloatDistribution(1.0, 9.0, log=True))
    space = replace(SPACE, dimensions=(*SPACE.dimensions, wide))
    rows = tuple(
        replace(one, point=space.point({**one.point.drawn, "engine.share": float(one.number + 1)})) for one in ROWS
    )
    figure = plots._slices(replace(FOUND, space=space, rows=rows))
    panels = figure.axes
    assert [axes.get_visible() for axes in panels] == [True] * 4
    assert [axes.get_xlabel() for axes in panels[:4]] == [one.name for one in space.dimensions]
    assert [axes.get_ylabel() for axes in panels] == ["goodput_rps"] * 4
    every, best = panels[0].collections
    places = np.asarray(every.get_offsets())
    assert places[:, 1].tolist() == [40.0, 39.8, 20.0]
    assert np.abs(places[:, 0] - [0, 1, 2]).max() <= 0.12
    assert len(set((places[:, 0] - [0, 1, 2]).tolist())) == 3
    assert np.asarray(best.get_offsets()).tolist() == [[0.0, 40.0]]
    assert every.get_array().tolist() == [0, 1, 3]
    assert every.norm.vmin == -1.5
    assert [text.get_text() for text in panels[0].get_xticklabels()] == ["1", "2", "4", "8"]
    assert panels[1].get_xticklabels()[0].get_rotation() == 0.0  # two names find room
    assert [text.get_text() for text in panels[2].get_xticklabels()][:3] == ["0", "7", "14"]
    assert np.asarray(panels[3].collections[0].get_offsets()).tolist() == [[1.0, 40.0], [2.0, 39.8], [4.0, 20.0]]
    assert [axes.get_xscale() for axes in panels[:4]] == ["linear", "linear", "linear", "log"]


@pytest.mark.parametrize(("worst", "scale"), [(60.0, "linear"), (62.0, "log"), (0.0, "linear")])
def test_the_front_lies_over_the_first_goal(worst: float, scale: str) -> None:
    goals = (GOODPUT, COST, Goal("p99_ttft_ms", maximize=False))
    costs, waits = (2.0, 3.0, worst), (9.0, 8.0, 9.0)
    rows = tuple(row(k, k, "fcfs", k, (1.0 + k, costs[k], waits[k])) for k in (1, 0, 2))
    figure = plots._pareto(Findings("mine", SPACE, None, goals, rows, {}))
    first, second = figure.axes
    assert [(axes.get_xlabel(), axes.get_ylabel()) for axes in (first, second)] == [
        ("goodput_rps", "cost_usd"),
        ("goodput_rps", "p99_ttft_ms"),
    ]
    assert sorted(np.asarray(first.collections[0].get_offsets()).tolist()) == [[1.0, 2.0], [2.0, 3.0], [3.0, worst]]
    assert first.lines[0].get_xdata().tolist() == [1.0, 2.0, 3.0] if worst else True
    assert first.lines[0].get_linestyle() == "None"
    assert (first.get_yscale(), second.get_yscale()) == (scale, "linear")
    two = plots._pareto(
        Findings("mine", SPACE, None, goals[:2], tuple(replace(one, values=one.values[:2]) for one in rows), {})
    )
    assert two.axes[0].lines[0].get_linestyle() == "-"
