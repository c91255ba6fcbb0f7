"""The panels of the figures of campaigns.

There are four figures: the differences that claims are about, with a panel per task; and quality against the tuned
rate, differences along a ladder, and quality against time, with a panel per campaign.
"""

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rmsexp.campaign.results import Campaign
from rmsexp.config.words import parts
from rmsexp.records.frames import comparable, curves, names, quantities
from rmsexp.records.frames.comparable import Comparison
from rmsexp.records.frames.load import Records
from rmsexp.records.frames.statistics import Array
from rmsexp.report.plots.chart import Axis, Mark, Panel, Shade, Text, arrows, beyond, interval, padded, robust
from rmsexp.report.plots.style import Look
from rmsexp.report.tables import formats, verdicts
from rmsexp.rules import claims, measures, pairs, significance

WRAP = 44  # characters of a line of text in a panel: it has to fit a telephone
COLLAPSED = 1.5  # see :func:`robust`; as in a box plot
FURTHEST = 4  # margins; a difference further from 0 is an arrow, since an axis to it would make margins hard to see
LINE, GAP = 0.34, 0.46  # heights, in units of the y axis of differences: of a line of text, and around an interval
INCHES = 0.5  # per unit of the y axis of differences
BASELINE = "ln"  # times of other norms are computed from their ratio to this norm's, if the campaign has it
NOT_OF_A_STEP = ("evaluation=", "optim.lr=", "schedule.")  # options of runs that do not change the time of a step
Looks = Mapping[str, Look]


class Timed(NamedTuple):
    """Seconds per step by norm of a campaign, measured on ``machine``.

    ``source``: which timing records they are from, and why they are not exact.
    """

    seconds: dict[str, float]
    machine: str
    source: str


def differences(numbers: pd.DataFrame, looks: Looks) -> list[Panel]:
    """Return a panel per task, score and unit: the differences of decided claims, their intervals, shaded margins.

    ``numbers``: the rows of :func:`.tables.verdicts.newest`.
    """
    decided = numbers[numbers["outcome"] != verdicts.UNDECIDED]
    groups = decided.groupby(["task", "score", "unit"], sort=False)
    return [_differences(str(task), rows, looks) for (task, *_), rows in groups]


def _differences(task: str, rows: pd.DataFrame, looks: Looks) -> Panel:
    margins = rows["margin"].dropna()
    reach = FURTHEST * margins.max() if len(margins) else math.inf

    def range_of(shown: pd.DataFrame) -> tuple[float, float]:
        return padded([0.0, *margins, *-margins, *shown[["difference", "low", "high"]].to_numpy().flat])

    near = range_of(rows[rows["difference"].abs() <= reach])
    low, high = range_of(rows[rows["difference"].between(*near)])  # wider if a further difference lies in this range
    marks, shades, texts, y = list[Mark](), list[Shade](), list[Text](), -GAP / 2
    several = rows["campaign"].nunique() > 1
    split, metric = str(rows["score"].iloc[0]).split()
    for row in rows.to_dict("records"):
        name = f" [{campaign_label(row['campaign'])}]" if several else ""
        value = "" if math.isnan(row["difference"]) else formats.signed(row["difference"], metric)
        if not low <= row["low"] <= row["high"] <= high and not math.isnan(row["low"]):
            value += f" ({formats.ends(row['low'], row['high'], metric, row['margin'])})"
        text = ", ".join(filter(None, [f"{row['claim']}{name}: {verdicts.qualified(row)}", value]))
        lines = textwrap.wrap(text, WRAP)
        texts.append(Text(y, lines))
        y -= LINE * len(lines) + GAP
        if not math.isnan(row["margin"]):
            upper = row["margin"] if row["test"] == "equivalence" else high
            shades.append(Shade(-row["margin"], upper, y - GAP / 2, y + GAP / 2))
        if not math.isnan(row["difference"]):
            marks.append(_difference(row, y, (low, high), looks[row["a"]]))
        y -= GAP
    label, unit = names.metric_label(metric), rows["unit"].iloc[0]
    of = names.on_split(split, metric, label) if rows["of"].iloc[0] != measures.RANGE else "width of the stable range"
    x_title = textwrap.fill(f"advantage in {of}" + f" ({unit})" * (unit != label), WRAP)
    x, rows_of_text = Axis(x_title, (low, high)), Axis(range=(y, 0.0), ticks=())
    return Panel(x, rows_of_text, marks, names.task_label(task), texts=texts, shades=shades, line=0, height=-INCHES * y)


