"""The service of each tenant and its fairness, in weighted tokens, after VTC (Sheng et al., OSDI 2024).

A request's service is `INPUT_WEIGHT` for each prompt token, when its prefill begins, and `OUTPUT_WEIGHT` for each
output token, when it is emitted; cached prompt tokens count as others (arXiv 2401.00588).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.metrics.parts import Seconds, figures
from framework.metrics.service.difference import Given, Steps, Waits, largest_difference
from framework.metrics.service.token_times import TokenTimes, token_times
from framework.result import Result

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

INPUT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0  # weights of VTC's evaluation, after the prices of an API
MOST_COMPARED = 64  # the most tenants that are compared with each other: those with the most requests
_STATISTICS = ("mean", "median", "p99")


def by_tenant(result: Result, requests: pl.DataFrame, seconds: Seconds, alone_s: Floats) -> dict[str, Any]:
    """The figures of fairness of a run whose trace has tenants, by the summary's names.

    Args:
        requests: the rows of the request table that figures count, with the columns `request_id` and `tenant`.
        alone_s: shape (N,), the latency of each request of the result on an instance of its own.
    """
    slowdown = requests["e2e_s"].to_numpy() / alone_s[_rows(result, requests)]
    requests = requests.with_columns(pl.Series("slowdown", slowdown, nan_to_null=True))
    tenants: dict[str, dict[str, Any]] = {}
    for (name,), own in sorted(requests.partition_by("tenant", as_dict=True).items()):
        mean_slowdown = {"mean_slowdown": own["slowdown"].mean()}
        tenants[str(name)] = figures(own, seconds, _STATISTICS) | mean_slowdown
    means = [one["mean_slowdown"] for one in tenants.values() if one["mean_slowdown"] is not None]
    found = {"tenants": tenants, "worst_slowdown": max(means, default=None)}
    if result.engine.log == "reduced":
        return found | {"jain_index": None, "service_difference": None}
    service = Service.of(result)
    until_s = float(np.nanmax(result.requests["arrival_s"]))
    served, asked = service.until(until_s), service.asked_until(until_s)
    for number, name in enumerate(service.names):
        if name in tenants:
            tenants[name] |= {"served_tokens": float(served[number]), "asked_tokens": float(asked[number])}
    return found | {"jain_index": jain_index(served, asked), "service_difference": service.difference()}


def _rows(result: Result, requests: pl.DataFrame) -> Ints:
    """The positions of a table's rows in the result."""
    ids = requests["request_id"].to_numpy()
    return ids if result.request_ids is None else np.searchsorted(result.request_ids, ids)


def jain_index(served: Floats, asked: Floats) -> float | None:
    """Jain's index of the tenants' service relative to their max-min fair shares of all service; 1: even.

    Jain, Chiu and Hawe, DEC-TR-301, 1984: (sum x)^2 / (n sum x^2), with x the ratio of an allocation to the fair one.
    The fair share of a tenant is what it asked for, up to a level that is equal for all. None if nothing was served.
    """
    total = served.sum()
    if total <= 0:
        return None
    ordered = np.sort(asked)
    left = total - np.cumsum(ordered) + ordered  # what is left for tenants that ask for at least as much as each
    levels = left / np.arange(len(ordered), 0, -1)
    unmet = np.flatnonzero(ordered >= levels)
    level = levels[unmet[0]] if len(unmet) else np.inf
    ratio = served / np.minimum(asked, level)
    return float(ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum()))


