"""The instances that compute a request together, what they keep of its KV, and who waits for some."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Instance = Any  # `framework.reference.state.Instance`, which has spans
Request = Any  # `framework.reference.state.Request`


@dataclass(eq=False)
class Span:
    """The instances that compute a request together, the leading one first, and the KV tokens that each other keeps."""

    request: int
    instances: list[Instance]
    kept: list[int]  # whole blocks
    chunk_tokens: int = 0  # of a pipeline; 0: there is none
    begun: bool = False  # its step has begun

    def tokens_on(self, i: Instance) -> int:
        """KV tokens that it keeps on i, if i does not lead."""
        return dict(zip(self.instances[1:], self.kept, strict=True)).get(i, 0)


@dataclass
class Spans:
    """Those of one run."""

    waiting: list[Request] = field(default_factory=list)  # requests that wait for a span
    claims: list[Request] = field(default_factory=list)  # those that wait for its step, in order of admission
    over: list[Span] = field(default_factory=list)  # spans that have ended with this event
