"""The least time of any step of a pool, independent of its other content: the basis of the bound on goodput.

Measured step times may fall as a step grows, so that a step which does more can be faster. The times here are lower
envelopes: a step of p prefill tokens and d decodes that read C tokens in all takes at least T(p, d, C), and so does
every step that does more. T is interpolated on grids, so linear prices have their extremes at grid points.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_ROUNDS, _EXACT = 40, 1e-12  # rounds and accuracy of the search for a largest ratio
_ROUNDING = 1e-9
_PAYING = 1 - 1e-4  # steps pay if they are worth this share of their time


@dataclass(frozen=True)
class Prices:
    """Prices of a prefill token, a decode, and a token that it reads; `pace`: of a second in which a request decodes;
    `again`: of a prefill token in pools that only recompute prompts.
    """

    token: float
    decode: float
    context: float
    pace: float
    again: float = 0.0


@dataclass(frozen=True)
class Steps:
    """Steps as columns, each (n,): prefill tokens, decodes, tokens they read, least seconds; `paced`: decodes that the
    price of pace counts, fewer if the grid of batches is coarse.
    """

    tokens: Floats
    decodes: Floats
    context: Floats
    time_s: Floats
    paced: Floats

    def worth(self, prices: Prices) -> Floats:
        return prices.token * self.tokens + prices.decode * self.decodes + prices.context * self.context


@dataclass(frozen=True)
class Chunks:
    """The cost of chunks without attention: `start_s` a step, `token_s` for each of their tokens, and `linear_s` (T,)
    over all tokens of a step, `tokens` (T,).

    A step holds at most `budget` tokens, decodes included. `whole`: a prompt is not cut; a longer one has its own step.
    `ending_s`: additional seconds of a step that ends a prompt.
    """

    start_s: float
    token_s: float
    ending_s: float
    tokens: Floats
    linear_s: Floats
    budget: float
    whole: bool

    def linear(self, tokens: Floats) -> Floats:
        return np.interp(tokens, self.tokens, self.linear_s)

    def step_s(self, tokens: Floats) -> Floats:
        """Seconds of a step with `tokens` prefill tokens and nothing else, also beyond the budget."""
        return self.start_s + self.token_s * tokens + self.linear(tokens)

    @property
    def batched(self) -> Floats:
        """Tokens of steps that may hold several chunks, (t,)."""
        return self.tokens[self.tokens <= self.budget]

    @property
    def least_token_s(self) -> float:
        """The least cost of a token in such a step."""
        return float((self.step_s(self.batched) / self.batched).min())

    def prompts_s(self, tokens: Floats) -> Floats:
        """The least time to compute `tokens` tokens of one prompt, in one step or several.

        n steps take at least n times the lower convex hull at tokens / n, which is convex in n.
        """
        alone_s = self.step_s(tokens)
        if self.whole:
            return alone_s
        corners, heights = lower_hull(self.batched, self.step_s(self.batched))
        best = corners[np.argmin(heights / corners)]
        few = np.maximum(np.maximum(np.ceil(tokens / self.budget), np.floor(tokens / best)), 2.0)
        cut_s = np.minimum(*(n * np.interp(tokens / n, corners, heights) for n in (few, few + 1.0)))
        return np.where(tokens <= self.budget, np.minimum(alone_s, cut_s), cut_s)


@dataclass(frozen=True)
class Decodes:
    """The cost of decodes, over `batches` (D,) and the tokens they read, `contexts` (D, C): `pure_s` (D, C) in a step
    of their own, `beside_s` (D, C) in a step with chunks, whose linear layers are counted there.

    `paced` (D,): as in `Steps`. `full_context`: the context that fills the memory.
    """

    batches: Floats
    contexts: Floats
    pure_s: Floats
    beside_s: Floats
    paced: Floats
    full_context: float

    def alone_s(self, batch: float, context: float) -> float:
        """The seconds of a step of the largest batch on the grid that does not exceed `batch`."""
        at = max(int(np.searchsorted(self.batches, batch, side="right")) - 1, 0)
        return float(np.interp(context, self.contexts[at], self.pure_s[at]))

    def worth(self, prices: Prices) -> Floats:
        return prices.decode * self.batches[:, None] + prices.context * self.contexts


@dataclass(frozen=True)
class PoolSteps:
    """The least times of the steps of a pool's instance; None: it has no such steps. `mixes`: chunks and decodes may
    share a step. `again_only`: it only recomputes prompts.
    """

    chunks: Chunks | None
    decodes: Decodes | None
    mixes: bool
    again_only: bool = False

    def own(self, prices: Prices) -> Prices:
        """The prices of the supply of its steps."""
        return replace(prices, token=prices.again) if self.again_only else prices

    def best(self, prices: Prices) -> list[Steps]:
        """The steps with the highest worth a second, of each kind and size. Prices are its own here and below."""
        found = []
        if self.chunks is not None:
            tokens = self.chunks.batched
            none = np.zeros(len(tokens))
            found.append(Steps(tokens, none, none, self.chunks.step_s(tokens), none))
        if self.decodes is not None:
            at = (self.decodes.worth(prices) / self.decodes.pure_s).argmax(axis=1)
            batches, rows = self.decodes.batches, np.arange(len(at))
            context, pure_s = self.decodes.contexts[rows, at], self.decodes.pure_s[rows, at]
            found.append(Steps(0 * batches, batches, context, pure_s, self.decodes.paced))
        if self.mixes and self.chunks is not None and self.decodes is not None:
            found.append(_best_mixed(self.chunks, self.decodes, prices))
        return found

    def price(self, prices: Prices) -> float:
        """The least price p of an instance's second at which no step is worth more than T (p + pace * decodes)."""
        rates = [steps.worth(prices) / steps.time_s - prices.pace * steps.paced for steps in self.best(prices)]
        return max(0.0, *(float(rate.max()) for rate in rates), 0.0) * (1 + _ROUNDING)

    def scarce(self, prices: Prices, second: float) -> str | None:
        """What keeps the steps that pay from being better still; None: only time.

        It is the batch size if decodes pay, and half of them would take more than 3/4 of the time."""
        if self.decodes is None or second <= 0.0:  # time costs nothing if all requests can be served
            return None
        paying = [
            (float(steps.decodes[i]), float(steps.context[i]))
            for steps in self.best(prices)
            for i in np.flatnonzero(
                steps.worth(prices) >= steps.time_s * (second + prices.pace * steps.paced) * _PAYING
            )
            if prices.token * steps.tokens[i] <= 0.5 * steps.worth(prices)[i]
        ]
        full = all(context >= self.decodes.full_context for _, context in paying)
        if not paying or not (full or all(batch >= self.decodes.batches[-1] for batch, _ in paying)):
            return None
        batch, context = paying[-1]
        if self.decodes.alone_s(0.5 * batch, 0.5 * context) < 0.75 * self.decodes.alone_s(batch, context):
            return None
        return "KV memory" if full else "batch size"

    def whole_prompts(self, tokens: Floats, second: float, prices: Prices) -> Floats:
        """The least cost of a step for one whole prompt of `tokens` tokens, less the worth of decodes in it.

        `second`: price of an instance's second. Attention is added separately.
        """
        assert self.chunks is not None
        left = second * self.chunks.step_s(tokens)
        if not self.mixes or self.decodes is None:
            return left
        decodes = self.decodes
        each = second + prices.pace * decodes.paced
        riding = (each[:, None] * decodes.beside_s - decodes.worth(prices)).min(axis=1)
        lead = np.where(np.diff(decodes.batches, prepend=0) > 1, np.roll(decodes.batches, 1), decodes.batches)
        own_s = self.chunks.start_s + self.chunks.token_s * tokens[:, None] + self.chunks.linear(tokens[:, None] + lead)
        return np.minimum(left, (each * own_s + riding).min(axis=1))


