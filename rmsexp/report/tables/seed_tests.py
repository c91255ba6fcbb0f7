"""Differences of quality from LayerNorm, paired by seed: runs of one seed share initial weights, batches and noise.

The intervals are exploratory; claims stated before the runs are decided by ``rmsexp.rules.claims``. An interval that
holds 0 is no sign that two norms are equal; only an equivalence test with a margin can show that.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from rmsexp.records.frames import names, statistics
from rmsexp.records.frames.curves import Run
from rmsexp.records.frames.load import Records
from rmsexp.report.tables import formats
from rmsexp.rules import pairs, significance
from rmsexp.rules.claims import ALPHA

MIN_SEEDS = 3  # fewest common seeds for an interval
COUNTS = ["diverged", "ln_diverged", "both_diverged"]
COLUMNS = ["series", "metric", "seeds", "n", "difference", "interval", *COUNTS]


def table(records: Records) -> pd.DataFrame:
    """Return one row per series beside plain LN, if the setting has plain LN of the same implementation.

    Columns: ``series``; ``metric``; ``seeds``, the number of seeds of either; ``n``, that of seeds at which both runs
    have a value; ``difference``, the mean over them of the headline metric minus LN's, with fractions as fractions;
    ``interval``, half of its 95 % t-interval, with Bonferroni's correction for all intervals of the table;
    ``diverged``, ``ln_diverged``, ``both_diverged``, the numbers of common seeds at which only this run, only LN's, or
    both diverged.

    The interval is NaN below three pairs, and if only one run of a pair diverged. A series has no row if its runs and
    those of LN are near chance (:func:`rmsexp.records.frames.statistics.near_chance`).
    """
    target, step = statistics.target(records), statistics.common_step(records)
    values = statistics.headline_metric(records, step)
    untrained = statistics.near_chance(records, values)
    runs = records.runs.set_index("folder").assign(value=values)
    impls = runs.groupby("series")["impl"].first().fillna("unknown").to_dict()  # of runs with damaged files, too
    by_series = {
        str(series): own.to_dict("records")
        for series, own in runs[["series", "seed", "status", "value"]].groupby("series")
    }
    rows = []
    for series in names.in_order(by_series):
        references = [other for other in by_series if names.is_plain_ln(other) and impls[other] == impls[series]]
        reference = [run for other in references for run in by_series[other]]
        if reference and series not in references and not untrained.issuperset({series, *references}):
            seeds = len({run["seed"] for run in (*by_series[series], *reference)})
            row: dict[str, Any] = {"series": series, "metric": target.metric, "seeds": seeds}
            rows.append(row | _difference(by_series[series], reference, target.mode))
    tested = [row for row in rows if row["tested"]]
    for row in tested:
        low, high = significance.interval(row["differences"], ALPHA / len(tested) / 2)
        row["interval"] = (high - low) / 2
    return pd.DataFrame(rows, columns=COLUMNS)


def _difference(runs: Sequence[Run], reference: Sequence[Run], mode: str) -> dict[str, Any]:
    scores, reference_scores = (  # the value of each run by seed, NaN if it diverged; without other runs that lack one
        {run["seed"]: run["value"] for run in of if run["status"] == "diverged" or not math.isnan(run["value"])}
        for of in (runs, reference)
    )
    common = sorted(set(scores) & set(reference_scores))
    found = pairs.pair(scores, reference_scores, common, mode)
    differences = pairs.sign(mode) * found.differences
    return {
        "n": len(differences),
        "difference": float(np.mean(differences)) if len(differences) else math.nan,
        "interval": math.nan,
        "tested": len(differences) >= MIN_SEEDS and not (found.diverged_a or found.diverged_b),
        "differences": differences,
        **dict(zip(COUNTS, map(len, (found.diverged_a, found.diverged_b, found.diverged_both)), strict=True)),
    }


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table as text. Differences of fractions are in percentage points."""
    rows = []
    for row in table.to_dict("records"):
        factor, unit = names.scale_and_unit(row["metric"])
        difference = formats.signed(row["difference"] * factor, row["metric"])
        few = f"fewer than {MIN_SEEDS} common seeds" if row["n"] < MIN_SEEDS else "runs diverged"
        half = formats.two_digits(row["interval"] * factor)
        difference += f" (no interval: {few})" if math.isnan(row["interval"]) else f" ± {half}"
        metric = f"{names.metric_label(row['metric'])} minus LayerNorm's{' (percentage points)' if unit else ''}"
        cells = {
            "norm": names.label(row["series"]),
            "seeds at which both have a value": f"{row['n']} of {row['seeds']}",
            "diverged: norm / LayerNorm / both": " / ".join(str(row[count]) for count in COUNTS),
            f"{metric}, mean ± 95 % interval, Bonferroni": difference,
        }
        rows.append(cells)
    return pd.DataFrame(rows)