def _difference(row: dict[Any, Any], y: float, ends: tuple[float, float], look: Look) -> Mark:
    """Return the mark of a difference, an arrow if it is beyond the ``ends`` of the panel. Intervals are cut there."""
    label = f"{names.label(row['a'])} against {names.label(row['b'])}"
    if not ends[0] <= row["difference"] <= ends[1]:
        side, x = ("left", ends[0]) if row["difference"] < 0 else ("right", ends[1])
        return arrows(look, side, [x], [y], label)
    low, high = (row[end] if math.isnan(row[end]) else float(np.clip(row[end], *ends)) for end in ("low", "high"))
    return interval(look, y, (row["difference"], low, high), label)


def rates(campaign: Campaign, looks: Looks) -> Panel:
    """Return a panel of each norm's score against its rate.

    The score is that on validation examples; for claims about stable ranges that of the claims, with the ranges. Runs
    that are far worse than most do not set the range of the y axis: arrows at its edge are at their rates.
    """
    found: dict[str, dict[float, list[float]]] = {}  # the scores of runs that ended, NaN for those that diverged
    for norm in campaign.every_arm:
        ended = [(job.rate, result.score) for job, result in campaign.rated(norm) if result.ended]
        found[norm] = {rate: [score for at, score in ended if at == rate] for rate in sorted(dict(ended))}
    means = [(float(np.mean(scores)), scores) for by_rate in found.values() for scores in by_rate.values()]
    title = quantities.title(quantities.usual(*campaign.rated_by))
    choices = ((found[norm], choice.rate) for norm, choice in campaign.choice.items())
    chosen = [float(np.mean(points[rate])) for points, rate in choices if rate in points]
    near = robust(title, [[mean for mean, _ in means]], chosen, may_be_log=False, reach=COLLAPSED).range or (0.0, 1.0)
    low, high = padded(score for mean, scores in means if near[0] <= mean <= near[1] for score in scores)
    # Stable ranges stand in rows beside the best scores, since those of equal norms would coincide at their tolerance.
    marks, start = list[Mark](), low if campaign.mode == "min" else high
    distance = pairs.sign(campaign.mode) * (high - low) / 20
    for row, (norm, stable) in enumerate(campaign.ranges.items(), 1):
        if stable is not None:
            label, place = f"{names.label(shown(campaign, norm))}, stable range", (stable.best, stable.low, stable.high)
            marks.append(interval(looks[norm], start + row * distance, place, label))
        end = start + (row + 1) * distance
        low, high = min(low, end), max(high, end)
    for norm, points in found.items():
        number = len({mark.label.rpartition(",")[0] for mark in marks if mark.kind in ("edge", "cross")})
        inward = (0.01 + 0.04 * number) * (high - low)  # crosses of several norms must not overlap
        edge = high - inward if campaign.mode == "min" else low + inward
        marks += _rate_marks(campaign, norm, points, looks[norm], edge, (low, high))
    tried = sorted({rate for points in found.values() for rate in points}) or [0.65, 1.5]
    grid = campaign.tuning.grid if campaign.tolerance is None else campaign.grid[::2]
    limits = tried[0] / 1.3, tried[-1] * 1.3
    x = Axis(names.option_label(campaign.rate), limits, log=True, ticks=grid)  # labels between would overlap
    lines = [mark for mark in marks if mark.kind == "line"]
    notes = [f"unfinished: {campaign.undecided}"] * bool(campaign.undecided)
    options = ", ".join(names.option_label(f"{key}={value}") for key, value in campaign.tuning_runs.items())
    notes += [f"rates tried with {options}"] * bool(options)
    notes += beyond(lines, low, high) if lines else []
    return Panel(x, Axis(title, (low, high)), marks, _title(campaign), "; ".join(notes))


def _rate_marks(
    campaign: Campaign, norm: str, points: dict[float, list[float]], look: Look, edge: float, ends: tuple[float, float]
) -> list[Mark]:
    """Return the marks of a norm. ``points``: its scores by rate; ``edge``: the height of crosses and arrows.

    Crosses are those of diverged runs; arrows stand for means beyond the ``ends`` of the axis.
    """
    series = shown(campaign, norm)
    label = names.label(series)
    each = [(rate, value) for rate, values in points.items() for value in values if not math.isnan(value)]
    means = {rate: float(np.nanmean(values)) for rate, values in points.items() if not np.isnan(values).all()}
    crosses = [rate for rate, values in points.items() if np.isnan(values).any()]
    choice = campaign.choice.get(norm)
    chosen = [rate for rate in means if choice is not None and rate == choice.rate]
    far = [rate for rate, mean in means.items() if not ends[0] <= mean <= ends[1]]
    worse = "up" if campaign.mode == "min" else "down"
    marks = [
        Mark("points", look, [rate for rate, _ in each], [value for _, value in each], label=f"{label}, each seed"),
        Mark("line", look, list(means), list(means.values()), label=f"{label}, mean", series=series),
        arrows(look, worse, far, [edge] * len(far), f"{label}, far worse"),
        Mark("ring", look, chosen, [means[rate] for rate in chosen], label=f"{label}, chosen"),
        Mark("cross", look, crosses, [edge] * len(crosses), label=f"{label}, diverged"),
    ]
    return [mark for mark in marks if len(mark.x)]


