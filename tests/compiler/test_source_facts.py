"""What is kept of source files between processes: right, or read again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT

LONG_AGO_S = time.time() - 3600
READ = """
import sys
from pathlib import Path
from framework.compiler import source_facts

reads = []
read = source_facts._read
source_facts._read = lambda file: reads.append(file) or read(file)
found = source_facts.facts(source_facts.stamp_of(Path(sys.argv[1])))
print(len(reads), *found.names)
"""


def write(file: Path, text: str, changed_s: float = LONG_AGO_S) -> None:
    file.write_text(text)
    os.utime(file, (changed_s, changed_s))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    source = tmp_path / "one.py"
    write(source, "import a")
    return source


def facts_of(file: Path) -> str:
    """What another process says: how often it read the file, and the names that it imports."""
    environment = os.environ | {"XDG_CACHE_HOME": str(file.parent / "cache")}
    environment.pop("NUMBA_CACHE_DIR", None)
    words = [sys.executable, "-c", READ, str(file)]
    return subprocess.run(words, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout.strip()


def test_a_file_is_read_once_until_it_changes(file: Path) -> None:
    assert [facts_of(file), facts_of(file)] == ["1 a", "0 a"]
    write(file, "import b", LONG_AGO_S + 1)
    assert [facts_of(file), facts_of(file)] == ["1 b", "0 b"]
    write(file, "import ccc", LONG_AGO_S + 1)
    assert facts_of(file) == "1 ccc"


def test_a_file_that_was_just_written_may_change_again_unseen(file: Path) -> None:
    write(file, "import a", time.time())
    assert [facts_of(file), facts_of(file)] == ["1 a", "1 a"]


@pytest.mark.parametrize("damage", [b"", b"[1]", b'{"', b"\xff", b'{"a": 1}'])
def test_what_cannot_be_understood_is_read_again(file: Path, damage: bytes) -> None:
    assert facts_of(file) == "1 a"
    (kept,) = (file.parent / "cache").rglob("facts.json")
    kept.write_bytes(damage)
    assert facts_of(file) == "1 a"


def test_an_entry_that_is_not_one_is_read_again(file: Path) -> None:
    assert facts_of(file) == "1 a"
    (kept,) = (file.parent / "cache").rglob("facts.json")
    kept.write_text(kept.read_text().replace('["a"]', "7"))
    assert facts_of(file) == "1 a"


def test_files_that_have_gone_are_forgotten(file: Path) -> None:
    other = file.with_name("two.py")
    write(other, "import c")
    facts_of(other)
    other.unlink()
    facts_of(file)
    (kept,) = (file.parent / "cache").rglob("facts.json")
    assert "one.py" in kept.read_text()
    assert "two.py" not in kept.read_text()
