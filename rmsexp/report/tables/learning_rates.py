"""The quality of each norm at the recipe's learning rate and at the best of all tried rates (``sweep=lr``).

The recipe's rate is the one in the task's config, which applies unless the command line changes ``optim.lr``. Rates are
ranked as in campaigns (``rmsexp.rules.selection``): a rate at which a seed diverged ranks behind all at which none did,
and the rates with fewer than ``ENOUGH`` seeds rank behind those with so many, if there are any. Rates whose runs are
compared at an earlier step than those of others, because a run is shorter, rank last.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rmsexp.records import record
from rmsexp.records.frames import names, statistics
from rmsexp.records.frames.load import Records
from rmsexp.report.tables import formats
from rmsexp.report.tables.form import Setting, Table
from rmsexp.rules import selection
from rmsexp.system.readers import read_yaml

RATE = re.compile(r"\+optim\.lr=([^+]+)")
ENOUGH = 3  # seeds, as in the tuning of campaigns
COLUMNS = [
    *("series", "rate", "is_recipe", "step", "runs", "kept", "seeds", "chosen_by", "value", "averaged", "interval"),
    *("diverged", "rank"),
]


def tables(setting: Setting) -> Iterator[Table]:
    """Yield the table of the settings that differ in the learning rate alone, for the first of them only.

    There is none if each series has one rate, as the final runs of a campaign.
    """
    if len(setting.family) > 1 and setting.folder == next(iter(setting.family)):
        numbers = table(setting.family)
        if numbers["series"].duplicated().any():
            yield Table("rates", "Learning rates", numbers, readable(numbers, statistics.target(setting.records)))


def family(folder: Path) -> Path:
    """Return the folder of the setting that differs from this setting at most in having the recipe's learning rate."""
    return folder.with_name(RATE.sub("", folder.name))


def table(settings: dict[Path, Records]) -> pd.DataFrame:
    """Return one row per series and learning rate; ``settings``, by folder, differ in the learning rate alone.

    Columns ``COLUMNS``; metrics that are shown in percent are fractions. ``rate``: the learning rate; NaN for the
    recipe's rate if no run's config file can be read. ``is_recipe``: whether it is the recipe's. ``step``: the common
    step of the runs at this rate, at which they are compared; NaN if there is none. ``runs``: the number of runs.
    ``kept``: the number of those that neither diverged nor failed. ``seeds``: the number of those that diverged or have
    a value to rank the rate by. ``chosen_by``: the mean over the kept runs of a run's best value, or score, on the
    selection split. ``value``, ``averaged``, ``interval``: the mean of the headline metric, the number of runs in it,
    and half of its 95 % t-interval. ``diverged``: the number of runs that diverged. ``rank``: 1 for the series' best
    rate, and so on; NaN if no run at the rate was evaluated on the selection split. The value at rank 1 is optimistic,
    because the same runs chose the rate, unless it is the only rate.
    """
    rows: list[list[Any]] = []
    tried: dict[str, dict[float, dict[int, float]]] = {}  # by series, row and seed: the values that choose the rate
    for folder, records in settings.items():
        target, step = statistics.target(records), statistics.common_step(records)
        values = statistics.headline_metric(records, step)
        if target.scored:
            best = statistics.final_metric(records, step, target.selection)
        else:
            evaluated = statistics.evaluations(records, target.selection, target.metric)
            by_run = evaluated[evaluated["step"] <= (-1 if step is None else step)].groupby("folder")["value"]
            best = by_run.min() if target.mode == "min" else by_run.max()
        match = RATE.search(folder.name)
        for series in names.in_order(records.runs["series"]):
            runs = records.runs[records.runs["series"] == series]
            of_runs = values.reindex(runs["folder"])
            mean, _, interval = statistics.estimate(of_runs.to_numpy(float))
            rate = _rate_in_configs(runs["folder"])  # first, because the name of a setting may be cut
            if match and math.isnan(rate):
                rate = float(match[1])
            ended = int((~runs["status"].isin(statistics.LOST)).sum())
            scores = best.reindex(runs["folder"]).to_numpy(float)
            diverged = (runs["status"] == "diverged").to_numpy()
            counted = ~np.isnan(scores) | diverged
            tried.setdefault(series, {})[len(rows)] = dict(zip(runs["seed"][counted], scores[counted], strict=True))
            chosen_by = statistics.estimate(scores).mean
            seeds = len(tried[series][len(rows)])
            at = math.nan if step is None else step
            row = [series, rate, not match, at, len(runs), ended, seeds, chosen_by, mean, of_runs.count(), interval]
            rows.append([*row, int(diverged.sum()), math.nan])
    table = pd.DataFrame(rows, columns=COLUMNS)
    for by_row in tried.values():
        enough = _enough(table.loc[list(by_row)])
        shorter = _are_shorter(table.loc[list(by_row)])
        behind = {row: (shorter[row], len(values) < enough) for row, values in by_row.items()}
        order = sorted(selection.ranked(by_row, target.mode), key=behind.__getitem__)
        table.loc[order, "rank"] = range(1, len(order) + 1)
    return table


