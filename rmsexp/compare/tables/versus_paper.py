"""The quality of our runs beside the numbers of the paper."""

from __future__ import annotations

import pandas as pd

from rmsexp.compare import paper
from rmsexp.compare.paper import matching
from rmsexp.compare.records import names, statistics
from rmsexp.compare.records.load import Records
from rmsexp.compare.tables import formats

PAPER = "paper, its own setting"
COLUMNS = ["series", "final", "best", "paper", "final_difference", "best_difference"]


def table(records: Records) -> pd.DataFrame:
    """Return one row per number of the paper that one of our series has; metrics as stored.

    Columns ``COLUMNS``, then ``table framework data note`` of the paper's number. ``final best``: means over seeds at
    the common step and where the selection split is best; differences are ours minus the paper's.
    """
    aim = statistics.target(records)
    published = paper.select(records.names[0], aim.metric).rename(columns={"value": "paper"}).drop(columns="task")
    split = matching.split_of(published, aim.split)
    evaluated = [name for name in split.unique() if len(statistics.evaluations(records, name, aim.metric))]
    parts = [_means(records, name).merge(published[split == name], on="norm") for name in evaluated]
    rows = pd.concat(parts) if parts else pd.DataFrame(columns=["series", "final", "best", *published.columns])
    rows["final_difference"], rows["best_difference"] = rows["final"] - rows["paper"], rows["best"] - rows["paper"]
    order = {series: place for place, series in enumerate(names.in_order(rows["series"]))}
    rows = rows.sort_values("series", key=lambda series: series.map(order), kind="stable")
    return rows[[*COLUMNS, "table", "framework", "data", "note"]].reset_index(drop=True)


def _means(records: Records, split: str) -> pd.DataFrame:
    """Return columns ``series norm final best``; ``norm`` as the paper's numbers name it."""
    step, runs = statistics.common_step(records), records.runs.set_index("folder")
    values = {
        "final": statistics.final_metric(records, step, split),
        "best": statistics.best_metric(records, step, split),
    }
    means = runs.assign(**values).groupby("series", as_index=False)[["final", "best"]].mean()
    return means.assign(norm=means["series"].str.lower())


def readable(table: pd.DataFrame, aim: statistics.Target) -> pd.DataFrame:
    points = " (points)" if names.scale_and_unit(aim.metric)[1] else ""
    rows = [
        {
            "norm": names.label(row["series"]),
            PAPER: formats.two_decimals(row["paper"], aim.metric),
            "last": formats.two_decimals(row["final"], aim.metric),
            f"last minus paper{points}": formats.difference(row["final_difference"], aim.metric, "+.2f"),
            f"best on {aim.selection}": formats.two_decimals(row["best"], aim.metric),
            f"best minus paper{points}": formats.difference(row["best_difference"], aim.metric, "+.2f"),
            "source": "; ".join(filter(None, (row["table"], row["framework"], row["data"]))),
        }
        for row in table.to_dict("records")
    ]
    return pd.DataFrame(rows)
