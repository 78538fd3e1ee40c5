"""The script of a page: Vega, from the wheel of vl-convert-python if that is installed, and what is the project's own.

Pages have no script if that package is missing, and say what to install. A page names the hashes of its scripts, so
that a browser runs no other: https://www.w3.org/TR/CSP3/#match-element-to-source-list. Vega interprets its expressions
instead of compiling them, as a page without `unsafe-eval` must: https://vega.github.io/vega/usage/interpreter/.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.util
import json
from contextlib import suppress
from importlib import metadata, resources

from framework.cli.files import user_cache, write_whole
from framework.errors import InputError

PACKAGE = "vl-convert-python"
MISSING = "Tooltips, zoom and the requests behind a point need a package: pip install 'servelab[pages]'."
_PARTS = ("drawing.js", "page.js")
_EXPORT = "window.vegaEmbed = vegaEmbed;"


def is_interactive() -> bool:
    """Whether pages get a script."""
    return importlib.util.find_spec("vl_convert") is not None


def scripts() -> tuple[str, ...]:
    """The scripts of a page in order; none without the package."""
    return (library(), _own()) if is_interactive() else ()


def library() -> str:
    """Vega, Vega-Lite and the function `vegaEmbed`, as one script; "" without the package."""
    return _bundle(metadata.version(PACKAGE)) if is_interactive() else ""


def allowed(sources: tuple[str, ...]) -> str:
    """The clause of a content security policy that lets these scripts run and no other."""
    digests = (base64.b64encode(hashlib.sha256(source.encode()).digest()).decode() for source in sources)
    return "; script-src " + " ".join(f"'sha256-{digest}'" for digest in digests) if sources else ""


def data_block(kind: str, content: object) -> str:
    """Data for the script as an element of class `kind`; nothing without the package."""
    if not is_interactive():
        return ""
    return f'<script type="application/json" class="{kind}">{embedded(content)}</script>'


def embedded(content: object) -> str:
    """JSON that cannot end the element it stands in."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


@functools.cache
def _own() -> str:
    parts = "\n".join(resources.files(__package__).joinpath(name).read_text() for name in _PARTS)
    return f'"use strict";(() => {{\n{parts}}})();'


@functools.cache
def _bundle(version: str) -> str:
    """The library as one script. Its making takes seconds, so it is kept in the user's cache."""
    import vl_convert

    file = user_cache() / "page" / f"vega-{version}.js"
    with suppress(OSError):
        return file.read_text()
    made = vl_convert.javascript_bundle(_EXPORT).replace("</script", "<\\/script")
    with suppress(InputError):  # a page needs no cache
        write_whole(file, made.encode())
    return made
