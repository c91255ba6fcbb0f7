"""A benchmark of layers: tables of the time of each layer per case and of ratios over all shapes, and the figures."""

import statistics
from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from rmsexp.records.frames.benchmarks import Measured, Summary, contention
from rmsexp.report.plots import canvas, style
from rmsexp.report.plots.chart import Axis, Chart, interval, rows
from rmsexp.report.tables import formats
from rmsexp.rules.ratios import paired_ratio

NORMS = {"nn.LayerNorm": "ln", "nn.RMSNorm": "rms"}  # torch's layers have the colours of our norms
TICKS = [digit * 10.0**exponent for exponent in range(-3, 4) for digit in (1, 2, 5)]


def readable(case: Measured) -> pd.DataFrame:
    """Return the table of one case as text: each layer's milliseconds per call, and their ratio to the reference's."""
    reference = case.stored["reference"]
    return pd.DataFrame(
        {
            "layer": row.layer,
            "ms, median (10 % to 90 %)": "{1} ({0} to {2})".format(*map(formats.four_digits, row.milliseconds)),
            f"ratio to {reference} (95 % interval)": "1" if row.layer == reference else formats.ratio(row.relative),
        }
        for row in case.rows
    )


def summaries(requested: Sequence[Summary], measured: Sequence[Measured]) -> dict[str, pd.DataFrame]:
    """Return a table for each requested summary that applies to a measured case, by heading.

    A table has a row of ratios of times for each shape, and a row with their geometric means.
    """
    tables = {}
    for summary in requested:
        cases = [
            case.stored
            for case in measured
            if case.stored["passes"] == summary.passes and case.stored["elements"] >= summary.elements
        ]
        if not cases:
            continue
        columns = {"shape": [*(case["shape"] for case in cases), "geometric mean"]}
        for layer, reference in summary.pairs:
            ratios = [paired_ratio(case["seconds"][layer], case["seconds"][reference]) for case in cases]
            mean = statistics.geometric_mean(interval.ratio for interval in ratios)
            columns[f"{layer} / {reference}"] = [*map(formats.ratio, ratios), f"{mean:.3f}"]
        heading = f"Ratios, {summary.passes}"
        assert heading not in tables, f"two summaries have the heading {heading}"
        tables[heading] = pd.DataFrame(columns)
    return tables


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
