"""How Sphinx makes a site of these pages: `make docs`. Its first page is the README."""

import sys
import sysconfig
from importlib import import_module
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_INSTALLED = Path(sys.prefix).parent  # what a run needs is in .venv, this generator in .venv/docs
sys.path.insert(0, str(_ROOT))
sys.path.append(sysconfig.get_path("purelib", vars={"base": str(_INSTALLED), "platbase": str(_INSTALLED)}))

project = "servelab"
author = "the servelab authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.mermaid"]
html_theme = "furo"
html_title = "servelab"
myst_heading_anchors = 4  # links to headings, as GitHub has them
myst_fence_as_directive = ["mermaid"]
default_role = "py:obj"  # of `name` in a docstring
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # types are in the signature
napoleon_use_ivar = True

_README = _ROOT / "README.md"
_PLACES = {  # target in the site of each link of the README
    "](docs/": "](",
    "](framework/engine/SEMANTICS.md)": "](outside/semantics.md)",
    "](CONTRIBUTING.md)": "](outside/contributing.md)",
    "](CHANGELOG.md)": "](outside/changelog.md)",
    "](SECURITY.md)": "](outside/security.md)",
}
_CONSTANTS = {"servelab.Action": "framework.policy.actions", "servelab.VERSION": "framework.version"}


def setup(app):
    """Put the README before the contents of the first page, and docstrings of constants into the reference."""
    app.connect("source-read", _complete)
    app.connect("autodoc-process-docstring", _describe, priority=1)  # before napoleon, which reads it


def _complete(app, name, source):
    if name == "index":
        text = _README.read_text(encoding="utf-8")
        for link, place in _PLACES.items():
            text = text.replace(link, place)
        source[0] = f"{text}\n{source[0]}"


def _describe(app, what, name, obj, options, lines):
    """A constant has its text behind its assignment, in the module that `servelab` takes it from."""
    if name in _CONSTANTS:
        from sphinx.pycode import ModuleAnalyzer

        module = import_module(_CONSTANTS[name]).__name__
        lines[:] = ModuleAnalyzer.for_module(module).find_attr_docs()["", name.rpartition(".")[2]]
