"""The comparison of the paper's Figure 1 in words: the norms' training losses after as many steps as the baseline."""

from __future__ import annotations

import numpy as np
import pandas as pd

from rmsexp.records.frames import names, quantities, statistics
from rmsexp.records.frames.curves import averaged, curves
from rmsexp.records.frames.load import Records
from rmsexp.records.frames.statistics import Array
from rmsexp.report.tables.formats import four_digits

WINDOW = 0.1  # the trailing mean that smooths the training loss covers this fraction of the baseline's steps
BASELINE, SECOND = "ln", "none"


def figure_1(records: Records) -> list[str]:
    """Return two sentences, or an empty list if there is nothing to compare.

    The first gives the training losses of all norms after as many steps as the baseline was trained; the second
    describes the method. The baseline is LN or, if every run with LN is missing, diverged or failed, the model without
    norm. It is compared only with runs of the same implementation and, where runs differ in it, precision: float32.
    """
    trained = statistics.evaluations(records, "train", "loss")["folder"].unique()
    runs = records.runs[records.runs["folder"].isin(trained)]
    known = sorted(set(runs["series"]))  # "ln" precedes "ln+impl=fused"
    of_norms = (series for norm in (BASELINE, SECOND) for series in known if names.without_impl(series) == norm)
    baseline = next(of_norms, None)
    baseline_runs = runs[runs["series"] == baseline]
    others = runs[runs["impl"].isin(baseline_runs["impl"]) & (runs["series"] != baseline)]
    if baseline is None or others.empty:
        return []
    rows = records.metrics[records.metrics["split"] == "train"]
    of_baseline = rows[rows["folder"].isin(baseline_runs["folder"])]
    end = float(of_baseline.groupby("folder", observed=True)["step"].max().min())
    points = curves(rows, "step", "loss")
    smoothed = {folder: (step, _smoothed(step, loss, end * WINDOW)) for folder, (step, loss) in points.items()}
    compared, losses, seeds = pd.concat([baseline_runs, others]), dict[str, float](), list[str]()
    for series in names.in_order(compared["series"]):
        kept = averaged(compared[compared["series"] == series], timed=False)
        seeds.append(f"{names.label(series)} {len(kept)}")
        at_end = [np.interp(end, *smoothed[folder], left=np.nan, right=np.nan) for folder in kept["folder"]]
        losses[series] = float(np.mean(at_end))
    shown = {_name(series): four_digits(loss) for series, loss in losses.items() if not np.isnan(loss)}
    if np.isnan(losses[baseline]) or len(shown) < 2:  # of two runs, one ended before the other's first row
        return []
    level = shown.pop(_name(baseline))
    parts = [f"{name} is at {loss} after the same steps" for name, loss in shown.items()]
    unit = next((quantity.unit for quantity in quantities.named(records) if quantity.name == "train_loss"), "nats")
    trailing = f"a trailing mean over {WINDOW * 100:.0f} % of the baseline's steps"
    method = [f"Training loss ({unit}), mean over seeds, each smoothed by {trailing}"]
    if names.without_impl(baseline) == SECOND:
        begun = BASELINE in set(map(names.without_impl, records.runs["series"]))
        reason = "diverged, failed or was not started" if begun else "is missing"
        method.append(f"{_name(SECOND)} is the baseline, since {_name(BASELINE)} {reason}")
    return [
        f"When {_name(baseline)} reaches training loss {level} (at step {end:.0f}), {'; '.join(parts)}.",
        f"{'; '.join([*method, 'seeds: ' + ', '.join(seeds)])}.",
    ]


def _smoothed(step: Array, loss: Array, window: float) -> Array:
    """Return the means of the losses at steps above ``step - window`` and up to ``step``."""
    total = np.concatenate([[0.0], loss.cumsum()])
    first = np.searchsorted(step, step - window, side="right")
    count = np.arange(len(step)) + 1
    return (total[count] - total[first]) / (count - first)


def _name(series: str) -> str:
    return "the model without norm" if names.without_impl(series) == "none" else names.label(series)
