"""The first view of a report: RMSNorm against LayerNorm, in quality and in time, on every task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from rmsexp.records.frames import comparable, names, statistics, timing_records
from rmsexp.report import paper
from rmsexp.report.page.contents import SettingReport
from rmsexp.report.plots import savings_by_task
from rmsexp.report.plots.verdict_panels import LINE, Marks, Panel, Text, padded
from rmsexp.report.tables import formats, verdicts
from rmsexp.rules import measures, pairs
from rmsexp.rules.ratios import FEWEST_ROUNDS

NORM, REFERENCE = "rms", "ln"
QUALITY, TIME = "RMSNorm better by (interval)", "time of a step saved, eager norms (95 % interval)"
DIVERGED = {"diverged": "RMSNorm alone", "ln_diverged": "LayerNorm alone", "both_diverged": "both"}
TOO_WIDE = f"wider than {100 * savings_by_task.WIDEST:.0f} percentage points"
ROW = 0.26  # the height of a saving in its panel, in the units of verdict_panels


class Answer(NamedTuple):
    """The answer.

    Attributes:
        sentences: the answer in words.
        table: the differences RMSNorm - LayerNorm of each task and setting, as text.
        savings: the panel with the savings of all norms; None without timing records.
    """

    sentences: list[str]
    table: pd.DataFrame
    savings: Panel | None


def real_data_first(reports: Sequence[SettingReport]) -> list[SettingReport]:
    """Return the reports, those on real data before those on built-in data, otherwise in the same order."""
    return sorted(reports, key=lambda report: bool(report.records.runs["builtin"].eq(True).any()))


def answer(
    reports: Sequence[SettingReport], decided: pd.DataFrame, savings: pd.DataFrame, fused: pd.DataFrame
) -> Answer:
    """Return the first view.

    Args:
        reports: the reports of the settings that are not those of campaigns with a claim :func:`about` both.
        decided: the verdicts of campaigns as numbers (:func:`rmsexp.report.tables.verdicts.table`).
        savings: the rows of the figure of savings of eager norms (:func:`rmsexp.report.plots.savings_by_task.rows`).
        fused: those of fused norms.
    """
    claims_about = about(decided) if len(decided) else decided
    own, own_fused = (rows[rows["series"].map(names.without_impl) == NORM] for rows in (savings, fused))
    campaigns = [claims for _, claims in claims_about.groupby("campaign", sort=False)] if len(claims_about) else []
    rows = [row for claims in campaigns for row in _of_campaign(claims, own)]
    rows += [row for report in reports for row in _of_setting(report, own)]
    drawn = savings[~savings["too_wide"]]
    return Answer(_sentences(claims_about, own, own_fused), pd.DataFrame(rows), _panel(drawn) if len(drawn) else None)


def about(verdicts: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of claims about the scores of RMSNorm against LayerNorm."""
    return verdicts[(verdicts["a"] == NORM) & (verdicts["b"] == REFERENCE) & (verdicts["of"] == measures.SCORE)]


def _shown(claims: pd.DataFrame) -> list[dict[Any, Any]]:
    """Return the rows of a campaign's claims: those that are decided or, if none is, the first."""
    over = claims[claims["outcome"] != verdicts.UNDECIDED]
    return (claims.iloc[:1] if over.empty else over).to_dict("records")


def _of_campaign(claims: pd.DataFrame, savings: pd.DataFrame) -> list[dict[str, str]]:
    """Return the rows of a campaign. Claims that are decided by the same interval share a row."""
    by_quality: dict[str, list[str]] = {}
    for row in _shown(claims):
        undecided, quality = row["outcome"] == verdicts.UNDECIDED, formats.NO_VALUE
        if not undecided and not math.isnan(row["difference"]):
            values = (row["difference"], row["low"], row["high"])
            difference = _signed(*values, f"{100 * row['level']:.4g} %", row["score"].split()[1], row["margin"])
            quality = "; ".join([f"{difference} {row['unit']}, {row['seeds']:.0f} seeds", *verdicts.lost(row)])
        verdict = f"{row['outcome']}: {row['reason']}" if undecided else f"{row['claim']}: {_outcome(row)}"
        by_quality.setdefault(quality, []).append(verdict)
    task, runs = claims["task"].iloc[0], f"campaign {claims['campaign'].iloc[0]}"
    return [
        {"task": task, "runs": runs, QUALITY: quality, TIME: _saved(savings, task), "verdict": "; ".join(outcomes)}
        for quality, outcomes in by_quality.items()
    ]