def _best_mixed(chunks: Chunks, decodes: Decodes, prices: Prices) -> Steps:
    """For each batch of decodes, the step with chunks of highest worth a second, by Dinkelbach's iteration.

    W. Dinkelbach, "On nonlinear fractional programming", Management Science 13(7), 1967. For given tokens of a step its
    time is affine in the decodes among them.
    """
    batches = decodes.batches[:, None]
    tokens = chunks.batched - batches
    own_s = chunks.start_s + chunks.token_s * np.maximum(tokens, 0.0) + chunks.linear(chunks.batched)
    allowed = tokens >= 0
    rows, rate = np.arange(len(batches)), np.zeros(len(batches))
    worth = decodes.worth(prices)
    for _ in range(_ROUNDS):
        t = np.where(allowed, prices.token * tokens - rate[:, None] * own_s, -np.inf).argmax(axis=1)
        c = (worth - rate[:, None] * decodes.beside_s).argmax(axis=1)
        time_s = own_s[rows, t] + decodes.beside_s[rows, c]
        better = (prices.token * tokens[rows, t] + worth[rows, c]) / time_s
        if np.all(better <= rate * (1 + _EXACT)):
            break
        rate = np.maximum(better, rate)
    time_s = np.where(allowed.any(axis=1), time_s, np.inf)
    return Steps(tokens[rows, t], decodes.batches, decodes.contexts[rows, c], time_s, decodes.paced)


def lower_hull(xs: Floats, ys: Floats) -> tuple[Floats, Floats]:
    """Corners of the lower convex hull of points with increasing xs (Andrew's monotone chain)."""
    corners: list[int] = []
    for i in range(len(xs)):
        while len(corners) > 1:
            a, b = corners[-2:]
            if (ys[b] - ys[a]) * (xs[i] - xs[b]) < (ys[i] - ys[b]) * (xs[b] - xs[a]):
                break
            corners.pop()
        corners.append(i)
    return xs[corners], ys[corners]
