"""The README and the pages for users are true: files, names and links exist, commands run, and show what they do."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from framework.run.compose import fitting_parts
from tests.conftest import ROOT
from tests.helpers import warm
from tests.helpers.composing import configured
from tests.helpers.readme import (
    CLAIMS,
    PAGES,
    PICTURE,
    README,
    SHOWN,
    blocks,
    commands,
    environment,
    example_files,
    printed,
    shown_output,
    ten_claims,
)
from tests.timing.test_microbench import fill, some_cases

NEEDS_NETWORK = "python -m traces.fetch mooncake"
NEEDS_GPU = "python -m framework.timing.microbench model=llama3_8b out=h200.csv"
NEEDS_TABLES = "python -m framework.timing.kernels.build model=qwen25_32b"
NESTED = ("make test", "python -m pytest")  # this suite itself
RUNS = [line for line in commands() if line.startswith("python ") or " python " in line]
PLACED = next(line for line in RUNS if "hydra.run.dir=outputs/mine" in line)
MEASURED = [line for line in RUNS if "backend=torch" in line]
SEARCH = [
    line for line in RUNS if any(word in line for word in ("experiments.tune", "+tuned=", "seed=range", ".table"))
]
_COARSE = "objective.tolerance=0.5 objective.most_requests=100"  # rates of a search for one, and its runs
_LONG = [line for line in RUNS if "validation.defaults" in line]
APART = (PLACED, NEEDS_GPU, *MEASURED, *SEARCH, *_LONG)
QUICK = [line for line in RUNS if line not in APART and not line.startswith((NEEDS_NETWORK, NEEDS_TABLES, *NESTED))]
_GUIDES = [line for line in QUICK if "experiments.guide" in line]
_SWEEPS = [line for line in QUICK if "run.py -m policy=" in line and line.endswith("seed=0,1")]
_SET = [line for line in QUICK if re.fullmatch(r"python run\.py( '?[\w.]+=(?!.*\.py:|FILE|my_)[^ ]+)+", line)]
_COMPOSED = [line for line in _SET if not re.search("report=|diagnose=|load=|objective=|compression=", line)][1:]
_APPLICATIONS = [
    line
    for line in QUICK
    if re.search(r"experiments\.(guide|curve|ablation|plot)|calibration|patience_s=1,2|report=true|load=closed", line)
    or re.search(r"trace\.rate=5,10,20|distserve,soonest|kv_compression=hack|chunked cluster=mixed", line)
]
_PRINTED = [line for line in QUICK if line.endswith("textbook") or any(own.startswith(line) for own in SHOWN.values())]
# Shortened, these differ from the first by values alone, or other tests run them: those of an application, of a search
# that becomes a table, and of the output shown.
_ALIKE = [*_GUIDES[1:], *_SWEEPS, *_COMPOSED, *_APPLICATIONS, *_PRINTED]
GROUPS = ("policy", "predictor", "trace", "load", "timing", "model", "gpu", "cluster")
TEXT = "\n".join(page.read_text() for page in PAGES)
SCRIPTS = [block for block in blocks("python") if "import servelab" in block]
_LINK = re.compile(r"\]\((?!http)([^)#\s]*)(?:#([^)\s]+))?\)")

# Stands for run.py in the reader's checkout: finds the files that the README has them write with the project's own.
RUN = """
import runpy, sys
from pathlib import Path

here, root = Path(__file__).parent, Path({root!r})
sys.path.insert(0, str(root))
import policies

policies.__path__.append(str(here / "policies"))
sys.argv += ["--config-dir", str(here / "conf")]
runpy.run_path(str(root / "run.py"), run_name="__main__")
"""

Finished = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands are run: the example's files, a trace called FILE, measurements, and a run.py."""
    directory = tmp_path_factory.mktemp("checkout")
    for name, text in example_files().items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (directory / "run.py").write_text(RUN.format(root=str(ROOT)))
    rows = [
        {"timestamp": 150 * i, "input_length": 600 + i, "output_length": 5 + i % 90, "hash_ids": [0, i + 1]}
        for i in range(150)
    ]
    (directory / "FILE").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (directory / "bench.json").write_text(json.dumps(benchmark()))
    fill(directory / "h200.csv", some_cases(10**6))
    return directory


def benchmark(count: int = 30) -> dict[str, list[object]]:
    """Requests as a benchmark client would have measured them."""
    inputs, outputs = [500 + 20 * i for i in range(count)], [5 + i % 9 for i in range(count)]
    return {
        "input_lens": list(inputs),
        "output_lens": list(outputs),
        "ttfts": [0.03 + 2e-5 * tokens for tokens in inputs],
        "itls": [[0.009] * (tokens - 1) for tokens in outputs],
        "errors": [""] * count,
        "start_times": [0.5 * i for i in range(count)],
    }


