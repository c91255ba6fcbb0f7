"""Quality and time against p, the fraction of units in pRMSNorm's mean square, as in the paper's Figure 3."""

import pandas as pd

from rmsexp.records.frames import curves, names, quantities, statistics
from rmsexp.records.frames.load import Records
from rmsexp.report.plots import style
from rmsexp.report.plots.chart import Axis, Chart, Kind, Mark, Panel, padded
from rmsexp.report.tables import formats, learning_rates
from rmsexp.rules.quantities import Quantity

PARTIAL, WHOLE = "prms", "rms"
IDENTITY = ["series", "impl", "p", "seed"]
TIME = ["seconds_per_1k_steps", "time_state", "status"]
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
    fraction; the name of each quantity that is :func:`compared`, which is its unscaled value at the common step or, if
    the runs get one, their score, and NaN for runs that diverged or failed; and ``TIME``, of which the seconds are the
    median over the run.
    """
    plain = records.runs["series"].map(names.without_impl)
    runs = records.runs.assign(series=plain, impl=records.runs["impl"].fillna("unknown"))
    runs = runs[(plain == WHOLE) | plain.str.fullmatch(rf"{PARTIAL}(\+p=[^+]*)*")]
    table = runs[runs["impl"] == runs["impl"].mode().iloc[0]].set_index("folder")
    table["p"] = [_p(str(folder), series) for folder, series in table["series"].items()]
    step, shown = statistics.common_step(records), compared(records)
    for quantity in shown:
        table[quantity.name] = statistics.final_metric(records, step, quantity.split, quantity.metric)
    table["seconds_per_1k_steps"] = curves.seconds_per_1k_steps(records).groupby("folder")["seconds"].median()
    columns = [*IDENTITY, *(quantity.name for quantity in shown), *TIME]
    return table.dropna(subset="p").sort_values(["p", "series", "seed"])[columns].reset_index(drop=True)


def _p(folder: str, series: str) -> float:
    """Return p: 1 for RMSNorm; for pRMSNorm from the name of the series, else from the run's config, else NaN."""
    _, is_named, value = series.partition("+p=")
    named = pd.to_numeric(value, errors="coerce") if is_named else learning_rates.configured(folder, "norm", "p")
    return 1.0 if series == WHOLE else float(named)


def readable(table: pd.DataFrame, records: Records) -> pd.DataFrame:
    """Return one row per p and norm as text: means over seeds, with 95 % t-intervals from three seeds on.

    Quality is of the runs that neither diverged nor failed, times are of those that were not disturbed. A mean that
    leaves runs out is followed by "2 of 3 seeds". ``records``: those of the :func:`table`.
    """
    label, shown = statistics.final_label(statistics.target(records)), compared(records)
    rows = []
    impl = "" if set(table["impl"]) <= {"eager"} else f" ({table['impl'].iloc[0]})"
    for (_, series), runs in table.groupby(["p", "series"]):
        seconds = runs["seconds_per_1k_steps"].where(runs["time_state"] == "undisturbed")
        rows.append(
            {
                "norm": f"{names.label(names.norm_of(str(series)))}{impl}",
                "p": f"{runs['p'].iloc[0] * 100:.4g} %",
                "seeds": str(len(runs)),
                "diverged or failed": str(int(runs["status"].isin(statistics.LOST).sum())),
                **{f"{quantities.title(one)}, {label}": _mean(runs[one.name] * one.factor) for one in shown},
                "seconds per 1k steps": _mean(seconds),
            }
        )
    return pd.DataFrame(rows)


def _mean(values: pd.Series) -> str:
    """Return the mean, half of its 95 % t-interval and the number of seeds if some have no value."""
    mean, _, interval = statistics.estimate(values.to_numpy(float))
    return formats.quality(mean, "", interval, formats.of_seeds(int(values.count()), len(values)))


def chart(table: pd.DataFrame, records: Records, title: str) -> Chart:
    """Return a chart with a panel per quantity and one with the seconds per 1k steps, all against p.

    Each point is a run. Times of disturbed runs are hollow points and excluded from means. A line joins the means of
    pRMSNorm over seeds; a horizontal line is the mean of RMSNorm. From three seeds on, means have 95 % t-intervals. The
    caption has the numbers of seeds. ``table``: the :func:`table` of ``records``.
    """
    shown = compared(records)
    undisturbed = table["seconds_per_1k_steps"].where(table["time_state"] == "undisturbed")
    norms = [table["series"] == WHOLE, table["p"]]
    seeds = [
        values.notna().groupby(norms).sum() for values in (*(table[quantity.name] for quantity in shown), undisturbed)
    ]
    counts = [" to ".join(dict.fromkeys([f"{each.min()}", f"{each.max()}"])) for each in seeds]
    caption = [
        f"{READING}; hollow: time excluded; norms: {table['impl'].iloc[0]}",
        f"seeds per mean: {', '.join(counts[:-1])} in quality, {counts[-1]} in time",
        f"runs that diverged or failed, whose quality is not drawn: {table['status'].isin(statistics.LOST).sum()}",
    ]
    panels = [quality(table, quantity, records) for quantity in shown]
    time = _panel(table, table["seconds_per_1k_steps"], undisturbed, "seconds per 1k steps")
    return Chart(title, caption, [*panels, time], LEGEND)


def quality(table: pd.DataFrame, quantity: Quantity, records: Records) -> Panel:
    """Return a quantity against p. ``table``: the :func:`table` of ``records``."""
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
        if norm == WHOLE:  # a horizontal line
            means = {at: one for one in means.values() for at in (0.0, 100.0)}
        y = [mean for mean, *_ in means.values()]
        low, high = ([mean + sign * half for mean, _, half in means.values()] for sign in (-1, 1))
        marks.append(Mark("line", LOOKS[norm], list(means), y, low, high, names.label(norm), norm))
    ends = [value for mark in marks for value in (*mark.y, *(mark.low if mark.kind == "line" else ()), *mark.high)]
    return Panel(Axis("p (% of the units)", (0, 104), ticks=TICKS), Axis(title, padded(ends)), marks)
