"""An hour of Azure's conversations on 16 instances of which one crashes each minute, by the user's door."""

from __future__ import annotations

from typing import Any

import pytest

import servelab


@pytest.mark.parametrize(
    ("policy", "settings"),
    [
        ("chunked", {"cluster.instances": 16}),
        pytest.param("distserve", {"cluster.prefill": 4, "cluster.decode": 12}, marks=pytest.mark.slow),
        pytest.param("mooncake", {"cluster.prefill": 4, "cluster.decode": 12}, marks=pytest.mark.slow),
        pytest.param("llumnix", {"cluster.instances": 16}, marks=pytest.mark.slow),
    ],
)
def test_a_crash_each_minute_loses_no_request(
    policy: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each GPU fails every 16 minutes; a run checks its invariants at its end, or there would be no summary."""
    monkeypatch.setenv("TRACES_OFFLINE", "1")
    monkeypatch.delenv("TRACES_DIR", raising=False)
    faults = {"engine/faults": "rates", "engine.faults.gpu_mtbf_s": 960.0}
    found = servelab.run(policy, "azure_conv", **settings, **faults).summary
    assert len(found["crashes"]) > 40
    assert found["completed"] == 19_366
    assert sum(row["dropped"] for row in found["crashes"]) == found["dropped"] > 0
    assert 0.8 < found["availability"] < 1.0
