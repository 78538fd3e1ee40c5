"""What must stay secret in a URL reaches no file, no table and no stream."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from experiments.tune import plots
from framework.cli.conf import CONF
from framework.cli.explain import explain
from framework.cli.launch import _report_bug
from framework.cli.safe_text import masked, one_line, printable, secrets_of, without
from framework.cli.streams import report_error
from framework.errors import InputError
from tests.helpers.launcher import typed

SECRET = "S3cret"
SEARCH = ("policy=chunked", "trace=synthetic", "trace.limit=20", "space=chunked", "space.gpus=2", "trials=2")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://bob:S3cret@host:5432/db", "postgresql://***@host:5432/db"),
        ("postgresql://S3cret@host/db", "postgresql://***@host/db"),
        ("postgresql://bob:S3cret@host/db?sslmode=S3cret&x=S3cret", "postgresql://***@host/db?sslmode=***&x=***"),
        ("postgresql://bob:S3@S3cret@host/db", "postgresql://***@host/db"),
        ("postgresql://bob:S3?S3cret@host/db", "postgresql://***"),
        ("sqlite:///t.db?secret=S3cret", "sqlite:///t.db?secret=***"),
        ("sqlite:///t.db?S3cret", "sqlite:///t.db?***"),
        ("sqlite:///t.db?secret=S3cret@S3cret", "sqlite://***"),
        ("sqlite:///t.db#S3cret", "sqlite:///t.db#***"),
        ("redis://:S3cret@h and mysql+pymysql://u:S3cret@h", "redis://***@h and mysql+pymysql://***@h"),
        ("://bob:S3cret@host", "://***@host"),
        ("postgresql://bob:S3'S3cret@host/db", "postgresql://***@host/db"),
        ("(postgresql://bob:S3cret@host/db).", "(postgresql://***@host/db)."),
        ("'postgresql://bob:S3cret@host'", "'postgresql://***@host'"),
        ("no URL: S3://", "no URL: S3://"),
        ("https://example.org/a/b.html", "https://example.org/a/b.html"),
    ],
)
def test_urls_are_shown_without_their_secrets(text: str, shown: str) -> None:
    assert masked(text) == shown
    assert masked(shown) == shown
    assert SECRET not in one_line(f"about  {text}\n")


def test_what_a_driver_quotes_is_masked_too() -> None:
    secrets = secrets_of("storage=postgresql://bobby:S3%20cret@host/db?options=Other1")
    assert without('password "S3 cret" of "bobby" (S3%20cret, Other1) failed', secrets) == (
        'password "***" of "***" (***, ***) failed'
    )


def test_errors_and_bugs_are_masked(capsys: pytest.CaptureFixture[str]) -> None:
    error = InputError(f"storage=postgresql://bob:{SECRET}@host: no\x1b[31m\nline")
    assert explain(error) == "storage=postgresql://***@host: no\\x1b[31m line"
    report_error(str(error))
    try:
        raise RuntimeError(f"cannot open mysql://bob:{SECRET}@host")
    except RuntimeError:
        _report_bug(*sys.exc_info())
    said = capsys.readouterr().err
    assert "RuntimeError: cannot open mysql://***@host" in said
    assert SECRET not in said


def test_a_line_is_short_and_can_be_printed() -> None:
    assert len(one_line("x" * 100_000)) < 1_000
    assert len(one_line("a b " * 100_000)) < 2_000
    assert one_line("a\x00b\x07\x1b]0;title\x07\u202ec") == "a\\x00b\\x07\\x1b]0;title\\x07\\u202ec"
    assert printable("a\nb\tc") == "a\\nb\\tc"


@pytest.fixture
def name() -> Iterator[str]:
    name = f"test-{uuid4().hex[:8]}"
    yield name
    for path in (CONF / "tuned").glob(f"{name}*.yaml"):
        path.unlink()


@pytest.mark.filterwarnings("ignore")
def test_a_study_leaves_no_secret(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plots, "draw", lambda found, out: None)
    url = f"sqlite:///t.db?cached_statements=77&secret={SECRET}"
    code = typed("tune")([*SEARCH, f"name={name}", f"storage={url}"])
    out, err = capfd.readouterr()
    assert code == 0, err
    left = {path: path.read_bytes() for path in (*tmp_path.rglob("*"), *(CONF / "tuned").glob(f"{name}*"))
            if path.is_file()}  # fmt: skip
    assert {"best.yaml", "trials.csv", f"{name}.yaml", "t.db"} <= {path.name for path in left}
    assert b"secret=***" in (CONF / "tuned" / f"{name}.yaml").read_bytes()
    found = [path for path, content in left.items() if SECRET.encode() in content or b"=77" in content]
    assert not found
    assert SECRET not in out + err


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://bobby:{SECRET}@127.0.0.1:1/x",
        f"postgresql+nonesuch://bobby:{SECRET}@127.0.0.1:1/x?password={SECRET}",
        f"mysql://bobby:{SECRET}@127.0.0.1:1/x",
        f"nonesuch://bobby:{SECRET}@127.0.0.1/x",
        f"sqlite:///missing/t.db?key={SECRET}",
        f"sqlite://bobby:{SECRET}@host/t.db",
        f"sqlite:///t.db?timeout={SECRET}",
        f"://bobby:{SECRET}@host",
        f"postgresql://bobby:{SECRET}@host:port/x",
    ],
)
def test_a_storage_that_cannot_be_opened_tells_no_secret(
    url: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = typed("tune")([*SEARCH, f"name={name}", f"storage={url}"])
    out, err = capfd.readouterr()
    assert code == 2
    assert len(err.splitlines()) == 1
    assert SECRET not in out + err
    assert "bobby" not in out + err
    assert not list(tmp_path.rglob("*.yaml"))