@dataclass(frozen=True)
class Service:
    """The service of a run over time. `names` (T,): its tenants, sorted; `tenant` (N,): the tenant of each request."""

    result: Result
    tokens: TokenTimes
    names: tuple[str, ...]
    tenant: Ints

    @classmethod
    def of(cls, result: Result) -> Service:
        """The service of a run that kept its logs and whose trace has tenants."""
        assert result.workload.tenant is not None
        names, tenant = np.unique(result.workload.tenant, return_inverse=True)
        return cls(result, token_times(result), tuple(names.tolist()), tenant)

    def asked_until(self, time_s: float) -> Floats:
        """The service that all requests which have arrived by then ask for, (T,)."""
        workload = self.result.workload
        worth = INPUT_WEIGHT * workload.input_tokens + OUTPUT_WEIGHT * workload.output_tokens
        return self._by_tenant(np.where(self.result.requests["arrival_s"] <= time_s, worth, 0.0))

    def until(self, time_s: float) -> Floats:
        """The service of each tenant up to then, (T,)."""
        tokens = self.tokens
        begun = self.result.requests["start_s"] <= time_s
        worth = np.where(begun, INPUT_WEIGHT * self.result.workload.input_tokens, 0.0)
        np.add.at(worth, tokens.single_request, OUTPUT_WEIGHT * (tokens.single_s <= time_s))
        steps = np.array([np.searchsorted(ends_s, time_s, "right") for ends_s in tokens.ends_s], np.int64)
        given = np.clip(steps[tokens.instance], tokens.first, tokens.last) - tokens.first
        np.add.at(worth, tokens.request, OUTPUT_WEIGHT * tokens.per_step * given)
        return self._by_tenant(worth)

    def difference(self) -> float:
        """The largest difference in service between two tenants over a window in which both have requests waiting.

        The window begins when the later of the two begins to wait, or later, and ends before either has no request
        waiting for its first step. 0 if no two wait at once. VTC bounds this by 2 max(INPUT_WEIGHT x longest prompt,
        OUTPUT_WEIGHT x tokens of a batch). It covers the MOST_COMPARED tenants with the most requests.
        """
        counts = np.bincount(self.tenant)
        compared = np.sort(np.argsort(-counts, kind="stable")[:MOST_COMPARED])
        place = np.full(len(counts), -1, np.int64)
        place[compared] = np.arange(len(compared))
        backlogs = [_backlogs(self.result, self.tenant == number) for number in compared]
        times_s = np.concatenate([times_s for times_s, _ in backlogs])
        tenant = np.repeat(np.arange(len(compared)), [len(times_s) for times_s, _ in backlogs])
        opens = np.concatenate([opens for _, opens in backlogs])
        order = np.lexsort([opens, times_s])  # At one time the ends come first.
        waits = Waits(times_s[order], tenant[order], opens[order])
        return float(largest_difference(self._given(place), self._steps(place), waits, len(compared)))

    def _by_tenant(self, worth: Floats) -> Floats:
        found: Floats = np.bincount(self.tenant, worth, len(self.names)).astype(np.float64)
        return found

    def _given(self, place: Ints) -> Given:
        """Service outside decode steps to tenants that have a `place` (T,); -1 for other tenants."""
        rows, tokens = self.result.requests, self.tokens
        begun = np.flatnonzero(~np.isnan(rows["start_s"]))
        times_s = np.concatenate([rows["start_s"][begun], tokens.single_s])
        tenant = place[self.tenant[np.concatenate([begun, tokens.single_request])]]
        prompts = INPUT_WEIGHT * self.result.workload.input_tokens[begun]
        amount = np.concatenate([prompts, np.full(len(tokens.single_s), OUTPUT_WEIGHT)])
        order = np.argsort(times_s, kind="stable")
        return Given(times_s[order], tenant[order], amount[order])

    def _steps(self, place: Ints) -> Steps:
        """The decode steps, and the service that they give to tenants with a `place`."""
        tokens = self.tokens
        ends_s = np.concatenate([*tokens.ends_s, np.zeros(0)])
        instance = np.repeat(np.arange(len(tokens.ends_s)), [len(one) for one in tokens.ends_s])
        in_time = np.argsort(ends_s, kind="stable")
        of = np.concatenate([tokens.instance, tokens.instance])
        step = np.concatenate([tokens.first, tokens.last])
        tenant = place[self.tenant[np.concatenate([tokens.request, tokens.request])]]
        more = OUTPUT_WEIGHT * np.concatenate([tokens.per_step, -tokens.per_step])
        order = np.lexsort([step, of])
        begins = np.searchsorted(of[order], np.arange(len(tokens.ends_s) + 1))
        return Steps(ends_s[in_time], instance[in_time], begins, step[order], tenant[order], more[order])


def _backlogs(result: Result, own: NDArray[np.bool_]) -> tuple[Floats, NDArray[np.bool_]]:
    """When the given requests begin and cease to have one among them that waits for its first step: times, and
    which.
    """
    rows = result.requests[own]
    begin_s = rows["arrival_s"]
    end_s = np.where(np.isnan(rows["start_s"]), rows["end_s"], rows["start_s"])
    waits = end_s > begin_s
    order = np.argsort(begin_s[waits], kind="stable")
    begin_s, end_s = begin_s[waits][order], np.maximum.accumulate(end_s[waits][order])
    opens = np.ones(len(begin_s), np.bool_)
    opens[1:] = begin_s[1:] > end_s[:-1]
    closes = np.append(opens[1:], True)[: len(opens)]
    times_s = np.concatenate([begin_s[opens], end_s[closes]])
    return times_s, np.repeat([True, False], [opens.sum(), closes.sum()])
