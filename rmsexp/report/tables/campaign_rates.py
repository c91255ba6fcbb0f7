"""The tuning of campaigns: the validation score of each norm at each rate, and which rate was chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from rmsexp.campaign.results import Campaign
from rmsexp.records.frames import names, statistics
from rmsexp.report.tables import formats, verdicts
from rmsexp.rules import claims, significance
from rmsexp.rules.selection import Choice

COLUMNS = (
    *("root", "task", "campaign", "norm", "key", "rate", "runs", "ended", "diverged", "mean", "values"),
    *("chosen", "edge", "uncertainty"),
)


def table(campaigns: Sequence[Campaign]) -> pd.DataFrame:
    """Return one row per campaign, norm and rate, with columns ``COLUMNS``.

    ``runs``: the number of tuning runs; ``ended`` of them finished or diverged. ``mean``: the mean validation score of
    those that finished, in the displayed unit; ``values``: each of them. In campaigns about stable ranges these are the
    final runs and their test scores. ``chosen``: whether the rate is the norm's choice. ``edge``, ``uncertainty``: see
    :class:`rmsexp.rules.selection.Choice`; empty at the other rates.
    """
    rows = []
    for campaign in campaigns:
        shared = {"root": str(campaign.root), "task": campaign.task, "campaign": campaign.name, "key": campaign.rate}
        for norm in campaign.every_arm:
            rows += [shared | {"norm": norm} | row for row in _rows(campaign, norm)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _rows(campaign: Campaign, norm: str) -> list[dict[str, Any]]:
    jobs, choice, rows = campaign.rated(norm), campaign.choice.get(norm), []
    for rate in sorted({job.rate for job, _ in jobs}):
        results = [result for job, result in jobs if job.rate == rate]
        values = [result.score for result in results if result.status == "finished"]
        chosen = choice if choice is not None and choice.rate == rate else None
        row: dict[str, Any] = {"rate": rate, "runs": len(results), "ended": sum(result.ended for result in results)}
        row |= {"diverged": sum(result.status == "diverged" for result in results)}
        row |= {"mean": float(np.mean(values)) if values else math.nan, "chosen": chosen is not None}
        row |= {"edge": chosen.edge or "" if chosen else "", "uncertainty": chosen.uncertainty if chosen else math.nan}
        rows.append(row | {"values": ", ".join(map(formats.four_digits, values))})
    return rows


def readable(campaign: Campaign) -> pd.DataFrame:
    """Return the tuning of one campaign as text: one row per norm, and one column per rate."""
    by_norm = {norm: {row["rate"]: row for row in _rows(campaign, norm)} for norm in campaign.every_arm}
    rates, (split, metric) = sorted({rate for rows in by_norm.values() for rate in rows}), campaign.score
    table = []
    for norm, rows in by_norm.items():
        cells = {f"{rate:g}": _cell(rows[rate]) if rate in rows else formats.NO_VALUE for rate in rates}
        if campaign.tolerance is not None:
            cells[f"stable range of {campaign.rate}"] = _range(campaign, norm)
        else:
            cells |= _choice(campaign.choice.get(norm), verdicts.unit(campaign))
            cells[f"{split} {names.metric_label(metric)}, final runs"] = _final(campaign, norm)
        table.append({"norm": names.label(norm)} | cells)
    return pd.DataFrame(table)


def _cell(row: dict[str, Any]) -> str:
    """Return a mean with the number of its seeds, such as "16.12 (3 seeds), chosen"."""
    finished = row["ended"] - row["diverged"]
    parts = [f"{formats.four_digits(row['mean'])} ({formats.counted(finished, 'seed')})"] if finished else []
    parts += [f"{row['diverged']} diverged"] * (row["diverged"] > 0)
    parts += [f"{row['runs'] - row['ended']} not finished"] * (row["runs"] > row["ended"])
    return ", ".join(parts + ["chosen"] * row["chosen"])


def _choice(choice: Choice | None, unit: str) -> dict[str, str]:
    """Return the chosen rate, and the uncertainty of its choice."""
    rate, uncertainty = "not chosen yet" if choice is None else "diverged at every rate", formats.NO_VALUE
    if choice is not None and choice.rate is not None:
        rate = f"{choice.rate:g}" + (f", the {choice.edge} of the grid" if choice.edge else "")
        uncertainty = "not known" if math.isnan(choice.uncertainty) else f"{choice.uncertainty:.2g} {unit}"
    return {"chosen rate": rate, "uncertainty of tuning": uncertainty}


def _range(campaign: Campaign, norm: str) -> str:
    """Return the stable range of a norm, such as "0.0011 to 0.0071 (2.7 octaves, 90 % interval 2.2 to 3.1)"."""
    if campaign.undecided:
        return formats.NO_VALUE
    if (found := campaign.ranges[norm]) is None:
        return "diverged at every rate"
    widths = np.array([*campaign.scores[norm].values()])
    low, high = significance.interval(widths, claims.ALPHA)
    least = "at least " * found.at_least
    return (
        f"{found.low:.2g} to {found.high:.2g} ({least}{found.width:.2f} octaves, 90 % interval {low:.2f} to {high:.2f})"
    )


def _final(campaign: Campaign, norm: str) -> str:
    """Return the mean score of the final runs that finished, once the campaign is decided, and their number."""
    ended = [result for _, result in campaign.of_stage("final", norm) if result.ended]
    values = [result.score for result in ended if result.status == "finished"]
    if campaign.undecided or not values:
        return formats.NO_VALUE
    mean, sd, interval = statistics.estimate(np.array(values))
    unit = names.scale_and_unit(campaign.score.metric)[1]
    spread = "" if math.isnan(interval) else f" ± {interval:.2g} (sd {sd:.2g})"
    (seeds,) = formats.of_seeds(len(values), len(ended)) or [formats.counted(len(values), "seed")]
    return f"{formats.four_digits(mean)}{spread} {unit}, {seeds}".replace(" ,", ",")
