"""The quality of our runs beside the numbers of the paper, and the comparison of its Figure 1 in words."""

from typing import Any

import numpy as np
import pandas as pd

from rmsexp.records.frames import names, quantities, statistics
from rmsexp.records.frames.curves import curves
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
# of Figure 1
WINDOW = 0.1  # the trailing mean that smooths the training loss covers this fraction of the baseline's steps


def table(records: Records) -> pd.DataFrame:
    """Return one row per series and number of the paper for its norm and the target metric on an evaluated split.

    Columns ``COLUMNS``, then ``table``, ``framework``, ``data``, ``note`` of the paper's number. Metrics that are shown
    in percent are fractions. ``final``, ``best``: our means over seeds at the common step and at the best evaluation on
    the selection split; NaN if all runs diverged or failed. ``…_n``: the number of runs in the mean, which neither
    diverged nor failed, of ``seeds`` runs. ``paper``: the paper's number. Differences are ours minus the paper's; they
    are NaN if the data are not the same.
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
            PAPER: formats.quality(row["paper"], target.metric, decimals=2),
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
    remarks = formats.of_seeds(row[f"{name}_n"], row["seeds"])
    return formats.quality(row[name], metric, remarks=remarks, decimals=2)


def figure_1(records: Records) -> list[str]:
    """Return two sentences, or an empty list if there is nothing to compare.

    The first gives the training losses of all norms after as many steps as the baseline was trained: the shortest of
    its runs, without those of less than half of the longest, which have just begun. The second describes the method.
    The baseline is LN; all other runs are of its implementation.
    """
    trained = set(statistics.evaluations(records, "train", "loss")["folder"])
    runs = [run for run in records.runs.to_dict("records") if run["folder"] in trained]
    known = sorted({run["series"] for run in runs})  # "ln" precedes "ln+impl=fused"
    baseline = next((series for series in known if names.is_plain_ln(series)), None)
    impls = {run["impl"] for run in runs if run["series"] == baseline}
    compared = [run for run in runs if run["impl"] in impls]
    if baseline is None or {run["series"] for run in compared} == {baseline}:
        return []
    rows = records.metrics[records.metrics["split"] == "train"]
    points, losses, seeds = curves(rows, "step", "loss"), dict[str, float](), list[str]()
    ends = sorted(float(points[run["folder"]][0].max()) for run in runs if run["series"] == baseline)
    end = next(each for each in ends if 2 * each >= ends[-1])
    for series in names.in_order(run["series"] for run in compared):
        own = [points[run["folder"]] for run in compared if run["series"] == series]
        windows = [loss[(step > (1 - WINDOW) * end) & (step <= end)] for step, loss in own if step.max() >= end]
        if windows := [window for window in windows if len(window)]:
            seeds.append(f"{names.label(series)} {len(windows)}")
            losses[series] = float(np.mean([window.mean() for window in windows]))
    shown = {names.label(series): formats.four_digits(loss) for series, loss in losses.items()}
    level = shown.pop(names.label(baseline))
    if not shown:  # all runs of other norms are shorter
        return []
    parts = [f"{name} {loss}" for name, loss in shown.items()]
    unit = next((quantity.unit for quantity in quantities.named(records) if quantity.name == "train_loss"), "nats")
    trailing = f"a trailing mean over {WINDOW * 100:.0f} % of the baseline's steps"
    method = [f"Training loss{f' ({unit})' * bool(unit)}, mean over seeds, each smoothed by {trailing}"]
    return [
        f"Training loss after {end:.0f} steps: {names.label(baseline)} {level}; {'; '.join(parts)}.",
        f"{'; '.join([*method, 'seeds: ' + ', '.join(seeds)])}.",
    ]
