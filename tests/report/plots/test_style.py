"""Colours and markers of norms."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from matplotlib import colors

from rmsexp.records.frames import names
from rmsexp.report.plots import style

LOOKS = [*style.LOOKS.values(), *style.OTHER_LOOKS]
# What a reader with this vision sees of linear light. Source: Machado, Oliveira and Fernandes, "A physiologically-based
# model for simulation of color vision deficiency" (2009), the matrices of severity 1.
VISIONS = {
    "normal": np.eye(3),
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
}
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def least_distance(colours: Sequence[str], vision: str) -> float:
    """Return the distance of the two nearest colours in CIELAB; below 15, two lines are easily mistaken."""
    rgb = np.array([colors.to_rgb(colour) for colour in colours])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4) @ np.array(VISIONS[vision]).T
    ratio = np.clip(linear, 0, 1) @ XYZ.T / XYZ.sum(axis=1)  # to the white of sRGB
    f = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    lab = np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1)
    return min(float(np.linalg.norm(a - b)) for a, b in combinations(lab, 2))


def test_every_norm_has_a_colour_and_a_marker_of_its_own() -> None:
    assert set(names.NAMES) <= set(style.LOOKS)
    for part in zip(*LOOKS, strict=True):
        assert len(set(part)) == len(LOOKS)
    assert style.look("my_norm") in style.OTHER_LOOKS  # computed from the name, so it is the same in every process
    assert names.in_order(["zz", "wn", "rms+eps=0.1", "rms", "ln", "rms"]) == ["ln", "rms", "rms+eps=0.1", "wn", "zz"]


@pytest.mark.parametrize("vision", VISIONS)
def test_colours_are_far_apart_for_colour_blind_readers(vision: str) -> None:
    papers = [style.colour(norm) for norm in ("none", "ln", "rms", "prms", "bn", "wn")]
    assert least_distance(papers, vision) > 25
    assert least_distance([look.colour for look in style.LOOKS.values()], vision) > 17


def test_the_simulation_finds_colours_that_are_too_near() -> None:
    assert least_distance(["#7f7f7f", "#009e73"], "deuteranopia") < 10


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