@pytest.fixture(params=warm.STARTS)
def shell(checkout: Path, request: pytest.FixtureRequest) -> Callable[[str], Finished]:
    def run(line: str) -> Finished:
        variables = environment(checkout) | (warmed() if request.param else {})
        return subprocess.run(
            line, shell=True, cwd=checkout, env=variables, capture_output=True, text=True, timeout=300
        )

    return run


def warmed() -> dict[str, str]:
    """In an environment: what makes `python` one that has imported everything."""
    return {"PATH": f"{warm.path()}{os.pathsep}{environment(ROOT)['PATH']}"}


def shortened(line: str) -> str:
    """The command on the first requests of its trace only."""
    if "experiments.tune" in line:
        return f"{line.replace('trials=40', 'trials=2')} trace.limit=50"
    if "experiments.curve" in line:
        return f"{line.replace('rates=10:100:10', 'rates=10:100:2')} trace.limit=50"
    if "experiments.guide" in line:
        asked = re.sub(r" (axes|parts|gpus|trials)=[^ ]*", "", line)
        asked = asked if "families=" in asked else f"{asked.replace(' decode_gpu=h200', '')} families=chunked,shared"
        return f"{asked} gpus=2 trials=1 replicates=4 trace.limit=30 {_COARSE}"
    if "experiments.ablation" in line:
        return f"{line} replicates=2 trace.requests=50"
    if "seed=range" in line:
        return f"{line.replace('range(5)', 'range(2)').replace('hydra/launcher=joblib', '')} trace.limit=50"
    makes_runs = "run.py" in line and not any(word in line for word in ("--cfg", "trace.limit", "+tuned="))
    return f"{line} trace.limit=50" if makes_runs else re.sub(r"trace\.limit=\d+", "trace.limit=50", line)


def test_there_are_commands_and_files() -> None:
    """The pages are read as they are meant to be; everything below would pass on an empty list."""
    assert len(QUICK) >= 10
    assert commands()[:2] == ["make run", "make test"]
    assert sorted(example_files()) == [
        "conf/policy/soonest.yaml",
        "mine/in_time.py",
        "mine/on_demand.py",
        "mine/soonest.py",
    ]


@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=pytest.mark.slow) if line in _ALIKE else line for line in QUICK]
)
def test_command_runs(shell: Callable[[str], Finished], line: str) -> None:
    finished = shell(shortened(line))
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip()
    assert "Traceback" not in finished.stderr


@pytest.mark.parametrize("line", _COMPOSED)
def test_settings_of_a_command_make_a_run(line: str) -> None:
    """Those of runs that the slow tests make."""
    assert fitting_parts(configured(*shlex.split(line)[2:]))["policy"].name


def test_a_profile_is_made_or_it_says_what_is_missing(shell: Callable[[str], Finished]) -> None:
    finished = shell(next(line for line in RUNS if line.startswith(NEEDS_TABLES)))
    if importlib.util.find_spec("aiconfigurator_core") is None:
        assert finished.returncode == 2
        assert re.fullmatch("error: .*pip install .*kernels.*\n", finished.stderr)
    else:
        assert finished.returncode == 0, finished.stderr


def test_what_was_measured_on_a_gpu_becomes_step_times(shell: Callable[[str], Finished]) -> None:
    """With the table that `NEEDS_GPU` writes, made by a device that is none."""
    assert NEEDS_GPU in RUNS
    assert len(MEASURED) == 2
    finished = [shell(shortened(line)) for line in MEASURED]
    assert [each.returncode for each in finished] == [0, 0], finished
    assert "measured (h200, torch" in finished[1].stdout


def test_a_search_is_replayed_and_a_sweep_becomes_a_table(shell: Callable[[str], Finished]) -> None:
    assert len(SEARCH) == 4
    finished = [shell(shortened(line)) for line in SEARCH]
    assert [each.returncode for each in finished] == [0] * 4, finished
    tuned, replayed, _, table = (each.stdout for each in finished)
    found, again = (re.search(r"goodput(?:_rps)? +([\d.]+)", text) for text in (tuned, replayed))
    assert found is not None
    assert again is not None
    assert float(found[1]) == pytest.approx(float(again[1]), rel=0.01)  # both are rounded
    assert "minus chunked" in table


def test_the_run_with_a_place_leaves_what_is_said(shell: Callable[[str], Finished], checkout: Path) -> None:
    assert shell(PLACED).returncode == 0
    left = {path.name for path in (checkout / "outputs" / "mine").iterdir() if not path.name.startswith((".", "run"))}
    assert left == {"summary.json", "requests.parquet", "timeline.json.gz"}


