"""The panels of the figures of campaigns, computed once for matplotlib and for the HTML page.

There are four figures: the differences that claims are about, with a panel per task; quality against the tuned rate,
differences along a ladder, and quality against time, with a panel per campaign. All have the same kinds of marks.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from rmsexp.campaign.campaign_file import Job
from rmsexp.campaign.results import Campaign
from rmsexp.records.frames import curves, names, quantities, speed
from rmsexp.records.frames.load import Records
from rmsexp.report.campaign_times import Timed
from rmsexp.report.tables import formats, verdicts
from rmsexp.rules import claims, measures, pairs, significance

Kind = Literal["points", "line", "chosen", "cross", "interval", "left", "right", "paper"]
WRAP = 44  # characters of a line of text in a panel: it has to fit a telephone
WRAP_Y = 34  # the same for the title of the y axis, which has to fit the height of a panel
FURTHEST = 4  # margins; a difference further from 0 is an arrow, since an axis to it would make margins hard to see
LINE, GAP = 0.34, 0.4  # heights, in units of the y axis of differences: of a line of text, and around an interval
MARGIN = 0.06  # space between the marks and the edge of a panel, relative to the range of the marks


class Marks(NamedTuple):
    """Marks of one norm.

    Attributes:
        norm: the norm, which determines the colour.
        label: what the marks are, for a legend or a tooltip.
        kind: "points"; a "line" through the points; "chosen", a ring around each point; "cross", a run that diverged;
            "interval", points with horizontal intervals; "left" or "right", an arrow at the edge of the panel, to a
            point beyond it; "paper", values of the paper.
        x, y: the points.
        low, high: ends of the interval at each point: of x for "interval", and of y, drawn as a band, for "line". Empty
            for none.
    """

    norm: str
    label: str
    kind: Kind
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


class Band(NamedTuple):
    """A shaded rectangle from ``low`` to ``high`` on the x axis, and ``GAP`` / 2 above and below ``y``."""

    low: float
    high: float
    y: float


class Text(NamedTuple):
    """Lines of text at the left edge of a panel, below ``y``."""

    y: float
    lines: list[str]


class Panel(NamedTuple):
    """A panel.

    Attributes:
        title: its title.
        x_title, y_title: the titles of its axes; without ``y_title`` the y axis has no ticks.
        marks: its marks, in the order of drawing.
        x_range, y_range: the ranges of the axes.
        ticks: the ticks of the x axis, which is logarithmic if they are given.
        zero: whether a vertical line is drawn at x = 0.
        bands: shaded rectangles.
        texts: lines of text.
    """

    title: str
    x_title: str
    y_title: str
    marks: list[Marks]
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    ticks: Sequence[float] = ()
    zero: bool = False
    bands: Sequence[Band] = ()
    texts: Sequence[Text] = ()


def differences(campaigns: Sequence[Campaign]) -> list[Panel]:
    """Return a panel per task, score and unit: the differences of decided claims, their intervals, shaded margins."""
    table = verdicts.table(campaigns)
    decided = table[table["outcome"] != verdicts.UNDECIDED]
    return [
        _differences(str(task), rows) for (task, *_), rows in decided.groupby(["task", "score", "unit"], sort=False)
    ]


def _differences(task: str, rows: pd.DataFrame) -> Panel:
    margins = rows["margin"].dropna()
    reach = FURTHEST * margins.max() if len(margins) else math.inf

    def range_of(shown: pd.DataFrame) -> tuple[float, float]:
        return padded([0.0, *margins, *-margins, *shown[["difference", "low", "high"]].to_numpy().flat])

    near = range_of(rows[rows["difference"].abs() <= reach])
    x_range = range_of(rows[rows["difference"].between(*near)])  # wider if a further difference lies in this range
    marks, bands, texts, y = list[Marks](), list[Band](), list[Text](), -GAP / 2
    several = rows["campaign"].nunique() > 1
    split, metric = str(rows["score"].iloc[0]).split()
    for row in rows.to_dict("records"):
        name = f" [{row['campaign']}]" if several else ""
        value = "" if math.isnan(row["difference"]) else f", {formats.signed(row['difference'], metric)}"
        lines = textwrap.wrap(f"{row['claim']}{name}: {verdicts.qualified(row)}{value}", WRAP)
        texts.append(Text(y, lines))
        y -= LINE * len(lines) + GAP
        if not math.isnan(row["margin"]):
            upper = row["margin"] if row["test"] == "equivalence" else x_range[1]
            bands.append(Band(-row["margin"], upper, y))
        marks += _difference(row, y, x_range)
        y -= GAP
    label, unit = names.metric_label(metric), rows["unit"].iloc[0]
    of = f"{split} {label}" if rows["of"].iloc[0] != measures.RANGE else "width of the stable range"
    x_title = "\n".join(textwrap.wrap(f"advantage in {of}" + f" ({unit})" * (unit != label), WRAP))
    return Panel(task, x_title, "", marks, x_range, (y, 0.0), zero=True, bands=bands, texts=texts)


def _difference(row: dict[Any, Any], y: float, x_range: tuple[float, float]) -> list[Marks]:
    """Return the mark of a difference, if there is one. Infinite ends of its interval are at the edges of the panel."""
    if math.isnan(row["difference"]):
        return []
    label = f"{names.label(row['a'])} against {names.label(row['b'])}"
    if row["difference"] < x_range[0]:
        return [Marks(row["a"], label, "left", [x_range[0]], [y])]
    if row["difference"] > x_range[1]:
        return [Marks(row["a"], label, "right", [x_range[1]], [y])]
    if math.isnan(row["low"]):
        return [Marks(row["a"], f"{label} (no interval)", "points", [row["difference"]], [y])]
    low, high = max(row["low"], x_range[0]), min(row["high"], x_range[1])
    return [Marks(row["a"], label, "interval", [row["difference"]], [y], [low], [high])]


def rates(campaigns: Sequence[Campaign]) -> list[Panel]:
    """Return a panel per campaign with runs at several rates: the score against the rate, for each norm.

    The score is that on validation examples; for claims about stable ranges that of the claims, with the ranges.
    """
    panels = [_rates(campaign) for campaign in campaigns]
    return [panel for panel in panels if panel.marks]


def _rates(campaign: Campaign) -> Panel:
    found = {norm: _by_rate(campaign, norm) for norm in campaign.every_arm}
    values = [value for points in found.values() for values in points.values() for value in values]
    y_range = padded([value for value in values if not math.isnan(value)])
    marks = [entry for number, norm in enumerate(found) for entry in _rate_marks(campaign, norm, number, y_range)]
    tried = sorted({rate for points in found.values() for rate in points})
    x_range = (tried[0] / 1.3, tried[-1] * 1.3) if tried else (0.5, 2.0)
    grid = campaign.tuning.grid if campaign.tolerance is None else campaign.grid[::2]
    ticks = grid if tried else ()  # labels between octaves would overlap
    title = quantities.title(quantities.usual(*(campaign.tuned_by if campaign.tolerance is None else campaign.score)))
    return Panel(_title(campaign), campaign.rate, title, marks, x_range, y_range, ticks=ticks)


def _by_rate(campaign: Campaign, norm: str) -> dict[float, list[float]]:
    """Return the scores of a norm's runs that ended, by rate; NaN for those that diverged."""
    points: dict[float, list[float]] = {}
    for job, result in campaign.rated(norm):
        if result.ended:
            points.setdefault(job.rate, []).append(campaign.rated_score(result))
    return dict(sorted(points.items()))


