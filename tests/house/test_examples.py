"""The files of examples/ run, in this process and as they stand."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import servelab
from experiments.judge.source import checked_source
from framework.cli.outside import class_of
from framework.engine.kv.prefix_tiers import PrefixStores, Tier
from framework.load import Open, Patience
from policies.chunked import Chunked
from tests.conftest import ROOT
from tests.engine.test_patience import play as play_with_one_seat
from tests.helpers.by_hand import fleet, play
from tests.helpers.scenarios import MODEL, prefixes

EXAMPLES = ROOT / "examples"
NOTEBOOK = "frame_to_figure.ipynb"  # tests/servelab/test_notebook.py runs it


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of one's own, no recording at hand: what these runs leave behind lies there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACES_OFFLINE", "1")
    monkeypatch.delenv("TRACES_DIR", raising=False)


def test_each_file_is_tried_here() -> None:
    files = {path.name for path in EXAMPLES.iterdir() if path.is_file()}
    policies = {"least_work.py", "interactive_first.py", "mlfq.py", "autoscaler.py", "freest.py", "fair_share.py"} | {
        "tool_ttl.py",
        "tool_prefetch.py",
        "moving_sessions.py",
    }
    assert files == policies | {
        "running_mean.py",
        "cheapest_first.py",
        "compare.py",
        "retry_storm.py",
        "batch_and_chat.py",
        "herding.py",
        "diurnal.py",
        "evolve.py",
        "flash_crowd.py",
        "planner.py",
        "switch_tp.py",
        "failover.py",
        "learn_router.py",
        "first_look.ipynb",
        NOTEBOOK,
    }


def test_what_a_search_proposes_is_a_policy() -> None:
    """Which the judge takes, and most are new."""
    evolve = runpy.run_path(str(EXAMPLES / "evolve.py"))
    rng, texts = np.random.default_rng(0), [evolve["FIRST"]]
    for _ in range(40):
        texts.append(evolve["changed"](texts[-1], rng))
        assert checked_source(texts[-1])[1] == "Router"
    assert len(set(texts)) > 20


def test_a_router_by_old_reports_herds() -> None:
    """All requests of 5 s go to one of eight instances; two random choices, or counts of its own, spread them."""
    herding = runpy.run_path(str(EXAMPLES / "herding.py"))
    found = {name: herding["run"](herding[name](), 5.0, 600) for name in ("Fewest", "TwoChoices", "OwnCounts", "Turns")}
    assert found["Fewest"][1] > 2.0
    assert max(found[name][1] for name in ("TwoChoices", "OwnCounts", "Turns")) < 1.0


@pytest.mark.slow
def test_bands_let_a_chat_pass_a_batch_unless_reports_are_old() -> None:
    both = runpy.run_path(str(EXAMPLES / "batch_and_chat.py"))
    found = [both["run"](**settings) for settings in ({}, both["GATEWAY"], {**both["GATEWAY"], **both["STALE"]})]
    assert [round(one["chat"][0], 3) for one in found] == [0.36, 0.977, 0.003]
    assert [round(one["batch"][0], 3) for one in found] == [1.0, 1.0, 0.998]


def test_the_policy_turns_away_what_would_wait() -> None:
    kind = class_of(EXAMPLES / "least_work.py", "LeastWork")
    patient, hasty = (servelab.run(kind(patience_s=limit), "azure_conv", rate=200, limit=300) for limit in (1e9, 0.5))
    assert patient.summary["completed"] == 300
    assert 0 < hasty.summary["rejected"] < 300
    assert set(hasty.requests["reason"].drop_nulls()) == {"too busy"}


@pytest.mark.parametrize("engine", ["compiled", "reference"])
def test_a_burst_of_retries_ends_if_load_is_shed(engine: str) -> None:
    """One seat, prompts of two steps of 1 s each, clients that give up after 3 s and come back 1 s, then 2 s later.

    Of three at 0, one is served; two are given up at 3 s, one after half of its prompt. Both come back at 4 s, with a
    fourth: one is served by 6 s, and of the others, given up at 7 s, one had half of its prompt again. So they are
    served at 10 s and 12 s, and 20 of 100 tokens were computed for nobody. A policy that turns away what would wait
    serves the first and the fourth within 2 s.
    """
    load = Open(patience=Patience(3.0, retries=2, retry_backoff_s=1.0))
    rows = [(0, 20, 1), (0, 20, 1), (0, 20, 1), (4, 20, 1)]
    storm = play_with_one_seat(engine, rows, load)
    assert (storm.requests["end_s"].tolist(), storm.attempts.tolist()) == ([2, 6, 12, 10], [1, 2, 3, 2])
    assert storm.instances["prefill_tokens"].tolist() == [100]
    calm = play_with_one_seat(engine, rows, load, class_of(EXAMPLES / "least_work.py", "LeastWork")(patience_s=1.5))
    assert calm.requests["end_s"].tolist() == [2, 0, 0, 6]
    assert calm.instances["prefill_tokens"].tolist() == [40]


def test_a_chat_request_does_not_wait_for_the_jobs_before_it() -> None:
    """Four jobs have all seats for 23.6 s; the one that steps aside comes back to the seat of the chat request."""
    jobs = {"input_tokens": [4000] * 4 + [200], "output_tokens": [3200] * 4 + [100], "priority": [0] * 4 + [1]}
    rows = pl.DataFrame({"arrival_s": [0.0] * 4 + [1.0], **jobs})
    kind = class_of(EXAMPLES / "interactive_first.py", "InteractiveFirst")
    settings = {"cluster__instances": 1, "engine__max_batch": 4}
    waits, first = (servelab.run(policy, rows, **settings).requests for policy in ("chunked", kind()))
    assert waits["ttft_s"].to_list()[4] > 20.0
    assert first["ttft_s"].to_list()[4] < 0.1
    assert first["preemptions"].to_list() == [1, 0, 0, 0, 0]
    assert first["state"].unique().to_list() == ["finished"]
    assert max(first["e2e_s"].to_list()) < 1.05 * max(waits["e2e_s"].to_list())


def test_a_feedback_queue_by_hand() -> None:
    """One seat, steps of 1 s; a level has 2, 4, 8 tokens. Request 0 of one prompt token is at the level of 4 with its
    third token, at 3 s. Request 1 comes at 3.5 s with 2 tokens, takes the seat at 4 s, and has it to its end. The
    prompt of request 2, of 8 tokens, skips to a level below that of request 0, and waits for its end at 10 s.
    """
    rows = pl.DataFrame({"arrival_s": [0.0, 3.5, 7.5], "input_tokens": [1, 2, 8], "output_tokens": [8, 2, 2]})
    policy = class_of(EXAMPLES / "mlfq.py", "SkipJoinMlfq")(quantum_tokens=2, decode_tokens=1, period_s=0.5)
    terms = ("per_prefill_token_s", "prefill_quadratic_s", "per_sequence_s", "per_context_token_s")
    settings: dict[str, Any] = {"timing": "affine", "timing__base_s": 1.0, **{f"timing__{term}": 0.0 for term in terms}}
    run = servelab.run(policy, rows, cluster__instances=1, engine__max_batch=1, server="none", **settings)
    ends_s = run.requests["arrival_s"] + run.requests["e2e_s"]
    assert ends_s.to_list() == pytest.approx([10.0, 6.0, 12.0])
    assert run.requests["preemptions"].to_list() == [0, 0, 0]


def test_the_hours_of_an_autoscaler_by_hand() -> None:
    """One seat, steps of 1 s, a start takes 2 s, ticks every second.

    The first of three instances serves a request of 10 tokens from 0 s on, then two of 4 tokens, which come at 4 s and
    end at 14 and 18 s. For these the others start at 5 s; they serve what comes at 8 s until 10 s. From 10 s on two
    requests are left, from 14 s on one. So the instances are on from 0, 5 and 5 s until 18, 14 and 10 s. With a calm
    time of 3 s two more ticks must agree, and the last two instances are on for 2 s longer.
    """
    arrival_s = [0.0, 4.0, 4.0, 8.0, 8.0]
    rows = pl.DataFrame({"arrival_s": arrival_s, "input_tokens": [1] * 5, "output_tokens": [10, 4, 4, 2, 2]})
    kind = class_of(EXAMPLES / "autoscaler.py", "Autoscaler")
    terms = ("per_prefill_token_s", "prefill_quadratic_s", "per_sequence_s", "per_context_token_s")
    settings: dict[str, Any] = {"timing": "affine", "timing__base_s": 1.0, **{f"timing__{term}": 0.0 for term in terms}}
    settings |= {"cluster__instances": 3, "cluster__on_at_start": 1, "engine__start__provisioning_s": 2.0}
    settings |= {"engine__max_batch": 1, "server": "none"}
    hasty, calm = (servelab.run(kind(1.0, 1.0, calm_s), rows, **settings) for calm_s in (0.0, 3.0))
    ends_s = (hasty.requests["arrival_s"] + hasty.requests["e2e_s"]).to_list()
    assert ends_s == pytest.approx([10, 14, 18, 10, 10])
    assert hasty.summary["gpu_hours"] == pytest.approx((18 + 9 + 5) / 3600)
    assert calm.summary["gpu_hours"] == pytest.approx((18 + 11 + 7) / 3600)
    assert [hasty.summary[key] for key in ("starts", "stops")] == [2, 2]
    assert hasty.summary["mean_instances_on"] == pytest.approx(32 / 18)


def second_steps(**settings: Any) -> dict[str, Any]:
    """Settings with which every step takes 1 s."""
    terms = ("per_prefill_token_s", "prefill_quadratic_s", "per_sequence_s", "per_context_token_s")
    return {"timing": "affine", "timing__base_s": 1.0, **{f"timing__{term}": 0.0 for term in terms}, **settings}


def ends_s(run: servelab.Run) -> list[float]:
    return (run.requests["arrival_s"] + run.requests["e2e_s"]).to_list()


def test_the_freest_instance_by_hand() -> None:
    """Steps of 1 s, two instances of 20 KV tokens, of which requests of priority 0 leave 8 free.

    A request counts as its prompt, its tokens and one more. Requests 0 and 1, of 2 and 6 prompt tokens, begin at 0 s on
    instances 0 and 1. Request 2 comes at 0.5 s: 12 - 3 = 9 tokens are free beside request 0, 12 - 7 = 5 beside request
    1. Request 3 comes at 1.5 s: instance 0 has 12 - 4 - 2 = 6 free for two requests, instance 1 has 12 - 8 = 4 for one,
    so it goes there. At 3 s request 1 has 10 and request 3 has 3, so request 3 waits from 3 to 4 s, where request 1
    ends. The priority request of 8 tokens comes at 2.5 s: instance 0 has 20 - 5 - 3 = 12 free for two, instance 1 has
    20 - 9 - 2 = 9 for two. It begins at 3 s.
    """
    lengths = {"input_tokens": [2, 6, 1, 1, 8], "output_tokens": [4, 4, 4, 3, 2]}
    rows = pl.DataFrame({"arrival_s": [0.0, 0.0, 0.5, 1.5, 2.5], **lengths, "priority": [0, 0, 0, 0, 1]})
    policy = class_of(EXAMPLES / "freest.py", "Freest")(reserve=0.4, block_tokens=1, period_s=0.5)
    small = {"cluster__instances": 2, "engine__kv_tokens": 20, "engine__block_tokens": 1, "server": "none"}
    run = servelab.run(policy, rows, **second_steps(**small))
    assert run.requests["decode_instance"].to_list() == [0, 1, 0, 1, 0]
    assert ends_s(run) == pytest.approx([4.0, 4.0, 5.0, 6.0, 5.0])
    assert run.requests["preemptions"].to_list() == [0, 0, 0, 1, 0]


def test_a_priority_request_finds_room_at_once() -> None:
    """Steps of 1 s, one instance of 20 KV tokens, of which requests of priority 0 leave 8 free.

    Three such requests of 4 prompt tokens come at 0 s. They count as 5 each, so two begin, and as 7 each at 2 s, so one
    goes on, and ends at 4 s. The priority request, of 8 prompt tokens, comes at 1.5 s and begins at 2 s. At 4 s the
    others count as 7 and 5, and both begin. At 5 s they count as 8 and 6, so request 2 waits until request 1 ends at
    6 s. Under `continuous` three requests hold 5 tokens or more each at 2 s, and the priority request waits.
    """
    lengths = {"input_tokens": [4, 4, 4, 8], "output_tokens": [4, 4, 4, 2]}
    rows = pl.DataFrame({"arrival_s": [0.0, 0.0, 0.0, 1.5], **lengths, "priority": [0, 0, 0, 1]})
    policy = class_of(EXAMPLES / "freest.py", "Freest")(reserve=0.4, block_tokens=1, period_s=0.5)
    small = {"cluster__instances": 1, "engine__kv_tokens": 20, "engine__block_tokens": 1, "server": "none"}
    run, plain = (servelab.run(each, rows, **second_steps(**small)) for each in (policy, "continuous"))
    assert ends_s(run) == pytest.approx([4.0, 6.0, 9.0, 4.0])
    assert run.requests["preemptions"].to_list() == [0, 1, 1, 0]
    assert run.requests["ttft_s"].to_list()[3] == pytest.approx(1.5)
    assert plain.requests["ttft_s"].to_list()[3] > 2.0


def test_fair_shares_by_hand() -> None:
    """One seat, steps of 1 s. Four requests of tenant a, of 4 prompt tokens and 2 more, come at 0 s, three of tenant b,
    of 2 and 2, at 0.5 s. A request takes 2 s and is a service of 8 or 6.

    At 0.5 s the prompt of request 0 counts, so both counters are 4. At 2 s a has 8: b is next, and has 10 at 4 s. Then
    a (16 at 6 s), b (16 at 8 s), and at equal counters the request that came first: a, b, a.
    """
    lengths = {"input_tokens": [4] * 4 + [2] * 3, "output_tokens": [2] * 7}
    rows = pl.DataFrame({"arrival_s": [0.0] * 4 + [0.5] * 3, **lengths, "tenant": ["a"] * 4 + ["b"] * 3})
    policy = class_of(EXAMPLES / "fair_share.py", "FairShare")()
    run = servelab.run(policy, rows, **second_steps(cluster__instances=1, engine__max_batch=1, server="none"))
    assert ends_s(run) == pytest.approx([2.0, 6.0, 10.0, 14.0, 4.0, 8.0, 12.0])


def test_a_ttl_keeps_a_context_until_its_tool_has_ended() -> None:
    """Steps of 1 s, room for 16 tokens. A call of four tokens ends at 1 s, its tools at 5 s; another request decodes
    from 1 to 6 s. A third comes at 2 s with 10 tokens, which find room only where the call's KV is.
    """
    names = [[100 * program + j for j in range(tokens)] for program, tokens in ((1, 4), (2, 2), (3, 10), (1, 6))]
    columns = {
        "session_id": np.array([0, 1, 2, 0]),
        "turn": np.array([0, 0, 0, 1]),
        "previous": np.array([-1, -1, -1, 0]),
        "think_s": np.array([0.0, 0.0, 0.0, 4.0]),
        **prefixes(names, 1),
    }
    rows = [(0.0, 4, 1), (0.0, 2, 6), (2.0, 10, 1), (3.0, 6, 1)]
    policy = class_of(EXAMPLES / "tool_ttl.py", "ToolTtl")()
    kept, lost = (play(one, rows, columns=columns, kv_tokens=16, prefix_cache=True) for one in (policy, Chunked()))
    assert kept.requests["start_s"].tolist() == [0.0, 0.0, 6.0, 5.0]
    assert kept.requests["cached_tokens"].tolist() == [0, 0, 0, 4]
    assert policy.gaps_s == [4.0]
    assert lost.requests["start_s"].tolist() == [0.0, 0.0, 2.0, 5.0]
    assert lost.requests["cached_tokens"].tolist() == [0, 0, 0, 0]


def test_a_prefetch_brings_a_context_back_before_its_tool_has_ended() -> None:
    """Steps of 1 s, room for 8 tokens, and a tier of which four are read in 1 s. A program has calls of four tokens at
    0, 6 and 12 s; others take all room at 2 and 8 s. The third call is due 5 s after the second has ended at 8 s.
    """
    names = [[100 * program + j for j in range(tokens)] for program, tokens in ((1, 4), (2, 8), (1, 4), (3, 8), (1, 5))]
    columns = {
        "session_id": np.array([0, -1, 0, -1, 0]),
        "turn": np.array([0, 0, 1, 0, 2]),
        "previous": np.array([-1, -1, 0, -1, 2]),
        "think_s": np.array([0.0, 0.0, 5.0, 0.0, 5.0]),
        **prefixes(names, 1),
    }
    rows = [(0.0, 4, 1), (2.0, 8, 1), (2.5, 4, 1), (8.0, 8, 1), (8.5, 5, 1)]
    tier = Tier(bandwidth_bytes_s=4 * MODEL.kv_bytes_per_token)
    stores = PrefixStores({"host": tier}, layer_wise=False)
    settings: dict[str, Any] = {"kv_tokens": 8, "prefix_cache": True, "prefix_stores": stores}
    policy = class_of(EXAMPLES / "tool_prefetch.py", "ToolPrefetch")(ahead_s=1.5)
    ahead, late = (play(one, rows, columns=columns, **settings) for one in (policy, Chunked()))
    assert policy.gaps_s == [5.0, 5.0]
    assert (late.requests["start_s"][4], late.requests["end_s"][4]) == (12.75, 14.75)
    assert (ahead.requests["start_s"][4], ahead.requests["end_s"][4]) == (12.75, 13.75)


def test_a_session_moves_with_its_context() -> None:
    """Steps of 1 s on two instances. Of two requests on instance 0 the first ends at 2 s, when instance 1 has none:
    its four tokens of context go there, and the next call of its session finds them.
    """
    names = [[100 * program + j for j in range(tokens)] for program, tokens in ((1, 4), (2, 2), (3, 2), (1, 6))]
    columns = {
        "session_id": np.array([0, -1, -1, 0]),
        "turn": np.array([0, 0, 0, 1]),
        "previous": np.array([-1, -1, -1, 0]),
        "think_s": np.array([0.0, 0.0, 0.0, 3.0]),
        **prefixes(names, 1),
    }
    rows = [(0.0, 4, 2), (0.0, 2, 1), (0.0, 2, 9), (2.0, 6, 1)]
    policy = class_of(EXAMPLES / "moving_sessions.py", "MovingSessions")(slack=1.0, least=0)
    run = play(policy, rows, fleet(mixed=2), columns=columns, prefix_cache=True)
    assert run.requests["prefill_instance"].tolist() == [0, 1, 0, 1]
    assert run.requests["cached_tokens"].tolist() == [0, 0, 0, 4]
    assert run.instances["transferred_bytes"].tolist() == [4 * MODEL.kv_bytes_per_token, 0.0]


def test_what_a_crash_dropped_lets_new_prompts_pass() -> None:
    """One seat on each of two instances, steps of 1 s. Instance 0 crashes at 3.5 s with request 0, of 3 tokens so far.

    Instance 1 is taken by request 1 until 5 s; request 2 comes at 4 s. It has its two tokens at 6 and 7 s. Then request
    0 has its other three, until 10 s. In the order of arrival request 0 goes first and ends at 8 s.
    """
    rows = pl.DataFrame({"arrival_s": [0.0, 0.0, 4.0], "input_tokens": [4] * 3, "output_tokens": [6, 5, 2]})
    settings = second_steps(cluster__instances=2, engine__max_batch=1, server="none", engine__faults="crash")
    settings["engine__faults__crashes"] = "[{instance: 0, at_s: 3.5, down_s: 100.0}]"
    kind = class_of(EXAMPLES / "failover.py", "Failover")
    run, plain = (servelab.run(policy, rows, **settings) for policy in (kind(), "chunked"))
    assert ends_s(run) == pytest.approx([10.0, 5.0, 7.0])
    assert ends_s(plain) == pytest.approx([8.0, 5.0, 10.0])


def test_a_crash_costs_less_than_a_hundredth_of_the_goodput(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "failover.py"), run_name="__main__")
    for line in capsys.readouterr().out.splitlines():
        three, four, plain = (float(word.strip(",")) for word in line.split() if word[0].isdigit())
        assert four >= 0.99 * three
        assert plain < four


def test_the_predictor_learns() -> None:
    kind = class_of(EXAMPLES / "running_mean.py", "RunningMean")
    predictor = kind(prior_tokens=100.0)
    for tokens in (200, 300):
        predictor.observe(0, tokens)
    assert predictor.predict(None, pl.Series([0, 150, 900]).to_numpy())[0].tolist() == [200.0, 50.0, 1.0]


def test_the_script_ends_in_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "compare.py"))
    printed = capsys.readouterr().out
    assert "goodput_rps" in printed
    assert "shape: (5, 5)" in printed


def test_the_cells_of_the_notebook_run_one_after_another() -> None:
    notebook = json.loads((EXAMPLES / "first_look.ipynb").read_text())
    known: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"]
            exec(compile("".join(cell["source"]), "first_look.ipynb", "exec"), known)
    assert known["rates"].height == 3
    assert known["run"].summary["completed"] == 500


def test_retries_keep_a_fleet_overloaded_that_sheds_no_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    runpy.run_path(str(EXAMPLES / "retry_storm.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    late = {line[:26].strip(): float(line[34:42].strip().rstrip("%")) for line in lines}
    served = ("clients give up after 4 s", "the same, load is shed", "the same, by a gateway")
    assert [late[name] for name in served] == [100.0] * 3
    assert late["and retry up to 5 times"] == 0.0


@pytest.mark.slow
def test_a_planner_that_counts_completions_keeps_a_fleet_small(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    runpy.run_path(str(EXAMPLES / "planner.py"), run_name="__main__")
    attained = {line[:20]: float(line[33:41].rstrip("%")) for line in capsys.readouterr().out.splitlines()}
    assert attained == {
        "ByCompletions  180 s": 3.2,
        "ByArrivals     180 s": 12.6,
        "ByArrivals      30 s": 30.8,
        "ByQueue         30 s": 58.1,
        "Ahead           30 s": 99.8,
        "Ahead           15 s": 54.2,
    }


@pytest.mark.slow
def test_gpus_change_their_parallelism_at_a_cost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    runpy.run_path(str(EXAMPLES / "switch_tp.py"), run_name="__main__")
    shares = [
        [float(share) for share in re.findall(r"([0-9.]+)%", line)] for line in capsys.readouterr().out.splitlines()
    ]
    assert shares == [[99.1, 40.3, 99.2], [3.0, 92.7, 3.5], [98.8, 87.9, 85.0], [98.8, 69.4, 28.6]]


@pytest.mark.slow
def test_old_metrics_make_an_autoscaler_late(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    runpy.run_path(str(EXAMPLES / "flash_crowd.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    attained = {line[:23].strip(): float(line[23:30].rstrip("%")) for line in lines}
    assert attained == {
        "current": 92.1,
        "every 30 s, 15 s late": 86.5,
        "every 60 s, 15 s late": 79.9,
        "the router, too": 41.0,
    }


@pytest.mark.slow
def test_as_many_are_reserved_as_the_day_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of seven cost the least and keep all limits; one is late and costs more."""
    monkeypatch.syspath_prepend(EXAMPLES)
    run = runpy.run_path(str(EXAMPLES / "cheapest_first.py"))["run"]
    found = {count: run(count) for count in (1, 3, 6)}
    assert {count: (round(cells[0], 3), round(cells[1], 2)) for count, cells in found.items()} == {
        1: (0.897, 6.51),
        3: (1.0, 5.75),
        6: (1.0, 6.39),
    }
    assert [row["pool"] for row in found[3][2]] == ["reserved", "on_demand"]


@pytest.mark.slow
def test_slow_starts_cost_a_fleet_its_limits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    runpy.run_path(str(EXAMPLES / "diurnal.py"), run_name="__main__")
    rows = {line[:22].strip(): line[22:].split() for line in capsys.readouterr().out.splitlines()}
    assert {name: (cells[0], cells[1], int(cells[3])) for name, cells in rows.items()} == {
        "all are on": ("100.0%", "3.00", 0),
        "starts take no time": ("100.0%", "2.00", 16),
        "a server starts": ("100.0%", "1.96", 10),
        "a machine is added": ("89.6%", "2.12", 11),
    }
