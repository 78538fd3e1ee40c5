"""All that summary.json says, and what requests.parquet says of latencies, against a second, plain computation.

Runs are drawn as for the tests that compare both engines, and SLOs, prices, powers and loads with them. A run writes
its files, and `tests.helpers.recomputed` makes the summary of them and of what the reference engine notes again.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from framework.bound.bound import any_role, shortest_time_s
from framework.bound.setting import Setting
from framework.load import Closed, Open
from framework.metrics.slo import Slo
from framework.metrics.slowdown import Slowdown
from framework.metrics.summary import Evaluation
from framework.objective.experiment import Experiment
from framework.objective.goodput import Goodput, Progress
from framework.policy.watching import Watch
from framework.result import STATES, Result
from framework.run.output import write
from framework.timing.table import StepRow
from framework.workload import Workload, chosen
from tests.helpers.agreement import drawn
from tests.helpers.differences import has_near_tie, run_engine
from tests.helpers.drawing import Draw
from tests.helpers.families import FAMILIES
from tests.helpers.plain_records import Records, records
from tests.helpers.recomputed import gaps_s, summary, verdicts
from tests.helpers.recomputed_clock import clock
from tests.helpers.recomputed_tenants import reader_wait_s
from tests.helpers.recomputed_work import of_pools
from tests.helpers.recovery import token_times
from tests.helpers.reported import Alone, Run, Summary, Unreported, percentile
from tests.helpers.rulers import RuledPredictor, Ruler, ruled_policy
from tests.helpers.scenarios import RowTiming, Scenario

_NOT_RECOMPUTED = {
    "versions": "what is installed",
    "git_revision": "what is checked out",
    "goodput_bound": "an optimum, for which tests/bound has other methods",
    "share_of_bound": "a share of that",
    "bound_limit": "what that optimum is limited by",
    "mean_program_slowdown": "relative to a bound, for which tests/bound has other methods",
    "p99_program_slowdown": "the same",
    "refused_kv_tokens": "of which tests/metrics/test_too_large has an example by hand",
    "largest_kv_tokens": "the same",
    "dropped_recomputed": "of which tests/metrics/test_crash_figures has examples by hand",
    "dropped_restored": "the same",
    "restored_tokens": "the same",
    "worst_slowdown": "relative to step times of a pool, of which tests/metrics/test_tenants has a second computation",
}
_NEAR = 1e-9  # relative
_NOTHING = 1e-12  # absolute
_BIN = 0.004  # relative width of a bin of the histogram that a reduced log leaves
_LEAST_MS = (1 + _BIN) * 2.0**-40 * 1e3  # of its bins
_FIRST, _SEEDS = 328, 2  # seeds that draw what is rare: drafts of varying depth, closed loads, classes
_CASES = [*((family, True) for family in FAMILIES), *((family, False) for family in ("scenarios", "severed", "shared"))]
_ENDINGS = {"first to last arrival", "first to last opening of a session", "duration of the load"}
_ENDINGS |= {"longer for what was not served", "longer for what was not served outside it"}
_ENDINGS |= {"longer for clients that were kept waiting"}
_BEGINNINGS = {"what the SLO allows one request", "shortest time for all that was offered", "first to last request"}
_KINDS = {*_ENDINGS, *_BEGINNINGS, ("first to last arrival", True), ("first to last arrival", False)}
_KINDS |= {"warm-up", "rejected", "failed", "stalled", "policy"}
_CLASSES = ("interactive", "batch")
_VERDICTS = ("ttft_ok", "tpot_ok", "good")
_NOTED = {  # by the names of requests.parquet
    **{name: name for name in ("prefill_instance", "decode_instance", "arrival_s", "cached_tokens")},
    **{name: name for name in ("preemptions", "migrations")},
    "predicted_output_tokens": "predicted_tokens",
}
_OF_THE_LOG = (
    *("mean_prefill_batch_tokens", "idle_seat_share", "jain_index", "service_difference"),
    *("median_recovery_s", "p99_recovery_s"),
)
_SHARES = (
    *("slo_attainment", "mfu", "mbu", "kv_utilization", "utilization", "bubble_share", "idle_seat_share"),
    *("out_of_memory_rate", "preempted_rate", "cache_hit_rate", "availability"),
)


@dataclass(frozen=True)
class Settings:
    """By what a run is judged."""

    slo: Slo
    alone: Alone
    edges: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Simulated(Experiment):
    """An experiment that has been run."""

    result: Result

    def run(self, progress: Progress | None = None, watch: Watch | None = None) -> Result:
        return self.result


@pytest.mark.parametrize(("family", "exact"), _CASES)
def test_a_second_computation_from_the_files(family: str, exact: bool, tmp_path: Path) -> None:
    for seed in range(1 + (not exact)):
        compare(family, seed, exact, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_second_computation_of_many_more(family: str, tmp_path: Path) -> None:
    for seed in range(1, 40):
        compare(family, seed, True, tmp_path)


def compare(family: str, seed: int, exact: bool, directory: Path) -> None:
    """Hold the files and tables of a run against a second computation, and its shares against 1."""
    draw = Draw(100 + list(FAMILIES).index(family), seed, exact)
    scenario = under_other_loads(draw, with_prices(draw, drawn(family, _FIRST + seed, exact)), exact)
    noted = records(scenario)
    if not exact and has_near_tie(noted.simulation):
        return
    scenario = at_their_peaks(scenario, noted) if exact else scenario  # in floats step times depend on the bandwidth
    result, _ = run_engine(scenario)
    settings = settings_near(draw, result)
    found, evaluation = write_files(directory, scenario, result, settings)
    run = told_by(directory, scenario, result, settings, noted)
    again = summary(run) | names(scenario)
    if scenario.engine.speculation.most > 0:
        for told in (found, again):
            drop_service(told)
    wrong = unlike_columns(run, result) + unlike_summary(found, again)
    wrong += unlike_pools(evaluation.pools, run)
    most = {"mfu": 1.0, "mbu": 1.0} if exact else {"mfu": math.inf, "mbu": math.inf}
    for name, value in shares(found, evaluation):
        if not 0 <= value <= most.get(name, 1.0) + _NEAR:
            wrong.append(f"{name} {value} is no share")
    assert not wrong, f"{family} {seed}:\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    "family", [pytest.param(one, marks=pytest.mark.slow) if k % 4 else one for k, one in enumerate(FAMILIES)]
)
def test_a_reduced_log_leaves_the_same_but_for_percentiles(family: str, tmp_path: Path) -> None:
    draw = Draw(100 + list(FAMILIES).index(family), _SEEDS)
    scenario = under_other_loads(draw, with_prices(draw, drawn(family, _FIRST + _SEEDS)), True)
    result, _ = run_engine(scenario)
    settings = settings_near(draw, result)
    settings = replace(settings, slo=replace(settings.slo, tbt_tail_s=None, reader_wait_s=None))  # that need the log
    write_files(tmp_path, scenario, result, settings)
    run = told_by(tmp_path, scenario, result, settings, records(scenario))
    reduced, _ = run_engine(replace(scenario, engine=replace(scenario.engine, log="reduced")))
    found, _ = write_files(tmp_path / "reduced", scenario, reduced, settings)
    again = summary(run) | names(scenario)
    again |= {key: None for key in _OF_THE_LOG if key in again}
    for crash in again.get("crashes", []):
        crash["settled_s"] = None
    for own in again.get("tenants", {}).values():
        own.pop("served_tokens"), own.pop("asked_tokens")
    wrong = unlike_summary(found, again, from_histogram=True)
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow  # what is drawn changes with the families alone; the comparison above runs them
def test_the_runs_drawn_have_every_kind_of_window_and_of_end() -> None:
    """Else the comparison above would not tell much."""
    found: set[object] = set()
    for (k, family), seed in itertools.product(enumerate(FAMILIES), range(_SEEDS)):
        draw = Draw(100 + k, seed, True)
        scenario = under_other_loads(draw, with_prices(draw, drawn(family, _FIRST + seed)), True)
        result, _ = run_engine(scenario)
        summary_ = write_nothing(scenario, result, settings_near(draw, result)).summary
        window = summary_["window"]
        found |= {(window, summary_["window_is_short"])}
        found |= {name for name in _ENDINGS if window.endswith(name)}
        found |= {name for name in _BEGINNINGS if window.startswith(name)}
        found |= {"warm-up"} if summary_["offered"] < len(result.requests) else set()
        found |= {name for name in ("rejected", "failed") if summary_[name]}
        found |= {result.reasons[reason] for reason in result.requests["reason"].tolist()}
        if found >= _KINDS:  # which most runs add nothing to
            return
    assert _KINDS - found == set()


# what is drawn


def with_prices(draw: Draw, scenario: Scenario) -> Scenario:
    """The same on GPUs of each pool's own power, price, peak (of which some state none) and bandwidth, and with classes
    of requests more often.
    """
    pools = []
    for pool in scenario.cluster.pools:
        own: dict[str, Any] = {
            "idle_w": draw.real(5.0, 90.0),
            "tdp_w": draw.real(100.0, 900.0),
            "usd_per_hour": draw.real(0.5, 9.0),
            "peak_flops": {"bf16" if draw.chance(0.98) else "fp8": draw.real(1e11, 1e13)},
            "bandwidth_bytes_s": pool.gpu.bandwidth_bytes_s * draw.one([0.5, 1.0, 2.0]),
        }
        pools.append(replace(pool, gpu=replace(pool.gpu, **own)))
    workload = scenario.workload
    if workload.slo_class is None and draw.chance(0.6):
        workload = replace(workload, slo_class=tuple(draw.one([*_CLASSES, "other"]) for _ in range(len(workload))))
    if scenario.engine.speculation.most == 0 and draw.chance(0.6):  # with drafts, their figures know tokens on average
        workload = replace(workload, tenant=tuple(draw.one(["a", "b", "c"]) for _ in range(len(workload))))
    return replace(scenario, workload=workload, cluster=replace(scenario.cluster, pools=tuple(pools)))


def under_other_loads(draw: Draw, scenario: Scenario, exact: bool) -> Scenario:
    """The same where clients are turned away and return, all arrive at once, arrivals last longer than any request, or
    a warm-up is not counted.
    """
    workload, load, rules = scenario.workload, scenario.load, scenario.rules
    kind = draw.one(["as drawn", "at once", "long", "long", "closed", "closed"])
    if kind == "at once":
        load = Open()
        workload = replace(workload, arrival_s=0.0 * workload.arrival_s)
    elif kind == "long":
        load = Open()
        workload = replace(workload, arrival_s=workload.arrival_s * 2.0 ** draw.integer(4, 8))
        arrivals_s = workload.arrival_s[workload.openers == np.arange(len(workload))]
        span_s = float(arrivals_s[-1] - arrivals_s[0])
        middle_s = float(arrivals_s[len(arrivals_s) // 2] - arrivals_s[0])
        if draw.chance(0.5) and 0 < middle_s < span_s:
            load = Open(warmup_s=middle_s) if draw.chance(0.5) else Open(cooldown_s=span_s - middle_s)
    elif kind == "closed":
        duration_s = draw.amount(exact, 1, 60, -3)
        warmup_s = draw.one([0.0, 0.25, 0.5]) * duration_s
        load = Closed(draw.integer(1, 6), duration_s, draw.amount(exact, 1, 50, -5), warmup_s)
    if draw.chance(0.3):
        rules = replace(rules, admit="hash", refuse=draw.chance(0.5))
    elif draw.chance(0.5):
        rules = replace(rules, admit="late")  # which leaves the first requests unserved, of a warm-up if there is one
    assert isinstance(load, Open | Closed)
    load = replace(load, patience=scenario.load.patience)
    return replace(scenario, workload=workload, load=load, rules=rules)


def at_their_peaks(scenario: Scenario, noted: Records) -> Scenario:
    """The same on GPUs whose peak and bandwidth the busiest step of each pool just reaches, of two streams one each; as
    they were where a step takes no time.
    """
    model, kept, pools, begin = scenario.model, scenario.engine.kv_compression.memory_share, [], 0
    experts = model.expert_parameters * model.dtype_bytes
    for pool in scenario.cluster.pools:
        steps = [note for i in range(begin, begin + pool.instances) for note in noted.steps[i]]
        begin, own = begin + pool.instances, pool.own_parallelism
        if any(note.lasted_s == 0 for note in steps):
            pools.append(pool)
            continue
        flops = bytes_ = 1.0
        for note in steps:
            attended = note.pairs + note.prefill_square / 2
            done = 2 * model.active_parameters * note.tokens + model.attention_flops_per_pair * attended
            moved = kept * model.kv_bytes_per_token * (note.tokens + note.read_tokens) + experts * note.expert_reads
            moved += own.dp * (model.weight_bytes - experts) * note.weight_passes
            flops = max(flops, done / note.lasted_s / own.gpus)
            bytes_ = max(bytes_, moved / note.lasted_s / own.gpus)
        streams = 2 if scenario.rules.shares else 1
        peaks = dict.fromkeys(pool.gpu.peak_flops, streams * flops)
        gpu = replace(pool.gpu, peak_flops=peaks, bandwidth_bytes_s=streams * bytes_)
        pools.append(replace(pool, gpu=gpu))
    return replace(scenario, cluster=replace(scenario.cluster, pools=tuple(pools)))


def settings_near(draw: Draw, result: Result) -> Settings:
    """Limits near what the run's requests keep, some of them what one of its requests has to the bit."""
    table = {name: [value for value in column if value is not None] for name, column in latencies(result).items()}
    classes = {
        name: {
            limit: _limit(draw, table[limit], lifted=0.5)
            for limit in ("ttft_s", "tpot_s", "tbt_p99_s", "normalized_s")
            if draw.chance(0.5)
        }
        for name in _CLASSES
        if draw.chance(0.8)
    }
    alone = Alone(*(draw.real(low, 4 * low) for low in (0.01, 0.001, 1e-5, 0.001, 1e-4)))
    slo = Slo(
        ttft_s=_limit(draw, table["ttft_s"]),
        tpot_s=_limit(draw, table["tpot_s"]),
        tbt_p99_s=_limit(draw, table["tbt_p99_s"]) if draw.chance(0.4) else None,
        tbt_tail_s=_limit(draw, table["tbt_p99_s"], exactly=False) if draw.chance(0.4) else None,
        normalized_s=_limit(draw, table["normalized_s"]) if draw.chance(0.4) else None,
        classes=classes,
        slowdown=_slowdown(draw, result, alone) if draw.chance(0.5) else None,
        reader_wait_s=draw.real(0.01, 1.0) if result.engine.speculation.most == 0 and draw.chance(0.4) else None,
        reading_tokens_s=draw.real(5.0, 500.0),
    )
    return Settings(slo, alone, tuple(sorted({draw.integer(1, 60) for _ in range(draw.integer(0, 3))})))


