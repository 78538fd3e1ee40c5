"""The terminal's lines on a run's routing decisions and their regret."""

from __future__ import annotations

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from framework.objective.decisions import PHASES, Decisions


def decisions_table(found: Decisions) -> RenderableType:
    """How many decisions there were, how many went against the estimates, and what the other choice gave."""
    first, *others = decision_lines(found)
    head = Text.assemble(("decisions", "bold"), f"  {first}")
    return Group(Text(), head, *(Text(line) for line in others))


def decision_lines(found: Decisions) -> list[str]:
    """The same as sentences."""
    counts = np.bincount([one.hook for one in found.routed], minlength=len(PHASES)).tolist()
    kinds = ", ".join(f"{count:,} of {phase}" for phase, count in zip(PHASES, counts, strict=True) if count)
    lines = [f"{len(found.routed):,} routes ({kinds}), {found.with_choice:,} with another instance to choose."]
    if found.with_choice:
        share = 100 * found.against_estimate / found.with_choice
        lines.append(f"{share:.1f} % went to an instance although the estimate of another was less.")
    if found.replays:
        lines.append(_replayed(found))
    return lines


def _replayed(found: Decisions) -> str:
    count, even = len(found.replays), len(found.replays) - found.regretted - found.worse
    good = np.array([one.good for one in found.replays])
    changes_s = np.array([one.e2e_s for one in found.replays])
    known = changes_s[~np.isnan(changes_s)]
    time = f", {known.mean():+.3g} s of all requests' time" if len(known) else ""
    return (
        f"{count} were replayed with the other instance: better in {found.regretted} (regret), worse in {found.worse},"
        f" the same in {even}; on average {good.mean():+.2g} good requests{time}."
    )
