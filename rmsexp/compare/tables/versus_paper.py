"""Our numbers beside the paper's: quality by table, and its curves where they can lie over ours."""

from __future__ import annotations

import math

import pandas as pd

from rmsexp.compare import paper
from rmsexp.compare.records import names, statistics
from rmsexp.compare.records.load import Records
from rmsexp.compare.tables import formats

PAPER = "paper, its own setting"
SPLITS = {"newstest2017": "test2017"}  # of our records, where what is published is not of the headline's split
COLUMNS = ["series", "final", "best", "paper", "final_difference", "best_difference"]


def table(records: Records) -> pd.DataFrame:
    """One row a number that is published of one of our series; metrics as stored, differences are ours minus theirs.

    Columns: ``COLUMNS``, then ``table framework data note`` of the published number. ``final best``: means over seeds
    at the common step and where the selection split was best.
    """
    aim = statistics.target(records)
    theirs = paper.of(records.names[0], aim.metric).rename(columns={"value": "paper"}).drop(columns="task")
    split = theirs["data"].map(SPLITS).fillna(aim.split)
    known = [one for one in dict.fromkeys(split) if len(statistics.evaluations(records, one, aim.metric))]
    found = [_ours(records, one).merge(theirs[split == one], on="norm") for one in known]
    both = pd.concat(found) if found else pd.DataFrame(columns=["series", "final", "best", *theirs.columns])
    both["final_difference"], both["best_difference"] = both["final"] - both["paper"], both["best"] - both["paper"]
    order = {series: place for place, series in enumerate(names.in_order(both["series"]))}
    both = both.sort_values("series", key=lambda series: series.map(order), kind="stable")
    return both[[*COLUMNS, "table", "framework", "data", "note"]].reset_index(drop=True)


def _ours(records: Records, split: str) -> pd.DataFrame:
    """Columns ``series norm final best``; ``norm`` as the published numbers write it."""
    step, runs = statistics.common_step(records), records.runs.set_index("folder")
    values = {
        "final": statistics.final_metric(records, step, split),
        "best": statistics.best_metric(records, step, split),
    }
    means = runs.assign(**values).groupby("series", as_index=False)[["final", "best"]].mean()
    return means.assign(norm=means["series"].str.lower())


def readable(table: pd.DataFrame, aim: statistics.Target) -> pd.DataFrame:
    factor, unit = names.scale_and_unit(aim.metric)
    points = " (points)" if unit else ""

    def shown(value: float, form: str) -> str:
        return formats.NO_VALUE if math.isnan(value) else f"{value * factor:{form}} {unit}".rstrip()

    rows = [
        {
            "norm": names.label(row["series"]),
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
