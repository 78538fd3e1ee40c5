"""The verdict on a claim: one rule for every row.

A regime counts as published if model, GPUs, lengths and limit stand in the paper or its artifact and the row plays
them; `class_reason` of each row says why it is one or is not. A published row passes if the simulated factor, the
geometric mean over replicates, differs from the claimed one by at most the factor `passes_within` and, in the
logarithm, is nearer to it than to 1. For a range the nearer end counts. A row cannot pass if 1 itself differs from the
claim by at most that factor, since any factor on the claimed side would do. Nor can it if the claim rests on a mistake
of the paper's own simulator. For a row that does not pass only the side of 1, the sign, counts.
"""

from __future__ import annotations

import math

from experiments.validation.claims.file import Claim

PASS, SIGN, NO_SIGN = "pass", "sign", "no sign"
_ROUNDING = 1e-12  # rounding of a logarithm


def has_sign(claim: Claim, factor: float) -> bool:
    """Whether a simulated factor lies on the claimed side of 1."""
    return (factor - 1) * (claim.range[0] - 1) > 0


def off_by(claim: Claim, factor: float) -> float:
    """The factor, at least 1, by which it differs from the claim; infinite if it is not positive."""
    low, high = claim.range
    if not 0 < factor < math.inf:
        return math.inf
    if low <= factor <= high:
        return 1.0
    return low / factor if factor < low else factor / high


def can_pass(claim: Claim, passes_within: float) -> bool:
    """Whether a row of a published regime can be distinguished from no effect, and rests on no mistake."""
    return claim.published and not claim.rests_on_mistake and not _is_near(off_by(claim, 1.0), passes_within)


def verdict(claim: Claim, factor: float, passes_within: float) -> str:
    """`pass` for a row that can and does; else `sign` or `no sign`."""
    if not has_sign(claim, factor):
        return NO_SIGN
    off = off_by(claim, factor)
    is_shown = _is_near(off, passes_within) and math.log(off) < abs(math.log(factor))
    return PASS if can_pass(claim, passes_within) and is_shown else SIGN


def _is_near(off: float, passes_within: float) -> bool:
    return math.log(off) <= math.log(passes_within) + _ROUNDING
