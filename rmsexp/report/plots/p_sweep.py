"""Quality against p, the fraction of units in pRMSNorm's mean square, as in the paper's Figure 3."""

import math
from contextlib import suppress

import pandas as pd

from rmsexp.records.frames import names, quantities, statistics
from rmsexp.records.frames.load import Records, options
from rmsexp.report.plots import style
from rmsexp.report.plots.chart import Axis, Mark, Panel, padded
from rmsexp.rules.quantities import Quantity

PARTIAL, WHOLE = "prms", "rms"
IDENTITY = ["series", "impl", "p", "seed"]
LOOKS = {WHOLE: style.LOOKS[WHOLE]._replace(dash=style.VARIANTS[1]), PARTIAL: style.LOOKS[PARTIAL]}
LEGEND = [(LOOKS[WHOLE], f"{names.label(WHOLE)} (p = 100 %)"), (LOOKS[PARTIAL], names.label(PARTIAL))]
TICKS = range(0, 101, 20)
READING = f"points: seeds; lines: their means; bands: {statistics.CONFIDENCE:.0%} t-interval, from three seeds on"


def compared(records: Records) -> list[Quantity]:
    """Return the recorded quantities of held-out splits, without the loss if there are others."""
    step = statistics.common_step(records)
    held_out = [quantity for quantity in quantities.named(records) if quantity.split != quantities.TRAIN]
    found = [one for one in held_out if len(statistics.final_metric(records, step, one.split, one.metric))] or held_out
    return [quantity for quantity in found if quantity.metric != "loss"] or found


def table(records: Records) -> pd.DataFrame:
    """Return one row per run of RMSNorm (p = 1) and of pRMSNorm in a setting, sorted by p, series and seed.

    Norms of which an option other than p was changed are left out, and so are runs with unknown p, and those of the
    implementation with fewer runs. Columns: ``IDENTITY``, of which ``series`` is without the implementation and p is a
    fraction, and the name of each quantity that is :func:`compared`, which is its unscaled value at the common step or,
    if the runs get one, their score, and NaN for runs that diverged or failed.
    """
    plain = records.runs["series"].map(names.without_impl)
    runs = records.runs.assign(series=plain, impl=records.runs["impl"].fillna("unknown"))
    runs = runs[(plain == WHOLE) | plain.str.fullmatch(rf"{PARTIAL}(\+p=[^+]*)*")]
    table = runs[runs["impl"] == runs["impl"].mode().iloc[0]].set_index("folder")
    table["p"] = [1.0 if series == WHOLE else _p(str(folder), series) for folder, series in table["series"].items()]
    step, shown = statistics.common_step(records), compared(records)
    for quantity in shown:
        table[quantity.name] = statistics.final_metric(records, step, quantity.split, quantity.metric)
    columns = [*IDENTITY, *(quantity.name for quantity in shown)]
    return table.dropna(subset="p").sort_values(["p", "series", "seed"])[columns].reset_index(drop=True)


def _p(folder: str, series: str) -> float:
    """Return p of pRMSNorm, from the name of the series, else from the config in the run's folder, else NaN."""
    _, is_named, value = series.partition("+p=")
    with suppress(ValueError, TypeError):
        return float(value if is_named else options(folder).get("norm.p", math.nan))
    return math.nan


def quality(table: pd.DataFrame, quantity: Quantity, records: Records) -> Panel:
    """Return a quantity against p: a point per run, and means over seeds, of RMSNorm as a horizontal line.

    ``table``: the :func:`table` of ``records``.
    """
    p, values, marks = table["p"] * 100, table[quantity.name] * quantity.factor, list[Mark]()
    for norm, is_norm in ((WHOLE, table["series"] == WHOLE), (PARTIAL, table["series"] != WHOLE)):
        drawn, look = is_norm & values.notna(), LOOKS[norm]._replace(marker="o", symbol="circle")
        if drawn.any():
            marks.append(Mark("points", look, p[drawn].to_list(), values[drawn].to_list()))
        by_p = values[is_norm].dropna().groupby(p)
        means = {float(at): statistics.estimate(runs.to_numpy(float)) for at, runs in by_p}
        if norm == WHOLE:  # a horizontal line
            means = {at: one for one in means.values() for at in (0.0, 100.0)}
        y = [mean for mean, *_ in means.values()]
        low, high = ([mean + sign * half for mean, _, half in means.values()] for sign in (-1, 1))
        marks.append(Mark("line", LOOKS[norm], list(means), y, low, high, names.label(norm), norm))
    ends = [value for mark in marks for value in (*mark.y, *(mark.low if mark.kind == "line" else ()), *mark.high)]
    title = f"{quantities.title(quantity)}, {statistics.final_label(statistics.target(records))}"
    return Panel(Axis("p (% of the units)", (0, 104), ticks=TICKS), Axis(title, padded(ends)), marks)
