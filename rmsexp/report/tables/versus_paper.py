"""The quality of our runs beside the numbers of the paper, and the comparison of its Figure 1 in words."""

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
MEANS = ["series", "seeds", "value", "n"]
COLUMNS = [*MEANS, "paper", "difference"]
# of Figure 1
WINDOW = 0.1  # the trailing mean that smooths the training loss covers this fraction of the baseline's steps


def table(records: Records) -> pd.DataFrame:
    """Return one row per series and number of the paper for its norm and the target metric on an evaluated split.

    Columns ``COLUMNS``, then ``table``, ``framework``, ``data``, ``note`` of the paper's number. Metrics that are shown
    in percent are fractions. ``value``: our mean over seeds of the runs' results (:func:`.headline_metric`); NaN if all
    runs diverged or failed. ``n``: the number of runs in the mean, which neither diverged nor failed, of ``seeds``
    runs. ``paper``: the paper's number. ``difference``: ours minus the paper's; NaN if the data are not the same.
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
        by_series = runs.assign(value=statistics.headline_metric(records, step, name)).groupby(["series", "norm"])
        means = by_series.agg(seeds=("seed", "size"), value=("value", "mean"), n=("value", "count")).reset_index()
        parts.append(means.merge(published[split == name], on="norm"))
    rows = pd.concat(parts) if parts else pd.DataFrame(columns=[*MEANS, *published.columns])
    ours = records.runs["dataset"].dropna()
    of_data = {data: len(ours) > 0 and all(name.startswith(prefix) for name in ours) for data, prefix in DATA.items()}
    same = rows["data"].map(of_data).fillna(False).astype(bool)
    rows["difference"] = (rows["value"] - rows["paper"]).where(same)
    rows = rows.sort_values("series", key=lambda series: series.map(names.in_order(series).index), kind="stable")
    return rows[[*COLUMNS, "table", "framework", "data", "note"]].reset_index(drop=True)


def readable(table: pd.DataFrame, target: statistics.Target) -> pd.DataFrame:
    """Return the table as text, with differences only if ours are on the paper's data."""
    (factor, unit), metric = names.scale_and_unit(target.metric), target.metric
    result = statistics.final_label(target) if statistics.is_final(target) else f"best on {target.selection}"
    difference = "minus paper" + " (points)" * bool(unit)
    rows = [
        {
            "norm": names.label(row["series"]),
            PAPER: formats.quality(row["paper"], metric, decimals=2),
            result: formats.quality(row["value"], metric, remarks=formats.of_seeds(row["n"], row["seeds"]), decimals=2),
            difference: formats.signed(factor * row["difference"], metric),
            "source": "; ".join(filter(None, (row["table"], row["framework"], row["data"]))),
        }
        for row in table.to_dict("records")
    ]
    cells = pd.DataFrame(rows)
    return cells.drop(columns=difference) if (cells[difference] == formats.NO_VALUE).all() else cells


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
