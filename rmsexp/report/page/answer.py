"""The first view of a report: RMSNorm against LayerNorm, in quality and in time, on every task."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from rmsexp.records.frames import names, statistics, timing_records
from rmsexp.report.plots.savings import WIDEST, clock
from rmsexp.report.setting_report import SettingReport
from rmsexp.report.tables import formats, verdicts
from rmsexp.rules import measures, pairs
from rmsexp.rules.ratios import FEWEST_ROUNDS

TITLE = "RMSNorm against LayerNorm"
NORM, REFERENCE = "rms", "ln"
QUALITY, TIME = "RMSNorm better by (interval)", "time of a step saved, eager norms (95 % interval)"
DIVERGED = {"diverged": "RMSNorm alone", "ln_diverged": "LayerNorm alone", "both_diverged": "both"}


class Answer(NamedTuple):
    """The answer in words, and the differences RMSNorm - LayerNorm of each task and setting, as a table of text."""

    sentences: list[str]
    table: pd.DataFrame


def answer(
    reports: Sequence[SettingReport], decided: pd.DataFrame, savings: pd.DataFrame, fused: pd.DataFrame
) -> Answer:
    """Return the first view.

    Args:
        reports: the reports of the settings that are not those of campaigns with a claim :func:`about` both.
        decided: the verdicts of campaigns as numbers (:func:`rmsexp.report.tables.verdicts.table`).
        savings: the rows of the figure of savings of eager norms (:func:`rmsexp.report.plots.savings.rows`).
        fused: those of fused norms.
    """
    claims = about(decided)
    eager, fused = (rows[rows["series"].map(names.without_impl) == NORM] for rows in (savings, fused))
    rows = [row for _, own in claims.groupby("campaign", sort=False) for row in _of_campaign(own, eager)]
    rows += [row for report in reports for row in _of_setting(report, eager)]
    over = claims[claims["outcome"] != verdicts.UNDECIDED].to_dict("records")
    quality = "; ".join(f"{row['claim']} on {row['task']}: {_outcome(row)}" for row in over)
    time = "no interleaved timing of training steps compares eager RMSNorm with LayerNorm precisely enough."
    sentences = [f"Quality: {quality or 'no campaign has decided yet whether RMSNorm matches LayerNorm'}."]
    if not eager["too_wide"].all():  # false also without rows
        time = _savings("eager", eager)
        sentences[1:] = [] if fused["too_wide"].all() else [_savings("Fused", fused)]
    sentences.insert(1, f"Time: {time}")
    return Answer(sentences, pd.DataFrame(rows))


def about(verdicts: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of claims about the scores of RMSNorm against LayerNorm."""
    return verdicts[(verdicts["a"] == NORM) & (verdicts["b"] == REFERENCE) & (verdicts["of"] == measures.SCORE)]


def _of_campaign(claims: pd.DataFrame, savings: pd.DataFrame) -> list[dict[str, str]]:
    """Return the rows of a campaign: its decided claims or, if there are none, the first.

    Claims that are decided by the same interval share a row.
    """
    over = claims[claims["outcome"] != verdicts.UNDECIDED]
    by_quality: dict[str, list[str]] = {}
    for row in (claims.iloc[:1] if over.empty else over).to_dict("records"):
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
    runs, tests = report.records.runs, report.numbers("paired")
    if runs["evaluation"].eq("validation").any() or tests.empty:
        return []
    data = "built-in data" if runs["builtin"].eq(True).any() else "real data"
    steps, planned = runs["step"].max(), runs["recipe_steps"].max()
    short = f", {steps:,.0f} of {planned:,.0f} steps" if steps < planned else ""
    sign = pairs.sign(str(runs["target_mode"].dropna().iloc[0]))
    rows = []
    for row in tests[tests["series"].map(names.without_impl) == NORM].to_dict("records"):
        factor, _ = names.scale_and_unit(row["metric"])
        value = sign * factor * row["difference"]
        is_adjusted = row["adjusted_interval"] > row["interval"]  # False for NaN
        half = factor * row["adjusted_interval" if is_adjusted else "interval"]
        level = f"{100 * statistics.CONFIDENCE:.4g} %{', Bonferroni' * is_adjusted}"
        difference = _signed(value, value - half, value + half, level, row["metric"])
        text = f"{difference} {names.unit_of_difference(row['metric'])}, {formats.counted(row['n'], 'seed')}"
        norms = "".join(f", {part}" for part in row["series"].split("+") if part.startswith("impl="))
        lost = [f"{who} diverged at {formats.counted(row[key], 'seed')}" for key, who in DIVERGED.items() if row[key]]
        cells = {"task": report.task, "runs": f"{report.setting}{short}, {data}{norms}"}
        cells[QUALITY] = "; ".join([formats.NO_VALUE if math.isnan(value) else text, *lost])
        rows.append(cells | {TIME: _saved(savings, report.task, report.setting), "verdict": formats.NO_VALUE})
    return rows


def _signed(value: float, low: float, high: float, level: str, metric: str, margin: float = math.nan) -> str:
    """Return a difference with its interval at confidence ``level``, such as "+1.24 (90 %: +0.29 to +2.20)"."""
    interval = f"{level}: {formats.ends(low, high, metric, margin)}"
    return f"{formats.signed(value, metric)} ({'no interval' if math.isnan(low) else interval})"


def _saved(savings: pd.DataFrame, task: str, setting: str | None = None) -> str:
    """Return what RMSNorm saves on a task, with setting, machine and threads; ``setting``: in it, if it was timed."""
    rows = savings[savings["task"] == task]
    if (rows["setting"] == setting).any():
        rows = rows[rows["setting"] == setting]
    texts = []
    for row in rows[~rows["too_wide"]].to_dict("records"):
        single = [timing_records.replication(1)] if row["processes"] == 1 else []
        few = [f"only {row['rounds']:.0f} rounds"] if row["rounds"] < FEWEST_ROUNDS else []
        parts = [formats.saving(*timing_records.saving(row)), row["setting"], clock(row), *single, *few]
        texts.append(", ".join(parts))
    return "; ".join(texts) or formats.NO_VALUE


def _savings(impl: str, rows: pd.DataFrame) -> str:
    """Return a sentence on what RMSNorm saves. ``impl``: the implementation, as the first word of the sentence."""
    wide, rows = rows[rows["too_wide"]], rows[~rows["too_wide"]]
    saved, has_interval = 100 * (1 - rows["ratio"]), rows["high"].notna()
    amount = " to ".join(dict.fromkeys(f"{value:z.1f}" for value in (saved.min(), saved.max())))
    above, total = int((wide["high"] < 1).sum()), int(has_interval.sum()) + len(wide)
    text = (
        f"{impl} RMSNorm saves {amount} % of a training step of {impl.lower()} LayerNorm, on "
        f"{formats.counted(rows['task'].nunique(), 'task')}; in {int((rows['high'] < 1).sum()) + above} of {total} "
        "timings the whole interval is above 0."
    )
    if single := int((has_interval & (rows["processes"] == 1)).sum()):
        text += f" In {single} of them one process measured, so the interval may be too narrow."
    if len(wide):
        text += f" Left out of the range: {formats.counted(len(wide), 'interval')} wider than {100 * WIDEST:.0f} "
        text += f"percentage points, {above or 'none'} of them wholly above 0."
    return text
