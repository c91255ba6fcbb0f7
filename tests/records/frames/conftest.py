"""A fixture with the results of one setting that has six norms."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.comparisons import write_setting


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Return a new results folder with 11 runs of cifar10, demo, which the test may change."""
    return write_setting(tmp_path)
