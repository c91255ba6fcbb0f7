"""Quality against LayerNorm, seed by seed: two runs of one seed have the same initial weights, batches and noise."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from scipy import stats as scipy_stats

from rmsexp.compare.records import names, speed, statistics
from rmsexp.compare.records.load import Records
from rmsexp.compare.tables import formats

LEAST = 3  # common seeds for an interval and a test
EQUAL = 1e-9  # of their mean: differences that differ by no more are one value, rounded


def table(records: Records) -> pd.DataFrame:
    """One row a series that has an LN of its impl to be set against; the headline metric as stored.

    Columns ``series metric n difference interval p``: the mean difference to LN over the ``n`` common seeds, half its
    95 % t-interval and the p-value of the paired t-test, both NaN with fewer than three seeds (and p where all
    differences are equal).
    """
    aim, step = statistics.target(records), statistics.common_step(records)
    find = statistics.final_metric if statistics.headline(aim) == "final" else statistics.best_metric
    runs = records.runs.set_index("folder").assign(value=find(records, step))
    rows = []
    for series in names.in_order(runs["series"]):
        own = runs[runs["series"] == series]
        reference = runs[runs["series"].map(names.is_plain_ln) & (runs["impl"] == speed.impl_of(own))]
        if series not in set(reference["series"]) and not reference.empty:
            rows.append({"series": series, "metric": aim.metric, **_difference(own, reference)})
    return pd.DataFrame(rows, columns=["series", "metric", "n", "difference", "interval", "p"])


def _difference(own: pd.DataFrame, reference: pd.DataFrame) -> dict[str, float]:
    both = own.merge(reference, on="seed", suffixes=("", "_ln"))[["value", "value_ln"]].dropna()
    mean, sd, interval = statistics.estimate((both["value"] - both["value_ln"]).to_numpy(float))
    tested = len(both) >= LEAST and sd > EQUAL * abs(mean)
    p = float(scipy_stats.ttest_rel(both["value"], both["value_ln"]).pvalue) if tested else math.nan
    return {"n": len(both), "difference": mean, "interval": interval, "p": p}


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """The same for people: percent points, and "no test" with too few seeds."""
    return pd.DataFrame([_row(row) for row in table.to_dict("records")])


def _row(row: dict[Any, Any]) -> dict[str, str]:
    factor, unit = names.scale_and_unit(row["metric"])
    difference = formats.NO_VALUE if math.isnan(row["difference"]) else f"{row['difference'] * factor:+.3g}"
    if not math.isnan(row["interval"]):
        difference += f" ± {row['interval'] * factor:.2g}"
    test = f"no test (fewer than {LEAST} common seeds)" if row["n"] < LEAST else "no test (all differences are equal)"
    points = " (percentage points)" if unit else ""
    return {
        "norm": names.label(row["series"]),
        "common seeds": str(row["n"]),
        f"{names.metric(row['metric'])} minus LayerNorm's{points}, mean ± 95 % t-interval": difference,
        "p, paired t-test": test if math.isnan(row["p"]) else f"{row['p']:.3g}",
    }
