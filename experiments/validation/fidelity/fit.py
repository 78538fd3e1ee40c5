"""The few terms that kernel tables lack, fitted to measured deployments; and unreported settings of clients.

A replay is cheap but not smooth in its terms. So each row is replayed at a few points around the prior, and a surface
without cross terms is fitted to the logarithms of its two latencies: quadratic in factors, affine in seconds, and
piecewise affine in the time to launch a layer, which kernels hide until it is the longer one. The terms are fitted on
these surfaces: soft-L1 loss of relative errors, and a normal prior. A fit of all rows of a backend is the prior of each
GPU's, that of each model's and data type's on it, and that of each version's of its server: few deployments move terms
little.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from experiments.validation.fidelity.replay import Replay, Replayed
from experiments.validation.fidelity.rows import Row
from experiments.validation.fidelity.server import CANDIDATES, READING_S, Client, assumed, stated
from framework.timing.calibration_terms import Calibration

Floats = NDArray[np.float64]
Run = Callable[[Sequence[Replay]], Sequence[Replayed | str]]
Cell = tuple[str, ...]  # (), (backend,), (backend, gpu) or (backend, gpu, model, dtype)


@dataclass(frozen=True)
class Term:
    """A term of a calibration: a normal prior, cut at bounds."""

    name: str
    centre: float
    width: float
    lowest: float
    highest: float


# Assumptions, wide enough for the data to overrule them: kernels run nearly as they were measured alone, and
# communication is less certain; framework.timing.server explains each of the server's terms.
TERMS = (
    Term("log kernel", 0.0, 0.06, -0.5, 0.6),
    Term("log compute", 0.0, 0.12, -0.5, 0.6),
    Term("log communication", 0.0, 0.3, -1.0, 1.2),
    Term("step_s", 0.3e-3, 0.3e-3, 0.0, 3e-3),
    Term("message_s", 2e-6, 2e-6, 0.0, 2e-5),
    Term("host_s", 2e-3, 1e-3, 0.0, 8e-3),
    Term("host_sequence_s", 8e-6, 8e-6, 0.0, 8e-5),
    Term("eager_layer_s", 1e-4, 1e-4, 0.0, 6e-4),
    Term("request_s", 5e-3, 5e-3, 0.0, 0.1),
    Term("token_s", 3e-6, 3e-6, 0.0, 3e-5),
)
# Experts on TensorRT-LLM and SGLang: steps with prompts are launched kernel by kernel, of which a layer of experts has
# several times those of a dense one; and a request passes more processes.
_LAUNCHED = {
    "eager_layer_s": Term("eager_layer_s", 3e-4, 4e-4, 0.0, 5e-3),
    "request_s": Term("request_s", 5e-3, 30e-3, 0.0, 0.3),
}
# Across instances a request also passes a router, two servers and the hand-over of its KV, block by block.
_APART = {
    "request_s": Term("request_s", 20e-3, 100e-3, 0.0, 1.0),
    "token_s": Term("token_s", 3e-6, 10e-6, 0.0, 3e-4),
}


@dataclass(frozen=True)
class Prior:
    """What is known of K terms before any data; arrays have shape (K,)."""

    terms: tuple[Term, ...]

    @cached_property
    def centre(self) -> Floats:
        """The centres."""
        return np.array([term.centre for term in self.terms])

    @cached_property
    def width(self) -> Floats:
        """The standard deviations."""
        return np.array([term.width for term in self.terms])

    @cached_property
    def bounds(self) -> tuple[Floats, Floats]:
        """The least and the largest values."""
        return np.array([term.lowest for term in self.terms]), np.array([term.highest for term in self.terms])


AGGREGATED = Prior(TERMS)
LAUNCHED = Prior(tuple(_LAUNCHED.get(term.name, term) for term in TERMS))
DISAGGREGATED = Prior(tuple(_APART.get(term.name, term) for term in TERMS))
CENTRE, WIDTH = AGGREGATED.centre, AGGREGATED.width
_FACTORS = [k for k, term in enumerate(TERMS) if term.name.startswith("log ")]  # whose surfaces are curved
_HIDDEN = [k for k, term in enumerate(TERMS) if term.name == "eager_layer_s"]
_REACH = 1.5  # of a point of the design, in widths
_FARTHER = (3.0, 5.0)  # further points for terms that kernels hide
_KNOTS = (_REACH, *_FARTHER[:-1])  # where such a surface bends
# Standard deviations of relative errors, of TTFT and TPOT: the spread of repeated measurements of one deployment, and
# what a step model leaves out.
NOISE = np.array([0.15, 0.05])
_NARROWER = (1.0, 0.7, 0.5, 0.5)  # widths of the priors, by level: backend, GPU, model and data type
_LONGER = (0.0, 1.0, 2.0, 4.0)  # widths of the prior that a request may take longer, when a client is chosen
_FARTHEST = 3.0  # e-fold error at which residuals are cut


def prior_of(row: Row) -> Prior:
    """What is known of the terms of a row's server."""
    if row.mode == "disagg":
        return DISAGGREGATED
    return AGGREGATED if row.backend == "vllm" or row.kind == "dense" else LAUNCHED


