"""ServeGen clients: what is read is what is sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from framework.errors import InputError
from tests.helpers.launcher import typed
from traces.drawn.servegen import BUSY_REQUESTS, busy_requests, draw_requests, folder_sha256, read_clients
from traces.fitted.fitted_trace import load_fitted
from traces.load import load


def write_client(
    folder: Path, number: int, rates: list[float], inputs: dict[int, float], family: str = "Gamma"
) -> None:
    rows = [f"{600 * k},{rate},1.0,{family if rate else ''},{0.8 if rate else 0},1" for k, rate in enumerate(rates)]
    (folder / f"chunk-{number}-trace.csv").write_text("\n".join(rows) + "\n")
    empty = {"input_tokens": "{}", "output_tokens": "{}", "reason_ratio": "{}"}
    lengths = {"input_tokens": str(inputs), "output_tokens": "{5: 0.25, 900: 0.75}", "reason_ratio": "{}"}
    (folder / f"chunk-{number}-dataset.json").write_text(json.dumps({"0": empty, "600": lengths}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_client(tmp_path, 0, [0.0, 2.0, 2.0], {10: 0.5, 20: 0.5})
    write_client(tmp_path, 1, [0.5, 0.5, 0.0], {3000: 1.0}, family="Weibull")
    return tmp_path


def test_clients_send_at_their_rates(folder: Path) -> None:
    clients = read_clients(folder)
    assert [client.number for client in clients] == [0, 1]
    trace = draw_requests(clients, 0.0, 3000, seed=1)
    arrival, inputs = trace.arrival_s, trace.frame["input_tokens"].to_numpy()
    first = 600 - arrival[inputs < 3000][0]  # the trace begins with its first request, client 0 in the second window
    assert np.sum(inputs == 3000) == 600
    assert np.sum(inputs < 3000) == 2400
    assert 0 <= first < 30
    assert np.all(np.diff(arrival) >= 0)
    outputs = trace.frame["output_tokens"].to_numpy()
    assert set(outputs.tolist()) == {5, 900}
    assert np.mean(outputs == 900) == pytest.approx(0.75, abs=0.03)


def test_same_seed_same_requests(folder: Path) -> None:
    clients = read_clients(folder)
    assert draw_requests(clients, 0, 500, 1).frame.equals(draw_requests(clients, 0, 500, 1).frame)
    assert not draw_requests(clients, 0, 500, 1).frame.equals(draw_requests(clients, 0, 500, 2).frame)


def test_requests_begin_where_asked(folder: Path) -> None:
    late = draw_requests(read_clients(folder), 1200.0, 1000, 0)
    assert late.frame["input_tokens"].max() == 20  # the client with prompts of 3000 is silent by then


def test_mistakes_name_file_and_line(folder: Path) -> None:
    with pytest.raises(InputError, match="3000 requests"):
        draw_requests(read_clients(folder), 0.0, 3001, 0)
    with pytest.raises(InputError, match="no ServeGen client"):
        read_clients(folder / "nowhere")
    trace, data = folder / "chunk-1-trace.csv", folder / "chunk-1-dataset.json"
    good = trace.read_text()
    for line, reason in (
        ("0,0.5,1,Gamma,1", "5 columns"),
        ("0,x,1,Gamma,1,1", "numbers"),
        ("0,-1,1,Gamma,1,1", "not negative"),
        ("0,nan,1,Gamma,1,1", "finite"),
        ("0,1,1,Pareto,1,1", "Pareto"),
    ):
        trace.write_text(f"0,0,0,,0,0\n{line}\n")
        with pytest.raises(InputError, match=rf"chunk-1-trace.csv, line 2: .*{reason}"):
            read_clients(folder)
    trace.write_text(good)
    data.write_text('{"0": {"input_tokens": "{1: 1.0}"}}')
    with pytest.raises(InputError, match=r"chunk-1-dataset.json: not a ServeGen dataset"):
        read_clients(folder)
    data.unlink()
    with pytest.raises(InputError, match="missing"):
        read_clients(folder)


def test_a_client_without_lengths_cannot_send(folder: Path) -> None:
    (folder / "chunk-1-dataset.json").write_text("{}")
    with pytest.raises(InputError, match="client 1 sends requests but has no token lengths"):
        draw_requests(read_clients(folder), 0.0, 100, 0)


@pytest.mark.slow  # as tests/traces/test_fitted_trace.py has it of others
def test_the_reasoning_twin_is_what_the_fit_command_writes(real_trace: Callable[[str], Path], tmp_path: Path) -> None:
    clients = real_trace("servegen_deepseek_r1")
    shipped = load_fitted("reasoning")
    assert folder_sha256(clients) == shipped.original_sha256
    provenance = [f"{key}={getattr(shipped, key)}" for key in ("original", "licence", "citation", "first_seed")]
    out = ["name=reasoning", f"out={tmp_path / 'reasoning.json'}"]
    assert typed("traces", "fit")([str(clients), "format=servegen", *out, *provenance]) == 0
    assert (tmp_path / "reasoning.json").read_text() == shipped.to_json()


@pytest.mark.slow  # the largest of the recordings that are read here
def test_reasoning_outputs_are_long_and_busy(real_trace: Callable[[str], Path]) -> None:
    trace = busy_requests(real_trace("servegen_deepseek_r1"))
    assert len(trace) == BUSY_REQUESTS
    assert "from 7200 s on" in trace.notes[0]
    assert np.mean(trace.frame["output_tokens"].to_numpy()) > 1000
    assert BUSY_REQUESTS / trace.arrival_s[-1] > 30


def test_each_seed_of_the_trace_is_another_draw(folder: Path) -> None:
    drawn = [load(path=folder, format="servegen", seed=seed).arrival_s.tolist() for seed in (0, 1, 1)]
    assert load(path=folder, format="servegen").arrival_s.tolist() == drawn[0]
    assert drawn[0] != drawn[1]
    assert drawn[1] == drawn[2]
    assert len({len(arrivals) for arrivals in drawn}) == 1
