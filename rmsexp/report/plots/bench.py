"""The figure of a benchmark of layers."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from rmsexp.records.frames.benchmarks import Measured, contention
from rmsexp.report.plots import canvas, style
from rmsexp.report.plots.chart import Axis, Chart, interval, rows
from rmsexp.report.tables import formats

NORMS = {"nn.LayerNorm": "ln", "nn.RMSNorm": "rms"}  # torch's layers have the colours of our norms
TICKS = [digit * 10.0**exponent for exponent in range(-3, 4) for digit in (1, 2, 5)]


def draw(cases: Sequence[Measured], title: str, lines: Sequence[str]) -> Figure:
    """Return a figure with a panel per case: the ratio of each layer's time to the reference's, with its interval.

    ``cases``: cases with the same layers. ``lines``: the caption.
    """
    norms = [NORMS.get(row.layer, row.layer.split()[0]) for row in cases[0].rows]
    looks = style.looks(norms)
    drawn = [
        [
            interval(looks[norm], -float(y), row.relative)
            for y, (norm, row) in enumerate(zip(norms, case.rows, strict=True))
        ]
        for case in cases
    ]
    ratios = [float(value) for marks in drawn for mark in marks for value in mark.x]
    low, high = min(0.8 * min(ratios), 0.45), max(1.25 * max(ratios), 2.2)  # with at least the ticks 0.5, 1 and 2
    ticks = [tick for tick in TICKS if low <= tick <= high]
    panels = []
    for case, marks in zip(cases, drawn, strict=True):
        reference = case.stored["reference"]
        median = next(row.milliseconds[1] for row in case.rows if row.layer == reference)
        heading = f"{case.stored['shape']}{contention(case.stored)}; {reference}: {formats.four_digits(median)} ms"
        x = Axis(f"ratio to {reference}", (low, high), log=True, ticks=ticks)
        panels.append(rows([row.layer for row in case.rows], marks, x, 1, heading))
    return canvas.draw(Chart(title, lines, panels))