def _rate_marks(campaign: Campaign, norm: str, number: int, y_range: tuple[float, float]) -> list[Marks]:
    """Return the marks of a norm, whose place in the campaign is ``number``: crosses of several norms must not overlap.

    Crosses of diverged runs are at the worse edge of the panel.
    """
    points, label = _by_rate(campaign, norm), names.label(norm)
    finished = {rate: [value for value in values if not math.isnan(value)] for rate, values in points.items()}
    each = [(rate, value) for rate, values in finished.items() for value in values]
    means = {rate: float(np.mean(values)) for rate, values in finished.items() if values}
    crosses = [rate for rate, values in points.items() if any(map(math.isnan, values))]
    edge, inward = (y_range[1], -1) if campaign.mode == "min" else (y_range[0], 1)
    height = edge + inward * (0.02 + 0.04 * number) * (y_range[1] - y_range[0])
    choice = campaign.choice.get(norm)
    chosen = [rate for rate in means if choice is not None and rate == choice.rate]
    marks = [
        Marks(norm, f"{label}, each seed", "points", [rate for rate, _ in each], [value for _, value in each]),
        Marks(norm, f"{label}, mean", "line", list(means), list(means.values())),
        Marks(norm, f"{label}, chosen", "chosen", chosen, [means[rate] for rate in chosen]),
        Marks(norm, f"{label}, diverged", "cross", crosses, [height] * len(crosses)),
    ]
    if (stable := campaign.ranges.get(norm)) is not None:
        worst = means[stable.best] - pairs.sign(campaign.mode) * (campaign.tolerance or 0.0)
        marks.append(
            Marks(norm, f"{label}, stable range", "interval", [stable.best], [worst], [stable.low], [stable.high])
        )
    return [entry for entry in marks if entry.x]


def ladders(campaigns: Sequence[Campaign]) -> list[Panel]:
    """Return a panel per decided campaign with a ladder: differences of scores against the size, with 90 % bands."""
    return [_ladder(campaign) for campaign in campaigns if campaign.ladder and not campaign.undecided]


