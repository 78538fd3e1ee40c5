"""How Sphinx makes a site of these pages: `make docs`. Nothing of it is loaded from a network."""

import re
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
copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "servelab"
html_static_path = ["_static"]
html_css_files = ["site.css"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # links to headings, as GitHub has them
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
    """Let one page be the README, put docstrings of constants into the reference, and look for a network at the end."""
    app.connect("source-read", _complete)
    app.connect("autodoc-process-docstring", _describe, priority=1)  # before napoleon, which reads it
    app.connect("build-finished", _refuse_network)


def _complete(app, name, source):
    if name == "overview":
        text = _README.read_text(encoding="utf-8")
        for link, place in _PLACES.items():
            text = text.replace(link, place)
        source[0] = text


def _refuse_network(app, error):
    """Warn of each page that loads something from elsewhere; `make docs` then fails."""
    from sphinx.util import logging

    for page in sorted(Path(app.outdir).rglob("*.html")) if error is None else ():
        for found in loaded(page.read_text(encoding="utf-8")):
            logging.getLogger(__name__).warning("%s loads %s from a network", page.name, found)


def loaded(html):
    """The addresses of a network from which a page loads a script, a style, a font, a picture or a frame."""
    tags = re.findall(r"<(?:script|img|link|iframe|source|video|audio|embed|object|use)\b[^>]*>", html)
    own = [tag for tag in tags if not re.search(r'\brel="(?:canonical|next|prev|search|index|author)"', tag)]
    found = [address for tag in own for address in re.findall(r'(?:src|href|data)="((?:https?:)?//[^"]+)"', tag)]
    return found + re.findall(r"""(?:@import\s+|url\()["']?((?:https?:)?//[^"')\s]+)""", html)


def _describe(app, what, name, obj, options, lines):
    """A constant has its text behind its assignment, in the module that `servelab` takes it from."""
    if name in _CONSTANTS:
        from sphinx.pycode import ModuleAnalyzer

        module = import_module(_CONSTANTS[name]).__name__
        lines[:] = ModuleAnalyzer.for_module(module).find_attr_docs()["", name.rpartition(".")[2]]
