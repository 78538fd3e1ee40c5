"""Steps in order of admission: decodes and prefills are one list (SEMANTICS.md: Prefill)."""

from __future__ import annotations

from dataclasses import dataclass, field

from framework.reference.copies.transfers import note_tokens
from framework.reference.kv import give_way, growth, swap_in, victim
from framework.reference.pins import break_pins
from framework.reference.prefixes import register_cached, share_chunk
from framework.reference.pulling import join, may_join, pull
from framework.reference.simulation import Simulation
from framework.reference.state import Instance, Request
from framework.reference.steps.duration import choose_depth
from framework.reference.steps.forming import Form, admit_by_chunks, longest_chunk, tokens_left
from framework.reference.steps.step import Chunk


@dataclass
class InOrder:
    """A step that is being formed in order of admission. `spent`: tokens of each rank's budget."""

    s: Simulation
    i: Instance
    spent: list[int]
    decodes: list[Request] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)

    def go_through(self) -> bool:
        """Let decodes and prefills take what they need of the budget. True: no request was preempted."""
        s, i, gave_way = self.s, self.i, self.s.gave_way
        for r in sorted(i.running + i.prefilling, key=lambda r: r.admission):
            tokens = self.tokens_of(r)
            if tokens > 0 and not self.take(r, tokens):
                break
        return s.gave_way == gave_way

    def tokens_of(self, r: Request) -> int:
        """The tokens that r takes of the budget; 0: none, or it was preempted."""
        i, budget = self.i, self.i.token_budget // self.i.spec.ranks
        if r in i.running:
            return 1 + i.depth if self.spent[r.rank] < budget and not r.skips else 0
        if r not in i.prefilling:
            return 0
        size = min(budget, i.chunk_size(r.prefilled))
        return max(0, min(longest_chunk(self.s, r), tokens_left(i, size, self.spent[r.rank], r.rank, self.chunks)))

    def take(self, r: Request, tokens: int) -> bool:
        """Let r decode, or have a chunk of that many tokens, if blocks are found for it. False: r itself was
        preempted.
        """
        s, i = self.s, self.i
        if r in i.running:
            if not self.take_blocks(r, growth(s, i, r)):
                return False
            self.decodes.append(r)
        else:
            until = max(r.covered, r.prefilled + tokens)
            if not self.take_blocks(r, s.blocks_of(i, until) - s.blocks_of(i, r.covered)):
                return False
            r.covered = until
            share_chunk(s, i, r, r.prefilled + tokens)
            self.chunks.append((r, r.prefilled, tokens))
        self.spent[r.rank] += tokens
        return True

    def take_blocks(self, r: Request, blocks: int) -> bool:
        """Take blocks for r, from others if none are available. False: r itself gave way."""
        s, i = self.s, self.i
        break_pins(i, blocks)
        while blocks > i.cache.available:
            other = victim(s, i)
            self.take_back(other)
            give_way(s, i, other)
            if other is r:
                return False
        i.cache.take(r.id, blocks)
        return True

    @property
    def has_tokens(self) -> bool:
        """Whether tokens are left for the next request."""
        return self.spent[self.i.coming_rank] < self.i.token_budget // self.i.spec.ranks

    def let_join(self) -> None:
        """Let requests with fetched KV join while tokens and room are left."""
        while may_join(self.i) and self.has_tokens:
            r = join(self.s, self.i)
            tokens = self.tokens_of(r)
            if tokens > 0:
                self.take(r, tokens)

    def take_back(self, r: Request) -> None:
        """Take r out of the step, if it is in it.

        The block that its token would have filled still becomes known, unless that token is being computed while the
        step is formed.
        """
        if r in self.decodes:
            self.decodes.remove(r)
            self.spent[r.rank] -= 1 + self.i.depth
            if self.s.shares_early and r.caches:
                register_cached(self.s, self.i, r, r.kv + (0 if self.s.options.asynchronous else 1))
        self.spent[r.rank] -= sum(tokens for other, _, tokens in self.chunks if other is r)
        self.chunks = [chunk for chunk in self.chunks if chunk[0] is not r]


def form_in_order(s: Simulation, i: Instance) -> Form:
    """Let decodes and prefills take what they need of the budget, in order of admission, then admit new requests."""
    i.depth = choose_depth(s, i)
    i.running.sort(key=lambda r: r.admission)
    step = InOrder(s, i, [0] * i.spec.ranks)
    if step.go_through():
        there = len(i.running)
        swap_in(s, i, preempted=False)
        for r in i.running[there:]:
            if step.tokens_of(r) > 0:
                step.decodes.append(r)
                step.spent[r.rank] += 1 + i.depth
            else:
                i.cache.take(r.id, -growth(s, i, r))
        if i.spec.pulls:
            step.let_join()
        admit_by_chunks(s, i, step.spent, step.chunks)
        if i.spec.pulls and step.has_tokens:
            pull(s, i)
    if step.decodes or step.chunks:
        pause_others(s, i, step.decodes)
    return step.decodes, step.chunks


def pause_others(s: Simulation, i: Instance, decodes: list[Request]) -> None:
    """Pause the last of the running order, for which the step has no tokens."""
    others = [r for r in i.running if r not in decodes]
    for r in others:
        note_tokens(s, i, r)
        r.paused = True
    i.running = decodes + others
