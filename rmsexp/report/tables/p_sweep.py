"""Quality and time against p, the fraction of units in pRMSNorm's mean square (the paper's Figure 3)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pandas as pd

from rmsexp.records import record
from rmsexp.records.frames import names, quantities, speed, statistics
from rmsexp.records.frames.load import Records
from rmsexp.report.tables import formats
from rmsexp.report.tables.form import Setting, Table
from rmsexp.rules.quantities import Quantity
from rmsexp.system.readers import read_yaml

PARTIAL, WHOLE = "prms", "rms"
EAGER = "eager"
IDENTITY = ["series", "impl", "p", "seed"]
TIME = ["seconds_per_1k_steps", "time_state", "status"]


def tables(setting: Setting) -> Iterator[Table]:
    """Yield the table of a setting in which pRMSNorm was trained with several values of p."""
    records = setting.records
    if sum(names.norm_of(series) == PARTIAL for series in set(records.runs["series"])) > 1:
        numbers = table(records)
        if numbers.loc[numbers["series"] != WHOLE, "p"].nunique() > 1:
            yield Table("p", "The fraction of units p", numbers, readable(numbers, records))


def compared(records: Records) -> list[Quantity]:
    """Return the recorded quantities of held-out splits, without the loss if there are others."""
    step = statistics.common_step(records)
    held_out = [quantity for quantity in quantities.named(records) if quantity.split != quantities.TRAIN]
    found = [one for one in held_out if len(statistics.final_metric(records, step, one.split, one.metric))] or held_out
    return [quantity for quantity in found if quantity.metric != "loss"] or found


def table(records: Records) -> pd.DataFrame:
    """Return one row per run of RMSNorm (p = 1) and of pRMSNorm in a setting, sorted by p, series and seed.

    Norms of which an option other than p was changed are left out, and so are runs with unknown p, and those of the
    implementation with fewer runs. Columns: ``IDENTITY``, of which ``series`` is without the implementation and p is a
    fraction; the name of each quantity that is :func:`compared`, which is its unscaled value at the common step or, if
    the runs get one, their score, and NaN for runs that diverged or failed; and ``TIME``, of which the seconds are the
    median over the run.
    """
    plain = records.runs["series"].map(names.without_impl)
    runs = records.runs.assign(series=plain, impl=records.runs["impl"].fillna("unknown"))
    runs = runs[(plain == WHOLE) | plain.str.fullmatch(rf"{PARTIAL}(\+p=[^+]*)*")]
    table = runs[runs["impl"] == runs["impl"].mode().iloc[0]].set_index("folder")
    table["p"] = [_p(Path(str(folder)), series) for folder, series in table["series"].items()]
    step, shown = statistics.common_step(records), compared(records)
    for quantity in shown:
        table[quantity.name] = statistics.final_metric(records, step, quantity.split, quantity.metric)
    table["seconds_per_1k_steps"] = speed.seconds_per_1k_steps(records).groupby("folder")["seconds"].median()
    columns = [*IDENTITY, *(quantity.name for quantity in shown), *TIME]
    return table.dropna(subset="p").sort_values(["p", "series", "seed"])[columns].reset_index(drop=True)


def _p(folder: Path, series: str) -> float:
    """Return p: 1 for RMSNorm; for pRMSNorm from the name of the series, else from the run's config, else NaN."""
    if series == WHOLE:
        return 1.0
    _, separator, value = series.partition("+p=")
    with suppress(OSError, ValueError, KeyError, TypeError):
        return float(value if separator else read_yaml(folder / record.CONFIG)["norm"]["p"])
    return math.nan


def readable(table: pd.DataFrame, records: Records) -> pd.DataFrame:
    """Return one row per p and norm as text: means over seeds, with 95 % t-intervals from three seeds on.

    Quality is of the runs that neither diverged nor failed, times are of those that are clear. A mean that leaves
    runs out is followed by "2 of 3 seeds". ``records``: those of the :func:`table`.
    """
    label, shown = statistics.final_label(statistics.target(records)), compared(records)
    rows = []
    impl = "" if set(table["impl"]) <= {EAGER} else f" ({table['impl'].iloc[0]})"
    for (_, series), runs in table.groupby(["p", "series"]):
        seconds = runs["seconds_per_1k_steps"].where(runs["time_state"] == "clear")
        rows.append(
            {
                "norm": f"{names.label(names.norm_of(str(series)))}{impl}",
                "p": f"{runs['p'].iloc[0] * 100:.4g} %",
                "seeds": str(len(runs)),
                "diverged or failed": str(int(runs["status"].isin(statistics.LOST).sum())),
                **{f"{quantities.title(one)}, {label}": _mean(runs[one.name] * one.factor) for one in shown},
                "seconds per 1k steps": _mean(seconds),
            }
        )
    return pd.DataFrame(rows)


def _mean(values: pd.Series) -> str:
    """Return the mean, half of its 95 % t-interval and the number of seeds if some have no value."""
    mean, _, interval = statistics.estimate(values.to_numpy(float))
    return formats.quality(mean, "", interval, formats.of_seeds(int(values.count()), len(values)))
