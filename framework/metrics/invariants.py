"""Invariants of every finished run, for any policy; a breach is a bug of the engine."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.compiler.decorators import compiled
from framework.errors import InvariantError
from framework.result import STATES, Result

_FINISHED = 1
_ROUNDING = 1e-9  # relative; leaps are summed in closed form


def check_result(result: Result) -> None:
    """Raise InvariantError, naming the first request or instance concerned, unless all invariants hold."""
    _check_ends(result)
    _check_times(result)
    _check_programs(result)
    _check_memory(result)
    _check_fleet(result)
    if result.engine.log == "full":
        _check_steps(result)
        _check_tokens(result)


def _fail_where(broken: np.ndarray, what: str) -> None:
    if np.any(broken):
        raise InvariantError(f"{what} (first at {int(np.flatnonzero(broken)[0])}, {int(np.sum(broken))} in all)")


def _check_ends(result: Result) -> None:
    """Check that each request ended once, and that those which finished emitted all their tokens."""
    rows = result.requests
    _fail_where((rows["state"] < 1) | (rows["state"] >= len(STATES)), "request without an end")
    _fail_where((rows["state"] != _FINISHED) & (rows["reason"] == 0), "request that did not finish, without a reason")
    finished = rows["state"] == _FINISHED
    _fail_where(finished & (rows["emitted"] != result.workload.output_tokens), "finished request with lost tokens")
    _fail_where(rows["emitted"] > result.workload.output_tokens, "request with more tokens than it has")


def _check_times(result: Result) -> None:
    """Check that time never goes back within a request; a missing time (NaN) is not compared."""
    rows = result.requests
    order = ("arrival_s", "start_s", "prefill_end_s", "first_token_s", "end_s")
    for before, after in itertools.pairwise(order):
        _fail_where(rows[after] < rows[before], f"request whose {after} precedes its {before}")
    started = rows["start_s"] == rows["start_s"]
    _fail_where((rows["state"] == _FINISHED) & ~started, "finished request that never started")


def _check_programs(result: Result) -> None:
    """Check that no call of a program arrived before all that it waits for had ended, and `think_s` had passed."""
    workload, rows = result.workload, result.requests
    if workload.previous is None:
        return
    later = np.flatnonzero(workload.previous >= 0)
    links = np.stack((later, workload.previous[later]), axis=1)
    if workload.joins is not None:
        links = np.concatenate((links, workload.joins))
    think_s = np.zeros(len(rows)) if workload.think_s is None else workload.think_s
    due_s = rows["end_s"][links[:, 1]] + think_s[links[:, 0]]
    early = np.zeros(len(rows), np.bool_)
    early[links[rows["arrival_s"][links[:, 0]] < due_s * (1 - _ROUNDING), 0]] = True
    _fail_where(early, "call that arrived before what it waits for had ended")


def _check_memory(result: Result) -> None:
    """Check that nothing is held at the end: blocks are free, or cached and unreferenced, and every list is empty."""
    instances = result.instances
    held = instances["free_blocks"] + instances["evictable_blocks"] != instances["total_blocks"]
    _fail_where(held, "instance whose blocks are not all freed")
    _fail_where(instances["free_blocks"] < 0, "instance with more blocks in use than it has")
    for name in ("queued", "queued_tokens", "running", "prefilling", "joining", "reserved", "swapped", "incoming"):
        _fail_where(instances[name] != 0, f"instance whose {name} is not 0 at the end")
    waiting = [pool.parallelism.pp - 1 + (pool.group > 1) for pool in result.cluster.pools]
    waited = instances["bubble_s"] > np.array(waiting)[instances["pool"]] * instances["busy_s"] * (1 + _ROUNDING)
    _fail_where(waited | (instances["bubble_s"] < 0), "stages or ranks that waited longer than they were busy")
    stores = result.tiers
    _fail_where(stores["count"] > stores["capacity"], "store with more blocks than it has room for")
    for name in ("kv_tokens", "decode_kv", "incoming_kv_tokens"):
        _fail_where(instances[name] != 0, f"instance whose {name} is not 0 at the end")


def _check_fleet(result: Result) -> None:
    """Check that each instance went off as often as it was switched on, but for its first and its last state."""
    instances, cluster = result.instances, result.cluster
    began = np.concatenate([np.arange(pool.instances) < pool.begins_on for pool in cluster.pools])
    ends = (instances["draining_role"] | instances["next_role"] | instances["down"]) != 0
    counted = began + instances["starts"] - instances["stops"]
    _fail_where(counted != ends, "instance whose starts and stops do not add up")


def _check_steps(result: Result) -> None:
    """Check that no stream of an instance runs two steps at once, and that the log counts every step."""
    leaps = result.step_log
    early = np.zeros(len(leaps), np.bool_)
    _mark_early(leaps, np.full((len(result.instances), 2), -np.inf), early)
    _fail_where(early, "step that starts before the last one ended")
    if int(leaps["steps"].sum()) != result.steps:
        raise InvariantError(f"the log holds {int(leaps['steps'].sum())} steps, the engine counted {result.steps}")


def _check_tokens(result: Result) -> None:
    """Check that every token comes from the end of a prefill or from a decode step that its request was part of."""
    rows, memberships = result.requests, result.token_log
    steps = memberships["last_step"] - memberships["first_step"]
    decoded = steps + memberships["accepted"]
    recomputed = memberships["instance"] < 0
    tokens = np.zeros(len(rows), np.int64)
    np.add.at(tokens, memberships["request"], np.where(recomputed, 1, decoded))
    tokens += rows["prefill_end_s"] == rows["prefill_end_s"]
    np.add.at(tokens, memberships["request"], -np.isnan(memberships["previous_token_s"]).astype(np.int64))
    _fail_where((rows["state"] == _FINISHED) & (tokens != rows["emitted"]), "request whose tokens do not add up")
    batch_tokens = int((result.step_log["steps"].astype(np.int64) * result.step_log["batch"]).sum())
    if batch_tokens < int(steps[~recomputed].sum()):
        raise InvariantError("requests emitted more tokens than decode steps had room for")


@compiled
def _mark_early(leaps: NDArray[Any], end_s: NDArray[np.float64], early: NDArray[np.bool_]) -> None:
    """Mark leaps that start before the last one of their stream ended; `end_s` (M, 2) advances by the log."""
    for k in range(len(leaps)):
        leap = leaps[k]
        i, stream, steps = leap["instance"], leap["stream"], leap["steps"]
        early[k] = leap["start_s"] < end_s[i, stream] - _ROUNDING * abs(end_s[i, stream])
        end_s[i, stream] = leap["start_s"] + steps * leap["first_s"] + leap["increment_s"] * (0.5 * steps * (steps - 1))
