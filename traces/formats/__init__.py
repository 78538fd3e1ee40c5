"""Files of requests as traces: a reader for each format, the table of their names, and their recognition."""

from traces.formats.own import write_parquet
from traces.formats.reading import read, sniff
from traces.formats.registry import FORMATS
from traces.parsing.how import AS_IT_IS, BAD_RECORDS, How

__all__ = ["AS_IT_IS", "BAD_RECORDS", "FORMATS", "How", "read", "sniff", "write_parquet"]