def _ladder(campaign: Campaign) -> Panel:
    scores, marks = campaign.scores, []
    for claim in campaign.claims:
        arms = zip(campaign.arms[claim.a], campaign.arms[claim.b], strict=True)
        found = [pairs.pair(scores[a], scores[b], campaign.final_seeds, campaign.mode).differences for a, b in arms]
        drawn = [(size, values) for size, values in zip(campaign.sizes, found, strict=True) if len(values) > 1]
        ends = [significance.interval(values, claims.ALPHA) for _, values in drawn]
        label = f"{names.label(claim.a)} against {names.label(claim.b)}"
        means = [float(np.mean(values)) for _, values in drawn]
        bands = [low for low, _ in ends], [high for _, high in ends]
        marks.append(Marks(claim.a, label, "line", [size for size, _ in drawn], means, *bands))
    split, metric = campaign.score
    references = {claim.b for claim in campaign.claims}
    over = f" over {names.label(references.pop())}" if len(references) == 1 else ""
    y_title = f"advantage{over} in {split} {names.metric_label(metric)} ({names.unit_of_difference(metric)})"
    y_range = padded([0.0, *(y for entry in marks for y in (*entry.low, *entry.high))])
    x_range = campaign.sizes[0] / 1.1, campaign.sizes[-1] * 1.1
    y_title = "\n".join(textwrap.wrap(y_title, WRAP_Y))
    return Panel(_title(campaign), next(iter(campaign.ladder)), y_title, marks, x_range, y_range, ticks=campaign.sizes)


def equal_time(campaigns: Sequence[Campaign], records: Records, timed: dict[str, Timed]) -> list[Panel]:
    """Return a panel per decided campaign with times: the interim evaluations against steps x seconds per step.

    Args:
        campaigns: the campaigns with their results.
        records: all runs.
        timed: the seconds per step of the norms of a campaign, by the path of its file. Others are left out.
    """
    panels = [
        _equal_time(campaign, records, timed[str(campaign.path)])
        for campaign in campaigns
        if str(campaign.path) in timed and not campaign.undecided
    ]
    return [panel for panel in panels if panel.marks]


def _equal_time(campaign: Campaign, records: Records, timed: Timed) -> Panel:
    metric = campaign.score.metric
    means = {norm: _interim(campaign, records, norm) for norm in timed.seconds}
    longest = max((mean["x"].max() * timed.seconds[norm] for norm, mean in means.items() if len(mean)), default=0.0)
    unit, divisor = speed.time_unit(longest)
    marks = []
    for norm, mean in means.items():
        if len(mean):
            x = mean["x"] * timed.seconds[norm] / divisor
            band = (mean["low"].tolist(), mean["high"].tolist()) if mean["low"].notna().all() else ((), ())
            label = " ".join([names.label(norm), *(f"({left})" for left in _left_out(campaign, norm))])
            marks.append(Marks(norm, label, "line", x.tolist(), mean["mean"].tolist(), *band))
    y_range = padded([y for entry in marks for y in (*entry.y, *entry.low, *entry.high)])
    title = "\n".join(textwrap.wrap(quantities.title(quantities.usual(names.INTERIM, metric)), WRAP_Y))
    return Panel(_title(campaign), f"time in training ({unit})", title, marks, (0.0, longest / divisor * 1.02), y_range)


def _interim(campaign: Campaign, records: Records, norm: str) -> pd.DataFrame:
    """Return the mean over the final seeds that finished: columns ``x`` (step), ``mean``, ``low``, ``high``."""
    final = campaign.of_stage("final", norm)
    folders = [_folder(campaign, job) for job, result in final if result.status == "finished"]
    metric = campaign.score.metric
    rows = records.only(folders).metrics
    rows = rows[rows["split"] == names.INTERIM]
    points = curves.curves(rows.reindex(columns=["folder", "step", metric]), "step", metric)
    if not points:
        return pd.DataFrame(columns=["x", "mean", "low", "high"])
    mean = curves.mean_curve(list(points.values()))
    return mean.assign(**{key: mean[key] * names.scale_and_unit(metric)[0] for key in ("mean", "low", "high")})


def _left_out(campaign: Campaign, norm: str) -> list[str]:
    """Return how many of the final seeds that ended are in the mean if it leaves some out, such as "7 of 8 seeds"."""
    statuses = [result.status for _, result in campaign.of_stage("final", norm) if result.ended]
    return formats.of_seeds(statuses.count("finished"), len(statuses))


def _folder(campaign: Campaign, job: Job) -> str:
    return str(campaign.root / job.folder)


def _title(campaign: Campaign) -> str:
    return f"{campaign.task} ({campaign.name})"


def padded(values: Iterable[float]) -> tuple[float, float]:
    """Return a range with the finite values and some space around them; (0, 1) without a value."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return 0.0, 1.0
    space = MARGIN * (max(finite) - min(finite)) or 1.0
    return min(finite) - space, max(finite) + space
