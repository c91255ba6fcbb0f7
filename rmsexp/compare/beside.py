"""Our numbers beside the paper's: quality by table, and its curves where they can lie over ours."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.figure import Figure

from rmsexp.compare import figures, published, stats, style, tables
from rmsexp.compare.load import Records

PAPER = "paper, its own setting"
SPLITS = {"newstest2017": "test2017"}  # of our records, where what is published is not of the headline's split
COLUMNS = ["series", "final", "best", "paper", "final_difference", "best_difference"]


def quality(records: Records) -> pd.DataFrame:
    """One row a number that is published of one of our series; metrics as stored, differences are ours minus theirs.

    Columns: ``COLUMNS``, then ``table framework data note`` of the published number. ``final best``: means over seeds
    at the common step and where the selection split was best.
    """
    aim = stats.target(records)
    theirs = published.of(records.names[0], aim.metric).rename(columns={"value": "paper"}).drop(columns="task")
    split = theirs["data"].map(SPLITS).fillna(aim.split)
    known = [one for one in dict.fromkeys(split) if len(stats.evaluations(records, one, aim.metric))]
    found = [_ours(records, one).merge(theirs[split == one], on="norm") for one in known]
    both = pd.concat(found) if found else pd.DataFrame(columns=["series", "final", "best", *theirs.columns])
    both["final_difference"], both["best_difference"] = both["final"] - both["paper"], both["best"] - both["paper"]
    order = {series: place for place, series in enumerate(style.in_order(both["series"]))}
    both = both.sort_values("series", key=lambda series: series.map(order), kind="stable")
    return both[[*COLUMNS, "table", "framework", "data", "note"]].reset_index(drop=True)


def _ours(records: Records, split: str) -> pd.DataFrame:
    """Columns ``series norm final best``; ``norm`` as the published numbers write it."""
    step, runs = stats.common_step(records), records.runs.set_index("folder")
    values = {"final": stats.final_metric(records, step, split), "best": stats.best_metric(records, step, split)}
    means = runs.assign(**values).groupby("series", as_index=False)[["final", "best"]].mean()
    return means.assign(norm=means["series"].str.lower())


def readable_quality(table: pd.DataFrame, aim: stats.Target) -> pd.DataFrame:
    factor, unit = style.scale_and_unit(aim.metric)
    points = " (points)" if unit else ""

    def shown(value: float, form: str) -> str:
        return tables.NO_VALUE if math.isnan(value) else f"{value * factor:{form}} {unit}".rstrip()

    rows = [
        {
            "norm": style.label(row["series"]),
            PAPER: shown(row["paper"], ".2f"),
            "last": shown(row["final"], ".2f"),
            f"last minus paper{points}": shown(row["final_difference"], "+.2f").removesuffix(" %"),
            f"best on {aim.selection}": shown(row["best"], ".2f"),
            f"best minus paper{points}": shown(row["best_difference"], "+.2f").removesuffix(" %"),
            "source": "; ".join(filter(None, (row["table"], row["framework"], row["data"]))),
        }
        for row in table.to_dict("records")
    ]
    return pd.DataFrame(rows)


def curve_figures(task: str) -> dict[str, Figure]:
    """The paper's curves of a task, a figure each by name, such as "Figure 1"; several axes are panels side by side."""
    curves = published.curves()
    curves = curves[curves["task"] == task]
    drawn = {}
    for name, own in curves.groupby(curves["figure"].str.rstrip("ab")):
        parts = list(own.groupby(["figure", "metric", "x_unit"]))
        title = f"{name} of the paper: {task}"
        figure, panels = figures.row(len(parts), title, ["its own setting; read from the drawing"])
        for axes, ((_, metric, unit), lines) in zip(panels, parts, strict=True):
            figures.published_lines(axes, lines)
            axes.set_xlabel("step" if unit == "step" else f"time in training ({unit})")
            axes.set_ylabel(style.metric(str(metric)))
        panels[0].legend(frameon=False, fontsize=9)
        drawn[str(name)] = figure
    return drawn
