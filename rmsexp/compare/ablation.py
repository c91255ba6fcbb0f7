"""Quality and time against p, the share of units that pRMSNorm takes its mean over (section 4, Figure 3)."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rmsexp import record
from rmsexp.compare import figures, stats, style, tables
from rmsexp.compare.load import Records

PARTIAL, WHOLE = "prms", "rms"
COLUMNS = ["series", "p", "seed", "final", "best", "seconds_per_1k_steps", "time_state"]
REFERENCE = (0, (5, 2))  # the dashes of RMSNorm's level


def p_table(records: Records, task: str, setting: str) -> pd.DataFrame:
    """One row a run of pRMSNorm that differs in p alone, and of RMSNorm, which is p = 1; sorted by p and seed.

    Columns are ``COLUMNS``: p as a fraction; ``final`` and ``best`` are the target metric at the common step and where
    the selection split was best, as stored; NaN for runs that diverged or failed. ``seconds_per_1k_steps`` is the run's
    median. Runs whose p is not known are left out.
    """
    records = records.of(task, setting)
    runs = records.runs[[_differs_in_p_alone(series) for series in records.runs["series"]]]
    table = runs[["folder", "series", "seed", "time_state"]].set_index("folder")
    table["p"] = [_p(Path(str(folder)), series) for folder, series in table["series"].items()]
    step = stats.common_step(records)
    table["final"] = stats.final_metric(records, step)
    table["best"] = stats.best_metric(records, step)
    table["seconds_per_1k_steps"] = stats.run_seconds_per_1k_steps(records, list(table.index))
    return table.dropna(subset="p").sort_values(["p", "series", "seed"])[COLUMNS].reset_index(drop=True)


def _differs_in_p_alone(series: str) -> bool:
    norm, *overrides = series.split("+")
    return norm in (WHOLE, PARTIAL) and all(norm == PARTIAL and one.startswith("p=") for one in overrides)


def _p(folder: Path, series: str) -> float:
    """The p that the series' name says, else that of the run's config; NaN where neither does."""
    if series == WHOLE:
        return 1.0
    _, is_named, value = series.partition("+p=")
    try:
        return float(value if is_named else yaml.safe_load((folder / record.CONFIG).read_text())["norm"]["p"])
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return math.nan


def readable(table: pd.DataFrame, aim: stats.Target) -> pd.DataFrame:
    """One row a p: means over seeds, and the median time of a step."""
    factor, unit = style.scale_and_unit(aim.metric)
    rows = []
    for (p, series), runs in table.groupby(["p", "series"]):
        values = {name: runs[name].mean() * factor for name in ("final", "best")}
        values["seconds_per_1k_steps"] = runs["seconds_per_1k_steps"].median()
        text = {name: tables.NO_VALUE if math.isnan(one) else tables.four_digits(one) for name, one in values.items()}
        metric = f"{style.metric(aim.metric)}" + (f" ({unit})" if unit else "")
        rows.append(
            {
                "norm": style.label(str(series)),
                "p": f"{p:.4g}",
                "seeds": str(len(runs)),
                f"{aim.split} {metric}, last": text["final"],
                f"best on {aim.selection}": text["best"],
                "seconds per 1k steps": text["seconds_per_1k_steps"],
            }
        )
    return pd.DataFrame(rows)


def draw_p(table: pd.DataFrame, aim: stats.Target, title: str) -> Figure:
    """The target metric (the setting's headline) and seconds per 1k steps against p: a point a seed, a line of means.

    RMSNorm is a level of its own across each panel; a time that does not count is hollow. ``table``: :func:`p_table`.
    """
    headline = stats.headline(aim)
    factor, unit = style.scale_and_unit(aim.metric)
    name = f"{aim.split} {style.metric(aim.metric)}" + (f" ({unit})" if unit else "")
    figure, (quality, time) = figures.row(
        2, title, ["points: one seed; line: mean of those that count; hollow: time that does not"]
    )
    everything = pd.Series(True, table.index)
    _panel(quality, table, table[headline] * factor, everything)
    quality.set_ylabel(f"{name}, {'last' if headline == 'final' else f'best on {aim.selection}'}")
    _panel(time, table, table["seconds_per_1k_steps"], table["time_state"] == "clear")
    time.set_ylabel("seconds per 1k steps")
    figure.legend(*quality.get_legend_handles_labels(), loc="upper right", ncols=2, frameon=False, fontsize=9)
    return figure


def _panel(axes: Axes, table: pd.DataFrame, values: pd.Series, counts: pd.Series) -> None:
    p, whole = table["p"] * 100, table["series"] == WHOLE
    for some, norm in ((whole, WHOLE), (~whole, PARTIAL)):
        for shown, fill in ((some & counts, "full"), (some & ~counts, "none")):
            axes.plot(p[shown], values[shown], "o", color=style.colour(norm), alpha=0.6, markersize=4, fillstyle=fill)
    partial = ~whole & counts
    mean = values[partial].groupby(p[partial]).mean()
    axes.plot(mean.index, mean, color=style.colour(PARTIAL), linewidth=figures.THICK, label=style.label(PARTIAL))
    if values[whole & counts].notna().any():
        level = values[whole & counts].mean()
        axes.axhline(level, color=style.colour(WHOLE), linestyle=REFERENCE, label=f"{style.label(WHOLE)} (p = 100 %)")
    axes.set_xlabel("p (% of the units)")
    axes.set_xlim(0, 104)