def _rate_in_configs(folders: pd.Series) -> float:
    """Return the learning rate of runs of one series and setting; NaN if no config file can be read."""
    for folder in folders:
        try:
            return float(read_yaml(Path(folder) / record.CONFIG)["optim"]["lr"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return math.nan


def _are_shorter(rows: pd.DataFrame) -> pd.Series:
    """Return for each rate of a series whether its runs are compared at an earlier step than those of another rate."""
    return rows["step"] < rows["step"].max()


def _enough(rows: pd.DataFrame) -> int:
    """Return the number of seeds below which a rate of a series ranks behind the others of as many steps."""
    return ENOUGH if rows.loc[~_are_shorter(rows), "seeds"].max() >= ENOUGH else 1


def readable(table: pd.DataFrame, target: statistics.Target) -> pd.DataFrame:
    """Return one row per series as text: the headline metric at the recipe's rate and at the best rate (rank 1).

    A mean that leaves out runs is followed by "2 of 3 runs". Where rates of a series differ in the number of seeds, the
    other means are followed by it. Where rates differ in the common step, all means are followed by it.
    """
    metric = f"{target.split} {names.metric_label(target.metric)}"
    chosen_by = f"{target.selection} {names.metric_label(target.metric)}"
    rows = []
    for series in names.in_order(table["series"]):
        tried = table[table["series"] == series]
        recipe, best = tried[tried["is_recipe"]], tried[tried["rank"] == 1]
        optimistic = " (from the seeds that chose the rate)" if len(tried) > 1 and len(best) else ""
        enough, shorter = _enough(tried), _are_shorter(tried)
        fewer = ~shorter & (tried["seeds"] < enough)
        demands = [f"{enough} seeds or more"] * bool(fewer.any()) + ["the most steps"] * bool(shorter.any())
        among = f"{(~fewer & ~shorter).sum()} with {' and '.join(demands)}, of " * bool(demands) + str(len(tried))
        differ = [column for column in ("seeds", "step") if tried[column].nunique() > 1]
        rows.append(
            {
                "norm": names.label(series),
                "recipe's rate": _rate(recipe),
                f"{metric} at the recipe's rate": _value(recipe, target, differ),
                "best rate": f"{_rate(best)} (best of {among} tried, by {chosen_by})",
                f"{metric} at the best rate": _value(best, target, differ) + optimistic,
                "number of rates at which a run diverged": str(int((tried["diverged"] > 0).sum())),
                "number of rates at which every run diverged or failed": str(int((tried["kept"] == 0).sum())),
            }
        )
    return pd.DataFrame(rows)


def _rate(rows: pd.DataFrame) -> str:
    if rows.empty:
        return formats.NO_VALUE
    rate = rows["rate"].iloc[0]
    return "the recipe's" if math.isnan(rate) else f"{rate:g}"


def _value(rows: pd.DataFrame, target: statistics.Target, differ: Sequence[str]) -> str:
    """Return the value of the only one of ``rows``; ``differ``: which of "seeds" and "step" follow it."""
    if rows.empty:
        return formats.NO_VALUE
    row = rows.iloc[0]
    of_seeds = [f"{row['runs']} seed{'s' * int(row['runs'] > 1)}"] if "seeds" in differ else []
    remarks = [f"{row['averaged']} of {row['runs']} runs"] if row["averaged"] < row["runs"] else of_seeds
    remarks = [*remarks, f"step {row['step']:.0f}"] if "step" in differ and not math.isnan(row["step"]) else remarks
    return formats.quality(row["value"], target.metric, row["interval"], remarks)