def ladder(campaign: Campaign, looks: Looks) -> Panel:
    """Return the differences of scores of a decided campaign with a ladder against the size, with 90 % bands."""
    scores, marks = campaign.scores, []
    for claim in campaign.claims:
        arms = zip(campaign.arms[claim.a], campaign.arms[claim.b], strict=True)
        found = [pairs.pair(scores[a], scores[b], campaign.final_seeds, campaign.mode).differences for a, b in arms]
        drawn = [(size, values) for size, values in zip(campaign.sizes, found, strict=True) if len(values) > 1]
        ends = [significance.interval(values, claims.ALPHA) for _, values in drawn]
        low, high = [low for low, _ in ends], [high for _, high in ends]
        sizes, means = [size for size, _ in drawn], [float(np.mean(values)) for _, values in drawn]
        label = f"{names.label(claim.a)} against {names.label(claim.b)}"
        marks.append(Mark("line", looks[claim.a], sizes, means, low, high, label, claim.a))
    split, metric = campaign.score
    references = {claim.b for claim in campaign.claims}
    over = f" over {names.label(references.pop())}" if len(references) == 1 else ""
    of = names.on_split(split, metric, names.metric_label(metric), names.unit_of_difference(metric))
    title = f"advantage{over} in {of}"
    y = Axis(title, padded([0.0, *(end for mark in marks for end in (*mark.low, *mark.high))]))
    x_range = campaign.sizes[0] / 1.1, campaign.sizes[-1] * 1.1
    size = names.option_label(next(iter(campaign.ladder)))
    return Panel(Axis(size, x_range, log=True, ticks=campaign.sizes), y, marks, _title(campaign))


def timed(campaign: Campaign, records: Records, timings: pd.DataFrame) -> Timed | None:
    """Return the times of the norms of a campaign, or None if no timing record has at least two of them.

    The records are of whole training steps, and of the task and scale of the campaign's final runs. Of several
    comparisons (:mod:`rmsexp.records.frames.comparable`), it is one of a setting with the options of these runs that
    change a step and no others, then one with their implementation, machine and threads, in this order, then the one
    with the highest rank and most of the norms.

    A norm with an option of the model or another optimiser, such as ``rms+model.qk_norm=true``, has no times: the
    timing records of its series are without this option.
    """
    final = [job for job in campaign.jobs if job.stage == "final"]
    usual = [job for job in final if not re.search(r"\+(model\.|optim\.name=)", job.norm)]
    series = {job.norm: names.without_impl(job.folder.split("/")[2]) for job in usual}
    runs = records.runs[records.runs["folder"].isin([str(campaign.root / job.folder) for job in final])]
    wanted = timings["series"].map(names.without_impl).isin(list(series.values()))
    own = timings[wanted & (timings["task"] == campaign.task) & timings["scale"].isin(runs["scale"])]
    baseline = BASELINE if BASELINE in series.values() else next(iter(series.values()), BASELINE)
    choices = comparable.comparisons(own, baseline)
    if not choices:
        return None
    options = set(map(_of_a_step, runs["setting"]))

    def of_runs(choice: Comparison) -> dict[str, bool]:
        """Return whether what changes the time of a step is that of the runs, by its name."""
        first = choice.rows.iloc[0]
        columns = {"implementation": "impl", "machine": "machine", "number of threads": "threads"}
        same = {name: first[column] in set(runs[column]) for name, column in columns.items()}
        return {"setting": _of_a_step(first["setting"]) in options} | same

    def preference(choice: Comparison) -> tuple[object, ...]:
        *quality, started = comparable.rank(choice.pooled)
        return *of_runs(choice).values(), *quality, len(choice.rows), started

    best = max(choices, key=preference)
    ratios = dict(zip(best.rows["series"].map(names.without_impl), best.rows["ratio"], strict=True))
    of_baseline = best.rows["series"] == best.rows["baseline"]
    step = float(best.rows.loc[of_baseline, "median_seconds_per_1k_steps"].iloc[0]) / 1000
    seconds = {norm: step * ratios[name] for norm, name in series.items() if name in ratios}
    first = best.rows.iloc[0]
    remarks = [f"not the {name} of the runs" for name, is_theirs in of_runs(best).items() if not is_theirs]
    is_clear = (best.rows["time_state"] == "undisturbed").all()
    effect = "" if is_clear else ", so only the ratios of these times are reliable"
    remarks += [f"{line}{effect}" for line in comparable.caution(best)]
    machine = comparable.machine(first.to_dict())
    conditions = comparable.clock(best).replace(machine, str(first["processor"]))  # the caption names the machine
    source = [conditions, names.setting_label(first["setting"]), str(first["started"])[:10]]
    return Timed(seconds, machine, "; ".join([*source, *remarks]))


