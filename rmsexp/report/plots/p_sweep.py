"""The figure of quality and time against p, the fraction of units in pRMSNorm's mean square (the paper's Figure 3)."""

from __future__ import annotations

import pandas as pd

from rmsexp.records.frames import names, quantities, statistics
from rmsexp.records.frames.load import Records
from rmsexp.report.plots import style
from rmsexp.report.plots.chart import Axis, Chart, Kind, Mark, Panel, padded
from rmsexp.report.tables.p_sweep import PARTIAL, WHOLE, compared
from rmsexp.rules.quantities import Quantity

LOOKS = {WHOLE: style.LOOKS[WHOLE]._replace(dash=style.VARIANTS[1]), PARTIAL: style.LOOKS[PARTIAL]}
LEGEND = [(LOOKS[WHOLE], f"{names.label(WHOLE)} (p = 100 %)"), (LOOKS[PARTIAL], names.label(PARTIAL))]
TICKS = range(0, 101, 20)
READING = f"points: seeds; lines: their means; bands: {statistics.CONFIDENCE:.0%} t-interval, from three seeds on"


def chart(table: pd.DataFrame, records: Records, title: str) -> Chart:
    """Return a chart with a panel per quantity and one with the seconds per 1k steps, all against p.

    Each point is a run. Times that are not clear are hollow points and excluded from
    means. A line joins the means of pRMSNorm over seeds; a horizontal line is the mean of RMSNorm. From three seeds on,
    means have 95 % t-intervals. The caption has the numbers of seeds. ``table``: the
    :func:`rmsexp.report.tables.p_sweep.table` of ``records``.
    """
    shown = compared(records)
    clear = table["seconds_per_1k_steps"].where(table["time_state"] == "clear")
    norms = [table["series"] == WHOLE, table["p"]]
    seeds = [values.notna().groupby(norms).sum() for values in (*(table[quantity.name] for quantity in shown), clear)]
    counts = [" to ".join(dict.fromkeys([f"{each.min()}", f"{each.max()}"])) for each in seeds]
    lost = int(table["status"].isin(statistics.LOST).sum())
    caption = [
        f"{READING}; hollow: time excluded; norms: {table['impl'].iloc[0]}",
        f"seeds per mean: {', '.join(counts[:-1])} in quality, {counts[-1]} in time",
        f"runs that diverged or failed, whose quality is not drawn: {lost}",
    ]
    panels = [quality(table, quantity, records) for quantity in shown]
    time = _panel(table, table["seconds_per_1k_steps"], clear, "seconds per 1k steps")
    return Chart(title, caption, [*panels, time], LEGEND)


def quality(table: pd.DataFrame, quantity: Quantity, records: Records) -> Panel:
    """Return a quantity against p. ``table``: the :func:`rmsexp.report.tables.p_sweep.table` of ``records``."""
    values = table[quantity.name] * quantity.factor
    title = f"{quantities.title(quantity)}, {statistics.final_label(statistics.target(records))}"
    return _panel(table, values, values, title)


def _panel(table: pd.DataFrame, values: pd.Series, included: pd.Series, title: str) -> Panel:
    """Return one panel. ``values``: those of all runs. ``included``: those in means; NaN for the other runs."""
    p, marks = table["p"] * 100, list[Mark]()
    for norm, is_norm in ((WHOLE, table["series"] == WHOLE), (PARTIAL, table["series"] != WHOLE)):
        drawn, look = is_norm & values.notna(), LOOKS[norm]._replace(marker="o", symbol="circle")
        kinds: dict[Kind, pd.Series] = {"points": drawn & included.notna(), "hollow": drawn & included.isna()}
        for kind, selected in kinds.items():
            if selected.any():
                marks.append(Mark(kind, look, p[selected].to_list(), values[selected].to_list()))
        by_p = included[is_norm].dropna().groupby(p)
        means = {float(at): statistics.estimate(runs.to_numpy(float)) for at, runs in by_p}
        x = list(means) if norm == PARTIAL else [0.0, 100.0] * bool(means)
        found = [means[at] for at in means] * (1 if norm == PARTIAL else 2)
        y, half = [one.mean for one in found], [one.interval for one in found]
        low, high = ([mean + sign * end for mean, end in zip(y, half, strict=True)] for sign in (-1, 1))
        marks.append(Mark("line", LOOKS[norm], x, y, low, high, names.label(norm), norm))
    ends = [value for mark in marks for value in (*mark.y, *(mark.low if mark.kind == "line" else ()), *mark.high)]
    return Panel(Axis("p (% of the units)", (0, 104), ticks=TICKS), Axis(title, padded(ends)), marks)