def calibration(terms: Floats) -> Calibration:
    """The calibration of a point, shape (K,) in the order of TERMS."""
    kernel, compute, communication, *seconds = terms.tolist()
    names = (term.name for term in TERMS[3:])
    known = dict(zip(names, seconds, strict=True))
    return Calibration(
        kernel=math.exp(kernel),
        compute=math.exp(compute),
        communication=math.exp(communication),
        **known,
    )


def vector(fitted: Calibration) -> Floats:
    """The point (K,) of a calibration that `calibration` makes."""
    factors = [math.log(fitted.kernel), math.log(fitted.compute), math.log(fitted.communication)]
    return np.array([*factors, *(getattr(fitted, term.name) for term in TERMS[3:])])


@dataclass(frozen=True)
class Surfaces:
    """Log errors of (TTFT, TPOT), predicted over measured, as functions of the terms, for each row and client.

    `coefficients[key, client]`, shape (C, 2): those of `_basis`, over widths from the centre of `prior`.
    """

    coefficients: Mapping[tuple[str, Client], Floats]
    prior: Prior = AGGREGATED

    @classmethod
    def laid(cls, pairs: Iterable[tuple[Row, Client]], run: Run, prior: Prior = AGGREGATED) -> Surfaces:
        """Replay each row at the points of the design. A pair that cannot be replayed has no surface."""
        once = {(row.key, client): (row, client) for row, client in pairs}
        points = design(prior.centre, prior)
        tasks = [Replay(row, client, calibration(point)) for row, client in once.values() for point in points]
        outcomes = run(tasks)
        coefficients = {}
        for at, (key, (row, _)) in enumerate(once.items()):
            errors = [log_errors(row, one) for one in outcomes[at * len(points) : (at + 1) * len(points)]]
            known = [error for error in errors if error is not None]
            if len(known) == len(points):
                coefficients[key] = surface((points - prior.centre) / prior.width, np.array(known))
        return cls(coefficients, prior)

    def errors(self, coefficients: Floats, terms: Floats) -> Floats:
        """Log errors, (2, R), of `coefficients` (C, 2, R) at terms (K,)."""
        return errors_at(coefficients, (terms - self.prior.centre) / self.prior.width)


def log_errors(row: Row, outcome: Replayed | str) -> Floats | None:
    """Logarithms of predicted over measured TTFT and TPOT, (2,); None for what could not be replayed."""
    if isinstance(outcome, str):
        return None
    return np.log([outcome.ttft_s / row.ttft_s, outcome.tpot_s / row.tpot_s])


def choose_clients(rows: Sequence[Row], training: Sequence[Row], run: Run) -> Mapping[str, Client]:
    """The client of each row, by key: the stated one, or the one that suits the other rows of its campaign best.

    A campaign is one model, GPU, backend and data type of one source. Only `training` rows are used, before anything is
    fitted to them; a campaign without any has the assumed client.
    """
    clients = {row.key: stated(row) for row in rows}
    campaigns: dict[Cell, list[Row]] = defaultdict(list)
    for row in training:
        if clients.get(row.key, stated(row)) is None:
            campaigns[_campaign(row)].append(row)
    best = {
        campaign: _best_reader(members, _best_client(members, CANDIDATES, run), run)
        for campaign, members in campaigns.items()
    }
    return {row.key: clients[row.key] or best.get(_campaign(row), assumed(row)) for row in rows}


def fit_all(rows: Sequence[Row], clients: Mapping[str, Client], surfaces: Surfaces) -> Mapping[Cell, Floats]:
    """Terms of every cell that `rows` reach, from all rows of a backend down to those of a model and data type.

    Doubtful rows are not fitted to.
    """
    used = [row for row in rows if not row.doubts and (row.key, clients[row.key]) in surfaces.coefficients]
    found: dict[Cell, Floats] = {(): surfaces.prior.centre}
    for level in range(1, 5):
        members: dict[Cell, list[Row]] = defaultdict(list)
        for row in used:
            members[cells(row)[level]].append(row)
        for cell, own in members.items():
            prior = found[cells(own[0])[level - 1]]
            found[cell] = _fit(own, clients, surfaces, prior, _NARROWER[level - 1])
    return found


def terms_of(row: Row, found: Mapping[Cell, Floats]) -> Floats:
    """The most specific terms for a row."""
    return next(found[cell] for cell in reversed(cells(row)) if cell in found)


def cells(row: Row) -> tuple[Cell, ...]:
    """The cells of a row's terms, from wide to narrow."""
    model = (row.backend, row.gpu, row.model, row.dtype)
    return (), model[:1], model[:2], model, (*model, row.version or row.date[:7])


