"""Fixtures of tests of data."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.pictures import plain


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    """Return the paths of seven plain images; the red value of image i is 10 i."""
    paths = [tmp_path / "images" / f"{number}.png" for number in range(7)]
    paths[0].parent.mkdir()
    for number, path in enumerate(paths):
        plain(10 * number, 0, 0).save(path)
    return paths
