"""Choices and findings, a page in Markdown for each system: a folder of conf/experiment."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from experiments.table.formats import in_markdown, pipes
from experiments.validation.claims.run import Finding
from experiments.validation.claims.sheet import shown_effect

_WIDTH = 120
_LISTED = re.compile(r"^( *)([+-]|\d+(?=\.\s))", re.MULTILINE)  # would begin a list of its own


def system_pages(rows: Sequence[Finding]) -> dict[str, str]:
    """The pages, by the name of the system's folder: `distserve`."""
    folders: dict[str, list[Finding]] = {}
    for one in rows:
        folders.setdefault(one.claim.name.partition("/")[0], []).append(one)
    return {folder: _page(own) for folder, own in folders.items()}


def _page(rows: Sequence[Finding]) -> str:
    claims = [one.claim for one in rows]
    several = len({claim.system for claim in claims}) > 1
    names = [f"{claim.system}, {claim.text}" if several else claim.text for claim in claims]
    parts = {
        "Rows": [f"{name} ({claim.source})" for name, claim in zip(names, claims, strict=True)],
        "Published or chosen": _grouped(
            [[f"{'Published' if claim.published else 'Chosen here'}. {claim.class_reason}"] for claim in claims]
        ),
        "Lengths of requests": _grouped([[claim.lengths["source"]] if claim.lengths else [] for claim in claims]),
        "What was chosen": _grouped([claim.chosen for claim in claims]),
        "What was found": _grouped([claim.found for claim in claims]),
    }
    title = in_markdown("; ".join(dict.fromkeys(claim.system for claim in claims)))
    text = f"# {title}\n\n[Claims](../claims.md) has the table, the rule and the clock.\n"
    text += "".join(_section(heading, items) for heading, items in parts.items() if items)
    return text + _otherwise(rows) + _alike(rows)


def _grouped(said: Sequence[Sequence[str]]) -> list[str]:
    """Each statement once, after the numbers of the rows that make it."""
    rows: dict[str, list[int]] = {}
    for number, own in enumerate(said, 1):
        for one in own:
            rows.setdefault(one, []).append(number)
    return [f"{_rows(numbers, len(said))}{one}" for one, numbers in rows.items()]


def _rows(numbers: Sequence[int], count: int) -> str:
    if count == 1:
        return ""
    if len(numbers) == count:
        return "All rows: "
    return f"Row{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}: "


def _section(heading: str, items: Iterable[str]) -> str:
    lines = (_item(f"{number}.", item) for number, item in enumerate(items, 1))
    return f"\n## {heading}\n\n" + "".join(lines)


def _item(mark: str, text: str) -> str:
    """An item of a list, in lines of readable length."""
    indent = " " * (len(mark) + 1)
    text = in_markdown(text).replace("× ", "×\N{NO-BREAK SPACE}")
    lines = textwrap.wrap(text, _WIDTH - len(indent) - 1, break_long_words=False, break_on_hyphens=False)
    first, *rest = (line.replace("\N{NO-BREAK SPACE}", " ") for line in lines)
    further = _LISTED.sub(_escape, "\n".join(rest))
    return f"{mark} {first}\n" + textwrap.indent(f"{further}\n" if further else "", indent)


def _escape(found: re.Match[str]) -> str:
    indent, sign = found.groups()
    return f"{indent}{sign}\\" if sign.isdigit() else f"{indent}\\{sign}"


def _otherwise(rows: Sequence[Finding]) -> str:
    lines = [
        pipes([str(number), in_markdown(what), in_markdown(shown_effect(effect))])
        for number, one in enumerate(rows, 1)
        for what, effect in one.sensitivity.items()
    ]
    head = ["", "## Chosen otherwise", "", pipes(["row", "with", "simulated"]), "|---:|---|---:|"]
    return "\n".join([*head, *lines, ""]) if lines else ""


def _alike(rows: Sequence[Finding]) -> str:
    counts = [(number, one.claim.replicates) for number, one in enumerate(rows, 1) if one.claim.replicates is not None]
    said = ", ".join(f"row {number}: {count}" for number, count in counts)
    items = [f"Almost nothing is random, so further replicates would be equal. Replicates: {said}."] if counts else []
    return _section("Replicates", items) if items else ""
