"""Colours and markers of norms."""

from __future__ import annotations

import re

from rmsexp.records.frames import names
from rmsexp.report.plots import style
from scripts import colour_blindness

LOOKS = [*style.LOOKS.values(), *style.OTHER_LOOKS]


def test_every_norm_has_a_colour_and_a_marker_of_its_own() -> None:
    assert set(names.NAMES) <= set(style.LOOKS)
    for part in zip(*LOOKS, strict=True):
        assert len(set(part)) == len(LOOKS)
    assert style.look("my_norm") in style.OTHER_LOOKS  # computed from the name, so it is the same in every process
    assert names.in_order(["zz", "wn", "rms+eps=0.1", "rms", "ln", "rms"]) == ["ln", "rms", "rms+eps=0.1", "wn", "zz"]


def test_colours_are_far_apart_for_colour_blind_readers() -> None:
    assert colour_blindness.least({"a": "#7f7f7f", "b": "#009e73"})["deuteranopia"].distance < 10  # too near
    papers = {norm: style.colour(norm) for norm in ("none", "ln", "rms", "prms", "bn", "wn")}
    assert min(found.distance for found in colour_blindness.least(papers).values()) > 25
    every = {norm: look.colour for norm, look in style.LOOKS.items()}
    assert min(found.distance for found in colour_blindness.least(every).values()) > 17


def test_a_marker_is_an_outline_of_svg() -> None:
    for norm in ("ln", "rms", "wn", "derf"):
        path = style.outline(norm)
        assert re.fullmatch(r"M-?\d+\.\d -?\d+\.\d(L-?\d+\.\d -?\d+\.\d)+Z", path)


def test_lines_of_one_panel_have_their_markers_apart() -> None:
    assert style.marked(5, 0) == [0, 1, 2, 3, 4]
    first, second = style.marked(300, 0), style.marked(300, 1)
    assert len(first) == style.MARKED
    assert not set(first) & set(second)
    assert max(first + second) < 300
