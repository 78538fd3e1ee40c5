"""Servers of disaggregated deployments by published start files: `recipes.csv`, whose head names the source.

The csv of the measurements lists some of these deployments under a wrong layout; the recipe's counts. The number of
sequences that a decode instance runs at once decides how long a request waits for a seat there: of 39 measurements with
more requests in flight than seats the first token comes after 0.9 to 1.2 times the wait for a seat in 28.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl

from experiments.validation.fidelity.rows import Pool, Row
from framework.policy import Disaggregated
from framework.policy.view import Cluster, Request
from framework.system.parallelism import Parallelism

RECIPES = Path(__file__).with_name("recipes.csv")
_KEY = ("gpu", "backend", "model", "dtype", "isl", "osl", "concurrency", "date", "listed")


@dataclass(frozen=True)
class Recipe:
    """For each instance: how its GPUs share the model, its seats and the tokens of a prefill step; None: unknown.

    `frontends`: "one", "several", or "" if unknown.
    """

    prefill: Parallelism
    decode: Parallelism
    prefill_seats: int | None
    prefill_tokens: int | None
    decode_seats: int | None
    frontends: str


def recipe_of(row: Row) -> Recipe | None:
    """The recipe of a disaggregated row, None if none was found."""
    return None if row.mode == "agg" else _recipes().get(_key(row, row.listed or row.layout))


def as_they_were(rows: Iterable[Row]) -> list[Row]:
    """The rows, disaggregated ones with the layouts of their recipes; `listed` keeps the csv's."""
    return [_corrected(row) for row in rows]


class _Dealt(Disaggregated):
    """Requests are dealt to the instances of a role in turn, independently of load."""

    def prepare(self, cluster: Cluster) -> None:
        self._prefill, self._decode = (part.ids.tolist() for part in (cluster.prefill, cluster.decode))


class InTurn(_Dealt):
    """One after the other, as one front end deals them."""

    def __init__(self) -> None:
        self._prefills = self._decodes = -1

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        self._prefills += 1
        return int(self._prefill[self._prefills % len(self._prefill)])

    def route_decode(self, request: Request, cluster: Cluster) -> int:
        self._decodes += 1
        return int(self._decode[self._decodes % len(self._decode)])


class AtRandom(_Dealt):
    """At random: several front ends, each of which deals its own requests in turn, come close to that."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        return int(self._prefill[self._rng.integers(len(self._prefill))])

    def route_decode(self, request: Request, cluster: Cluster) -> int:
        return int(self._decode[self._rng.integers(len(self._decode))])


def router_of(row: Row) -> type[Disaggregated]:
    """The policy that deals a row's requests as its recipe's front ends do; the default if they are unknown, or have no
    choice.
    """
    recipe = recipe_of(row)
    if recipe is None or row.prefill.workers == row.decode.workers == 1:
        return Disaggregated
    return {"one": InTurn, "several": AtRandom}.get(recipe.frontends, Disaggregated)


def _corrected(row: Row) -> Row:
    recipe = recipe_of(row)
    if recipe is None:
        return row
    pools = Pool(row.prefill.workers, recipe.prefill), Pool(row.decode.workers, recipe.decode)
    return replace(row, prefill=pools[0], decode=pools[1], listed=row.layout)


def _key(row: Row, listed: str) -> tuple[object, ...]:
    return (row.gpu, row.backend, row.model, row.dtype, row.isl, row.osl, row.concurrency, row.date, listed)


@cache
def _recipes() -> dict[tuple[object, ...], Recipe]:
    table = pl.read_csv(RECIPES, comment_prefix="#", schema_overrides={"frontends": pl.String})
    return {tuple(line[name] for name in _KEY): _recipe(line) for line in table.iter_rows(named=True)}


def _recipe(line: dict[str, object]) -> Recipe:
    numbers = {name: line[name] for name in ("prefill_seats", "prefill_tokens", "decode_seats")}
    layouts = {role: _parallelism(str(line[role])) for role in ("prefill", "decode")}
    return Recipe(**layouts, **numbers, frontends=str(line["frontends"] or ""))  # type: ignore[arg-type]


def _parallelism(text: str) -> Parallelism:
    """A layout in the form in which `Parallelism` prints it."""
    return Parallelism(**{name: int(value) for name, value in re.findall(r"(tp|pp|ep|dp)(\d+)", text)})
