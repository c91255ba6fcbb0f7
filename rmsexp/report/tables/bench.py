"""Tables of a benchmark of layers: the time of each layer per case, and ratios over all shapes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import pandas as pd

from rmsexp.records.frames.benchmarks import Measured, Summary
from rmsexp.report.tables import formats
from rmsexp.rules.ratios import paired_ratio


def readable(case: Measured) -> pd.DataFrame:
    """Return the table of one case as text: each layer's milliseconds per call, and their ratio to the reference's."""
    reference = case.stored["reference"]
    return pd.DataFrame(
        {
            "layer": row.layer,
            "ms, median (10 % to 90 %)": "{1} ({0} to {2})".format(*map(formats.four_digits, row.milliseconds)),
            f"ratio to {reference} (95 % interval)": "1" if row.layer == reference else formats.ratio(row.relative),
        }
        for row in case.rows
    )


def summaries(requested: Sequence[Summary], measured: Sequence[Measured]) -> dict[str, pd.DataFrame]:
    """Return a table for each requested summary that applies to a measured case, by heading.

    A table has a row of ratios of times for each shape, and a row with their geometric means.
    """
    tables = {}
    for summary in requested:
        cases = [
            case.stored
            for case in measured
            if case.stored["passes"] == summary.passes and case.stored["elements"] >= summary.elements
        ]
        if not cases:
            continue
        columns = {"shape": [*(case["shape"] for case in cases), "geometric mean"]}
        for layer, reference in summary.pairs:
            ratios = [paired_ratio(case["seconds"][layer], case["seconds"][reference]) for case in cases]
            mean = statistics.geometric_mean(interval.ratio for interval in ratios)
            columns[f"{layer} / {reference}"] = [*map(formats.ratio, ratios), f"{mean:.3f}"]
        heading = f"Ratios, {summary.passes}"
        assert heading not in tables, f"two summaries have the heading {heading}"
        tables[heading] = pd.DataFrame(columns)
    return tables