def _campaign(row: Row) -> Cell:
    return row.family, row.model, row.gpu, row.backend, row.dtype


def _best_reader(rows: Sequence[Row], client: Client, run: Run) -> Client:
    """The client with the reading speed that suits the rows best."""
    return _best_client(rows, [replace(client, token_s=seconds) for seconds in READING_S], run)


def _best_client(rows: Sequence[Row], candidates: Sequence[Client], run: Run) -> Client:
    """The candidate with the closest mean TTFT, before anything is fitted; the first of equals."""
    outcomes = run([Replay(row, client, calibration(CENTRE)) for client in candidates for row in rows])
    measured_s, prior = np.array([row.ttft_s for row in rows]), prior_of(rows[0])
    way_s = float(prior.width[[term.name for term in prior.terms].index("request_s")])
    losses = []
    for at in range(len(candidates)):
        of_client = outcomes[at * len(rows) : (at + 1) * len(rows)]
        known = np.array([one.ttft_s for one in of_client if isinstance(one, Replayed)])
        losses.append(_loss(known, measured_s, way_s) if len(known) == len(rows) else np.inf)
    return candidates[int(np.argmin(losses))]


def _loss(ttft_s: Floats, measured_s: Floats, way_s: float) -> float:
    """The mean error of (R,) predicted times, with the longer way of a request that suits them best."""
    return float(min(np.abs((ttft_s + longer * way_s) / measured_s - 1).mean() for longer in _LONGER))


def design(centre: Floats, prior: Prior = AGGREGATED) -> Floats:
    """The centre, and each term by itself: factors at both sides of it, seconds, which only add, above it; (P, K)."""
    points = [centre]
    for k in range(len(TERMS)):
        for side in _sides(k):
            point = centre.copy()
            point[k] = np.clip(point[k] + side * prior.width[k], prior.bounds[0][k], prior.bounds[1][k])
            if point[k] != centre[k]:
                points.append(point)
    return np.array(points)


def _sides(k: int) -> tuple[float, ...]:
    """The moves of term number k in the design, in widths from the centre."""
    if k in _FACTORS:
        return -_REACH, _REACH
    return (_REACH, *_FARTHER) if k in _HIDDEN else (_REACH,)


def surface(steps: Floats, errors: Floats) -> Floats:
    """The coefficients (C, M) of the surfaces through `errors` (P, M) at `steps` (P, K), in widths from the centre."""
    return np.asarray(np.linalg.lstsq(_basis(steps), errors, rcond=None)[0], np.float64)


def errors_at(coefficients: Floats, steps: Floats) -> Floats:
    """The values of surfaces of `coefficients` (C, ...) at `steps` (K,) from their centre."""
    return np.asarray(np.tensordot(_basis(steps[None])[0], coefficients, axes=(0, 0)))


def _basis(steps: Floats) -> Floats:
    """Constant, slopes, curvatures of factors, bends of hidden terms at `steps` (P, K) from the centre; (P, C)."""
    bends = [np.maximum(steps[:, _HIDDEN] - knot, 0.0) for knot in _KNOTS]
    return np.hstack([np.ones((len(steps), 1)), steps, steps[:, _FACTORS] ** 2, *bends])


def best_terms(
    errors: Callable[[Floats], Floats], noise: Floats, start: Floats, width: Floats, prior: Prior = AGGREGATED
) -> Floats:
    """The terms (K,) at which log errors (2, R) and the distance from `start`, by that width, cost least together.

    A hidden term has no slope while kernels hide it, so the search also begins at values beyond them."""

    def residuals(terms: Floats) -> Floats:
        scaled = np.expm1(np.clip(errors(terms), -_FARTHEST, _FARTHEST)) / noise[:, None]
        soft = np.sign(scaled) * np.sqrt(2 * (np.sqrt(1 + scaled**2) - 1))
        return np.concatenate([soft.ravel(), (terms - start) / width])

    lowest, highest = prior.bounds
    begins = [start, *(start + side * prior.width * (np.arange(len(start)) == k) for k in _HIDDEN for side in _FARTHER)]
    inside = (np.clip(begin, lowest + 1e-9, highest - 1e-9) for begin in begins)
    found = [least_squares(residuals, begin, bounds=prior.bounds, x_scale=prior.width) for begin in inside]
    return np.asarray(min(found, key=lambda one: float(one.cost)).x)


def _fit(
    rows: Sequence[Row], clients: Mapping[str, Client], surfaces: Surfaces, start: Floats, narrower: float
) -> Floats:
    coefficients = np.stack([surfaces.coefficients[row.key, clients[row.key]] for row in rows], axis=2)
    width, prior = narrower * surfaces.prior.width, surfaces.prior
    return best_terms(lambda terms: surfaces.errors(coefficients, terms), NOISE, start, width, prior)
