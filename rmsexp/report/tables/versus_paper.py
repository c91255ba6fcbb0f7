"""The quality of our runs beside the numbers of the paper."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rmsexp.records.frames import names, statistics
from rmsexp.records.frames.load import Records
from rmsexp.report import paper
from rmsexp.report.tables import formats

PAPER = "paper, its own setting"
# The paper's name of a data set -> the split of our records. All other numbers belong to the target's split.
SPLITS = {"newstest2017": "test2017", "CNN top4": "valid"}
# The paper's name of a data set -> the beginning of the name of the same data in our records.
DATA = {
    "CIFAR-10": "CIFAR-10",
    "CNN top4": "CNN top4",
    "COCO, 5 folds of 1k": "COCO",
    "newstest2014": "WMT14 en-de",
    "newstest2017": "WMT14 en-de",
}
MEANS = ["series", "seeds", "final", "final_n", "best", "best_n"]
COLUMNS = [*MEANS, "paper", "final_difference", "best_difference"]


def table(records: Records) -> pd.DataFrame:
    """Return one row per number of the paper for the target metric, if its norm was trained and its split evaluated.

    Columns ``COLUMNS``, then ``table``, ``framework``, ``data``, ``note`` of the paper's number. Metrics that are shown
    in percent are fractions.
    ``final``, ``best``: our means over seeds at the common step and at the best evaluation on the selection split; NaN
    if all runs diverged or failed. ``…_n``: the number of runs in the mean, which neither diverged nor failed, of
    ``seeds`` runs. ``paper``: the paper's number. Differences are ours minus the paper's; they are NaN
    if the data are not the same.
    """
    target = statistics.target(records)
    published = paper.select(records.names[0], target.metric).rename(columns={"value": "paper"}).drop(columns="task")
    # of the task: target.split is the validation split for runs that never evaluate test
    split = published["data"].map(SPLITS).fillna(records.runs["target_split"].dropna().iloc[0])
    evaluated = [name for name in split.unique() if len(statistics.evaluations(records, name, target.metric))]
    runs = records.runs.set_index("folder")
    runs["norm"] = runs["series"].map(names.without_impl).str.lower()  # as the paper's numbers name it
    step, parts = statistics.common_step(records), []
    for name in evaluated:
        final, best = (values(records, step, name) for values in (statistics.final_metric, statistics.best_metric))
        by_series = runs.assign(final=final, best=best).groupby(["series", "norm"])
        means = by_series.agg(
            seeds=("seed", "size"),
            final=("final", "mean"),
            final_n=("final", "count"),
            best=("best", "mean"),
            best_n=("best", "count"),
        )
        parts.append(means.reset_index().merge(published[split == name], on="norm"))
    rows = pd.concat(parts) if parts else pd.DataFrame(columns=[*MEANS, *published.columns])
    ours = records.runs["dataset"].dropna()
    of_data = {data: len(ours) > 0 and all(name.startswith(prefix) for name in ours) for data, prefix in DATA.items()}
    same = rows["data"].map(of_data).fillna(False).astype(bool)
    for name in ("final", "best"):
        rows[f"{name}_difference"] = (rows[name] - rows["paper"]).where(same)
    order = {series: place for place, series in enumerate(names.in_order(rows["series"]))}
    rows = rows.sort_values("series", key=lambda series: series.map(order), kind="stable")
    return rows[[*COLUMNS, "table", "framework", "data", "note"]].reset_index(drop=True)


def readable(table: pd.DataFrame, target: statistics.Target) -> pd.DataFrame:
    """Return the table as text, without empty columns: differences on other data, and the best of runs with a score."""
    points = " (points)" if names.scale_and_unit(target.metric)[1] else ""
    last = statistics.final_label(target)
    rows = [
        {
            "norm": names.label(row["series"]),
            PAPER: formats.two_decimals(row["paper"], target.metric),
            last: _mean(row, "final", target.metric),
            f"{last} minus paper{points}": formats.difference(row["final_difference"], target.metric, "+.2f"),
            f"best on {target.selection}": _mean(row, "best", target.metric),
            f"best minus paper{points}": formats.difference(row["best_difference"], target.metric, "+.2f"),
            "source": "; ".join(filter(None, (row["table"], row["framework"], row["data"]))),
        }
        for row in table.to_dict("records")
    ]
    cells = pd.DataFrame(rows)
    empty = [name for name in cells if name != last and (cells[name] == formats.NO_VALUE).all()]
    return cells.drop(columns=empty)


def _mean(row: dict[Any, Any], name: str, metric: str) -> str:
    return formats.two_decimals(row[name], metric, formats.of_seeds(row[f"{name}_n"], row["seeds"]))
