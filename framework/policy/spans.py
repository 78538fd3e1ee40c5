"""An answer about the instances that compute a request together, checked and turned into numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from framework.policy.values import index

MOST_INSTANCES, MOST_SPANS = 64, 1024  # of one span; at a time


@dataclass(frozen=True)
class Span:
    """Compute a request on several instances at once, and keep its KV on some of them; the answer of `span`.

    Its prompt is one step of all these instances, for which each of them waits at the end of its present step. Then the
    request decodes on the first instance, which leads. Without instances the request waits, and is asked about again.

    Attributes:
        instances: Their numbers, the leading one first.
        kept: KV tokens that each further instance keeps until the end of the request, rounded down to whole blocks; the
            leading one keeps the rest. None: all keep equal parts.
        chunk_tokens: 0: each computes a part of the prompt, and KV goes round (sequence parallelism). Else each has a
            part of the layers, and chunks of so many tokens pass the instances one behind the other.

    Raises:
        PolicyError: By the run, for an instance that cannot compute it, or parts that exceed its tokens.

    Example:
        >>> class Everywhere(servelab.Aggregated):  # long prompts on all instances at once
        ...     def span(self, request, cluster):
        ...         long = request.input_tokens > 1000
        ...         return servelab.Span(tuple(range(len(cluster.instances)))) if long else None
        >>> run = servelab.run(Everywhere(), "synthetic", limit=60, rate=5, engine__asynchronous=False)
        >>> run.summary["completed"]
        60
    """

    instances: Sequence[int] = ()
    kept: Sequence[int] | None = None
    chunk_tokens: int = 0


class SpanRow(NamedTuple):
    """A span in numbers: `kept`, tokens in whole blocks, has a place for each instance, that of the first is 0."""

    instances: tuple[int, ...]
    kept: tuple[int, ...]
    chunk_tokens: int


def span_row(
    answer: Any, tokens: int, block_tokens: int, able: Callable[[int], bool], error: Callable[[str], Exception]
) -> SpanRow | None:
    """The row of an answer about a request with `tokens` tokens to compute; None: it needs no other instance.

    `able`: whether the instance of that number takes prompts and decodes now. Raises `error` of what is wrong.
    """
    if answer is None:
        return None
    if not isinstance(answer, Span):
        raise error("return Span(instances, kept), or None")
    instances, chunk = _whole(answer.instances), index(answer.chunk_tokens)
    if instances is None or len(set(instances)) < len(instances) or len(instances) > MOST_INSTANCES:
        raise error(f"`instances` are up to {MOST_INSTANCES} different numbers")
    unable = [i for i in instances if not able(i)]
    if unable:
        raise error(f"instance {unable[0]} does not prefill and decode now")
    if chunk is None or chunk < 0:
        raise error("`chunk_tokens` is 0 or more")
    if not instances:
        return SpanRow((), (), 0)
    others = len(instances) - 1
    kept = [tokens // len(instances)] * others if answer.kept is None else _whole(answer.kept)
    if kept is None or len(kept) != others or min(kept, default=0) < 0:
        raise error(f"`kept` has a number of tokens for each instance but the first, {others} in all")
    blocks = [block_tokens * (part // block_tokens) for part in kept]
    if sum(blocks) >= tokens:
        raise error(f"`kept` leaves nothing of its {tokens} tokens to the first instance")
    return SpanRow(tuple(instances), (0, *blocks), chunk)


def _whole(values: Any) -> list[int] | None:
    """The whole numbers of a sequence; None if it is not one."""
    try:
        numbers = [index(value) for value in values]
    except TypeError:
        return None
    return None if None in numbers else [int(number) for number in numbers if number is not None]
