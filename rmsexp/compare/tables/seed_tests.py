"""Differences of quality from LayerNorm, paired by seed: runs of one seed share initial weights, batches and noise."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from scipy import stats as scipy_stats

from rmsexp.compare.records import names, speed, statistics
from rmsexp.compare.records.load import Records
from rmsexp.compare.tables import formats

MIN_SEEDS = 3  # fewest common seeds for an interval and a test
EQUAL = 1e-9  # differences are equal up to rounding if sd / |mean| is not larger


def table(records: Records) -> pd.DataFrame:
    """Return one row per series, except plain LN, for which there is a plain LN series of the same implementation.

    Columns: ``series``; ``metric``; ``n``, the number of common seeds; ``difference``, the mean over them of the
    headline metric minus LN's, with fractions as fractions; ``interval``, half of its 95 % t-interval; ``p``, the
    p-value of the paired t-test. The interval and p are NaN below three common seeds; p is also NaN if all differences
    are equal.
    """
    target, step = statistics.target(records), statistics.common_step(records)
    runs = records.runs.set_index("folder").assign(value=statistics.headline_metric(records, step))
    rows = []
    for series in names.in_order(runs["series"]):
        series_runs = runs[runs["series"] == series]
        same_impl = runs["impl"] == speed.impl_of(series_runs)
        reference = runs[runs["series"].map(names.is_plain_ln) & same_impl]
        if series not in set(reference["series"]) and not reference.empty:
            rows.append({"series": series, "metric": target.metric, **_difference(series_runs, reference)})
    return pd.DataFrame(rows, columns=["series", "metric", "n", "difference", "interval", "p"])


def _difference(runs: pd.DataFrame, reference: pd.DataFrame) -> dict[str, float]:
    pairs = runs.merge(reference, on="seed", suffixes=("", "_ln"))[["value", "value_ln"]].dropna()
    mean, sd, interval = statistics.estimate((pairs["value"] - pairs["value_ln"]).to_numpy(float))
    tested = len(pairs) >= MIN_SEEDS and sd > EQUAL * abs(mean)
    p = float(scipy_stats.ttest_rel(pairs["value"], pairs["value_ln"]).pvalue) if tested else math.nan
    return {"n": len(pairs), "difference": mean, "interval": interval, "p": p}


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table as text. Differences of fractions are in percentage points; a missing test has its reason."""
    return pd.DataFrame([_row(row) for row in table.to_dict("records")])


def _row(row: dict[Any, Any]) -> dict[str, str]:
    factor, unit = names.scale_and_unit(row["metric"])
    difference = formats.difference(row["difference"], row["metric"], "+.3g")
    if not math.isnan(row["interval"]):
        difference += f" ± {row['interval'] * factor:.2g}"
    reason = f"fewer than {MIN_SEEDS} common seeds" if row["n"] < MIN_SEEDS else "all differences are equal"
    points = " (percentage points)" if unit else ""
    return {
        "norm": names.label(row["series"]),
        "common seeds": str(row["n"]),
        f"{names.metric_label(row['metric'])} minus LayerNorm's{points}, mean ± 95 % t-interval": difference,
        "p, paired t-test": f"no test ({reason})" if math.isnan(row["p"]) else f"{row['p']:.3g}",
    }
