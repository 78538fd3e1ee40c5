"""What crashes cost, computed a second time by docs/columns.md, from what the reference engine does and token times."""

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
        "dropped_failed": sum(row["reason"] == "crash" for row in run.requests),
        "median_recovery_s": statistics.median(waits_s) if waits_s and is_known else None,
        "p99_recovery_s": percentile(waits_s, 99) if waits_s and is_known else None,
        "crashes": [_row(run, crash, is_known) for crash in crashes],
        **_slowdowns(run),
    }


def _slowdowns(run: Run) -> Summary:
    """Nothing where nothing is slowed down and no network fails."""
    known = run.scenario.engine.faults.schedule(run.scenario.cluster)
    slow = known.slowdowns
    begin_s = min(row["arrival_s"] for row in run.requests if row["arrival_s"] is not None)
    last_s = begin_s + run.run_s
    rows = [
        {"at_s": one.at_s, "instance": one.instance, "for_s": one.for_s, "factor": one.factor}
        for one in slow
        if one.at_s <= last_s
    ]
    slow_s = sum(max(0.0, min(last_s, one.at_s + one.for_s) - max(begin_s, one.at_s)) for one in slow)
    share = slow_s / (len(run.pools) * run.run_s) if run.run_s > 0 else None
    links = [
        {"at_s": one.at_s, "instance": one.instance, "for_s": one.for_s, "share": one.share}
        for one in known.links
        if one.at_s <= last_s
    ]
    found: Summary = {"slowed_share": share, "slowdowns": rows} if slow else {}
    return found | ({"link_faults": links} if known.links else {})


def _row(run: Run, crash: CrashNote, is_known: bool) -> Summary:
    settled_s = (min([*_next_token_s(run, crash, r), run.unreported.end_s[r]]) - crash.at_s for r in crash.prefilled)
    return {
        "at_s": crash.at_s,
        "instance": crash.instance,
        "instances": crash.instances,
        "down_s": crash.back_s - crash.noticed_s,
        "dropped": len(crash.prefilled),
        "lost_tokens": _lost_tokens(run, crash),
        "settled_s": max(settled_s, default=None) if is_known else None,
        **({"detected_after_s": crash.noticed_s - crash.at_s} if crash.noticed_s > crash.at_s else {}),
    }


def _lost_tokens(run: Run, crash: CrashNote) -> int:
    """KV of prompts that were under way; of those that had emitted, all but the last token, whose KV is not stored."""
    lost = 0
    for request, prefilled in crash.prefilled.items():
        emitted = sum(token_s <= crash.noticed_s for token_s in run.unreported.token_s[request])
        lost += run.requests[request]["input_tokens"] + emitted - 1 if prefilled is None else prefilled
    return lost


def _to_next_token(run: Run, crash: CrashNote, request: int) -> Iterator[float]:
    """Seconds from the crash, or the request's later arrival, to its next token, where there is one."""
    sent_s = run.requests[request]["arrival_s"]
    yield from (token_s - max(crash.at_s, sent_s) for token_s in _next_token_s(run, crash, request))


def _next_token_s(run: Run, crash: CrashNote, request: int) -> list[float]:
    """The first token after it was dropped, where there is one: tokens of that instant came before."""
    return sorted(token_s for token_s in run.unreported.token_s[request] if token_s > crash.noticed_s)[:1]


def _availability(run: Run) -> float | None:
    """Of all instances, from the first request sent to the last answer."""
    begin_s = min(row["arrival_s"] for row in run.requests if row["arrival_s"] is not None)
    end_s = begin_s + run.run_s
    down_s = sum(
        max(0.0, min(until_s, end_s) - max(since_s, begin_s)) for own in run.unreported.down for since_s, until_s in own
    )
    return 1 - down_s / (len(run.pools) * run.run_s) if run.run_s > 0 else None
