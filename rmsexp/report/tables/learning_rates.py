"""The quality of each norm at the recipe's learning rate and at the best of all tried rates (``sweep=lr``).

The recipe's rate is the one in the task's config, which applies unless the command line changes ``optim.lr``. Rates are
ranked as in campaigns (``rmsexp.rules.selection``): a rate at which a seed diverged ranks behind all at which none did,
and the rates with fewer than ``ENOUGH`` seeds rank behind those with so many, if there are any.
"""

import math
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from rmsexp.records import record
from rmsexp.records.frames import names, statistics
from rmsexp.records.frames.load import Records
from rmsexp.report.tables import formats
from rmsexp.rules import selection
from rmsexp.system.readers import read_yaml

RATE = re.compile(r"\+optim\.lr=([^+]+)")
ENOUGH = 3  # seeds, as in the tuning of campaigns


def family(folder: Path) -> Path:
    """Return the folder of the setting that differs from this setting at most in having the recipe's learning rate."""
    return folder.with_name(RATE.sub("", folder.name))


def table(settings: dict[Path, Records]) -> pd.DataFrame:
    """Return one row per series and learning rate; ``settings``, by folder, differ in the learning rate alone.

    Metrics that are shown in percent are fractions. ``rate``: the learning rate; NaN for the recipe's rate if no run's
    config file can be read. ``is_recipe``: whether it is the recipe's. ``step``: the common step of the runs at this
    rate; NaN if there is none. ``runs``: the number of runs. ``kept``: the number of those that neither diverged nor
    failed. ``seeds``: the number of those that diverged or have a value to rank the rate by. ``chosen_by``: the mean
    over the kept runs of a run's best value, or score, on the selection split. ``value``, ``averaged``, ``interval``:
    the mean of the headline metric, the number of runs in it, and half of its 95 % t-interval. ``diverged``: the number
    of runs that diverged. ``rank``: 1 for the series' best rate, and so on; NaN if no run at the rate was evaluated on
    the selection split. The value at rank 1 is optimistic, because the same runs chose the rate, unless it is the only
    rate.
    """
    rows = list[dict[str, Any]]()
    tried: dict[str, dict[int, dict[int, float]]] = {}  # by series, row and seed: the values that choose the rate
    for folder, records in settings.items():
        target, step = statistics.target(records), statistics.common_step(records)
        if target.scored:
            best = statistics.final_metric(records, step, target.selection)
        else:
            evaluated = statistics.evaluations(records, target.selection, target.metric)
            by_run = evaluated[evaluated["step"] <= (-1 if step is None else step)].groupby("folder")["value"]
            best = by_run.min() if target.mode == "min" else by_run.max()
        all_runs = records.runs.set_index("folder").assign(value=statistics.headline_metric(records, step), score=best)
        for series in names.in_order(all_runs["series"]):
            runs = all_runs[all_runs["series"] == series]
            counted = runs[runs["score"].notna() | (runs["status"] == "diverged")]
            tried.setdefault(series, {})[len(rows)] = dict(zip(counted["seed"], counted["score"], strict=True))
            mean, _, interval = statistics.estimate(runs["value"].to_numpy(float))
            rows.append(
                {
                    "series": series,
                    "rate": _rate(folder, runs.index),
                    "is_recipe": not RATE.search(folder.name),
                    "step": math.nan if step is None else step,
                    "runs": len(runs),
                    "kept": int((~runs["status"].isin(statistics.LOST)).sum()),
                    "seeds": len(tried[series][len(rows)]),
                    "chosen_by": statistics.estimate(runs["score"].to_numpy(float))[0],
                    "value": mean,
                    "averaged": runs["value"].count(),
                    "interval": interval,
                    "diverged": int((runs["status"] == "diverged").sum()),
                    "rank": math.nan,
                }
            )
    table = pd.DataFrame(rows)
    for by_row in tried.values():
        enough = _enough(table.loc[list(by_row)])
        ranked = selection.ranked(by_row, target.mode)
        order = sorted(ranked, key=lambda row: len(by_row[row]) < enough)
        table.loc[order, "rank"] = range(1, len(order) + 1)
    return table


def _rate(setting: Path, folders: pd.Index) -> float:
    """Return the rate in a config of a series' runs; else, as this name may be cut, that in its setting's, or NaN."""
    found = (rate for folder in folders if not math.isnan(rate := configured(folder, "optim", "lr")))
    match = RATE.search(setting.name)
    return next(found, float(match[1]) if match else math.nan)


def configured(run: str, group: str, key: str) -> float:
    """Return a number from the config of a run, by the run's folder; NaN if it has none that can be read."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return float(read_yaml(Path(run) / record.CONFIG)[group][key])
    return math.nan


def _enough(rows: pd.DataFrame) -> int:
    """Return the number of seeds below which a rate of a series ranks behind the others."""
    return ENOUGH if rows["seeds"].max() >= ENOUGH else 1


def readable(table: pd.DataFrame, target: statistics.Target) -> pd.DataFrame:
    """Return one row per series as text: the headline metric at the recipe's rate and at the best rate (rank 1).

    A mean that leaves out runs is followed by "2 of 3 runs"; where rates of a series differ in the number of seeds, the
    other means are followed by it.
    """
    metric = f"{target.split} {names.metric_label(target.metric)}"
    chosen_by = f"{target.selection} {names.metric_label(target.metric)}"
    rows = []
    for series in names.in_order(table["series"]):
        tried = table[table["series"] == series]
        recipe, best = tried[tried["is_recipe"]], tried[tried["rank"] == 1]
        optimistic = " (from the seeds that chose the rate)" if len(tried) > 1 and len(best) else ""
        enough, seeds_differ = _enough(tried), tried["seeds"].nunique() > 1
        kept = int((tried["seeds"] >= enough).sum())
        among = f"{len(tried)}" if kept == len(tried) else f"{kept} with {enough} seeds or more, of {len(tried)}"
        rates = [f"{rate:g}" if rate == rate else "the recipe's" for rate in (*recipe["rate"][:1], *best["rate"][:1])]
        rows.append(
            {
                "norm": names.label(series),
                "recipe's rate": rates[0] if len(recipe) else formats.NO_VALUE,
                f"{metric} at the recipe's rate": _value(recipe, target, seeds_differ),
                "best rate": f"{rates[-1] if len(best) else formats.NO_VALUE} (best of {among} tried, by {chosen_by})",
                f"{metric} at the best rate": _value(best, target, seeds_differ) + optimistic,
                "number of rates at which a run diverged": str(int((tried["diverged"] > 0).sum())),
                "number of rates at which every run diverged or failed": str(int((tried["kept"] == 0).sum())),
            }
        )
    return pd.DataFrame(rows)


def _value(rows: pd.DataFrame, target: statistics.Target, seeds_differ: bool) -> str:
    """Return the value of the only one of ``rows``."""
    if rows.empty:
        return formats.NO_VALUE
    row = rows.iloc[0]
    of_seeds = [formats.counted(row["runs"], "seed")] * seeds_differ
    remarks = [f"{row['averaged']} of {row['runs']} runs"] if row["averaged"] < row["runs"] else of_seeds
    return formats.quality(row["value"], target.metric, row["interval"], remarks)
