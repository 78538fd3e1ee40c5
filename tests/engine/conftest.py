"""What the tests of the engine share."""

from __future__ import annotations

import os

import pytest

from tests.helpers.kept_counts import KeptCounts


@pytest.fixture(scope="session")
def kept_counts(tmp_path_factory: pytest.TempPathFactory) -> KeptCounts:
    """What happens in random runs, which all processes of the tests share."""
    folder = tmp_path_factory.getbasetemp()
    return KeptCounts((folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "counts")
