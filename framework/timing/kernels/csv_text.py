"""CSV files as text, with the number of every row."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from framework.errors import InputError


def read_text(path: Path) -> pl.DataFrame:
    """All columns as strings without blanks around them, null for empty ones, and `row` as an editor counts it.

    The header is row 1; a column `row` of the file is left out.

    Raises InputError for a file that cannot be read, is no CSV or has no rows.
    """
    try:
        rows = pl.read_csv(path, infer_schema=False)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{path}: is no CSV with a header and rows ({str(error).splitlines()[0]})") from None
    rows = rows.rename({name: name.strip() for name in rows.columns}).drop("row", strict=False)
    stripped = pl.all().str.strip_chars()
    rows = rows.select(pl.when(stripped != "").then(stripped).name.keep()).with_row_index("row", offset=2)
    rows = rows.filter(~pl.all_horizontal(pl.exclude("row").is_null())).with_columns(pl.col("row").cast(pl.Int64))
    if rows.is_empty():
        raise InputError(f"{path}: has no rows")
    return rows
