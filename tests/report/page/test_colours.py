"""The contrast of the norms' colours to the dark background."""

from __future__ import annotations

import pytest

from rmsexp.report.page import colours
from rmsexp.report.plots import style


def test_every_colour_stands_out_on_a_dark_background() -> None:
    all_colours = [look.colour for look in (*style.LOOKS.values(), *style.OTHER_LOOKS)]
    assert min(colours.contrast(colours.on_dark(colour), colours.DARK) for colour in all_colours) >= colours.CONTRAST
    assert colours.on_dark(style.colour("prms")).lower() == style.colour("prms").lower()
    assert colours.contrast("#000000", "#ffffff") == pytest.approx(21)
    assert colours.contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)  # a known pair