def _of_a_step(setting: str) -> frozenset[str]:
    """Return the scale of a setting, with those of its options that change the time of a step."""
    return frozenset(option for option in parts(setting) if not option.startswith(NOT_OF_A_STEP))


def equal_time(campaign: Campaign, records: Records, timed: Timed, looks: Looks, later: Sequence[str] = ()) -> Panel:
    """Return the evaluations on the validation sample of a campaign against steps x seconds per step.

    Its note has the source of the times, and what is left out. ``records``: all. ``later``: norms of a later campaign.
    """
    metric = campaign.score.metric
    means = {norm: mean for norm in timed.seconds if (mean := _sample(campaign, records, norm)).size}
    longest = max((mean[0].max() * timed.seconds[norm] for norm, mean in means.items()), default=0.0)
    unit, divisor = curves.time_unit(longest)
    marks, notes = [], [timed.source]
    for norm in (each for each in campaign.norms if each not in later):
        if norm not in means:
            missing = "finished run" if norm in timed.seconds else "time"
            notes.append(f"{names.label(norm)} has no {missing}")
            continue
        step, y, low, high = means[norm]
        x = step * timed.seconds[norm] / divisor
        statuses = [result.status for _, result in campaign.of_stage("final", norm) if result.ended]
        left_out = formats.of_seeds(statuses.count("finished"), len(statuses))
        notes += [f"{names.label(norm)}: {text}" for text in left_out]
        marks.append(Mark("line", looks[norm], x, y, low, high, names.label(norm), shown(campaign, norm)))
    notes += ["other norms: in a later campaign"] * bool(later)
    title = quantities.title(quantities.usual(names.SAMPLE, metric))
    y_range = padded([end for mark in marks for end in (*mark.y, *mark.low, *mark.high)])
    x_axis = Axis(f"time in training ({unit})", (0.0, longest / divisor * 1.02))
    return Panel(x_axis, Axis(title, y_range), marks, _title(campaign), "; ".join(notes))


def _sample(campaign: Campaign, records: Records, norm: str) -> Array:
    """Return the mean over the final seeds that finished, ``(4, step)``: step, mean, least and greatest value."""
    final = campaign.of_stage("final", norm)
    folders = [str(campaign.root / job.folder) for job, result in final if result.status == "finished"]
    metric = campaign.score.metric
    rows = records.metrics[records.metrics["folder"].isin(folders) & (records.metrics["split"] == names.SAMPLE)]
    by_run = curves.curves(rows.reindex(columns=["folder", "step", metric]), "step", "step", metric)
    mean, _ = curves.mean_curve(by_run.values())
    mean[1:] *= names.scale_and_unit(metric)[0]
    return mean


def shown(campaign: Campaign, norm: str) -> str:
    """Return a norm of a campaign without its implementation, unless the campaign has two of this norm."""
    plain = [names.without_impl(arm) for arm in campaign.every_arm]
    return norm if plain.count(names.without_impl(norm)) > 1 else names.without_impl(norm)


def campaign_label(name: str) -> str:
    """Return the name of a campaign for people, such as "dose, learning rate 0.0005"."""
    plain = re.sub(r"\+[0-9a-f]{8}$", "", name).replace("+tune.over.", "+")
    plain = re.sub(r"(?<==)\d+e-\d+", lambda found: f"{float(found[0]):g}", plain)
    return names.setting_label(plain)


def _title(campaign: Campaign) -> str:
    return f"{names.task_label(campaign.task)} ({campaign_label(campaign.name)})"
