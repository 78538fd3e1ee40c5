"""What crashes cost, computed a second time by docs/results.md, from what the reference engine does and token times."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from tests.helpers.reported import CrashNote, Run, Summary, percentile


def crash_figures(run: Run) -> Summary:
    """Nothing where nothing may crash."""
    if not run.scenario.engine.faults:
        return {}
    crashes, is_known = run.unreported.crashes, run.scenario.engine.log == "full"
    waits_s = [
        wait_s for crash in crashes for request in crash.prefilled for wait_s in _to_next_token(run, crash, request)
    ]
    return {
        "availability": _availability(run),
        "dropped": sum(len(crash.prefilled) for crash in crashes),
        "lost_tokens": sum(_lost_tokens(run, crash) for crash in crashes),
        "median_recovery_s": statistics.median(waits_s) if waits_s and is_known else None,
        "p99_recovery_s": percentile(waits_s, 99) if waits_s and is_known else None,
        "crashes": [_row(run, crash, is_known) for crash in crashes],
        **_slowdowns(run),
    }


def _slowdowns(run: Run) -> Summary:
    """Nothing where nothing is slowed down."""
    slow = run.scenario.engine.faults.schedule(run.scenario.cluster).slowdowns
    begin_s = min(row["arrival_s"] for row in run.requests if row["arrival_s"] is not None)
    last_s = begin_s + run.run_s
    rows = [
        {"at_s": one.at_s, "instance": one.instance, "for_s": one.for_s, "factor": one.factor}
        for one in slow
        if one.at_s <= last_s
    ]
    slow_s = sum(max(0.0, min(last_s, one.at_s + one.for_s) - max(begin_s, one.at_s)) for one in slow)
    share = slow_s / (len(run.pools) * run.run_s) if run.run_s > 0 else None
    return {"slowed_share": share, "slowdowns": rows} if slow else {}


def _row(run: Run, crash: CrashNote, is_known: bool) -> Summary:
    settled_s = (min([*_to_next_token(run, crash, r), _to_end(run, crash, r)]) for r in crash.prefilled)
    return {
        "at_s": crash.at_s,
        "instance": crash.instance,
        "instances": crash.instances,
        "down_s": crash.back_s - crash.at_s,
        "dropped": len(crash.prefilled),
        "lost_tokens": _lost_tokens(run, crash),
        "settled_s": max(settled_s, default=None) if is_known else None,
    }


def _lost_tokens(run: Run, crash: CrashNote) -> int:
    """KV of prompts that were under way; of those that had emitted, all but the last token, whose KV is not stored."""
    lost = 0
    for request, prefilled in crash.prefilled.items():
        emitted = sum(token_s <= crash.at_s for token_s in run.unreported.token_s[request])
        lost += run.requests[request]["input_tokens"] + emitted - 1 if prefilled is None else prefilled
    return lost


def _to_next_token(run: Run, crash: CrashNote, request: int) -> Iterator[float]:
    """Seconds to its first token after the crash, where there is one: tokens of that instant came before it."""
    later_s = [token_s for token_s in run.unreported.token_s[request] if token_s > crash.at_s]
    yield from (min(later_s) - crash.at_s for _ in later_s[:1])


def _to_end(run: Run, crash: CrashNote, request: int) -> float:
    return run.unreported.end_s[request] - crash.at_s


def _availability(run: Run) -> float | None:
    """Of all instances, from the first request sent to the last answer."""
    begin_s = min(row["arrival_s"] for row in run.requests if row["arrival_s"] is not None)
    end_s = begin_s + run.run_s
    down_s = sum(
        max(0.0, min(until_s, end_s) - max(since_s, begin_s)) for own in run.unreported.down for since_s, until_s in own
    )
    return 1 - down_s / (len(run.pools) * run.run_s) if run.run_s > 0 else None
