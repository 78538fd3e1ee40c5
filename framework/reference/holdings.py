"""What an instance holds, and what is on its way to it, in tokens."""

from __future__ import annotations

from framework.reference.state import Instance, Request


def kv_tokens(i: Instance) -> int:
    """The tokens of all KV that it holds."""
    tokens = 0  # loops, since the lists are mostly short and the clock asks whenever it advances
    for r in i.running:
        tokens += r.kv - r.elsewhere
    for r in i.leaving:
        tokens += r.kv - r.elsewhere
    for r in i.deferred_frees:
        tokens += r.kv
    for r in i.computed:
        tokens += r.kv
    for r in i.kept:
        tokens += r.kv
    for r in i.joining:
        tokens += r.prefill_until if r.is_partial else r.kv
    for r in i.prefilling:
        tokens += r.covered - r.elsewhere
    for r in i.prefilled:
        tokens += r.covered - r.elsewhere
    for span in i.shares:
        tokens += span.tokens_on(i)
    return tokens


def queued_tokens(i: Instance) -> int:
    """Tokens still to be prefilled."""
    started = sum(r.prefill_until - r.prefilled for r in i.prefilling + coming(i))
    return started + sum(r.goal for _, _, r in i.waiting + i.inbox)


def incoming_kv_tokens(i: Instance) -> int:
    """The tokens of all KV that is on its way here."""
    return sum(r.migration.copied if r.migration else r.coming_kv for r in i.incoming + i.reserved)


def coming(i: Instance) -> list[Request]:
    """The requests on their way here with part of their prefill left."""
    return [r for r in i.incoming + i.reserved + i.joining if r.is_partial and not r.sent_ahead]
