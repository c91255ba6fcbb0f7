"""Marks in figures with one row per norm: our values with their intervals, and the paper's savings below them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from rmsexp.report import paper
from rmsexp.report.plots.style import GREY

FRAMEWORKS = "sD^vP"  # matplotlib markers, one per framework of the paper


def interval(
    axes: Axes, y: float, middle: float, low: float, high: float, colour: str, marker: str = "o", fill: str = "full"
) -> None:
    """Draw a point at ``(middle, y)`` with the horizontal interval from ``low`` to ``high``.

    ``fill``: matplotlib's fillstyle of the point, "full" or "none".
    """
    errors = [[middle - low], [high - middle]]
    axes.errorbar([middle], [y], xerr=errors, color=colour, fmt=marker, capsize=4, fillstyle=fill)


def reach(axes: Axes) -> float:
    """Return the largest x that is drawn at its place: the axis may become twice as long for the paper's marks."""
    low, high = axes.get_xlim()
    return high + (high - low)


def paper_savings(
    axes: Axes, task: str, heights: Sequence[tuple[str, float]], marker: str = "", largest: float = math.inf
) -> int:
    """Draw the paper's savings in percent, hollow and grey; return the number of frameworks that have a point.

    Args:
        axes: the panel, in which our marks are drawn already.
        task: the task whose savings are drawn.
        heights: (norm, height) of each row of the figure; several rows may have the same norm.
        marker: one marker for all frameworks, without legend entry. By default each framework has a marker of its own
            and an entry in the legend.
        largest: larger savings are drawn there, with an arrow and their value (:func:`reach`).
    """
    drawn = 0
    look: dict[str, Any] = {"color": GREY, "markersize": 6, "fillstyle": "none", "markeredgewidth": 1.5}
    for framework_marker, (framework, rows) in zip(
        FRAMEWORKS, paper.savings(task).groupby("framework", sort=False), strict=False
    ):
        saving = rows.set_index("norm")["saving"]
        points = [(100 * saving[norm], y) for norm, y in heights if norm in saving]
        if points:
            label = None if marker else f"paper, {framework}"
            places = [(min(x, largest), y) for x, y in points]
            axes.plot(*zip(*places, strict=True), marker or framework_marker, linestyle="", label=label, **look)
            for x, y in points:
                if x > largest:
                    axes.annotate(
                        f"{x:.0f} \u2192",
                        (largest, y),
                        (-8, 0),
                        textcoords="offset points",
                        size=8,
                        ha="right",
                        va="center",
                        color=GREY,
                    )
            drawn += 1
    return drawn


def zero_line(axes: Axes, x: float = 0) -> None:
    """Draw the vertical line where a norm is as fast as the reference: ``x`` is 0 for savings, 1 for ratios."""
    axes.axvline(x, color=GREY, linewidth=0.8)


def legend_outside(axes: Axes) -> None:
    """Draw the legend to the right of the axes."""
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9)
