"""The required content of a fitted trace's file: every name, type, shape and range."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.checks import require_count, require_flag, require_number, require_whole, up_to
from framework.cli.reading import parsed_json
from framework.cli.shapes import numbers_of, record_of, text_of, whole_numbers_of
from framework.errors import InputError
from traces.fitted.arrivals import MOST_CELLS, ArrivalModel
from traces.fitted.lengths import FEATURES, LengthModel
from traces.fitted.prefix import KNOTS, TURN_CLASSES, PrefixModel
from traces.settings import MAX_TOKENS, MOST_REQUESTS

SCHEMA = "trace-twin/2"
_TEXTS = ("name", "original", "original_sha256", "licence", "citation", "note")
_MOST_S = 1e8  # three years
_MOST_CONCENTRATION = 1e12
_MOST_DRIFT = 10**6
_MOST_SEED = 10**6


def parts_of_file(text: str, where: str) -> dict[str, Any]:
    """The fields of a `FittedTrace` in a file's text. Raises InputError, naming `where`, for anything else."""
    try:
        content = parsed_json(text)
    except ValueError as error:
        raise InputError(f"{where} is not a fitted trace ({error}); make one with: python -m traces.fit FILE") from None
    if not isinstance(content, dict) or content.pop("schema", None) != SCHEMA:
        raise InputError(f"{where} is not a fitted trace; make one with: python -m traces.fit FILE")
    try:
        return _parts(content)
    except (InputError, ValueError) as error:
        raise InputError(f"{where} is not a usable fitted trace: {error}") from None


def _parts(content: Any) -> dict[str, Any]:
    needed = ("name", "requests", "arrivals", "lengths", "prefixes")
    known = record_of("it", content, needed, (*_TEXTS, "statistics", "first_seed"))
    require_count("requests", known["requests"], MOST_REQUESTS)
    require_whole("first_seed", known.get("first_seed", 0), _MOST_SEED)
    texts = {name: text_of(name, known[name]) for name in _TEXTS if name in known}
    arrivals = _arrivals(known["arrivals"], known["requests"])
    return {
        **texts,
        "requests": known["requests"],
        "arrivals": arrivals,
        "lengths": _lengths(known["lengths"], len(arrivals.counts)),
        "prefixes": None if known["prefixes"] is None else _prefixes(known["prefixes"]),
        "first_seed": known.get("first_seed", 0),
        "statistics": _statistics("statistics", known.get("statistics", {})),
    }


def _statistics(where: str, value: Any) -> dict[str, float]:
    figures: dict[str, float] = {}
    for name, one in record_of(where, value, (), value if isinstance(value, dict) else ()).items():
        require_number(f"{where}.{name}", one, -1e18, 1e18)
        figures[str(name)] = one
    return figures


def _arrivals(value: Any, requests: int) -> ArrivalModel:
    names = ("period_s", "cell_s", "ticks", "cells", "counts", "concentration")
    known = record_of("arrivals", value, names)
    for name in names[:2]:
        require_number(f"arrivals.{name}", known[name], 1e-9, _MOST_S)
    require_flag("arrivals.ticks", known["ticks"])
    counts = whole_numbers_of("arrivals.counts", known["counts"], (None,), 1, MOST_REQUESTS)
    cells = whole_numbers_of("arrivals.cells", known["cells"], (len(counts),), 1, MOST_CELLS)
    if counts.sum() != requests:
        raise InputError(f"arrivals.counts must sum to the number of requests, {requests:,}")
    if not isinstance(known["concentration"], list):
        raise InputError("arrivals.concentration must be a list")
    for one in known["concentration"]:
        if one is not None:
            require_number("a number in arrivals.concentration", one, 1e-6, _MOST_CONCENTRATION)
    concentration = np.array([np.inf if one is None else one for one in known["concentration"]], np.float64)
    return ArrivalModel(known["period_s"], known["cell_s"], known["ticks"], cells, counts, concentration)


def _lengths(value: Any, windows: int) -> LengthModel:
    names = ("levels", "input_tokens", "output_tokens", "copula", "max_total_tokens", "drift")
    known = record_of("lengths", value, names)
    levels = numbers_of("lengths.levels", known["levels"], (None,), 0, 1)
    if len(levels) < 2:
        raise InputError("lengths.levels must hold at least 2 levels")
    quantiles = {}
    for name in names[1:3]:
        quantiles[name] = numbers_of(f"lengths.{name}", known[name], (len(levels),), 1, MAX_TOKENS)
        if (quantiles[name][1:] < quantiles[name][:-1]).any():
            raise InputError(f"lengths.{name} must not fall")
    copula = whole_numbers_of("lengths.copula", known["copula"], (None, None), 0, MOST_REQUESTS)
    if len(set(copula.shape)) > 1:
        raise InputError("lengths.copula must have as many columns as rows")
    most = known["max_total_tokens"]
    up_to(2 * MAX_TOKENS, 2)("lengths.max_total_tokens", most)
    drift = whole_numbers_of("lengths.drift", known["drift"], (windows, FEATURES), -_MOST_DRIFT, _MOST_DRIFT)
    return LengthModel(levels, **quantiles, copula=copula, max_total_tokens=most, drift=drift)


def _prefixes(value: Any) -> PrefixModel:
    trunks, tables = ("trunk_blocks", "trunk_weights"), ("unmatched_blocks", "lag_s")
    names = ("block_tokens", *trunks, "bin_blocks", "kind_weights", "drift", "added_share", *tables, "parent_turn")
    known = record_of("prefixes", value, names)
    require_count("prefixes.block_tokens", known["block_tokens"], MAX_TOKENS)
    blocks = _some("prefixes.trunk_blocks", known["trunk_blocks"], MAX_TOKENS).astype(np.int64)
    weights = _some("prefixes.trunk_weights", known["trunk_weights"], 1)
    if len(blocks) != len(weights) or (blocks < 1).any():
        raise InputError("prefixes: each of trunk_blocks must be at least 1 and have one of trunk_weights")
    bins = _some("prefixes.bin_blocks", known["bin_blocks"], MAX_TOKENS).astype(np.int64)
    kinds, knots = (len(bins) + 1, 2), len(KNOTS)
    if (bins[1:] <= bins[:-1]).any():
        raise InputError("prefixes.bin_blocks must rise")
    weighed = numbers_of("prefixes.kind_weights", known["kind_weights"], kinds, 0, 1)
    if (weighed.sum(axis=1) > 1 + 1e-5).any():
        raise InputError("prefixes.kind_weights: a row must not sum to more than 1")
    return PrefixModel(
        block_tokens=known["block_tokens"],
        trunk_blocks=blocks,
        trunk_weights=weights,
        bin_blocks=bins,
        kind_weights=weighed,
        drift=numbers_of("prefixes.drift", known["drift"], (None,), 0, _MOST_DRIFT),
        added_share=numbers_of("prefixes.added_share", known["added_share"], (*kinds, knots), 0, 1),
        unmatched_blocks=numbers_of("prefixes.unmatched_blocks", known["unmatched_blocks"], (2, knots), 0, MAX_TOKENS),
        lag_s=numbers_of("prefixes.lag_s", known["lag_s"], (2, knots), 0, _MOST_S),
        parent_turn=numbers_of("prefixes.parent_turn", known["parent_turn"], (TURN_CLASSES,), 0, 1),
    )


def _some(where: str, value: Any, most: float) -> NDArray[np.float64]:
    """Numbers from 0 to `most`; the list may be empty."""
    return np.zeros(0) if value == [] else numbers_of(where, value, (None,), 0, most).astype(np.float64)
