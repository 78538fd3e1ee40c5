"""The storage of a study: opened, checked to be the same study, and shared by processes that may be killed."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import socket
import threading
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.study import Study, StudyDirection
from optuna.trial import TrialState
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from framework.cli.files import require_writable
from framework.cli.safe_text import masked, secrets_of, without
from framework.errors import InputError

OWNER = "owner"  # user attribute of a trial: the process that runs it
_IDENTITY = "identity"  # user attribute of a study: what it searches
_ALIVE = "alive "  # prefix of user attributes of a study: how often a process has reported
_CONNECT_S = 10
_BEAT_S, _SILENT_S = 10.0, 60.0  # a process on another machine reports, and counts as gone
_UNOWNED_S = 60.0  # a trial that was begun by an unknown process


def open_storage(place: str) -> BaseStorage:
    """A journal file, made if needed, or the database of a URL. Raises InputError if it cannot be reached."""
    if "://" not in place:
        return _journal(Path(place))
    scheme = place.split("://")[0]
    # Drivers of networked databases know connect_timeout; SQLite waits for locks instead.
    waits = {"timeout": _CONNECT_S} if scheme.startswith("sqlite") else {"connect_timeout": _CONNECT_S}
    try:
        return _database(place, {"connect_args": waits, "pool_pre_ping": True})
    except ImportError as error:
        raise InputError(f"storage={masked(place)}: its driver is not installed ({error}); pip install it") from error
    except Exception as error:  # every database has its own errors
        said = str(getattr(error, "orig", None) or error).strip() or type(error).__name__
        reason = without(said.splitlines()[0], secrets_of(place))
        raise InputError(f"storage={masked(place)}: cannot be reached ({reason})") from error


def open_study(storage: BaseStorage, name: str, directions: list[StudyDirection], identity: Mapping[str, Any]) -> Study:
    """The study of that name, begun if needed.

    `identity`: what is searched, flat; a study of something else is refused with InputError, unless it has no results
    yet: then it is begun anew.
    """
    study = optuna.create_study(storage=storage, study_name=name, directions=directions, load_if_exists=True)
    known = study.user_attrs.get(_IDENTITY)
    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    if known != identity and trials:
        raise InputError(
            f"study {name} is of something else ({_difference(known or {}, identity)}); choose another with name=NAME"
        )
    if known != identity and (known is not None or study.directions != directions):
        optuna.delete_study(study_name=name, storage=storage)
        study = optuna.create_study(storage=storage, study_name=name, directions=directions)
    study.set_user_attr(_IDENTITY, dict(identity))
    return study


def dashboard(place: str) -> str:
    """How to see the studies of a storage in a browser, by optuna-dashboard."""
    command = f"optuna-dashboard {shlex.quote(masked(place))}"
    known = importlib.util.find_spec("optuna_dashboard") is not None
    return (
        f"trials in a browser, also of a study that runs: {'' if known else 'pip install optuna-dashboard; '}{command}"
    )


def only_study(storage: BaseStorage, default: str) -> str:
    """The name of the one study in `storage`; `default` if there is none, or if it is one of several.

    Raises InputError for several others.
    """
    names = optuna.get_all_study_names(storage)
    if not names or default in names:
        return default
    if len(names) > 1:
        raise InputError(f"the storage has several studies: choose one of {', '.join(names)} or another with name=NAME")
    return names[0]


class Presence:
    """Knows which processes that share a study still run; while it is entered, others can see this one.

    Processes of the same machine are looked up; others count as gone after a minute without a report.
    """

    def __init__(self, study: Study) -> None:
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{_started(os.getpid())}"
        self._study = study
        self._heard: dict[str, tuple[Any, float]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Presence:
        self._study.set_user_attr(_ALIVE + self.owner, 0)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def is_running(self, trial: optuna.trial.FrozenTrial) -> bool:
        """Whether a running process has a trial that has begun and not ended."""
        owner = trial.user_attrs.get(OWNER)
        if owner is not None:
            return self._is_there(str(owner))
        if trial.datetime_start is not None and time.time() - trial.datetime_start.timestamp() > _UNOWNED_S:
            return False
        said = [key.removeprefix(_ALIVE) for key in self._study.user_attrs if key.startswith(_ALIVE)]
        return any(self._is_there(other) for other in said if other != self.owner)

    def _is_there(self, owner: str) -> bool:
        host, pid, started = owner.rsplit(":", 2)
        if host == socket.gethostname():
            return _started(int(pid)) == started
        return self._is_heard(owner)

    def _is_heard(self, owner: str) -> bool:
        said = self._study.user_attrs.get(_ALIVE + owner)
        last, at_s = self._heard.get(owner, (None, 0.0))
        if owner not in self._heard or said != last:
            self._heard[owner] = (said, time.monotonic())
            return True
        return time.monotonic() - at_s < _SILENT_S

    def _beat(self) -> None:
        beats = 0
        while not self._stop.wait(_BEAT_S):
            beats += 1
            try:
                self._study.set_user_attr(_ALIVE + self.owner, beats)
            except Exception:  # the search meets it too, and reports it
                return


def _started(pid: int) -> str:
    """The start time of a process of this machine, as its kernel counts; empty if there is none (any more)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except OSError:
        return ""
    return "" if Path("/proc/self/stat").exists() else "running"


def _journal(path: Path) -> BaseStorage:
    path = path.absolute()  # A lock links to this path; an absolute path shows its age when its process has died.
    require_writable(path.parent)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            backend = JournalFileBackend(str(path))
            _drop_unfinished(path)
            return JournalStorage(backend)
    except OSError as error:
        raise InputError(f"storage={path}: cannot be written ({error.strerror}); choose another file") from error
    except (ValueError, KeyError) as error:
        raise InputError(f"storage={path}: not a journal of studies; choose another file") from error


def _database(url: str, engine: dict[str, Any]) -> BaseStorage:
    for pause_s in (0.3, 1.0):
        try:
            return RDBStorage(url, engine_kwargs=engine)
        except (IntegrityError, OperationalError, ProgrammingError) as error:
            if not any(word in str(error) for word in ("already exists", "duplicate key", "UNIQUE constraint")):
                raise
        time.sleep(pause_s)  # Another process makes the same tables.
    return RDBStorage(url, engine_kwargs=engine)


def _drop_unfinished(path: Path) -> None:
    """Cut off a last line that a killed process left incomplete: further lines would never be read.

    Raises ValueError for a file that is no journal.
    """
    lock = JournalFileSymlinkLock(str(path))
    lock.acquire()
    try:
        with path.open("r+b") as journal:
            lines = journal.readlines()
            whole = [line for line in lines if line.endswith(b"\n")]
            if lines and not (
                whole and isinstance(json.loads(whole[0]), dict) and isinstance(json.loads(whole[-1]), dict)
            ):
                raise ValueError("no line of it is an entry")
            journal.truncate(sum(map(len, whole)))
    finally:
        lock.release()


def _difference(known: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """The first thing in which two identities differ."""
    for name in (*asked, *known):
        if known.get(name) != asked.get(name):
            return f"{name}: {known.get(name, 'none')} there, {asked.get(name, 'none')} here"
    return "other objectives"