def _outcome(row: dict[Any, Any]) -> str:
    rates = " for the chosen rates only" * bool(verdicts.note_on_rates(row))
    return f"{row['outcome']}{rates}{' (with remarks)' * bool(row['remarks'])}"


def _of_setting(report: SettingReport, savings: pd.DataFrame) -> list[dict[str, str]]:
    """Return a row for each implementation of which a setting has both norms; none for runs that were for tuning.

    Where all runs ended before the steps of their recipe, it says so.
    """
    if report.records.runs["evaluation"].eq("validation").any():
        return []
    tests = report.tests
    found = tests[tests["series"].map(names.without_impl) == NORM].to_dict("records") if len(tests) else []
    data = "built-in data" if report.records.runs["builtin"].eq(True).any() else "real data"
    steps, planned = report.records.runs["step"].max(), report.records.runs["recipe_steps"].max()
    short = f", {steps:,.0f} of {planned:,.0f} steps" if steps < planned else ""
    rows = []
    for row in found:
        factor, _ = names.scale_and_unit(row["metric"])
        mode = str(report.records.runs["target_mode"].dropna().iloc[0])
        value = pairs.sign(mode) * factor * row["difference"]
        is_adjusted = row["adjusted_interval"] > row["interval"]  # False for NaN
        half = factor * row["adjusted_interval" if is_adjusted else "interval"]
        seeds = _seeds(row["n"])
        level = f"{100 * statistics.CONFIDENCE:.4g} %{', Bonferroni' * is_adjusted}"
        difference = _signed(value, value - half, value + half, level, row["metric"])
        text = f"{difference} {names.unit_of_difference(row['metric'])}"
        norms = "".join(f", {part}" for part in row["series"].split("+") if part.startswith("impl="))
        what = {"task": report.task, "runs": f"{report.setting}{short}, {data}{norms}"}
        quality = formats.NO_VALUE if math.isnan(value) else f"{text}, {seeds}"
        lost = [f"{who} diverged at {_seeds(row[count])}" for count, who in DIVERGED.items() if row[count]]
        quality = "; ".join([quality, *lost])
        rows.append(
            what | {QUALITY: quality, TIME: _saved(savings, report.task, report.setting), "verdict": formats.NO_VALUE}
        )
    return rows


def _seeds(count: int) -> str:
    return f"{count} seed{'s' if count != 1 else ''}"


def _signed(value: float, low: float, high: float, level: str, metric: str, margin: float = math.nan) -> str:
    """Return a difference with its interval at confidence ``level``, such as "+1.24 (90 %: +0.29 to +2.20)"."""
    interval = f"{level}: {formats.ends(low, high, metric, margin)}"
    return f"{formats.signed(value, metric)} ({'no interval' if math.isnan(low) else interval})"


def _saved(savings: pd.DataFrame, task: str, setting: str | None = None) -> str:
    """Return what RMSNorm saves on a task, with setting, machine and threads; ``setting``: in it, if it was timed."""
    rows = savings[savings["task"] == task]
    if (rows["setting"] == setting).any():
        rows = rows[rows["setting"] == setting]
    drawn = rows[~rows["too_wide"]]
    if len(rows) > len(drawn) == 0:
        return f"interval{'s' * (len(rows) > 1)} {TOO_WIDE}"
    return "; ".join(map(_with_clock, drawn.to_dict("records"))) or formats.NO_VALUE


def _with_clock(row: dict[Any, Any]) -> str:
    return f"{formats.saving(*timing_records.saving(row))}, {row['setting']}, {_clock(row)}"


def _clock(row: dict[Any, Any]) -> str:
    clock = f"{comparable.machine(row)}, {comparable.threads(row['threads'])}{comparable.precision(row['precision'])}"
    single = [timing_records.replication(1)] if row["processes"] == 1 else []
    few = [f"only {row['rounds']:.0f} rounds"] if row["rounds"] < FEWEST_ROUNDS else []
    return ", ".join([clock, *single, *few])


