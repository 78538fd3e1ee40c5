"""The reference is whole and true: each public name states its parts in its docstring, whose example runs."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import servelab
from servelab.learning import RoutingEnv
from servelab.testing import PolicyConformance
from tests.conftest import ROOT

APART: dict[str, Any] = {"PolicyConformance": PolicyConformance, "RoutingEnv": RoutingEnv}  # need further packages
NAMES = (*servelab.__all__, *APART)
CONSTANTS = {"Action": "framework.policy.actions", "VERSION": "framework.version"}
SECTIONS = ("Args", "Attributes", "Example", "Raises", "Returns")
REFERENCE = ROOT / "docs" / "api"
_SECTION = re.compile(rf"^({'|'.join(SECTIONS)}):\n((?:    .*\n|\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^    ([\w, ]+): .", re.MULTILINE)


def value_of(name: str) -> Any:
    return APART[name] if name in APART else getattr(servelab, name)


def docstring(name: str) -> str:
    """A constant's is the text behind its assignment."""
    if name not in CONSTANTS:
        return f"{inspect.getdoc(value_of(name))}\n"
    body = ast.parse(Path(str(import_module(CONSTANTS[name]).__file__)).read_text()).body
    at = next(k for k, node in enumerate(body) if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name)
    behind = body[at + 1]
    assert isinstance(behind, ast.Expr)
    return f"{inspect.cleandoc(ast.literal_eval(behind.value))}\n"


def sections(name: str) -> dict[str, str]:
    return dict(_SECTION.findall(docstring(name)))


def entries(name: str, section: str) -> set[str]:
    """The names that a section explains."""
    found = _ENTRY.findall(sections(name).get(section, ""))
    return {one.strip() for names in found for one in names.split(",")}


def lacking(name: str) -> list[str]:
    """The parts that a docstring must have, and lacks."""
    value, has = value_of(name), sections(name)
    wanted = {"Example"} if name in CONSTANTS else {"Example", "Raises"}
    missing = sorted(wanted - set(has))
    if inspect.isfunction(value):
        signature = inspect.signature(value)
        missing += [one for one in signature.parameters if one not in entries(name, "Args")]
        missing += ["Returns"] if signature.return_annotation != "None" and "Returns" not in has else []
    if inspect.isclass(value):
        stated = [one for one in inspect.get_annotations(value) if not hasattr(value.__base__, one)]
        missing += [one for one in stated if not one.startswith("_") and one not in entries(name, "Attributes")]
        own = inspect.getmembers(value, lambda one: inspect.isfunction(one) or isinstance(one, property))
        missing += [one for one, member in own if not one.startswith("_") and not inspect.getdoc(member)]
    return missing


@pytest.mark.parametrize("name", NAMES)
def test_a_docstring_has_its_parts(name: str) -> None:
    first, _, _ = docstring(name).partition("\n")
    assert first.endswith((".", ":")) or len(first) > 100, first
    assert not lacking(name)


def test_what_lacks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(policy: str, rate: float) -> int:
        """Run.

        Args:
            policy: A name.

        Example:
            >>> 1
            1
        """
        return 0

    monkeypatch.setattr(servelab, "run", run)
    assert lacking("run") == ["Raises", "rate", "Returns"]


def test_the_examples_run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the reference prints them: each knows `servelab`, and one small run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRACES_DIR", raising=False)
    run = servelab.run("chunked", "synthetic", limit=60, rate=20)
    runner = doctest.DocTestRunner()
    for name in NAMES:
        known = {"servelab": servelab, "run": run}
        test = doctest.DocTestParser().get_doctest(docstring(name), known, name, None, 0)
        assert any(example.want for example in test.examples), f"{name}: no example that prints anything"
        runner.run(test)
    assert runner.failures == 0, capsys.readouterr().out


def test_the_reference_has_each_name() -> None:
    text = "\n".join(page.read_text() for page in REFERENCE.glob("*.md"))
    directive = r"^\.\. auto(?:class|function|data):: servelab\.(?:testing\.|learning\.)?(\w+)"
    listed = re.findall(directive, text, re.MULTILINE)
    assert sorted(listed) == sorted(NAMES)
