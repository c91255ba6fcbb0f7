"""Names, order and units of norms and metrics."""

from __future__ import annotations

import pytest

from rmsexp.records.frames import names


@pytest.mark.parametrize("name", ["caption_r1", "image_r10", "caption_recall", "error"])
def test_fractions_are_shown_in_percent_and_ranks_are_not(name: str) -> None:
    assert names.scale_and_unit(name) == (100, "%")
    assert names.scale_and_unit("image_median_rank") == (1, "")


def test_interim_evaluations_of_searched_texts_are_greedy() -> None:
    assert names.split_label("interim", "bleu") == "valid, 256 examples, greedy:"
    assert names.split_label("interim", "error") == "valid, 256 examples:"
    assert names.split_label("test", "bleu") == "test"
