"""Records that the compiled engine and the plain one write alike: the step log and the token log."""

from __future__ import annotations

import numpy as np


def record(*fields: tuple[str, str]) -> np.dtype[np.void]:
    """A record type whose fields are attributes both in compiled code and in plain Python."""
    return np.dtype((np.record, np.dtype(list(fields), align=True)))


# A row of the step log: a leap that has ended.
STEP_LOG = record(
    ("start_s", "f8"),
    ("first_s", "f8"),  # seconds of its first step
    ("increment_s", "f8"),  # seconds by which each further step took longer
    ("step0", "i8"),  # decode_steps of the instance at its start
    ("context", "i8"),  # KV tokens that the decodes of its first step read
    ("instance", "i4"),
    ("steps", "i4"),
    ("batch", "i4"),  # requests that decoded
    ("prefill_tokens", "i4"),
    ("depth", "i4"),  # tokens drafted for each decode
    ("stream", "i4"),  # 1: a prefill step beside the decodes
)

# A row of the token log: the decode steps of an instance that gave a request its tokens. With instance -1 the row is a
# single gap of `previous_token_s` seconds.
TOKEN_LOG = record(
    ("first_step", "i8"),  # decode_steps before its first token there
    ("last_step", "i8"),  # decode_steps after its last one
    ("previous_token_s", "f8"),  # time of the token before
    ("request", "i4"),
    ("instance", "i4"),
    ("accepted", "i8"),  # drafted tokens beyond one a step
)
