"""Files as people have them: each gives its right value, or a line that says what to do."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from framework.errors import InputError
from framework.workload import Workload
from tests.traces.wild_cases import CASES, Case
from tests.traces.wild_variants import VARIANTS
from traces.load import load

ALL = (*CASES, *VARIANTS)


@pytest.mark.slow
@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_a_file_found_in_the_wild(case: Case, tmp_path: Path) -> None:
    path = tmp_path / case.name
    path.write_bytes(case.content.encode() if isinstance(case.content, str) else case.content)
    if case.refused:
        with pytest.raises(InputError) as caught:
            load(path=path, **case.settings)
        assert case.refused in str(caught.value)
        assert "\n" not in str(caught.value)
        return
    workload = load(path=path, **case.settings)
    assert [row[1:] for row in rows(workload)] == [row[1:] for row in case.rows]
    assert workload.arrival_s.tolist() == pytest.approx([row[0] for row in case.rows])
    assert case.note in "; ".join(workload.notes)
    if case.think_s:
        assert workload.think_s is not None
        assert workload.think_s.tolist() == pytest.approx(case.think_s)
    else:
        assert workload.previous is None


def rows(workload: Workload) -> list[tuple[float, int, int]]:
    columns = (workload.arrival_s, workload.input_tokens, workload.output_tokens)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_each_case_has_a_name_of_its_own_and_a_source() -> None:
    assert len({case.name for case in ALL}) == len(ALL) >= 40
    assert all(case.source and bool(case.refused) != bool(case.rows) for case in ALL)


# ---- inputs that are not in the repository: their folder is $WILD_DIR

WILD = os.environ.get("WILD_DIR", "")
at_hand = pytest.mark.skipif(not WILD, reason="WILD_DIR is not set: no such files at hand")


def wild(name: str) -> Path:
    return Path(WILD) / name


def named(arrival: str, inputs: str, outputs: str) -> dict[str, str]:
    return {"arrival_s": arrival, "input_tokens": inputs, "output_tokens": outputs}


@at_hand
def test_what_is_read_of_files_at_hand() -> None:
    assert np.allclose(load(path=wild("aiperf-repeated.jsonl")).arrival_s, np.arange(6) / 10)
    assert load(path=wild("aiperf-repeated.jsonl")).previous is None
    log = load(path=wild("openai-created-ms.jsonl"))
    assert "as ms it would be 4 requests/s in 2027: set trace.unit=ms" in "; ".join(log.notes)
    assert np.allclose(load(path=wild("openai-created-ms.jsonl"), unit="ms").arrival_s[:2], [0, 0.25])
    assert rows(load(path=wild("burst-with-failures.csv"))) == [(0.0, 110, 45), (7.0, 90, 30)]
    array = load(path=wild("array.json"), columns=named("start_time", "info.input_tokens", "info.output_tokens"))
    assert rows(array) == [(0.0, 10, 4), (1.0, 10, 4), (2.0, 10, 4)]
    assert rows(load(path=wild("vllm-appended.json"), result=2)) == [(0.0, 10, 3), (1.0, 20, 4)]
    assert load(path=wild("mooncake-u64.jsonl")).hash_ids.tolist() in ([0, 1, 0, 2, 0, 3], [1, 2, 1, 3, 1, 4])
    images = load(path=wild("servegen-image"))
    assert set(images.input_tokens.tolist()) == {1100, 1200}
    assert load(path=wild("anthropic-usage.jsonl")).input_tokens.tolist() == [1005, 1005]
    assert "columns left out: (column 1, no name)" in load(path=wild("index-column.csv")).notes
    names = {"arrival_us": "arrival_time_us", "input_tokens": "input_tokens", "output_tokens": "output_tokens"}
    assert load(path=wild("session-column.csv"), columns=names).previous is None
    ticks = load(path=wild("ns-arrivals.csv"), columns=named("arrival", "input", "output"))
    assert load(path=wild("nested-requests.json")).input_tokens.tolist() == [200, 260]
    assert "as ns it would be 2 requests/s: name it as arrival_ns" in "; ".join(ticks.notes)


@at_hand
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("vllm-appended.json", "holds 2 results (--append-result); choose one by trace.result=1 to 2"),
        ("ns-arrivals.csv", "arrival_ns: arrival, input_tokens: input, output_tokens: output"),
    ],
)
def test_what_is_refused_of_files_at_hand(name: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        load(path=wild(name))
    assert words in str(caught.value)
