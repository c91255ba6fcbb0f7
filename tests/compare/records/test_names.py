"""Names, order and units of norms and metrics."""

from __future__ import annotations

import pytest

from rmsexp.compare.records import names


@pytest.mark.parametrize("name", ["caption_r1", "image_r10", "caption_recall", "error"])
def test_fractions_are_shown_in_percent_and_ranks_are_not(name: str) -> None:
    assert names.scale_and_unit(name) == (100, "%")
    assert names.scale_and_unit("image_median_rank") == (1, "")
