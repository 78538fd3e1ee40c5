"""How long a reader waits for text that comes more slowly than it is read.

A reader starts with the first token, reads `speed` tokens/s, and waits whenever the next token is not there yet. Andes
builds its quality of experience from these delays (arXiv 2404.16283). The wait for the first token is not included;
TTFT shows that.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from framework.errors import InputError
from framework.metrics.service.token_times import token_times
from framework.result import FINISHED, Result

Floats = NDArray[np.float64]

# Tokens/s: 238 words a minute, the mean of silent readers of English non-fiction (Brysbaert, Journal of Memory and
# Language 109, 2019), at 0.75 words a token (OpenAI's rule of thumb for English).
READING_TOKENS_S = 5.3


def reader_wait_s(result: Result, speed: float) -> Floats:
    """Seconds that a reader of each request waits after the first token, (N,); NaN if it did not finish.

    Token j, from 0, is read from t_j on or, if that is later, from 1 / speed after the start of token j - 1; so the
    waits add up to max_j (t_j - j / speed) - t_0. If drafts were accepted, the tokens of a span of steps are spread
    evenly over these. Raises InputError if the run kept no step log.
    """
    if result.engine.log == "reduced":
        raise InputError("the time that readers wait needs the step log of the run: set engine.log=full")
    tokens = token_times(result)
    latest_s = np.full(len(result.requests), -np.inf)
    np.maximum.at(latest_s, tokens.single_request, tokens.single_s - tokens.single_index / speed)
    for r, index, per_step, ends_s in tokens.spans():
        behind_s = ends_s - (index + per_step * np.arange(len(ends_s))) / speed
        latest_s[r] = max(latest_s[r], float(behind_s.max()))
    waits_s = np.maximum(latest_s - result.requests["first_token_s"], 0.0)
    return np.where(result.requests["state"] == FINISHED, waits_s, np.nan)
