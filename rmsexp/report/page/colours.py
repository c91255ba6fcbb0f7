"""Colours of the norms on the dark background of the page."""

from __future__ import annotations

import numpy as np
from matplotlib import colors

DARK = "#16181d"  # the dark background
CONTRAST = 4.0  # the minimal contrast ratio between a line and the dark background


def on_dark(colour: str) -> str:
    """Return the colour, mixed with as little white as gives it the contrast ratio ``CONTRAST`` to ``DARK``."""
    rgb = np.array(colors.to_rgb(colour))
    tints = (rgb + (1 - rgb) * share for share in np.linspace(0, 1, 51))
    return next(colors.to_hex(tint) for tint in tints if contrast(colors.to_hex(tint), DARK) >= CONTRAST)


def contrast(first: str, second: str) -> float:
    """Return the contrast ratio of two colours, 1 to 21 (WCAG 2.2, "relative luminance")."""
    lighter, darker = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    rgb = np.array(colors.to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))
