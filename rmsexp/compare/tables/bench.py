"""What a benchmark of layers (``python -m rmsexp.bench``) found, as tables and figures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import pandas as pd

from rmsexp.compare.records import benchmarks, ratios
from rmsexp.compare.tables import formats


def readable(found: benchmarks.Measured) -> pd.DataFrame:
    """The rows as a person reads them."""
    reference = found.stored["reference"]
    return pd.DataFrame(
        {
            "layer": row.layer,
            "ms, median (10 % to 90 %)": "{1} ({0} to {2})".format(*map(formats.four_digits, row.milliseconds)),
            f"ratio to {reference} (95 % interval)": "1" if row.layer == reference else _ratio(row.relative),
        }
        for row in found.rows
    )


def _ratio(found: ratios.Interval) -> str:
    return f"{found.ratio:.3f} ({found.low:.3f} to {found.high:.3f})"


def summaries(wanted: Sequence[benchmarks.Summary], found: Sequence[benchmarks.Measured]) -> dict[str, pd.DataFrame]:
    """By heading, a table for each summary that has something to show: a line a shape, and the geometric mean."""
    shown = {}
    for summary in wanted:
        of = [one.stored for one in found]
        of = [one for one in of if one["passes"] == summary.passes and one["elements"] >= summary.elements]
        if not of:
            continue
        columns = {"shape": [*(one["shape"] for one in of), "geometric mean"]}
        for own, other in summary.pairs:
            ratios = [ratios.paired_ratio(one["seconds"][own], one["seconds"][other]) for one in of]
            mean = statistics.geometric_mean(one.ratio for one in ratios)
            columns[f"{own} / {other}"] = [*map(_ratio, ratios), f"{mean:.3f}"]
        shown[f"Ratios, {summary.passes}"] = pd.DataFrame(columns)
    return shown
