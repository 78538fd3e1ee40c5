"""Turns of sessions from recorded times: how long a user thought, and which turns carry the history."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.block_ids import list_column

BLOCK_TOKENS = 16  # tokens of a block in the names of prompts of which only the session is known
_MOST_BLOCKS = 200_000_000
_SLACK_S = 1e-6  # clocks that are written as floats


def closed_loop(rows: pl.DataFrame) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Rows with `session_id`, `turn` and `think_s`, in order of arrival, and what to report of them.

    `rows` has arrival_s, ended_s (null: unknown) and session_id (null: a request of its own), and turn if the file has
    it. A later turn arrives as long after the end of the previous turn as it did. A turn that was sent before that end,
    or whose number is not larger, was no answer to it: it opens its own session, at its recorded time. So does one
    after a turn with an unknown end.
    """
    rows = rows.sort("arrival_s", maintain_order=True)
    is_later = pl.col("session_id").is_not_null() & (pl.int_range(pl.len()).over("session_id") > 0)
    gap_s = pl.col("arrival_s") - pl.col("ended_s").shift(1).over("session_id")
    is_again = pl.lit(False)
    if "turn" in rows.columns:
        is_again = (pl.col("turn") <= pl.col("turn").shift(1).over("session_id")).fill_null(False)
    rows = rows.with_columns(
        overlaps=(is_later & (gap_s < -_SLACK_S) & ~is_again).fill_null(False),
        unknown=is_later & gap_s.is_null() & ~is_again,
        again=is_later & is_again,
        gap_s=gap_s,
    )
    part = pl.any_horizontal("overlaps", "unknown", "again").cast(pl.Int64).cum_sum().over("session_id")
    rows = rows.with_columns(part=part).with_columns(
        session_id=pl.when(pl.col("session_id").is_not_null())
        .then(pl.struct("session_id", "part").rank("dense").cast(pl.Int64) - 1)
        .otherwise(None)
    )
    rows = rows.with_columns(
        turn=pl.when(pl.col("session_id").is_not_null())
        .then(pl.int_range(pl.len()).over("session_id"))
        .otherwise(0)
        .cast(pl.Int64)
    )
    think_s = pl.when((pl.col("turn") > 0) & pl.col("session_id").is_not_null()).then(pl.col("gap_s").clip(0.0))
    notes = [
        f"{turns:,} {reason}; each opens a session of its own"
        for name, reason in (
            ("overlaps", "turns were sent before the turn before had ended"),
            ("unknown", "turns follow one whose end is not known"),
        )
        if (turns := int(rows[name].sum()))
    ]
    drops = ("overlaps", "unknown", "again", "gap_s", "part", "ended_s")
    return rows.with_columns(think_s=think_s.otherwise(0.0)).drop(drops), tuple(notes)


def with_history(rows: pl.DataFrame) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Rows with the ids of their prompts' blocks of BLOCK_TOKENS if later turns carry the history; what to report.

    A turn carries it if its prompt is at least as long as prompt and answer of the previous turn. If none does, the
    rows stay as they were.
    """
    grown = pl.col("input_tokens") >= (pl.col("input_tokens") + pl.col("output_tokens")).shift(1).over("session_id")
    is_later = pl.col("session_id").is_not_null() & (pl.col("turn") > 0)
    marked = rows.select(
        carries=(is_later & grown).fill_null(False), later=is_later, session_id="session_id", inputs="input_tokens"
    )
    later, carrying = int(marked["later"].sum()), int(marked["carries"].sum())
    if not later:
        return rows, ()
    if not carrying:
        return rows, (f"none of {later:,} later turns is as long as what was said before: taken as unrelated prompts",)
    chain = marked.with_columns(part=(~pl.col("carries")).cast(pl.Int64).cum_sum().over("session_id"))
    single = pl.int_range(pl.len(), dtype=pl.Int64)
    chains = chain.select(
        pl.when(pl.col("session_id").is_null())
        .then(pl.struct(-1 - single, pl.lit(0, pl.Int64).alias("part")))
        .otherwise(pl.struct(pl.col("session_id").alias("literal"), "part"))
        .rank("dense")
        .cast(pl.Int64)
        .alias("chain")
    )["chain"].to_numpy()
    inputs = marked["inputs"].to_numpy()
    if (blocks := int(np.sum(-(-inputs // BLOCK_TOKENS)))) > _MOST_BLOCKS:
        return rows, (f"prompts have {blocks:,} blocks: too many to tell which later turns share; taken as unrelated",)
    note = f"{carrying:,} of {later:,} later turns carry what was said before: they share its prefix"
    return rows.with_columns(_named(chains - 1, inputs).alias("hash_ids")), (note,)


def _named(chain: NDArray[np.int64], inputs: NDArray[np.int64]) -> pl.Series:
    """Ids of each prompt's blocks: full ones named by chain and place, a partial last one by its row."""
    count = -(-inputs // BLOCK_TOKENS)
    offsets = np.concatenate(([0], np.cumsum(count)))
    row = np.repeat(np.arange(len(inputs)), count)
    block = np.arange(offsets[-1]) - offsets[row]
    longest = int(count.max(initial=1))
    is_partial = (block + 1) * BLOCK_TOKENS > inputs[row]
    own = longest * (int(chain.max(initial=0)) + 1) + row
    ids = np.where(is_partial, own, chain[row] * longest + block).astype(np.int64)
    return list_column(np.unique(ids, return_inverse=True)[1].astype(np.int64).reshape(-1), offsets)
