"""Learning rates: each norm at its recipe's rate and at the best of those that were tried (``sweep=lr``)."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from rmsexp import record
from rmsexp.compare.records import names, statistics
from rmsexp.compare.records.load import Records
from rmsexp.compare.tables import formats

RATE = re.compile(r"\+optim\.lr=([^+]+)")
COLUMNS = ["series", "rate", "is_recipe", "runs", "kept", "chosen_by", "value", "interval"]


def family(folder: Path) -> Path:
    """The folder of the setting that has its recipe's rate and is else the same."""
    return folder.with_name(RATE.sub("", folder.name))


def table(settings: dict[Path, Records]) -> pd.DataFrame:
    """One row a series and rate of one family of settings, by folder; metrics as stored.

    Columns: ``COLUMNS``; ``chosen_by``: mean over the ``kept`` runs of the selection split's best; ``value interval``:
    the headline metric, its mean and half its 95 % t-interval. ``rate`` is NaN where no config says the recipe's.
    """
    rows: list[dict[str, Any]] = []
    for folder, records in settings.items():
        aim, step = statistics.target(records), statistics.common_step(records)
        find = statistics.final_metric if statistics.headline(aim) == "final" else statistics.best_metric
        values = find(records, step)
        chosen = statistics.evaluations(records, aim.selection, aim.metric).groupby("folder")["value"]
        best = chosen.min() if aim.mode == "min" else chosen.max()
        named = RATE.search(folder.name)
        for series in names.in_order(records.runs["series"]):
            runs = records.runs[records.runs["series"] == series]
            mean, _, interval = statistics.estimate(values.reindex(runs["folder"]).to_numpy(float))
            rate = float(named[1]) if named else _recipe_rate(runs["folder"])
            kept = int((~runs["status"].isin(statistics.LOST)).sum())
            by = float(best.reindex(runs["folder"]).mean())
            rows.append(dict(zip(COLUMNS, [series, rate, not named, len(runs), kept, by, mean, interval], strict=True)))
    return pd.DataFrame(rows, columns=COLUMNS)


def _recipe_rate(folders: pd.Series) -> float:
    for folder in folders:
        try:
            return float(yaml.safe_load((Path(folder) / record.CONFIG).read_text())["optim"]["lr"])
        except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
            continue
    return math.nan


def readable(table: pd.DataFrame, aim: statistics.Target) -> pd.DataFrame:
    """One row a norm: at its recipe's rate, and at the best of n by the selection split."""
    metric = f"{aim.split} {names.metric(aim.metric)}"
    rows = []
    for series in names.in_order(table["series"]):
        own = table[table["series"] == series]
        tried = own.dropna(subset="chosen_by")
        recipe, best = own[own["is_recipe"]], tried.sort_values("chosen_by", ascending=aim.mode == "min").head(1)
        rows.append(
            {
                "norm": names.label(series),
                "recipe's rate": _rate(recipe),
                f"{metric} at the recipe's rate": _value(recipe, aim),
                "best rate": f"{_rate(best)} (best of {len(own)} tried, by {aim.selection} {names.metric(aim.metric)})",
                f"{metric} at the best rate": _value(best, aim),
                "rates at which all runs were lost": str(int((own["kept"] == 0).sum())),
            }
        )
    return pd.DataFrame(rows)


def _rate(rows: pd.DataFrame) -> str:
    if rows.empty:
        return formats.NO_VALUE
    rate = rows["rate"].iloc[0]
    return "the recipe's" if math.isnan(rate) else f"{rate:g}"


def _value(rows: pd.DataFrame, aim: statistics.Target) -> str:
    if rows.empty or math.isnan(rows["value"].iloc[0]):
        return formats.NO_VALUE
    factor, unit = names.scale_and_unit(aim.metric)
    spread = rows["interval"].iloc[0] * factor
    text = formats.four_digits(rows["value"].iloc[0] * factor) + ("" if math.isnan(spread) else f" ± {spread:.2g}")
    return f"{text} {unit}".rstrip()
