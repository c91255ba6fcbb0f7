"""The first view of a report: the norms of its runs against a reference, in quality and in time, on every task.

Norms that are not of this package come first. The reference is LayerNorm or, for claims of campaigns, the norm that is
named second.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from rmsexp.config.words import parts
from rmsexp.records.frames import names, quantities, statistics
from rmsexp.report.setting_report import SettingReport
from rmsexp.report.tables import formats, seed_tests, verdicts
from rmsexp.rules import claims, measures, pairs

TITLE = "Norms compared"
NORM, AGAINST, QUALITY = "norm", "against", "better by (interval)"
TIMES = {"eager": "step time saved, eager", "fused": "fused"}  # heading by implementation
REFERENCE = "ln"  # of savings, and of differences in settings
Savings = Mapping[str, Sequence[dict[Any, Any]]]  # rows of a norm, a task and a timing each, by implementation
TESTS = {claims.EQUIVALENCE: "equal", claims.NONINFERIORITY: "not worse", claims.SUPERIORITY: "better"}


class Answer(NamedTuple):
    """The answer in words, and a table of text: a row for each two norms that a campaign or a setting compares."""

    sentences: list[str]
    table: pd.DataFrame


def answer(reports: Sequence[SettingReport], decided: pd.DataFrame, savings: Mapping[str, pd.DataFrame]) -> Answer:
    """Return sentences and table of the first view.

    ``reports``: of settings without runs of campaigns whose claims are about scores. ``decided``: the rows of
    :func:`.verdicts.newest`, also undecided ones. ``savings``: :func:`.plots.savings.rows`, by implementation.
    """
    # those whose intervals are narrow enough to be drawn
    narrow = {impl: rows[~rows["too_wide"]].to_dict("records") for impl, rows in savings.items()}
    over = about_scores(decided)
    over = over[over["outcome"] != verdicts.UNDECIDED]
    rows = [_of_claims(same, narrow) for _, same in over.groupby(["campaign", "a", "b"], sort=False)]
    rows += [row for report in reports for row in _of_setting(report, narrow)]
    rows.sort(key=lambda row: _place(row[NORM]))
    table = pd.DataFrame([row | {NORM: names.label(row[NORM]), AGAINST: names.label(row[AGAINST])} for row in rows])
    against_ln = {names.without_impl(row[NORM]) for row in rows if names.is_plain_ln(row[AGAINST])}
    norms, claimed = sorted(against_ln - {REFERENCE}, key=_place), set(over["a"].map(names.without_impl))
    sentences = [_sentence(norm, over, narrow) for norm in norms if norm in claimed or _place(norm)[0] < 0]
    if not rows:
        needed = "LayerNorm (norm=ln) and another norm with the same norm.impl in one setting, one better than chance"
        open_yet = "; campaigns are not decided yet (see Verdicts)" * (not decided.empty)
        sentences = [f"No norms can be compared yet{open_yet}. A comparison needs {needed}."]
    return Answer(list(filter(None, sentences)), table)


def about_scores(verdicts: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of claims about scores."""
    return verdicts[verdicts["of"] == measures.SCORE]


def _place(series: str) -> tuple[int, str]:
    """Return what norms are sorted by: those of the user first, then those of this package, and ``none`` last."""
    norm, known = names.norm_of(series), list(names.NAMES)
    return len(known) if norm == "none" else known.index(norm) if norm in known else -1, series


def _of_claims(same: pd.DataFrame, savings: Savings) -> dict[str, str]:
    """Return one row for ``same``, the decided claims of a campaign on two norms: texts by heading."""
    row = same.iloc[0].to_dict()
    values, level = (row["difference"], row["low"], row["high"]), f"{100 * row['level']:.4g} %"
    difference = _signed(*values, level, row["score"].split()[1], row["margin"]) + f" {row['unit']}"
    quality = [formats.NO_VALUE if math.isnan(row["difference"]) else f"{difference}, {row['seeds']:.0f} seeds"]
    cells = {NORM: row["a"], AGAINST: row["b"], "task": row["task"], "runs": f"campaign {row['campaign']}"}
    cells[QUALITY] = "; ".join([*quality, *verdicts.lost(row)])
    cells["verdict"] = "; ".join(f"{TESTS[each['test']]}: {_outcome(each)}" for each in same.to_dict("records"))
    return cells | _times(savings, row["a"], row["b"], row["task"])


def _outcome(row: dict[Any, Any]) -> str:
    rates = " for the chosen rates only" * bool(verdicts.note_on_rates(row))
    return f"{row['outcome']}{rates}{' (with remarks)' * bool(row['remarks'])}"


