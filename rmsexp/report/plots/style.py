"""The look of the norms in all figures: colour and marker tell norms apart, dashes and shades the variants of one.

Colour is never the only sign of a norm: it has a marker, too. A test computes how far apart the colours are for readers
with deuteranopia and protanopia, and their contrast on the light and the dark background of the page.
"""

from collections.abc import Iterable
from itertools import cycle, product
from typing import Literal, NamedTuple

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.markers import MarkerStyle

from rmsexp import config
from rmsexp.records.frames.names import norm_of

Dash = Literal["-", ""] | tuple[float, tuple[float, ...]]  # for matplotlib: offset, then lengths of dashes and gaps


class Look(NamedTuple):
    """The colours of a norm on light and on dark ground, its marker in matplotlib and in Plotly, and its dashes."""

    colour: str
    on_dark: str
    marker: str
    symbol: str
    dash: Dash = "-"

    @property
    def outline(self) -> str:
        """The marker as the path of an SVG element, about 9 units wide and centred on (0, 0)."""
        style = MarkerStyle(self.marker)
        points = style.get_path().transformed(style.get_transform()).to_polygons()[0]
        points = np.asarray(points) * [1, -1] * 4.5 / np.abs(points).max()  # the y axis of SVG points downward
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) + "Z"


LOOKS = {norm: Look(*about["look"]) for norm, about in config.about_norms().items()}
OTHER_LOOKS = (  # of norms that users have added
    Look("#ff1144", "#ff1144", "h", "hexagon"),
    Look("#2200cc", "#7a66e0", "d", "diamond-tall"),
    Look("#000000", "#ffffff", "8", "octagon"),
)
PAPERS = Look("#777777", "#9a9a9a", "D", "diamond-open", "")  # the savings of the paper
DARK = "#16181d"  # the dark background of the page
THIN, THICK = 1.0, 1.5  # line widths: of the curves of seeds, and of means
PAPER: Dash = (0, (4, 1, 1, 1))  # curves of the paper
VARIANTS: tuple[Dash, ...] = (
    "-",
    (0, (7, 1.5)),
    (0, (7, 1.5, 1.5, 1.5)),
    (0, (7, 1.5, 1.5, 1.5, 1.5, 1.5)),
    (0, (12, 3)),
    (0, (3, 1.5)),
)
DARKEST, PALE = 0.55, 0.5  # the share of black in the last series of a norm, and of the ground in disturbed ones
WIDEST = 2.4  # of a line that is drawn first, relative to the last one above it, so that both are seen


def looks(series: Iterable[str]) -> dict[str, Look]:
    """Return the look of each series, in the given order.

    Norms that are not in ``LOOKS`` get, one after the other, those that no other norm has. Series of one norm differ in
    their dashes, and later ones are darker; the seventh to the twelfth have hollow markers, and the next repeat.
    """
    by_norm: dict[str, list[str]] = {}
    for name in dict.fromkeys(series):
        by_norm.setdefault(norm_of(name), []).append(name)
    free = cycle([*OTHER_LOOKS, *(look for norm, look in LOOKS.items() if norm not in by_norm)])
    of_norms = {norm: LOOKS.get(norm) or next(free) for norm in by_norm}
    found = {}
    for norm, names in by_norm.items():
        shares = DARKEST * np.linspace(0, 1, len(names)) ** 0.5
        for name, share, (fill, dash) in zip(names, shares, cycle(product(("", "-open"), VARIANTS)), strict=False):
            look = mixed(of_norms[norm], share, "#000000", "#ffffff")
            found[name] = look._replace(dash=dash, symbol=look.symbol + fill)
    return found


def mixed(look: Look, share: float, colour: str, on_dark: str) -> Look:
    """Return a look whose colours on light and on dark ground have this ``share`` of other ones."""
    pairs = (look.colour, colour), (look.on_dark, on_dark)
    parts = [(1 - share) * np.array(to_rgb(own)) + share * np.array(to_rgb(other)) for own, other in pairs]
    ours, dark = ("#{:02x}{:02x}{:02x}".format(*np.rint(255 * part).astype(int)) for part in parts)
    return look._replace(colour=ours, on_dark=dark) if share else look
