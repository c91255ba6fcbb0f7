"""Report how far apart the colours of norms are for readers with normal vision, deuteranopia and protanopia.

    python scripts/colour_blindness.py [FIGURE.png ...]

Distances are Euclidean in CIELAB (CIE 1976); about 2 can be seen side by side, and below 15 two lines of a figure are
easily mistaken. Norms also differ in their markers. Given figures, it writes each as a reader with deuteranopia and
with protanopia sees it, beside the figure.

Source of the simulation: Machado, Oliveira and Fernandes, "A physiologically-based model for simulation of color vision
deficiency" (2009), the matrices of severity 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib import colors, image
from numpy.typing import NDArray

from rmsexp.report.page.colours import on_dark
from rmsexp.report.plots import style

Array = NDArray[np.float64]
VISIONS = {
    "normal": np.eye(3),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
}
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


class Nearest(NamedTuple):
    """The two nearest of several colours, and their distance."""

    first: str
    second: str
    distance: float


def least(colours: Mapping[str, str]) -> dict[str, Nearest]:
    """Return the two nearest colours for each vision. ``colours``: the colour of each norm, such as "#0077bb"."""
    return {vision: _nearest(colours, vision) for vision in VISIONS}


def _nearest(colours: Mapping[str, str], vision: str) -> Nearest:
    points = {
        name: _lab(_linear(np.array(colors.to_rgb(colour))) @ VISIONS[vision].T) for name, colour in colours.items()
    }
    pairs = [Nearest(a, b, float(np.linalg.norm(points[a] - points[b]))) for a, b in combinations(points, 2)]
    return min(pairs, key=lambda pair: pair.distance)


def _linear(rgb: Array) -> Array:
    """Return linear light, from sRGB values from 0 to 1, ``(..., 3)``."""
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def _lab(linear: Array) -> Array:
    """Return CIELAB, ``(..., 3)``, of linear light, with the white of sRGB."""
    ratio = np.clip(linear, 0, 1) @ XYZ.T / XYZ.sum(axis=1)
    f = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.stack([116 * f[..., 1] - 16, 500 * (f[..., 0] - f[..., 1]), 200 * (f[..., 1] - f[..., 2])], axis=-1)


def simulated(rgb: Array, vision: str) -> Array:
    """Return sRGB values, ``(..., 3)``, as a reader of this vision sees them."""
    linear = np.clip(_linear(rgb) @ VISIONS[vision].T, 0, 1)
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", type=Path, help="PNG files to simulate")
    arguments = parser.parse_args()
    every = {norm: look.colour for norm, look in style.LOOKS.items()}
    papers = {norm: every[norm] for norm in ("none", "ln", "rms", "prms", "bn", "wn")}
    for name, chosen in (("the paper's six norms", papers), (f"all {len(every)} norms", every)):
        for ground, shown in (("white", chosen), ("dark", {norm: on_dark(colour) for norm, colour in chosen.items()})):
            for vision, found in least(shown).items():
                print(
                    f"{name} on {ground}, {vision:12}  {found.distance:5.1f} between {found.first} and {found.second}"
                )
    for path in arguments.figures:
        for vision in ("deuteranopia", "protanopia"):
            to = path.with_name(f"{path.stem}_{vision}.png")
            image.imsave(to, simulated(image.imread(path)[..., :3].astype(float), vision))
            print(f"wrote   {to}")


if __name__ == "__main__":
    main()
