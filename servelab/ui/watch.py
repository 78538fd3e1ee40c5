"""A store as it grows: each record is read once, and nothing is written."""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path

from experiments.table.select import ABSENT
from framework.errors import InputError
from framework.run.store import Record, Store, read_loose, read_segment
from servelab.ui.columns import SLO, STATE, Columns, setting_words, words_of

_MOST_DAMAGED = 3
_SAID = 3  # the most settings in a label


class Watched:
    """The runs of a store. `epoch` changes where what a client has read no longer holds."""

    def __init__(self, directory: Path) -> None:
        self.store = Store(directory)
        self.epoch = 0
        self._begin()

    def _begin(self) -> None:
        self.columns = Columns()
        self.varying: list[str] = []
        self.damaged: dict[Path, str] = {}
        self._places: dict[str, int] = {}  # by key
        self._within: dict[Path, frozenset[str]] = {}  # keys of each segment

    def refresh(self) -> None:
        """Read what has come. Starts anew if records have gone."""
        loose, segments = self.store.files()
        fresh = [path for path in segments if path not in self._within]
        records = [record for path in fresh for record in self._of_segment(path)]
        new = {path.stem for path in loose} - self._places.keys()
        records += [record for path in loose if path.stem in new for record in self._of_file(path)]
        present = {path.stem for path in loose}.union(*(self._within.get(path, frozenset()) for path in segments))
        if not self._places.keys() <= present:
            self.epoch += 1
            self._begin()
            self.refresh()
            return
        for record in records:
            if record.key not in self._places:
                self._places[record.key] = len(self._places)
                self.columns.add(record)
        if records:
            self.columns.finish()
            self._see_what_varies()

    def _see_what_varies(self) -> None:
        varying = self.columns.varying()
        if varying != self.varying:
            self.varying = varying
            self.epoch += 1

    def labels(self, records: Sequence[Record]) -> list[str]:
        """A letter, the policy, and the first settings in which these runs differ, for each."""
        own = [words_of(record) for record in records]
        names = [name for name in self.varying if name not in (SLO, STATE, "policy")]
        told = [name for name in names if len({one.get(name, ABSENT) for one in own}) > 1][:_SAID]
        parts = [[f"{name.split('.')[-1]}={one.get(name, ABSENT)}" for name in told] for one in own]
        return [
            " ".join([string.ascii_uppercase[place], one["policy"], *rest])
            for place, (one, rest) in enumerate(zip(own, parts, strict=True))
        ]

    def differing(self, records: Sequence[Record]) -> list[list[str]]:
        """Rows of the settings in which these runs differ, as far as they vary in the store: words and values."""
        own = [words_of(record) for record in records]
        rows = [[setting_words(name), *(one.get(name, ABSENT) for one in own)] for name in self.varying]
        return [row for row in rows if len(set(row[1:])) > 1]

    def get(self, key: str) -> Record | None:
        """The record of that key."""
        return self.store.get(key) if key in self._places else None

    def _of_segment(self, path: Path) -> list[Record]:
        try:
            records = read_segment(path)
        except FileNotFoundError:  # another process has merged it
            return []
        except InputError as error:
            self.damaged[path] = str(error)
            records = []
        self._within[path] = frozenset(record.key for record in records)
        return records

    def _of_file(self, path: Path) -> list[Record]:
        if path in self.damaged:
            return []
        try:
            return [read_loose(path)]
        except InputError as error:
            self.damaged[path] = str(error)
        except FileNotFoundError:  # another process has gathered it
            pass
        return []

    @property
    def trouble(self) -> list[str]:
        """What could not be read, the first few."""
        return list(self.damaged.values())[:_MOST_DAMAGED]