def _of_setting(report: SettingReport, savings: Savings) -> list[dict[str, str]]:
    """Return a row for each series that the setting has beside LayerNorm of its implementation; none for tuning runs.

    Instead of a difference without an interval it has the reason. If all runs ended before the steps of their recipe,
    the row says so.
    """
    runs, tests = report.records.runs, report.numbers("paired")
    if runs["evaluation"].eq("validation").any() or tests.empty:
        return []
    kinds = {"built-in data": runs["builtin"].eq(True).any(), "own data": runs["impl"].eq("own").any()}
    data = next((kind for kind, applies in kinds.items() if applies), "real data")
    steps, planned = runs["step"].max(), runs["recipe_steps"].max()
    short = f", {steps:,.0f} of {planned:,.0f} steps" if steps < planned else ""
    sign = pairs.sign(str(runs["target_mode"].dropna().iloc[0]))
    rows = []
    for row in tests.to_dict("records"):
        factor, _ = names.scale_and_unit(row["metric"])
        value = sign * factor * row["difference"]
        half = factor * row["interval"]
        level = f"{100 * statistics.CONFIDENCE:.4g} %" + ", Bonferroni" * int(tests["interval"].count() > 1)
        difference = _signed(value, value - half, value + half, level, row["metric"])
        unit, seeds = quantities.unit_of_difference(report.records, row["metric"]), formats.counted(row["n"], "seed")
        norm = names.without_impl(row["series"])
        impl = "".join(f", {part}" for part in parts(row["series"]) if part.startswith("impl="))
        cells = {NORM: norm, AGAINST: REFERENCE, "task": report.task, "runs": f"{report.setting}{short}, {data}{impl}"}
        counts = (("diverged", norm), ("ln_diverged", REFERENCE))
        lost = [f"{row[key]} with {names.label(of)} diverged" for key, of in counts if row[key]]
        lost += [f"{row['both_diverged']} with both diverged"] * bool(row["both_diverged"])
        if math.isnan(half):  # a difference alone would say nothing
            few = f"{seeds}: too few for an interval" if row["n"] else "no seed at which both have a value"
            reasons = [few] * (row["n"] < seed_tests.MIN_SEEDS) + lost
            cells[QUALITY] = f"{formats.NO_VALUE} ({'; '.join(reasons)})"
        else:
            cells[QUALITY] = "; ".join([f"{difference} {unit}".rstrip() + f", {seeds}", *lost])
        cells["verdict"] = formats.NO_VALUE
        rows.append(cells | _times(savings, norm, REFERENCE, report.task, report.setting))
    return rows


def _signed(value: float, low: float, high: float, level: str, metric: str, margin: float = math.nan) -> str:
    """Return a difference with its interval at confidence ``level``, such as "+1.24 (90 %: +0.29 to +2.20)"."""
    interval = f"{level}: {formats.ends(low, high, metric, margin)}"
    return f"{formats.signed(value, metric)} ({'no interval' if math.isnan(low) else interval})"


def _times(savings: Savings, norm: str, against: str, task: str, setting: str | None = None) -> dict[str, str]:
    """Return the time saved against LayerNorm on a task, by heading; in ``setting`` alone, if it was timed there."""
    cells = {}
    for impl, heading in TIMES.items():
        rows = [row for row in _of_norm(savings[impl], norm) if row["task"] == task and names.is_plain_ln(against)]
        cells[heading] = _range([row for row in rows if row["setting"] == setting] or rows)
    return cells


def _of_norm(savings: Sequence[dict[Any, Any]], norm: str) -> list[dict[Any, Any]]:
    return [row for row in savings if names.without_impl(row["series"]) == names.without_impl(norm)]


def _range(savings: Sequence[Mapping[Any, Any]]) -> str:
    """Return the range of savings over timings, such as "2.3 to 5.6 % (5 timings)"."""
    if not savings:
        return formats.NO_VALUE
    saved = [f"{value:z.1f}" for value in sorted(100 * (1 - row["ratio"]) for row in savings)]
    return f"{' to '.join(dict.fromkeys((saved[0], saved[-1])))} % ({formats.counted(len(saved), 'timing')})"


def _sentence(norm: str, over: pd.DataFrame, savings: Savings) -> str:
    """Return on how many tasks a norm equals LayerNorm, and what it saves; "" if neither is known.

    A task counts if all campaigns on it say so.
    Tasks on which a model without norm would equal LayerNorm, too, are counted apart.
    """
    of_norm = (over["a"].map(names.without_impl) == norm) & over["b"].map(names.is_plain_ln)
    equal = over[of_norm & (over["test"] == claims.EQUIVALENCE)]
    held = equal[~equal["task"].isin(equal["task"][equal["outcome"] != claims.SUPPORTED])]
    seen = held["task"][~held["blind"].astype(bool)].nunique()
    unseen = held["task"].nunique() - seen
    partly = len({*equal["task"][equal["outcome"] == claims.SUPPORTED]} - {*held["task"]})
    left_out = [f"{unseen} on which a model without norm is, too"] * bool(unseen)
    left_out += [f"{partly} on which another campaign does not say so"] * bool(partly)
    counts = f" (not counted: {'; '.join(left_out)})" * bool(left_out)
    equality = f"equal within the margin on {seen} of {equal['task'].nunique()} tasks{counts}"
    parts = [equality] * (not equal.empty)
    ranges = {impl: _range(_of_norm(rows, norm)) for impl, rows in savings.items()}
    parts += [
        f"saves {saved} of a training step, {impl}" for impl, saved in ranges.items() if saved != formats.NO_VALUE
    ]
    return f"{names.label(norm)} against {names.label(REFERENCE)}: {'; '.join(parts)}." if parts else ""


def references(table: pd.DataFrame) -> list[str]:
    """Return the references of a table, LayerNorm first."""
    found: Iterable[str] = table[AGAINST] if len(table) else []
    return sorted(dict.fromkeys(found), key=lambda name: name != names.label(REFERENCE))
