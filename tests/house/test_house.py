"""The house itself: locks, project file, licence, and the rule that the framework knows no system by name."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import framework
from framework.version import VERSION
from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SYSTEMS = ("ares", "mooncake", "vllm", "sarathi", "distserve", "orca", "llumnix", "splitwise", "tetriinfer", "dynamo")
# scorers of single papers are named after them
FRAMEWORK = [path for path in sorted((ROOT / "framework").rglob("*.py")) if path.name != "paper_scores.py"]


def locked(name: str) -> dict[str, str]:
    """The version of each package; a line may end in `; marker`."""
    lines = (ROOT / name).read_text().splitlines()
    pins = [line.partition(";")[0].split("==") for line in lines]
    assert all(len(pin) == 2 for pin in pins), f"{name}: every line is package==version"
    return {canonicalize_name(package): version for package, version in pins}


def declared(extra: str | None) -> list[Requirement]:
    project = PROJECT["project"]
    lines = project["dependencies"] if extra is None else project["optional-dependencies"][extra]
    found = [Requirement(line) for line in lines]
    own = [inner for requirement in found if requirement.name == project["name"] for inner in requirement.extras]
    others = [requirement for requirement in found if requirement.name != project["name"]]
    return others + [requirement for inner in own for requirement in declared(inner)]


@pytest.mark.parametrize(
    ("extra", "lock"),
    [
        (None, "requirements.lock"),
        ("dev", "requirements-test.lock"),
        ("bench", "requirements-bench.lock"),
        ("kernels", "requirements-fidelity.lock"),
        ("fidelity", "requirements-fidelity.lock"),
        ("serve", "requirements-serve.lock"),
        ("learning", "requirements-serve.lock"),
    ],
)
def test_lock_meets_the_declared_ranges(extra: str | None, lock: str) -> None:
    pins = locked(lock)
    for requirement in declared(extra):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


def test_what_is_installed_later_changes_no_version() -> None:
    assert not locked("requirements.lock").keys() & locked("requirements-test.lock").keys()
    for later in ("requirements-fidelity.lock", "requirements-cluster.lock", "requirements-serve.lock"):
        assert not locked(later).keys() & (locked("requirements.lock").keys() | locked("requirements-test.lock").keys())
    cluster, serve = locked("requirements-cluster.lock"), locked("requirements-serve.lock")
    assert {name: cluster[name] for name in cluster.keys() & serve.keys()}.items() <= serve.items()


def test_one_python_version_is_named_everywhere() -> None:
    version = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert PROJECT["tool"]["mypy"]["python_version"] == version
    assert PROJECT["tool"]["ruff"]["target-version"] == "py" + version.replace(".", "")
    assert f"({version.replace('.', ', ')})" in (ROOT / "Makefile").read_text()


def test_one_version_is_named_everywhere() -> None:
    assert PROJECT["project"]["version"] == VERSION == framework.__version__
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == VERSION
    assert citation["license"] == PROJECT["project"]["license"]["text"]
    releases = re.findall(r"^## \[([\d.]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert releases[0] == VERSION
    assert releases == sorted(releases, key=lambda text: [int(part) for part in text.split(".")], reverse=True)


def test_hooks_before_a_commit_have_the_locked_versions() -> None:
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    hooks = {hook["id"]: hook for hook in local["hooks"]}
    assert set(hooks) == {"ruff", "ruff-format", "mypy"}
    for name in ("ruff", "ruff-format"):
        assert hooks[name]["additional_dependencies"] == [f"ruff=={locked('requirements-test.lock')['ruff']}"]
    assert hooks["mypy"]["entry"].startswith(".venv/bin/python ")  # where the lock is installed


def test_licence_is_the_declared_one() -> None:
    assert PROJECT["project"]["license"]["text"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()


@pytest.mark.parametrize("path", FRAMEWORK, ids=lambda path: str(path.relative_to(ROOT)))
def test_framework_names_no_system(path: Path) -> None:
    names = set(identifiers(ast.parse(path.read_text())))
    assert not {name for name in names if set(words(name)) & set(SYSTEMS)}


def identifiers(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        for attribute in ("id", "attr", "name", "arg", "module"):
            value = getattr(node, attribute, None)
            if isinstance(value, str):
                found.append(value)
    return found


def words(identifier: str) -> list[str]:
    """`AresPolicy.max_kv` as ares, policy, max, kv."""
    return re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", identifier).lower())


def test_words_are_found_in_identifiers() -> None:
    assert words("AresPolicy.max_kv") == ["ares", "policy", "max", "kv"]
    assert "mooncake" in words("load_mooncake_rows")
    assert "ares" not in words("shares")


def test_every_policy_and_predictor_has_a_config_and_the_other_way_round() -> None:
    for group, package in (("policy", "policies"), ("predictor", "predictors")):
        targets = "\n".join(path.read_text() for path in (ROOT / "conf" / group).glob("*.yaml"))
        named = set(re.findall(rf"_target_: {package}\.(\w+)\.", targets))
        modules = list((ROOT / package).glob("[!_]*.py"))
        assert named <= {path.stem for path in modules}, f"conf/{group} names modules that do not exist"
        unnamed = {path.stem for path in modules if has_derived_class(path)} - named
        assert not unnamed, f"modules of {package} without a YAML in conf/{group}"


def has_derived_class(path: Path) -> bool:
    """A policy, or a predictor; what several share may be a class of no base."""
    return any(isinstance(node, ast.ClassDef) and node.bases for node in ast.parse(path.read_text()).body)


# What the reference engine may import: nothing of the compiled engine, whose results it checks.
SHARED = (
    *("framework.codes", "framework.errors", "framework.workload"),
    *("framework.policy", "framework.system", "framework.timing", "framework.reference"),
    "framework.engine.setup.config",
)


@pytest.mark.parametrize("path", sorted((ROOT / "framework/reference").rglob("*.py")), ids=lambda path: path.stem)
def test_the_reference_engine_imports_nothing_of_the_compiled_one(path: Path) -> None:
    names = imported(ast.parse(path.read_text()))
    foreign = [name for name in names if name.startswith("framework") and not is_among(name, SHARED)]
    assert not foreign, "not for the reference engine"
    assert not [name for name in names if is_among(name, ("numba", "llvmlite"))]


def imported(tree: ast.AST) -> list[str]:
    """Modules that are imported anywhere in a module; of a relative import the dots."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found += [f"{module}.{alias.name}" for alias in node.names]
    return found


def is_among(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(module + ".") for module in modules)


def test_imports_are_found_wherever_they_stand() -> None:
    source = "import numba as nb\ndef f():\n    from framework.engine import setup, memory\n"
    assert imported(ast.parse(source)) == ["numba", "framework.engine.setup", "framework.engine.memory"]
    assert is_among("framework.engine.setup.config.Setting", SHARED)
    assert not is_among("framework.engine.memory.state", SHARED)
    assert not is_among("framework.engine.setup.configuration", SHARED)


def test_no_two_modules_of_tests_have_one_name() -> None:
    """pytest imports a module without a package by its name alone, and two of one name end the whole run."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names))
