"""Records of ``python -m rmsexp.timing``: step times of norms that took turns in one process, as paired ratios.

A record is ``<results>/<task>/<setting>/timing/<kind><number>/timing.json``. Everything that is said of it is computed
here from the seconds of its blocks.
"""

from __future__ import annotations

from matplotlib.axes import Axes


def mark(axes: Axes, place: float, middle: float, low: float, high: float, shade: str, marker: str = "o") -> None:
    """A point with its interval on the line ``place`` of a figure."""
    axes.errorbar([middle], [place], xerr=[[middle - low], [high - middle]], color=shade, fmt=marker, capsize=4)
