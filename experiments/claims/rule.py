"""What becomes of a claim: one rule for every row, and beside it the rule that the table had before.

A regime counts as published where model, GPUs, lengths and limit stand in the paper or its artifact and the row plays
them; `class_reason` of each row says why it is one or is not. A published row passes where the simulated factor, the
geometric mean over replicates, lies on the claimed side of 1 and is off the claimed one, or the nearer end of the range
that is claimed, by at most the factor `passes_within`. Of every other row only the side of 1 counts.
"""

from __future__ import annotations

import math

from experiments.claims.file import Claim

PASS, MISS, SIGN, NO_SIGN = "pass", "miss", "sign", "no sign"
_ROUNDING = 1e-12  # of a logarithm


def has_sign(claim: Claim, factor: float) -> bool:
    """Whether a simulated factor lies on the side of 1 that is claimed."""
    return (factor - 1) * (claim.range[0] - 1) > 0


def off_by(claim: Claim, factor: float) -> float:
    """By what factor, at least 1, it is off what is claimed; infinite where it is not positive."""
    low, high = claim.range
    if not 0 < factor < math.inf:
        return math.inf
    if low <= factor <= high:
        return 1.0
    return low / factor if factor < low else factor / high


def verdict(claim: Claim, factor: float, passes_within: float) -> str:
    """`pass` of a published regime; else `sign` or `no sign`."""
    if not has_sign(claim, factor):
        return NO_SIGN
    near = math.log(off_by(claim, factor)) <= math.log(passes_within) + _ROUNDING
    return PASS if claim.published and near else SIGN


def former_error(claim: Claim, factor: float) -> float:
    """|ln simulated / ln claimed - 1|; 0 within a claimed range, else to its nearer end."""
    low, high = claim.range
    if low < high and low <= factor <= high:
        return 0.0
    if not 0 < factor < math.inf:
        return math.inf
    return min(abs(math.log(factor) / math.log(end) - 1) for end in (low, high))


def former_verdict(claim: Claim, factor: float, tolerance: float) -> str:
    """By the rule that the table had before: `pass` or `miss` by the error in logarithms, else `sign` or `no sign`."""
    if claim.published:
        return PASS if former_error(claim, factor) <= tolerance else MISS
    return SIGN if has_sign(claim, factor) else NO_SIGN
