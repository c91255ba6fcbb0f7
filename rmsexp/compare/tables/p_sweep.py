"""Quality and time against p, the share of units that pRMSNorm takes its mean over (section 4, Figure 3)."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import yaml

from rmsexp import record
from rmsexp.compare.records import names, speed, statistics
from rmsexp.compare.records.load import Records
from rmsexp.compare.tables import formats

PARTIAL, WHOLE = "prms", "rms"
COLUMNS = ["series", "p", "seed", "final", "best", "seconds_per_1k_steps", "time_state"]


def table(records: Records, task: str, setting: str) -> pd.DataFrame:
    """One row a run of pRMSNorm that differs in p alone, and of RMSNorm, which is p = 1; sorted by p and seed.

    Columns are ``COLUMNS``: p as a fraction; ``final`` and ``best`` are the target metric at the common step and where
    the selection split was best, as stored; NaN for runs that diverged or failed. ``seconds_per_1k_steps`` is the run's
    median. Runs whose p is not known are left out.
    """
    records = records.of(task, setting)
    runs = records.runs[[_differs_in_p_alone(series) for series in records.runs["series"]]]
    table = runs[["folder", "series", "seed", "time_state"]].set_index("folder")
    table["p"] = [_p(Path(str(folder)), series) for folder, series in table["series"].items()]
    step = statistics.common_step(records)
    table["final"] = statistics.final_metric(records, step)
    table["best"] = statistics.best_metric(records, step)
    table["seconds_per_1k_steps"] = speed.run_seconds_per_1k_steps(records, list(table.index))
    return table.dropna(subset="p").sort_values(["p", "series", "seed"])[COLUMNS].reset_index(drop=True)


def _differs_in_p_alone(series: str) -> bool:
    norm, *overrides = series.split("+")
    return norm in (WHOLE, PARTIAL) and all(norm == PARTIAL and one.startswith("p=") for one in overrides)


def _p(folder: Path, series: str) -> float:
    """The p that the series' name says, else that of the run's config; NaN where neither does."""
    if series == WHOLE:
        return 1.0
    _, is_named, value = series.partition("+p=")
    try:
        return float(value if is_named else yaml.safe_load((folder / record.CONFIG).read_text())["norm"]["p"])
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return math.nan


def readable(table: pd.DataFrame, aim: statistics.Target) -> pd.DataFrame:
    """One row a p: means over seeds, and the median time of a step."""
    factor, unit = names.scale_and_unit(aim.metric)
    rows = []
    for (p, series), runs in table.groupby(["p", "series"]):
        values = {name: runs[name].mean() * factor for name in ("final", "best")}
        values["seconds_per_1k_steps"] = runs["seconds_per_1k_steps"].median()
        text = {name: formats.NO_VALUE if math.isnan(one) else formats.four_digits(one) for name, one in values.items()}
        metric = f"{names.metric(aim.metric)}" + (f" ({unit})" if unit else "")
        rows.append(
            {
                "norm": names.label(str(series)),
                "p": f"{p:.4g}",
                "seeds": str(len(runs)),
                f"{aim.split} {metric}, last": text["final"],
                f"best on {aim.selection}": text["best"],
                "seconds per 1k steps": text["seconds_per_1k_steps"],
            }
        )
    return pd.DataFrame(rows)
