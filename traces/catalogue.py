"""Public traces by name: where each is published, how its file is found, and what replaces a missing file."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from framework.cli.files import user_cache
from framework.cli.terminal import warn_once
from framework.errors import InputError
from traces import formats
from traces.frame import Trace

DOWNLOAD_S = 5.0  # seconds that a run waits for a download
CHUNK_BYTES = 1 << 16
OFFLINE = "TRACES_OFFLINE"  # set (not to 0): never download
FOLDER = "TRACES_DIR"
_MOONCAKE = "https://raw.githubusercontent.com/kvcache-ai/Mooncake"
_AZURE = "https://raw.githubusercontent.com/Azure/AzurePublicDataset/master/data"
_MOONCAKE_PAPER = "Qin et al., Mooncake: Trading More Storage for Less Computation, FAST 2025"
_AZURE_PAPER = "Patel et al., Splitwise: Efficient Generative LLM Inference Using Phase Splitting, ISCA 2024"
_SERVEGEN_PAPER = "Xiang et al., ServeGen: Workload Characterization and Generation of LLM Serving in Production, 2025"


@dataclass(frozen=True)
class Published:
    """A public trace. `url` None: only its fitted trace is available. `twin` None: nothing replaces the file."""

    file: str | None
    url: str | None
    sha256: str | None  # None: the URL names a commit, and the content is not checked again
    format: str
    licence: str
    citation: str
    twin: str | None = None


def _mooncake(file: str, revision: str, sha256: str | None, twin: str | None = None) -> Published:
    url = f"{_MOONCAKE}/{revision}/FAST25-release/traces/{file}"
    return Published(file, url, sha256, "mooncake", "Apache-2.0", _MOONCAKE_PAPER, twin)


def _azure(name: str, sha256: str) -> Published:
    file = f"AzureLLMInferenceTrace_{name}.csv"
    return Published(file, f"{_AZURE}/{file}", sha256, "azure", "CC-BY-4.0", _AZURE_PAPER, f"azure_{name}")


CATALOGUE: Mapping[str, Published] = MappingProxyType(
    {
        "mooncake": _mooncake(
            "conversation_trace.jsonl",
            "a2a4b18ac537fd798d50e6e9f57031ce86419a37",
            "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
            twin="mooncake",
        ),
        "mooncake_toolagent": _mooncake(
            "toolagent_trace.jsonl", "main", "48a2db1a13d3bc05e6330140c64f604ba366df20d3c9e128b5c35a01c1fa5f71"
        ),
        "mooncake_synthetic": _mooncake(
            "synthetic_trace.jsonl", "3cca71daccf2a7afb8fe3f0295358f70e3a69fdb", sha256=None
        ),
        "azure_conv": _azure("conv", "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8"),
        "azure_code": _azure("code", "54e9a6d2a4bd06ba1e060304b900abbc74cbea53de96506e60fe5bb4f2277fb6"),
        "reasoning": Published(None, None, None, "servegen", "Apache-2.0", _SERVEGEN_PAPER, twin="reasoning"),
    }
)


def entry(name: str) -> Published:
    """The published trace of that name. Raises InputError with the known names."""
    if name not in CATALOGUE:
        known = ", ".join(CATALOGUE)
        raise InputError(f"trace {name!r} is not known; there are {known}; any file works as trace.path=FILE")
    return CATALOGUE[name]


def obtain(name: str, requests: int | None = None, seed: int = 0) -> Trace:
    """A public trace: its file from $TRACES_DIR, the user cache or a download, else its fitted trace, reported on
    stderr.

    `requests` is the length of the fitted trace's sample (None: as long as the recording) and `seed` its seed; neither
    applies to a recording. Raises InputError if neither file nor fitted trace is available.
    """
    known = entry(name)
    path = find(name)
    failure = "the recording is not public as one file"
    if path is None and known.url is not None:
        path, failure = download_once(name)
    if path is not None:
        trace = replace(formats.read(path, known.format), name=name)
        return replace(trace, notes=(*trace.notes, *_provenance(known, trace.sha256)))
    if known.twin is None:
        raise InputError(
            f"trace {name}: {failure}; put {known.file} into ${FOLDER}, or run python -m traces.fetch {name}"
        )
    from traces.fitted.fitted_trace import sample_fitted

    if known.url is not None:
        warn_once(
            f"WARNING: trace {name}: using its fitted trace, a sample of fitted distributions, not the recording"
            f" ({failure}). Put {known.file} into ${FOLDER}, or run python -m traces.fetch {name}."
        )
    return sample_fitted(known.twin, requests, seed)


def cache_folder() -> Path:
    """The user's cache of downloaded traces."""
    return user_cache() / "traces"


def find(name: str) -> Path | None:
    """The trace's file in $TRACES_DIR or the user cache, None if it is missing."""
    file = entry(name).file
    folder = os.environ.get(FOLDER)
    places = [*([Path(folder).expanduser()] if folder else []), cache_folder()]
    return next((place / file for place in places if file is not None and (place / file).is_file()), None)


def download(name: str, timeout_s: float) -> Path:
    """Download a trace into the user cache, verify it, and return its path, all within `timeout_s`.

    Raises InputError if that fails: no network, too slow, other content, cache not writable.
    """
    known = entry(name)
    if known.url is None or known.file is None:
        raise InputError(f"trace {name}: there is no file to download, it is sampled from its fitted trace")
    data = _get(known.url, timeout_s)
    found = hashlib.sha256(data).hexdigest()
    if known.sha256 is not None and found != known.sha256:
        raise InputError(f"download of {known.url}: sha256 is {found}, expected {known.sha256}")
    path = cache_folder() / known.file
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
    return path


@functools.cache
def download_once(name: str) -> tuple[Path | None, str]:
    """The downloaded file or the reason why there is none; asked once in a process, so that a sweep waits once."""
    if os.environ.get(OFFLINE, "0") not in ("", "0"):
        return None, f"no file found, downloads are off by ${OFFLINE}"
    try:
        return download(name, DOWNLOAD_S), ""
    except InputError as error:
        return None, f"no file found, {error}"


def _get(url: str, timeout_s: float) -> bytes:
    """The content at a URL. A thread reads it, since no timeout of the library bounds a hanging name look-up."""
    from http.client import HTTPException  # with ssl and email, which few runs need
    from urllib.request import urlopen

    deadline = time.monotonic() + timeout_s
    content = bytearray()
    outcome: list[str] = []  # "" once complete, else the error

    def fetch() -> None:
        try:
            with urlopen(url, timeout=timeout_s) as response:
                while time.monotonic() < deadline:
                    chunk = response.read1(CHUNK_BYTES)
                    if not chunk:
                        outcome.append("cut short" if response.length else "")
                        return
                    content.extend(chunk)
        except (OSError, ValueError, HTTPException) as error:
            outcome.append(str(getattr(error, "reason", error)))

    reader = threading.Thread(target=fetch, daemon=True)
    reader.start()
    reader.join(timeout_s)
    if outcome == [""]:
        return bytes(content)
    raise InputError(f"download of {url} failed: {outcome[0] if outcome else f'not done within {timeout_s:g} s'}")


def _provenance(known: Published, sha256: str) -> tuple[str, ...]:
    if known.sha256 is None:
        return (f"{known.file}: no published sha256 to compare with",)
    if sha256 != known.sha256:
        return (f"{known.file} is not the published file: its sha256 is {sha256}",)
    return ()
