"""A fixture with drawn results of one setting that has six norms, for the tests of comparisons."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.comparisons import write_setting

from rmsexp.compare import draw


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a results folder with 11 runs of cifar10, demo, and their curves and summary. Tests must not change it."""
    results = write_setting(tmp_path_factory.mktemp("drawn"))
    draw(results, "cifar10", "demo")
    return results
