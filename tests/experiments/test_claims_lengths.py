"""Every row whose source quotes lengths plays them: means and percentiles within 1 %, after cut and rounding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hydra.utils import instantiate

from experiments.tune import base
from experiments.tune.base import Configuration
from experiments.validation.claims.file import FOLDER, claim_names, read_claims
from tests.helpers.composing import composing
from tests.helpers.quick import one_in
from traces.drawn.distributions import Distribution

# Distinguished by their text: to read all rows takes a second, and each worker would do so before its first test.
NAMES = [name for name in claim_names() if "\nlengths:" in (FOLDER / f"{name}.yaml").read_text()]
SHARES = (np.arange(200_000) + 0.5) / 200_000  # every share as often, so that nothing is left to chance


def figures(lengths: Distribution, quoted: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """What is quoted and what the distribution has, by the name of the figure."""
    tokens = np.maximum(1, np.rint(lengths.quantile(SHARES)))
    compared = {
        f"P{level}": (value, float(np.percentile(tokens, level))) for level, value in percentiles(quoted).items()
    }
    return compared | ({"mean": (quoted["mean"], float(tokens.mean()))} if "mean" in quoted else {})


def percentiles(quoted: Mapping[str, Any]) -> Mapping[float, float]:
    return quoted.get("percentiles", {})


def parts(lengths: Distribution, quoted: Any) -> list[tuple[Distribution, Mapping[str, Any]]]:
    """The distribution with its figures; each part of a mixture with those of its own data set."""
    return list(zip(lengths.components(), quoted, strict=True)) if isinstance(quoted, Sequence) else [(lengths, quoted)]


@pytest.mark.parametrize("name", one_in(8, NAMES))
def test_a_row_plays_the_quoted_lengths(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "initialize_config_dir", lambda *_, **__: composing())
    (row,) = read_claims([name])
    assert row.lengths is not None
    trace = Configuration((*row.settings, *row.arms["system"])).config.trace
    for side in ("input", "output"):
        for lengths, quoted in parts(instantiate(trace[side], _convert_="all"), row.lengths[side]):
            compared = figures(lengths, quoted)
            assert compared
            for figure, (wanted, has) in compared.items():
                assert has == pytest.approx(wanted, rel=0.01), f"{side} {figure}"


def test_most_rows_with_drawn_lengths_quote_them() -> None:
    rows = read_claims()
    drawn = {row.name for row in rows if any(word.startswith("trace=synthetic") for word in row.settings)}
    assert len(NAMES) >= 30
    assert {row.name for row in rows if row.lengths} == set(NAMES) <= drawn
    without = {name.split("/")[0] for name in drawn} - {name.split("/")[0] for name in NAMES}
    assert without == {
        "eagle",
        "eagle3",
        "hack",
        "llumnix",
        "mtp",
        "polyserve",
        "trail",
    }  # these say in `chosen` what lengths they play


def test_rows_with_fewer_replicates_draw_neither_lengths_nor_waits() -> None:
    """A recording as it stands, or fixed lengths of clients that never pause or of requests that all come at once."""
    for row in read_claims():
        if row.replicates is None:
            continue
        settings = " ".join((*row.settings, *row.arms["system"], *row.arms["baseline"]))
        if "trace=mooncake" in settings:
            assert "trace.resample_s" not in settings, row.name
            assert "trace.poisson" not in settings, row.name
        else:
            assert settings.count("law:") == settings.count("law:fixed") == 2, row.name
            assert "load=closed" in settings or "trace.arrivals.rate=1e6" in settings, row.name
