"""The looks of norms; the user's settings of matplotlib do not change them."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib import colors

from rmsexp.records.frames import names
from rmsexp.report.plots import style

LOOKS = [*style.LOOKS.values(), *style.OTHER_LOOKS]
IMPORTS = "import rmsexp.report.plots, matplotlib; print(matplotlib.rcParams['font.size'], matplotlib.get_backend())"
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


def linear(colour: str) -> np.ndarray:
    rgb = np.array(colors.to_rgb(colour))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def least_distance(colours: Sequence[str], vision: str) -> float:
    """Return the distance of the two nearest colours in CIELAB; below 15, two lines are easily mistaken."""
    seen = np.array(list(map(linear, colours))) @ np.array(VISIONS[vision]).T
    ratio = np.clip(seen, 0, 1) @ XYZ.T / XYZ.sum(axis=1)  # to the white of sRGB
    f = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    lab = np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1)
    return min(float(np.linalg.norm(a - b)) for a, b in combinations(lab, 2))


def contrast(first: str, second: str) -> float:
    """Return the contrast ratio of two colours, 1 to 21 (WCAG 2.2, "relative luminance")."""
    lighter, darker = sorted((linear(colour) @ (0.2126, 0.7152, 0.0722) for colour in (first, second)), reverse=True)
    return float((lighter + 0.05) / (darker + 0.05))


@pytest.mark.parametrize("vision", VISIONS)
def test_colours_are_far_apart_for_colour_blind_readers(vision: str) -> None:
    papers = [style.LOOKS[norm].colour for norm in ("none", "ln", "rms", "prms", "bn", "wn")]
    assert least_distance(papers, vision) > 25
    assert least_distance([look.colour for look in style.LOOKS.values()], vision) > 17


def test_every_norm_has_a_look_of_its_own_that_stands_out_on_both_grounds() -> None:
    assert set(names.NAMES) <= set(style.LOOKS)
    assert least_distance(["#7f7f7f", "#009e73"], "deuteranopia") < 10  # the simulation finds near colours
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)  # a known pair
    for look in LOOKS:
        assert contrast(look.on_dark, style.DARK) > 3.95
        assert re.fullmatch(r"M-?\d+\.\d -?\d+\.\d(L-?\d+\.\d -?\d+\.\d)+Z", look.outline)
    for part in ("colour", "marker", "symbol"):
        assert len({getattr(look, part) for look in LOOKS}) == len(LOOKS)


def test_norms_of_users_get_looks_in_order_and_series_of_a_norm_differ_in_dashes() -> None:
    series = ["ln", "rms", "rms+eps=0.1", "zz", *(f"mine{number}" for number in range(8))]
    looks = style.looks(series)
    assert list(looks) == series
    assert looks["ln"] == style.LOOKS["ln"]
    variant = style.mixed(looks["rms"], style.DARKEST, "#000000", "#ffffff")
    assert looks["rms+eps=0.1"] == variant._replace(dash=style.VARIANTS[1])
    assert contrast(variant.colour, "#ffffff") > contrast(looks["rms"].colour, "#ffffff")
    assert [looks[name] for name in series[3:6]] == list(style.OTHER_LOOKS)
    assert len({look.marker for look in looks.values()}) == len(series) - 1
    of_one_norm = style.looks(f"prms+p={p}" for p in range(12)).values()
    assert len({(look.symbol, look.dash) for look in of_one_norm}) == 12  # without colour


def test_commands_draw_without_the_style_of_the_user(tmp_path: Path) -> None:
    """``-m rmsexp.report`` is a command; what it prints here is of a process that it starts."""
    (tmp_path / "matplotlibrc").write_text("font.size: 31\n")
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {IMPORTS!r}], check=True)"
    command = f"import sys; sys.argv[0] = 'rmsexp'; import rmsexp; {child}"
    variables = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3]), "MPLBACKEND": "svg"}
    words = [sys.executable, "-c", command]
    done = subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("10.0 agg\n", 0), done.stderr