def _limit(draw: Draw, values: Sequence[float], exactly: bool = True, lifted: float = 0.15) -> float | None:
    ordered = sorted(value for value in values if value > 0)
    if not ordered or draw.chance(lifted):
        return None
    value = ordered[draw.integer(len(ordered) // 2, len(ordered) - 1)]
    return value if exactly and draw.chance(0.5) else value * draw.real(0.8, 1.6)


def _slowdown(draw: Draw, result: Result, alone: Alone) -> Slowdown:
    row = StepRow(
        base_s=alone.base_s,
        per_prefill_token_s=alone.prefill_token_s,
        prefill_quadratic_s=alone.prefill_square_s,
        per_sequence_s=alone.sequence_s,
        per_context_token_s=alone.context_token_s,
    )
    gpu, factors = result.cluster.pools[0].gpu, [draw.one([None, draw.real(2.0, 60.0)]) for _ in range(3)]
    return Slowdown(result.model, RowTiming({gpu.name: row}), gpu, 1, *factors)


# what a run leaves behind


def write_files(directory: Path, scenario: Scenario, result: Result, settings: Settings) -> tuple[Summary, Evaluation]:
    """Write the files of a run; what its summary.json says, and what else is reported."""
    evaluation = write_nothing(scenario, result, settings)
    write(directory, result, evaluation, steps=result.engine.log == "full")
    found: Summary = json.loads((directory / "summary.json").read_text())
    for own in found.get("tenants", {}).values():
        own.pop("mean_slowdown")  # see worst_slowdown
    return found, evaluation


def write_nothing(scenario: Scenario, result: Result, settings: Settings) -> Evaluation:
    """What is reported of a run."""
    policy = ruled_policy(Ruler(scenario.rules))
    experiment = Simulated(
        **vars(scenario.setting()),
        slo=settings.slo,
        policy=policy,
        predictor=None,
        renew=lambda: (policy, None),
        sample=lambda k, block_s: scenario.workload,
        result=result,
    )
    return Goodput(settings.edges).measure(experiment).evaluation


def told_by(directory: Path, scenario: Scenario, result: Result, settings: Settings, noted: Records) -> Run:
    """The run as its files tell it."""
    requests, steps = (pl.read_parquet(directory / f"{name}.parquet").to_dicts() for name in ("requests", "steps"))
    tiers = list(scenario.engine.prefix_stores.tiers) if len(result.tiers) > 0 else []
    unreported = Unreported(
        token_s=token_times(result),
        accepted=sum(result.token_log["accepted"].tolist()),
        sent=noted.sent,
        end_s=noted.end_s,
        steps=noted.steps,
        held=noted.held,
        off_s=noted.off_s,
        extrapolation=[(row["extrapolated_s"].item(), row["extrapolation"].item()) for row in result.instances],
        hit_tokens={name: sum(result.tiers["hit_tokens"][k :: len(tiers)].tolist()) for k, name in enumerate(tiers)},
        loaded_bytes={
            name: sum(result.tiers["loaded_bytes"][k :: len(tiers)].tolist()) for k, name in enumerate(tiers)
        },
        shortest_s=lambda some: shortest_s(scenario, result, settings.slo, some),
        crashes=noted.crashes,
        down=noted.down,
        cut=noted.cut,
        left_s=noted.left_s,
        switched=noted.switched,
    )
    return Run(requests, steps, scenario, settings.slo, settings.alone, settings.edges, unreported)


def shortest_s(scenario: Scenario, result: Result, slo: Slo, some: Sequence[bool]) -> float:
    """The least time for some of the requests that were sent, on GPUs that may do anything.

    0 if instances share requests, of which no such time is known.
    """
    if scenario.rules.span:
        return 0.0
    parts = {name: getattr(scenario, name) for name in ("model", "timing", "engine", "load")}
    own = chosen(result.workload, np.array(some))
    return shortest_time_s(Setting(own, any_role(scenario.cluster), slo=slo, **parts))


def names(scenario: Scenario) -> Summary:
    """Of the policy and the predictor."""
    predictor = RuledPredictor(scenario.rules).name if scenario.rules.predicts else "none"
    return {"policy": ruled_policy(Ruler(scenario.rules)).name, "predictor": predictor}


def latencies(result: Result) -> dict[str, list[float | None]]:
    """Columns of requests.parquet, and latencies per token, of the times that the engine has noted."""
    found: dict[str, list[float | None]] = {}
    for row, outputs, token_s in zip(result.requests, result.workload.output_tokens, token_times(result), strict=True):
        gaps, end_s = gaps_s(token_s), float(row["end_s"])
        is_finished = row["state"] == 1
        assert not is_finished or (len(token_s) == outputs and abs(token_s[-1] - end_s) <= _NEAR * (1 + end_s))
        e2e_s = end_s - float(row["arrival_s"])
        values = {
            "queue_s": float(row["start_s"] - row["arrival_s"]),
            "prefill_s": float(row["prefill_end_s"] - row["start_s"]),
            "transfer_s": float(row["transfer_end_s"] - row["prefill_end_s"]),
            "ttft_s": float(row["first_token_s"] - row["arrival_s"]),
            "tpot_s": (end_s - float(row["first_token_s"])) / len(gaps) if is_finished and gaps else math.nan,
            "tbt_p99_s": percentile(gaps, 99) if is_finished and gaps else math.nan,
            "tbt_max_s": max(gaps) if is_finished and gaps else math.nan,
            "e2e_s": e2e_s if is_finished else math.nan,
            "normalized_s": e2e_s / int(outputs) if is_finished else math.nan,
        }
        for name, value in values.items():
            found.setdefault(name, []).append(None if math.isnan(value) else value)
    return found


def noted(run: Run, result: Result) -> dict[str, Sequence[Any]]:
    """Columns of requests.parquet that say what the trace and the engine say of each request."""
    rows = result.requests
    found: dict[str, Sequence[Any]] = {
        name: [None if value != value or value < 0 else value for value in rows[engine_name].tolist()]
        for name, engine_name in _NOTED.items()
    }
    workload, sent = run.scenario.workload, run.unreported.sent
    found |= {name: getattr(workload, name)[sent].tolist() for name in ("input_tokens", "output_tokens")}
    found |= {name: [values[k] for k in sent] for name, values in of_the_trace(workload).items()}
    found["request_id"] = sent
    if len(result.attempts):
        found["attempts"] = result.attempts.tolist()
    if len(result.gated_s):
        found["gateway_s"] = result.gated_s.tolist()
    if "reader_wait_s" in run.requests[0]:
        waits_s = [reader_wait_s(token_s, run.slo) for token_s in run.unreported.token_s]
        finished = (rows["state"] == 1).tolist()
        found["reader_wait_s"] = [one if ended else None for one, ended in zip(waits_s, finished, strict=True)]
    over = clock(run)
    counts = [k in over.numbers for k in range(len(rows))]
    if "counted" in run.requests[0]:
        found["counted"] = counts
    found["state"] = [STATES[state] for state in rows["state"].tolist()]
    found["reason"] = [result.reasons[reason] if reason else None for reason in rows["reason"].tolist()]
    unknown = run.requests[0].keys() - found.keys() - latencies(result).keys() - set(_VERDICTS)
    assert not unknown, f"columns without a second computation: {unknown}"
    return found


def of_the_trace(workload: Workload) -> dict[str, Sequence[Any]]:
    """Columns of requests.parquet that only some traces have: what the trace says, request by request."""
    found: dict[str, Sequence[Any]] = {}
    if workload.slo_class is not None:
        found["slo_class"] = workload.slo_class
    if workload.priority is not None:
        found["priority"] = workload.priority.tolist()
    if workload.tenant is not None:
        found["tenant"] = workload.tenant
    if workload.session_id is not None:
        sessions = workload.session_id.tolist()
        found["session_id"] = [None if session < 0 else session for session in sessions]
        if workload.turn is not None:
            turns = zip(sessions, workload.turn.tolist(), strict=True)
            found["turn"] = [None if session < 0 else turn for session, turn in turns]
    return found


# comparison


def unlike_columns(run: Run, result: Result) -> list[str]:
    """Where requests.parquet differs."""
    expected: dict[str, Sequence[Any]] = {name: of for name, of in latencies(result).items() if name in run.requests[0]}
    expected |= noted(run, result)
    expected |= dict(zip(_VERDICTS, zip(*verdicts(run), strict=True), strict=True))
    columns = {name: [row[name] for row in run.requests] for name in expected}
    return [
        f"requests.parquet, {name}[{k}]: {found!r}, again {again!r}"
        for name, values in expected.items()
        for k, (found, again) in enumerate(zip(columns[name], values, strict=True))
        if not alike(found, again, _NEAR, _NOTHING)
    ]


def drop_service(told: Summary) -> None:
    """Leave out what docs/columns.md says to spread drafts evenly over steps: token times tell their own steps."""
    for name in ("jain_index", "service_difference"):
        told.pop(name, None)
    for own in told.get("tenants", {}).values():
        own.pop("served_tokens", None)


def unlike_pools(found: pl.DataFrame, run: Run) -> list[str]:
    """Where the pool table differs."""
    pairs = zip(found.to_dicts(), of_pools(run, clock(run)), strict=True)
    return [line for pool, again in pairs for line in unlike_summary(pool, again)]


def shares(found: Summary, evaluation: Evaluation) -> list[tuple[str, float]]:
    """All that is a share of something, by name."""
    tables = [found, *evaluation.pools.to_dicts(), *found["buckets"], *found.get("classes", {}).values()]
    named = [(name, table[name]) for table in tables for name in _SHARES if table.get(name) is not None]
    on = found["gpus_on"] / found["gpus"]
    return [
        *named,
        ("gpus_on / gpus", on),
        *([("share_of_bound", found["share_of_bound"])] * (found["share_of_bound"] is not None)),
    ]


def unlike_summary(found: Summary, again: Summary, from_histogram: bool = False) -> list[str]:
    """Where summary.json differs, and its keys that have no second computation."""
    compared = {key: value for key, value in found.items() if key not in _NOT_RECOMPUTED}
    alone = sorted(compared.keys() ^ again.keys())
    wrong = [f"{key}: not in both summary.json and tests/helpers/recomputed.py" for key in alone]
    for key in compared.keys() & again.keys():
        if key == "classes":
            for name in sorted(found[key].keys() | again[key].keys()):
                unlike = unlike_summary(found[key].get(name, {}), again[key].get(name, {}))
                wrong += [f"{name}: {line}" for line in unlike]
            continue
        near, nothing = _NEAR, _NOTHING
        if key.startswith("std_"):  # of values as large as their mean
            nothing = _NEAR * (found[key.replace("std", "mean")] or 0.0) * (100 if from_histogram else 1)
        elif from_histogram and key.endswith("itl_ms") and not key.startswith("mean"):
            near, nothing = _BIN, _LEAST_MS
        if not alike(found[key], again[key], near, nothing):
            wrong.append(f"{key}: {found[key]!r}, again {again[key]!r}")
    return wrong


def alike(found: Any, again: Any, near: float, nothing: float) -> bool:
    """Whether two values are equal, floats nearly so."""
    if isinstance(found, dict) and isinstance(again, dict):
        return found.keys() == again.keys() and all(alike(found[key], again[key], near, nothing) for key in found)
    if isinstance(found, list) and isinstance(again, list):
        pairs = zip(found, again, strict=False)
        return len(found) == len(again) and all(alike(one, other, near, nothing) for one, other in pairs)
    if isinstance(found, float) and isinstance(again, int | float):
        return abs(found - again) <= max(near * max(abs(found), abs(again)), nothing)
    return type(found) is type(again) and bool(found == again)
