"""Colours of norms."""

from __future__ import annotations

from rmsexp.compare.plots import style
from rmsexp.compare.records import names


def test_colours_are_distinct_and_stable() -> None:
    assert set(names.NAMES) == set(style.COLOURS)
    assert len({*style.COLOURS.values(), *style.OTHER_COLOURS}) == len(style.COLOURS) + len(style.OTHER_COLOURS)
    assert style.colour("dyisru") == "#44AA99"  # computed from the name, so it is the same in every process
    assert names.in_order(["zz", "wn", "rms+eps=0.1", "rms", "ln", "rms"]) == ["ln", "rms", "rms+eps=0.1", "wn", "zz"]
