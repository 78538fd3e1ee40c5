"""What a server has served, as a trace that can be replayed offline, and the times that it gave."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.cli.files import require_writable
from framework.codes import CANCELLED, FAILED, FINISHED, REJECTED
from framework.replay.live import LiveEngine
from traces.formats import write_parquet
from traces.frame import from_rows

_STATES = {FINISHED: "finished", REJECTED: "rejected", FAILED: "failed", CANCELLED: "cancelled"}
_TIMES = ("start_s", "prefill_end_s", "first_token_s", "end_s")


class Record:
    """The requests that were sent, in order; `trace.parquet` and `served.parquet` in `directory` at the end."""

    def __init__(self, directory: Path) -> None:
        require_writable(directory)
        self._directory = directory
        self._sent_s: list[float] = []
        self._output_tokens: list[int] = []
        self._names: list[NDArray[np.int32]] = []

    def sent(self, sent_s: float, output_tokens: int, names: NDArray[np.int32]) -> None:
        """Note a request."""
        self._sent_s.append(sent_s)
        self._output_tokens.append(output_tokens)
        self._names.append(names)

    def write(self, engine: LiveEngine) -> None:
        """Write both files, if anything was sent. A request that was cut short has the tokens that it got."""
        if not self._sent_s:
            return
        rows = engine.memory.requests[: len(self._sent_s)]
        ended = np.isin(rows["state"], (CANCELLED, FAILED))
        outputs = np.where(ended, np.maximum(rows["emitted"], 1), self._output_tokens)
        block_tokens = engine.inspection.block_tokens
        counts = (rows["input_tokens"] // block_tokens).tolist()
        prompts = [names[:count].tolist() for names, count in zip(self._names, counts, strict=True)]
        came = pl.DataFrame(
            {
                "arrival_s": self._sent_s,
                "input_tokens": rows["input_tokens"].astype(np.int64),
                "output_tokens": outputs.astype(np.int64),
                "hash_ids": pl.Series(prompts, dtype=pl.List(pl.Int64())),
            }
        )
        trace = from_rows(came, "served", "real", block_tokens)
        write_parquet(trace, self._directory / "trace.parquet")
        served = pl.DataFrame(
            {
                "sent_s": self._sent_s,
                **{name: rows[name] for name in _TIMES},
                "input_tokens": rows["input_tokens"],
                "cached_tokens": rows["cached_tokens"],
                "output_tokens": rows["emitted"],
                "prefill_instance": rows["prefill_instance"],
                "decode_instance": rows["decode_instance"],
                "preemptions": rows["preemptions"],
                "state": [_STATES.get(state, "under way") for state in rows["state"].tolist()],
                "reason": [engine.reasons[reason] for reason in rows["reason"].tolist()],
            }
        )
        served.write_parquet(self._directory / "served.parquet")
