"""How Sphinx makes a site of these pages: `make docs`. Its first page is the README."""

from pathlib import Path

project = "servelab"
author = "the servelab authors"
extensions = ["myst_parser", "sphinxcontrib.mermaid"]
html_theme = "furo"
html_title = "servelab"
myst_heading_anchors = 4  # links to headings, as GitHub has them
myst_fence_as_directive = ["mermaid"]

_README = Path(__file__).parents[1] / "README.md"
_PLACES = {  # target in the site of each link of the README
    "](docs/": "](",
    "](framework/engine/SEMANTICS.md)": "](outside/semantics.md)",
    "](CONTRIBUTING.md)": "](outside/contributing.md)",
    "](CHANGELOG.md)": "](outside/changelog.md)",
    "](SECURITY.md)": "](outside/security.md)",
}


def setup(app):
    """Put the README before the contents of the first page."""
    app.connect("source-read", _complete)


def _complete(app, name, source):
    if name == "index":
        text = _README.read_text(encoding="utf-8")
        for link, place in _PLACES.items():
            text = text.replace(link, place)
        source[0] = f"{text}\n{source[0]}"
