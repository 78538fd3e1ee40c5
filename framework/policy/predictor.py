"""Output-length prediction: the contract of a predictor, and a memory that asks it as seldom as possible."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from framework.compiler.decorators import compiled
from framework.workload import Workload

_ONE_FILE_EACH = ("policies", "predictors")


def given_name(kind: type) -> str:
    """The module's name for a class in its own file in policies/ or predictors/, else the class's."""
    package, _, module = kind.__module__.rpartition(".")
    return module if package in _ONE_FILE_EACH else kind.__name__


# --- predictors -------------------------------------------------------------------------------------------------------


Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class Predictor:
    """Predicts how many output tokens a request has still to come; inherit it, and override `predict`.

    An estimate is made at the start of a stride and holds while the request generates `stride` tokens. Randomness must
    be counter-based on (seed, request, generated // stride), so that it does not depend on the order of calls.

    Attributes:
        stride: Generated tokens for which an estimate holds.

    Raises:
        PolicyError: By the run, if `predict` returns other shapes, or what is no number.

    Example:
        >>> import numpy as np
        >>> class Same(servelab.Predictor):
        ...     def predict(self, requests, generated):
        ...         return np.maximum(250.0 - generated, 1.0), np.full(len(requests), 100.0)
        >>> guess = servelab.run("ares", "synthetic", limit=60, rate=20, predictor=Same())
        >>> guess.summary["predictor"]
        'Same'
    """

    stride: int = 20

    @property
    def name(self) -> str:
        """The predictor's name in results, that of its file in predictors/, else of its class."""
        return given_name(type(self))

    def prepare(self, workload: Workload, seed: int) -> None:
        """Prepare for a run; called once. A simulated error model may look at the true lengths here; no policy can."""

    def predict(self, requests: Integers, generated: Integers) -> tuple[Floats, Floats]:
        """Expected remaining tokens and their spread (one standard deviation) for k requests; shapes (k,)."""
        raise NotImplementedError

    def observe(self, request: int, output_tokens: int) -> None:
        """Note that a request has finished with this many output tokens."""


class Predictions:
    """The predictor's answers of one run, asked on demand and kept within a stride of generated tokens.

    `finished()`: the requests that have finished so far, in the order of their ends.
    """

    def __init__(self, predictor: Predictor | None, workload: Workload, finished: Callable[[], Integers]) -> None:
        self._predictor = predictor
        self._learns = predictor is not None and (
            type(predictor).observe is not Predictor.observe or "observe" in vars(predictor)
        )
        self._output_tokens = workload.output_tokens
        self._finished = finished
        self._observed = 0
        self._strides = np.full(len(workload), -1, np.int64)
        self._remaining = np.zeros(len(workload))
        self._spread = np.zeros(len(workload))
        self.first_total = np.full(len(workload), np.nan)  # the first prediction of each request's whole output

    def remaining(self, ids: Integers, generated: Integers) -> Floats:
        """Expected remaining tokens of each request; NaN without a predictor."""
        return self._answers(ids, generated, self._remaining)

    def spread(self, ids: Integers, generated: Integers) -> Floats:
        """One standard deviation of `remaining`; NaN without a predictor."""
        return self._answers(ids, generated, self._spread)

    def _answers(self, ids: Integers, generated: Integers, kept: Floats) -> Floats:
        """The predictions of these requests, after the predictor has been asked about those out of date."""
        ids, generated = np.asarray(ids, np.int64), np.asarray(generated, np.int64)
        answers = np.empty(len(ids))
        if self._predictor is None:
            answers.fill(np.nan)
            return answers
        asked, at = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
        count = stale(ids, generated, self._predictor.stride, self._strides, asked, at)
        if count > 0:
            self._observe_finished()
            asked, at = asked[:count], at[:count]
            remaining, spread = (_of_each(answer, count) for answer in self._predictor.predict(asked, at))
            keep(asked, at, remaining, spread, self._remaining, self._spread, self.first_total)
        look_up(ids, kept, answers)
        return answers

    def _observe_finished(self) -> None:
        assert self._predictor is not None
        if not self._learns:
            return
        finished = self._finished()
        for request in finished[self._observed :].tolist():
            self._predictor.observe(request, int(self._output_tokens[request]))
        self._observed = len(finished)


def _of_each(answer: Floats | float, count: int) -> Floats:
    """A predictor's answer as a number for each of `count` requests; a single number holds for all."""
    column = np.ascontiguousarray(answer, np.float64)
    return column if column.shape == (count,) else np.ascontiguousarray(np.broadcast_to(column, count))


@compiled
def stale(ids: Integers, generated: Integers, stride: int, strides: Integers, found: Integers, at: Integers) -> int:
    """Write the requests that have reached another stride than that of their estimate, and the tokens at its start: not
    those generated, because the answer must not depend on the order of calls. Returns their number, and notes the new
    strides.
    """
    if len(generated) != len(ids):
        raise ValueError("generated must have one number for each of the requests")
    count = 0
    for k in range(len(ids)):
        if ids[k] < 0 or ids[k] >= len(strides):
            raise IndexError("no request has that number")
        number = generated[k] // stride
        if number != strides[ids[k]]:
            strides[ids[k]] = number
            found[count], at[count] = ids[k], number * stride
            count += 1
    return count


@compiled
def keep(
    ids: Integers,
    at: Integers,
    remaining: Floats,
    spread: Floats,
    all_remaining: Floats,
    all_spread: Floats,
    first_total: Floats,
) -> None:
    """Keep the answers about these requests, and the first expectation of each whole output."""
    for k in range(len(ids)):
        all_remaining[ids[k]], all_spread[ids[k]] = remaining[k], spread[k]
        if np.isnan(first_total[ids[k]]):
            first_total[ids[k]] = at[k] + remaining[k]


@compiled
def look_up(ids: Integers, kept: Floats, found: Floats) -> None:
    """Write the numbers kept of these requests."""
    for k in range(len(ids)):
        found[k] = kept[ids[k]]
