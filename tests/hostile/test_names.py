"""Names with control characters are shown, not sent; a newline breaks no table; the cache is the user's own."""

from __future__ import annotations

import io
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from experiments.table.select import shown, value_of
from framework.calibration.benchmark_files import read_benchmark
from framework.cli.arguments import whole
from framework.cli.safe_text import one_line
from framework.compiler import user_cache
from framework.errors import InputError
from framework.policy import Aggregated
from framework.report.comparison_table import comparison_table
from framework.report.run_table import run_table
from framework.run.compose import _build
from framework.run.job import parts_of
from framework.run.store import Record
from tests.helpers.composing import configured
from traces.load import from_file

HOSTILE = "a\x1b[31m\nb\x07"
ROWS = "arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,3\n1,20,4\n"


def printed(renderable: Any) -> str:
    """What the console gets for it, without styles."""
    text = io.StringIO()
    Console(file=text, width=200).print(renderable)
    return text.getvalue()


def test_a_trace_named_by_control_characters_is_shown_escaped(tmp_path: Path) -> None:
    file = tmp_path / f"{HOSTILE}.csv"
    file.write_text(ROWS)
    assert from_file(str(file)).name == "a\\x1b[31m\\nb\\x07"
    config = configured("policy=chunked", "trace=mooncake")
    config.trace.path = str(file)
    objective, experiment = parts_of(config)
    measured = objective.measure(experiment)
    text = printed(run_table(measured.evaluation, measured.slo))
    assert "\x1b" not in text
    assert "a\\x1b[31m\\nb\\x07" in text
    labels = [f"trace.path={HOSTILE}", "other"]
    table = printed(comparison_table([measured.evaluation.summary] * 2, labels))
    assert "\x1b" not in table
    (line,) = [line for line in table.splitlines() if "trace.path" in line]
    assert "\\nb\\x07" in line


def test_a_benchmark_named_so_is_shown_escaped(tmp_path: Path) -> None:
    file = tmp_path / f"{HOSTILE}.csv"
    file.write_text("input_tokens,output_tokens,ttft_s,e2e_s\n10,3,0.1,0.3\n")
    assert read_benchmark(file).name.isprintable()


def test_a_policy_named_so_is_refused() -> None:
    class Odd(Aggregated):
        name = HOSTILE

    config = configured("policy=chunked")
    config.policy = {"_target_": f"{__name__}.odd"}
    globals()["odd"] = Odd
    with pytest.raises(InputError, match="must be a name"):
        _build(config, "policy", Aggregated)


def test_values_of_tables_are_shown_escaped() -> None:
    assert shown(HOSTILE) == "a\\x1b[31m\\nb\\x07"


@pytest.mark.parametrize(
    ("config", "played"),
    [
        ({"trace.path": "/x/own.csv", "trace.name": "mooncake"}, "own"),
        ({"trace.path": None, "trace.name": "azure_conv"}, "azure_conv"),
        ({"trace.path": None, "trace.name": "mooncake"}, "mooncake"),
        ({"trace.seed": 0}, "mooncake"),
    ],
)
def test_tables_name_the_trace_that_was_played(config: dict[str, Any], played: str) -> None:
    record = Record("k", config, {"trace": "mooncake"}, {"trace": played}, 1.0)
    assert value_of(record, "trace") == played


def test_numbers_of_thousands_of_digits_are_refused() -> None:
    with pytest.raises(InputError, match="whole number"):
        whole("trials", "9" * 5001)


# --- the cache --------------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test\'s own, by either variable; where it is refused, a temporary directory is taken."""
    user_cache._writable.cache_clear()
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return tmp_path / "cache"


@pytest.mark.parametrize("variable", ["NUMBA_CACHE_DIR", "XDG_CACHE_HOME"])
def test_a_cache_that_others_can_write_to_is_not_read(
    variable: str, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv(variable, str(cache))
    own = cache / "servelab" / "compiled"
    assert user_cache.user_directory("compiled") == own
    own.chmod(0o775)
    user_cache._writable.cache_clear()
    assert user_cache.user_directory("compiled") == own
    assert own.stat().st_mode & 0o022 == 0
    for folder in (own, own.parent):
        folder.chmod(0o777)
        user_cache._writable.cache_clear()
        assert str(user_cache.user_directory("compiled")).startswith(str(tmp_path / "temporary"))
        folder.chmod(0o755)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("variable", ["NUMBA_CACHE_DIR", "XDG_CACHE_HOME"])
def test_a_cache_of_somebody_else_is_not_read(
    variable: str, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv(variable, str(cache))
    own = cache / "servelab" / "compiled"
    own.mkdir(parents=True)
    os.chown(own, 12345, 12345)
    assert str(user_cache.user_directory("compiled")).startswith(str(tmp_path / "temporary"))


def test_a_name_of_a_gpu_or_a_model_is_one() -> None:
    config = configured("policy=chunked", "trace=synthetic", "trace.requests=5")
    _, experiment = parts_of(config)
    for name in ("", "a\nb", None):
        with pytest.raises(InputError, match="must be a name"):
            replace(experiment.model, name=name)  # type: ignore[arg-type]


def test_an_address_in_memory_is_not_reported() -> None:
    assert one_line(f"got {[object()]!r}, and 0x10 at 0x7fff0000") == "got [<object object>], and 0x10 at 0x7fff0000"
