"""Differences of quality from LayerNorm, paired by seed: runs of one seed share initial weights, batches and noise.

The tests are two-sided and explore; claims that were stated before the runs are decided by ``rmsexp.rules.claims``. A
large p-value is no sign that two norms are equal; only an equivalence test with a margin can show that.
"""

import math
from typing import Any

import numpy as np
import pandas as pd

from rmsexp.records.frames import names, statistics
from rmsexp.records.frames.load import Records
from rmsexp.report.tables import formats
from rmsexp.rules import pairs, significance
from rmsexp.rules.claims import ALPHA
from rmsexp.rules.pairs import Array

MIN_SEEDS = 3  # fewest common seeds for an interval and a test
EQUAL = 1e-9  # differences are equal up to rounding if sd / |mean| is not larger
COUNTS = ["diverged", "ln_diverged", "both_diverged"]
COLUMNS = ["series", "metric", "seeds", "n", "difference", "interval", "p", "adjusted_p", "adjusted_interval", *COUNTS]


def table(records: Records) -> pd.DataFrame:
    """Return one row per series, except plain LN, for which there is plain LN of its implementation.

    Columns: ``series``; ``metric``; ``seeds``, the number of seeds of either; ``n``, that of seeds at which both runs
    finished; ``difference``, the mean over them of the headline metric minus LN's, with fractions as fractions;
    ``interval``, half of its 95 % t-interval; ``p``, the p-value of the paired t-test; ``adjusted_p`` and
    ``adjusted_interval``, the same with Bonferroni's correction for all series of the table; ``diverged``,
    ``ln_diverged``, ``both_diverged``, the numbers of common seeds at which only this run, only LN's, or both diverged.

    Interval and p are NaN below three pairs; p is also NaN if all differences are equal, and both are NaN if only one
    run of a pair diverged. A series has no row if its runs and those of LN are near chance
    (:func:`rmsexp.records.frames.statistics.near_chance`).
    """
    target, step = statistics.target(records), statistics.common_step(records)
    runs = records.runs.set_index("folder").assign(value=statistics.headline_metric(records, step))
    untrained = statistics.near_chance(records, runs["value"].dropna())
    impls = runs.groupby("series")["impl"].first().fillna("unknown")  # of runs with damaged files, too
    rows = []
    for series in names.in_order(runs["series"]):
        series_runs = runs[runs["series"] == series]
        same = runs["series"].map(impls) == impls[series]
        reference = runs[runs["series"].map(names.is_plain_ln) & same]
        is_trained = not untrained.issuperset({series, *reference["series"]})
        if is_trained and series not in set(reference["series"]) and not reference.empty:
            seeds = len({*series_runs["seed"], *reference["seed"]})
            row: dict[str, Any] = {"series": series, "metric": target.metric, "seeds": seeds}
            rows.append(row | _difference(series_runs, reference, target.mode))
    tested = [row for row in rows if not math.isnan(row["p"])]
    for row in tested:
        row["adjusted_p"] = min(1.0, len(tested) * row["p"])
        row["adjusted_interval"] = _half(row["differences"], ALPHA / len(tested))
    return pd.DataFrame(rows, columns=COLUMNS)


def _difference(runs: pd.DataFrame, reference: pd.DataFrame, mode: str) -> dict[str, Any]:
    # the value of each run by seed, NaN if it diverged; other runs without a value are left out
    counted = (of[of["value"].notna() | (of["status"] == "diverged")] for of in (runs, reference))
    scores, reference_scores = (dict(zip(of["seed"], of["value"], strict=True)) for of in counted)
    common = sorted(set(scores) & set(reference_scores))
    found = pairs.pair(scores, reference_scores, common, mode)
    differences = pairs.sign(mode) * found.differences
    tested = len(differences) >= MIN_SEEDS and not (found.diverged_a or found.diverged_b)
    p = math.nan
    if tested and np.std(differences, ddof=1) > EQUAL * abs(np.mean(differences)):
        p = min(1.0, 2 * min(significance.p_between(signed, 0, math.inf) for signed in (differences, -differences)))
    return {
        "n": len(differences),
        "difference": float(np.mean(differences)) if len(differences) else math.nan,
        "interval": _half(differences, ALPHA) if tested else math.nan,
        "p": p,
        "adjusted_p": math.nan,
        "adjusted_interval": math.nan,
        "differences": differences,
        **dict(zip(COUNTS, map(len, (found.diverged_a, found.diverged_b, found.diverged_both)), strict=True)),
    }


def _half(differences: Array, level: float) -> float:
    low, high = significance.interval(differences, level / 2)
    return (high - low) / 2


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table as text. Differences of fractions are in percentage points; a missing test has its reason."""
    rows = []
    for row in table.to_dict("records"):
        factor, unit = names.scale_and_unit(row["metric"])
        difference = formats.difference(row["difference"], row["metric"], "+.3g")
        interval = row["interval"] if math.isnan(row["adjusted_interval"]) else row["adjusted_interval"]
        if not math.isnan(interval):
            difference += f" ± {interval * factor:.2g}"
        few, lost = row["n"] < MIN_SEEDS, row["diverged"] + row["ln_diverged"]
        reason = f"fewer than {MIN_SEEDS} common seeds" if few else "diverged" if lost else "all differences are equal"
        metric = f"{names.metric_label(row['metric'])} minus LayerNorm's{' (percentage points)' if unit else ''}"
        cells = {
            "norm": names.label(row["series"]),
            "seeds at which both have a value": f"{row['n']} of {row['seeds']}",
            "diverged: norm / LayerNorm / both": " / ".join(str(row[count]) for count in COUNTS),
            f"{metric}, mean ± 95 % interval, Bonferroni": difference,
            "p, paired t-test, Bonferroni": (
                f"no test ({reason})" if math.isnan(row["p"]) else f"{row['adjusted_p']:.3g}"
            ),
        }
        rows.append(cells)
    return pd.DataFrame(rows)
