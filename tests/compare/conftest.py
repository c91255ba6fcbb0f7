"""Results of one setting with six norms, shared by the tests of comparisons."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.comparisons import write_setting

from rmsexp.compare import draw


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Return a folder of results that a test may change."""
    return write_setting(tmp_path)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of such results with their curves and summary drawn. Tests must not change it."""
    results = write_setting(tmp_path_factory.mktemp("drawn"))
    draw(results, "cifar10", "demo")
    return results