def _sentences(about: pd.DataFrame, savings: pd.DataFrame, fused: pd.DataFrame) -> list[str]:
    """Return what the verdicts say and what RMSNorm saves, in a sentence each."""
    over = about[about["outcome"] != verdicts.UNDECIDED] if len(about) else about
    if len(over):
        each = [f"{row['claim']} on {row['task']}: {_outcome(row)}" for row in over.to_dict("records")]
        quality = f"Quality: {'; '.join(each)}."
    else:
        quality = "Quality: no campaign has decided yet whether RMSNorm matches LayerNorm."
    if savings.empty:
        return [quality, "Time: no training steps of eager RMSNorm and LayerNorm were timed interleaved."]
    sentences = [quality, f"Time: {_savings('eager', savings)}"]
    return sentences if fused.empty else [*sentences, _savings("Fused", fused)]


def _savings(impl: str, rows: pd.DataFrame) -> str:
    """Return a sentence on what RMSNorm saves. ``impl``: the implementation, as the first word of the sentence."""
    wide, rows = rows[rows["too_wide"]], rows[~rows["too_wide"]]
    if rows.empty:
        return f"{impl} RMSNorm was timed, but all intervals are {TOO_WIDE}."
    saved = 100 * (1 - rows["ratio"])
    tasks, has_interval = rows["task"].nunique(), rows["high"].notna()
    sure, single = int((rows["high"] < 1).sum()), int((has_interval & (rows["processes"] == 1)).sum())
    where = f"on {tasks} task{'s' if tasks > 1 else ''}"
    doubt = f" In {single} of them one process measured, so the interval may be too narrow." if single else ""
    if bare := int((~has_interval).sum()):
        doubt += f" In {bare} of all {len(rows)} timings no process timed both norms, so there is no interval."
    if left_out := savings_by_task.number_left_out(rows):
        doubt += (
            f" {left_out} more timings, of one process each, are left out, because several processes measured the same "
            "on another machine."
        )
    above, total = int((wide["high"] < 1).sum()), int(has_interval.sum()) + len(wide)
    if len(wide):
        intervals = f"{len(wide)} interval{'s' if len(wide) > 1 else ''}"
        doubt += f" Left out of the range: {intervals} {TOO_WIDE}, {above or 'none'} of them wholly above 0."
    amount = " to ".join(dict.fromkeys(f"{value:z.1f}" for value in (saved.min(), saved.max())))
    timings = f"; in {sure + above} of {total} timings the whole interval is above 0" if total else ""
    return f"{impl} RMSNorm saves {amount} % of a training step of {impl.lower()} LayerNorm, {where}{timings}.{doubt}"


def _panel(savings: pd.DataFrame) -> Panel:
    """Return the panel of savings: for each task and setting a line of text, then a line for each norm and machine."""
    marks, texts, y = list[Marks](), list[Text](), 0.0
    for (task, setting), rows in savings.groupby(["task", "setting"], sort=False):
        texts.append(Text(y, [f"{task}, {setting}"]))
        y -= LINE + ROW / 2
        published = paper.savings(str(task))
        for norm, lines in rows.groupby("norm", sort=False):
            own = published.loc[published["norm"].isin(lines["series"].map(names.without_impl)), "saving"]
            points = (100 * own).tolist()
            marks += [Marks(str(norm), f"{names.label(str(norm))}, paper", "paper", points, [y] * len(points))] * bool(
                points
            )
            for row in lines.to_dict("records"):
                value, low, high = (100 * part for part in timing_records.saving(row))
                label = f"{names.label(row['series'])}, {_clock(row)}"
                if math.isnan(low):  # the quotient of two ratios in one process
                    marks.append(Marks(str(norm), f"{label} (no interval)", "points", [value], [y]))
                else:
                    marks.append(Marks(str(norm), label, "interval", [value], [y], [low], [high]))
                y -= ROW
    ends = [end for entry in marks for end in (*entry.x, *entry.low, *entry.high)]
    return Panel(
        "", "time of a training step saved (%)", "", marks, padded([0.0, *ends]), (y, 0.0), zero=True, texts=texts
    )