def test_the_example_admits_and_rejects(shell: Callable[[str], Finished]) -> None:
    """Its reason for a rejection is the one that the table shows."""
    finished = shell("python run.py policy=soonest policy.patience_s=0.5 trace.limit=400")
    assert re.search(r"rejected +[1-9].*too busy", finished.stdout), finished.stdout + finished.stderr


@pytest.mark.parametrize(  # what moves the others' figures moves those of tests/golden, or of tests/oracle
    "name", [name if name in ("run", "show") else pytest.param(name, marks=pytest.mark.slow) for name in SHOWN]
)
def test_the_output_shown_is_that_of_today(name: str) -> None:
    """Arguments are equal; numbers within 10 %, for another machine's arithmetic may round another way."""
    shown, found = (re.findall(r"[\d.,]*\d|[^\d\s]+", text) for text in (shown_output(name), printed(name, **warmed())))
    assert [re.sub(r"\d.*", "0", word) for word in shown] == [re.sub(r"\d.*", "0", word) for word in found], (
        "run python -m tests.helpers.readme"
    )
    for one, other in zip(shown, found, strict=True):
        if one[-1].isdigit() and one.count(".") < 2:  # with more it is a version
            assert float(one.replace(",", "")) == pytest.approx(float(other.replace(",", "")), rel=0.1, abs=0.5), (
                "run python -m tests.helpers.readme"
            )


def test_the_picture_shows_the_same_run() -> None:
    drawn = PICTURE.read_text().replace("&#160;", " ")
    for line in shown_output().splitlines():
        for word in re.findall(r"\d[\d,.]+\d", line):
            assert word in drawn, f"{word} is not in {PICTURE.name}: run python -m tests.helpers.readme"
    assert "http" not in drawn.replace("http://www.w3.org/2000/svg", "").replace("https://www.textualize.io", "")


@pytest.mark.parametrize("group", GROUPS)
def test_the_choices_named_exist(group: str) -> None:
    """Not the other way round: somebody who adds a policy of their own need not touch the README."""
    row = next(line for line in TEXT.splitlines() if line.startswith(f"| `{group}`"))
    named = set(re.findall(r"`([a-z0-9_]+)`", row)) - {group}
    assert named
    assert named <= {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")}


@pytest.mark.parametrize("page", [*PAGES, CLAIMS], ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target, place in _LINK.findall(page.read_text()):
        there = (page.parent / target) if target else page
        assert there.exists(), target
        headings = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE) if place else []
        assert not place or place in [re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings]


def test_every_page_is_on_the_map() -> None:
    linked = {target for target, _ in _LINK.findall(README.read_text())}
    pages = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    assert pages - {"docs/index.md", "docs/overview.md"} <= linked  # of the site alone


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 200


def test_the_claims_shown_are_those_of_the_table() -> None:
    assert ten_claims(CLAIMS.read_text()) in README.read_text()


@pytest.mark.parametrize("script", SCRIPTS, ids=range(len(SCRIPTS)))
def test_a_script_runs(script: str, checkout: Path) -> None:
    shorter = script.replace("limit=2000", "limit=100")
    (checkout / "script.py").write_text(shorter)
    words = [str(warm.path() / "python"), "script.py"]
    variables = environment(checkout)
    finished = subprocess.run(words, cwd=checkout, env=variables, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr
    assert "metric" in finished.stdout


def test_paths_exist() -> None:
    own = {
        *example_files(),
        *(path.name for path in (ROOT / "docs").iterdir()),
        "outputs/",
        "multirun/",
        "results/",
        "studies/",
        "policy/NAME.yaml",
        *("random.py", "numpy.py", "test_soonest.py"),  # of a user
    }
    made = {"summary.json", "requests.parquet", "steps.parquet", "timeline.json.gz", "my_twin.json"}
    made |= {"series.parquet", "phases.parquet", "gaps.parquet", "diagnosis.json", "guide.json", "sensitivity.json"}
    made |= {"decisions.parquet"}
    named = set(re.findall(r"[`(]((?:\w+/)+|(?:\w+/)*[\w.]+\.(?:py|json|md|yaml|svg|parquet|gz))[`)]", TEXT))
    missing = {name for name in named - own - made if not (ROOT / name).exists()}
    assert len(named) > 8
    assert not missing


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make (\w+)", TEXT, re.MULTILINE))
    assert {"run", "test"} <= named <= targets


def test_lines_are_of_readable_length() -> None:
    written = re.sub(r"<!-- (run|bench) -->.*?<!-- /\1 -->", "", TEXT, flags=re.DOTALL)  # what commands print
    assert len(written) < len(TEXT)
    long = [line for line in written.splitlines() if len(line) > 120 and not line.startswith("|")]
    assert not long
