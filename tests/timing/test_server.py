"""What a server adds to kernels, by hand: synchronous and asynchronous ones, graphs, collectives, calibrations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from framework.cli.arguments import configured
from framework.errors import InputError
from framework.system.parallelism import Parallelism
from framework.timing.calibration_terms import SERVER_TERMS, Calibration
from framework.timing.curves import Curve
from framework.timing.server import Server
from framework.timing.step_row import StepRow
from framework.timing.table import host_s, stack, step_s

ONE = Parallelism()
_GROUPS = ("timing", "model", "gpu")
_BOTH = ("vllm_2024", "measured timing.joint_attention=false")
WORK = Server("s", step_s=1.0, host_s=4.0, host_sequence_s=0.5, eager_layer_s=2.0, graph_tokens=8)
KERNELS = StepRow(linear=Curve((1.0, 101.0), (2.0, 102.0)))  # one second more than it has tokens


def seconds(server: Server, prefill_tokens: int, decodes: int, kernels: StepRow = KERNELS) -> float:
    chunks = [prefill_tokens] if prefill_tokens else []
    row = kernels + server.overheads(10, ONE)
    return step_s(stack([row]), 0, [0] * len(chunks), chunks, decodes, decodes * 4)


def test_a_synchronous_server_adds_the_work_of_its_host() -> None:
    # kernels 5 s, 1 s with them, 4 s of the host and half a second for each of four decodes
    assert seconds(WORK, 0, 4) == 5.0 + 1.0 + 4.0 + 4 * 0.5


def test_an_asynchronous_server_hides_the_work_of_its_host_behind_longer_kernels() -> None:
    hiding = Server("s", asynchronous=True, step_s=1.0, host_s=8.0, host_sequence_s=0.5)
    assert seconds(hiding, 0, 4) == 8.0 + 4 * 0.5  # over 5 + 1 of the GPU
    assert seconds(hiding, 12, 4) == 17.0 + 1.0  # over 10 of the host


def test_steps_that_no_graph_holds_are_launched_layer_by_layer() -> None:
    # ten layers of 2 s each to launch, where a step has over 8 tokens, with its kernels; the host's 4 s come before
    quick = StepRow(base_s=0.25)
    launched = Server("s", asynchronous=True, host_s=4.0, eager_layer_s=2.0, graph_tokens=8)
    assert seconds(launched, 8, 0, quick) == 4.0
    assert seconds(launched, 9, 0, quick) == 4.0 + 10 * 2.0
    assert host_s(stack([WORK.overheads(10, ONE)]), 0, 9, 2) == 1.0 + 4.0 + 2 * 0.5 + 20.0


@pytest.mark.parametrize(
    ("of_any", "per_seat", "seats", "largest"),
    [(512, 2, 128, 256), (512, 2, 1000, 512), (None, 2, 8, 16), (512, None, 8, 512), (512, 2, None, 512)],
)
def test_the_largest_graph_grows_with_the_seats(
    of_any: int | None, per_seat: int | None, seats: int | None, largest: float
) -> None:
    server = Server("s", graph_tokens=of_any, graph_tokens_per_seat=per_seat, seats=seats)
    assert server.overheads(10, ONE).graph_tokens == largest


@pytest.mark.parametrize(("seats", "largest"), [(256, 512), (128, 256), (8, 16)])
def test_vllm_captures_two_tokens_for_each_seat(seats: int, largest: int) -> None:
    server = configured(["policy=vllm_v1", f"engine.max_batch={seats}"], ("server",))["server"]
    assert server.overheads(10, ONE).graph_tokens == largest
    other = configured(["policy=sglang", f"engine.max_batch={seats}"], ("server",))["server"]
    assert other.overheads(10, ONE).graph_tokens == 512


@pytest.mark.parametrize(("gpus", "doublings"), [(1, 0), (2, 1), (8, 3)])
def test_gpus_wait_for_each_other_at_two_collectives_of_a_layer(gpus: int, doublings: int) -> None:
    row = Server("s", message_s=0.25).overheads(10, Parallelism(tp=gpus))
    assert row.base_s == 2 * 10 * 0.25 * doublings


def test_a_calibration_replaces_the_terms_of_a_server_and_nothing_else() -> None:
    calibration = Calibration(kernel=2.0, **{term: 7.0 + k for k, term in enumerate(SERVER_TERMS)})
    fitted = WORK.fitted(calibration)
    assert [getattr(fitted, term) for term in SERVER_TERMS] == [7.0 + k for k in range(len(SERVER_TERMS))]
    assert (fitted.name, fitted.asynchronous, fitted.graph_tokens) == ("s", False, 8)
    assert WORK.fitted(None) == WORK


def test_requests_are_read_token_by_token() -> None:
    row = Server("s", request_s=0.5, token_s=0.25).overheads(10, ONE)
    assert (row.request_s, row.intake_token_s, row.intake_s) == (0.5, 0.25, 0.0)
    assert row.graph_tokens == np.inf


def test_requests_are_late_if_the_server_has_jitter() -> None:
    server = Server("s", late_share=0.25, late_s=0.5)
    rows = [replace(server, jitter=jitter).overheads(10, ONE) for jitter in (0.0, 1.0, 2.0, 5.0)]
    assert [(row.late_share, row.late_s) for row in rows] == [(0.0, 0.0), (0.25, 0.5), (0.5, 0.5), (1.0, 0.5)]


def test_a_host_works_longer_for_several_gpus() -> None:
    ray = Server("s", host_s=1.0, host_sequence_s=0.25, host_by_tp={2: [3.0, 0.5], 4: [4.0, 0.75]})
    rows = [ray.overheads(10, Parallelism(tp)) for tp in (1, 2, 4, 8)]
    assert [(row.base_s, row.between_sequence_s) for row in rows] == [(1.0, 0.25), (3.0, 0.5), (4.0, 0.75), (4.0, 0.75)]
    assert ray.fitted(Calibration(host_s=2.0)).overheads(10, Parallelism(4)).base_s == 2.0


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_timing_vllm_2024_is_the_kernels_the_waves_and_the_work_of_that_server(tp: int) -> None:
    parts = [
        f"model=llama3_8b gpu=a100 policy=chunked server=none cluster.tp={tp} timing={timing}".split()
        for timing in _BOTH
    ]
    (timing, *known), (kernels, *_) = (configured(words, _GROUPS).values() for words in parts)
    setup = (*known, Parallelism(tp))
    row, alone = timing.row(*setup), kernels.row(*setup)
    host_s, decode_s = {1: (1.408e-3, 1.052e-4), 2: (3.653e-3, 1.816e-4), 4: (4.012e-3, 2.480e-4)}[tp]
    assert (row.base_s, row.between_sequence_s) == (alone.base_s + host_s, decode_s)
    assert (row.linear, row.attention, row.decode) == (alone.linear, alone.attention, alone.decode)
    assert (row.request_s, row.intake_token_s, row.eager_s) == (0.0, 0.0, 0.0)
    assert row.waste is not None
    assert "server vllm_2024), chunks in waves" in timing.source


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"host_by_tp": {2: [1.0]}}, "server.host_by_tp: tp 2 must have seconds of a step and of a decode"),
        ({"asynchronous": 1}, "server.asynchronous must be true or false"),
        ({"graph_tokens": 0}, "server.graph_tokens"),
        ({"graph_tokens_per_seat": 0}, "server.graph_tokens_per_seat"),
        ({"seats": 1.5}, "server.seats"),
        ({"host_s": -1.0}, "server.host_s"),
        ({"message_s": float("nan")}, "server.message_s"),
    ],
)
def test_values_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Server(**changes)


@pytest.mark.parametrize("name", ["vllm_v0", "vllm_2024", "vllm_v1", "sglang", "trtllm"])
def test_servers_that_ship_name_themselves(name: str) -> None:
    server = configured([f"server={name}", "policy=vllm_v1"], ("server",))["server"]
    assert (server.name, server.asynchronous) == (name, name not in ("vllm_v0", "vllm_2024"))
