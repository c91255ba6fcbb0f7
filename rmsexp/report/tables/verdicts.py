"""The verdicts on the claims of campaigns: a row per claim and campaign, and a matrix of claims and tasks.

Last comes their tuning: the validation score of each norm at each rate, and which rate was chosen.

Differences are in the displayed unit; positive means that the norm named first in the claim is better.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from rmsexp.campaign import remarks
from rmsexp.campaign.results import Campaign
from rmsexp.records.frames import names, statistics
from rmsexp.report.tables import formats
from rmsexp.rules import claims, measures, seeds, significance
from rmsexp.rules.selection import Choice

UNDECIDED = "not decided yet"
COLUMNS = (
    *("root", "task", "campaign", "claim", "of", "test", "a", "b", "family", "registered", "outcome", "score", "unit"),
    *("difference", "low", "high", "level", "alone_low", "alone_high", "against_zero", "margin", "smallest_margin"),
    *("sd", "smallest_seen", "power"),
    *("gain_over_none", "exceeds_margin", "blind", "improving", "untuned", "seeds", "p", "adjusted_p"),
    *("diverged_a", "diverged_b", "diverged_both", "uncertainty_a", "uncertainty_b", "rates", "reason", "remarks"),
)
RATES = (
    *("root", "task", "campaign", "norm", "key", "rate", "runs", "ended", "diverged", "mean", "values"),
    *("chosen", "edge", "uncertainty"),
)
EVERY = "every task"
SHORT = 0.5  # power
CHOSEN_RATES = "at the chosen learning rates; what their choice may have cost is not known"


def table(campaigns: Sequence[Campaign]) -> pd.DataFrame:
    """Return one row per campaign and claim, with columns ``COLUMNS``.

    ``campaign``: the name, as in :class:`rmsexp.campaign.results.Campaign`, so that no two campaigns share it.
    ``of``: what is compared, "score", "slope" or "stable range" (:mod:`rmsexp.rules.measures`). ``registered``: whether
    the claim is in the campaign's file. ``difference``, ``low``, ``high``: the mean difference and the interval at
    confidence ``level`` that decides the claim; ``alone_low``, ``alone_high``: the 90 % interval without regard to
    other claims of its family. ``smallest_margin``: the smallest margin with which the claim would be supported.
    ``gain_over_none``, ``exceeds_margin``, ``blind``, ``improving``, ``untuned``: see
    :func:`rmsexp.campaign.remarks.strength`. ``seeds``: the number of pairs that were tested; ``sd``: the standard
    deviation of their differences. ``uncertainty_a``, ``uncertainty_b``: of the choice of each norm's rate
    (:class:`rmsexp.rules.selection.Choice`); ``rates``: the standard deviation that both add to the difference; NaN if
    it is not known. ``remarks``: what a reader must know, such as that the campaign's file has changed. A claim of an
    unfinished campaign has the outcome ``UNDECIDED``, and NaN for all that the final runs will give.
    """
    return pd.DataFrame([row for campaign in campaigns for row in _rows(campaign)], columns=list(COLUMNS))


def _rows(campaign: Campaign) -> list[dict[str, Any]]:
    shared = _place(campaign) | {"of": campaign.measure, "score": " ".join(campaign.score), "unit": unit(campaign)}
    uncertainty, rows = campaign.uncertainty, []
    for number, claim in enumerate(campaign.every_claim):
        row = shared | {key: getattr(claim, key) for key in ("claim", "test", "a", "b", "family")}
        row |= {f"uncertainty_{key}": uncertainty.get(getattr(claim, key), math.nan) for key in ("a", "b")}
        row |= {"registered": claim in campaign.claims, "margin": math.nan if claim.margin is None else claim.margin}
        row["remarks"] = "; ".join([*campaign.remarks, *remarks.on_claim(campaign, claim)])
        undecided = {"outcome": UNDECIDED, "reason": campaign.undecided}
        rows.append(row | (undecided if campaign.undecided else _decided(campaign, campaign.verdicts[number])))
    return rows


def _place(campaign: Campaign) -> dict[str, Any]:
    return {"root": str(campaign.root), "task": campaign.task, "campaign": campaign.name}


def _decided(campaign: Campaign, verdict: claims.Verdict) -> dict[str, Any]:
    keys = ("outcome", "difference", "low", "high", "level", "against_zero", "smallest_margin", "p", "adjusted_p")
    row = {key: getattr(verdict, key) for key in (*keys, "diverged_a", "diverged_b", "diverged_both", "rates", "sd")}
    row |= remarks.strength(campaign, verdict)
    row |= {"alone_low": verdict.alone[0], "alone_high": verdict.alone[1], "seeds": verdict.pairs}
    row["reason"] = verdict.reason
    row["power"], row["smallest_seen"] = seeds.sensitivity(verdict)
    if verdict.outcome == claims.INCONCLUSIVE and not math.isnan(row["power"]):
        power = f"the power for a true difference of 0 is {row['power']:.2f} with {verdict.pairs} seeds and this spread"
        row["reason"] = "; ".join(filter(None, (verdict.reason, power)))
    return row


def qualified(row: Mapping[Any, Any]) -> str:
    """Return the outcome of a row with what limits it, such as "supported*†, still improving".

    "*" stands for remarks of the row, and "†" for :func:`note_on_rates`.
    """
    if row["outcome"] == UNDECIDED:
        return UNDECIDED
    supported, superiority = row["outcome"] == claims.SUPPORTED, row["test"] == claims.SUPERIORITY
    marks = "*" * bool(row["remarks"]) + "†" * bool(note_on_rates(row))
    limits = {
        f"but {row['against_zero']}": supported and not superiority and row["against_zero"],
        "not by the margin": supported and superiority and row["exceeds_margin"] is False,
        "cannot see a difference": row["blind"] and row["outcome"] != claims.REFUTED,
        "still improving": row["improving"],
        f"{row['untuned']} not tuned": row["untuned"],
        "not registered": not row["registered"],
    }
    return ", ".join([f"{row['outcome']}{marks}", *(limit for limit, applies in limits.items() if applies)])


def note_on_rates(row: Mapping[Any, Any]) -> str:
    """Return the meaning of "†": the uncertainty of the chosen rates is not known; "" for a row without "†"."""
    decided = row["outcome"] in (claims.SUPPORTED, claims.REFUTED) and not math.isnan(row["low"])
    return CHOSEN_RATES * (decided and math.isnan(row["rates"]))


def unit(campaign: Campaign) -> str:
    """Return the unit in which the claims of a campaign state differences."""
    if campaign.measure == measures.RANGE:
        return "octaves"
    of_score = names.unit_of_difference(campaign.score.metric)
    return f"{of_score} per doubling of {next(iter(campaign.ladder))}" if campaign.ladder else of_score


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table as text."""
    return pd.DataFrame(map(_readable, table.to_dict("records")))


def _readable(row: dict[Any, Any]) -> dict[str, str]:
    decided = row["outcome"] != UNDECIDED
    in_family, interval = isinstance(row["family"], str), formats.NO_VALUE
    if decided and in_family and not math.isnan(row["low"]):  # the one by which the claim was decided
        ends = formats.ends(row["low"], row["high"], row["score"].split()[1], row["margin"])
        interval = f"{ends} ({100 * row['level']:.3g} %)"
    return {
        "claim": row["claim"],
        "task": f"{row['task']} ({row['campaign']})",
        "verdict": qualified(row),
        "difference (90 % interval)": _difference(row) if decided else formats.NO_VALUE,
        "interval in its family": interval,
        "test": f"{row['test']} (family {row['family']})" if in_family else row["test"],
        "margin": formats.NO_VALUE if math.isnan(row["margin"]) else f"{row['margin']:g} {row['unit']}",
        "smallest margin": _smallest(row) if decided else formats.NO_VALUE,
        "seeds": f"{row['seeds']:.0f}" if decided else formats.NO_VALUE,
        "p, adjusted": f"{row['p']:.2g}, {row['adjusted_p']:.2g}" if decided else formats.NO_VALUE,
        "why": "; ".join(filter(None, (row["reason"], *_explained(row), row["remarks"]))),
    }


def line(row: Mapping[Any, Any]) -> str:
    """Return a verdict in one line, with the interval that decides it, for the terminal.

    An inconclusive verdict is "too short to decide" if the power of its test is below ``SHORT``.
    """
    difference = "" if math.isnan(row["difference"]) else f"{deciding(row)}, "
    seen = formats.signed(row["smallest_seen"], row["score"].split()[1]).lstrip("+")
    seen = "" if math.isnan(row["smallest_seen"]) else f", which see differences from {seen} {row['unit']} on"
    why = "; ".join(filter(None, (row["reason"], *_explained(row))))
    too_short = row["outcome"] == claims.INCONCLUSIVE and row["power"] < SHORT
    outcome = f"too short to decide ({qualified(row)})" if too_short else qualified(row)
    return f"{outcome}: {row['claim']}: {difference}{row['seeds']:.0f} seeds{seen}; {why}"


def deciding(row: Mapping[Any, Any]) -> str:
    """Return a difference with the interval that decides its claim: that of a family where there is one."""
    return _difference({**row, "alone_low": row["low"], "alone_high": row["high"]})


def _explained(row: Mapping[Any, Any]) -> list[str]:
    """Return what the words beside an outcome mean."""
    if row["outcome"] == UNDECIDED:
        return []
    lines = [note_on_rates(row)]
    if row["blind"] and row["outcome"] != claims.REFUTED:
        others = names.label(remarks.NONE), names.label(row["b"])
        lines.append("that {} equals {} would be supported with this margin, too".format(*others))
    if row["improving"]:
        lines.append(f"gains in the last fifth of the steps, in margins: {row['improving']}")
    return lines


def _smallest(row: Mapping[Any, Any]) -> str:
    """Return the smallest margin of a claim, and its share of the gain over no norm, if it is known."""
    margin, gain = row["smallest_margin"], row["gain_over_none"]
    if not math.isfinite(margin):
        return formats.NO_VALUE
    share = "" if math.isnan(gain) else f" ({100 * margin / gain:.0f} % of the gain over no norm)"
    return f"{formats.two_digits(margin)} {row['unit']}{share}"


def _difference(row: Mapping[Any, Any]) -> str:
    """Return a difference with its 90 % interval, such as "+0.11 (-0.03 to +0.25) points"."""
    if math.isnan(row["difference"]):
        return formats.NO_VALUE
    metric, diverged = row["score"].split()[1], lost(row)
    ends = formats.ends(row["alone_low"], row["alone_high"], metric, row["margin"])
    interval = "no interval" if math.isnan(row["low"]) else ends
    among = f" among the pairs that finished ({', '.join(diverged)})" if diverged else ""
    return f"{formats.signed(row['difference'], metric)} ({interval}) {row['unit']}{among}"


def lost(row: Mapping[Any, Any]) -> list[str]:
    """Return the numbers of pairs in which one of the runs diverged, such as "2 with LayerNorm diverged"."""
    norms = (("diverged_a", row["a"]), ("diverged_b", row["b"]))
    return [f"{row[key]:.0f} with {names.label(name)} diverged" for key, name in norms if row[key]]


def matrix(numbers: pd.DataFrame, campaigns: Sequence[Campaign]) -> pd.DataFrame:
    """Return the matrix as text, one row per claim and one column per task; campaigns share a row by the claim's text.

    ``numbers``: the rows of :func:`newest`. A cell begins with the outcome. The last column has the outcome on every
    task, if a claim is of two or more tasks.
    """
    tasks, rows = list(dict.fromkeys(numbers["task"])), []
    for claim, same in numbers.groupby("claim", sort=False):
        row = {"claim": str(claim)}
        for task in tasks:
            of_task = same[same["task"] == task].to_dict("records")
            cells = []
            for entry in of_task:
                outcome = f"{qualified(entry)}: {_difference(entry)}, {entry['seeds']:.0f} seeds"
                cell = f"{UNDECIDED}: {entry['reason']}" if entry["outcome"] == UNDECIDED else outcome
                cells.append(cell + f" [{entry['campaign']}]" * (len(of_task) > 1))
            row[task] = "; ".join(cells) or formats.NO_VALUE
        if len(tasks) > 1:
            row[EVERY] = _every(campaigns, str(claim), same) if same["task"].nunique() > 1 else formats.NO_VALUE
        rows.append(row)
    return pd.DataFrame(rows)


def newest(numbers: pd.DataFrame, campaigns: Sequence[Campaign]) -> pd.DataFrame:
    """Return the rows of :func:`table` without those that a decided campaign ``supersedes`` (same claim and task)."""
    superseded = {
        (campaign.supersedes, campaign.task, claim.claim)
        for campaign in campaigns
        if campaign.supersedes is not None and not campaign.undecided
        for claim in campaign.every_claim
    }
    keys = zip(numbers["campaign"], numbers["task"], numbers["claim"], strict=True)
    return numbers[np.array([key not in superseded for key in keys], dtype=bool)]


def _every(campaigns: Sequence[Campaign], claim: str, rows: pd.DataFrame) -> str:
    """Return the outcome of a claim on every task, with its marks: supported if all verdicts are, refuted if one is.

    For "supported" this is an intersection-union test: its level is that of each verdict, without a correction.
    "Refuted" is not corrected either: of k true claims one is refuted falsely with a probability of up to k times that
    of a verdict. A claim that one campaign has refuted is refuted, whatever the others will find. An unfinished
    campaign counts only on a task without a finished one. The outcome has "*" if one of the outcomes has remarks, and
    "†" if one of those that decide it has a :func:`note_on_rates`. ``rows``: those of the claim in :func:`table`.
    """
    left_in = {*rows["campaign"]}
    concerned = [campaign for campaign in campaigns if campaign.name in left_in]
    decided = [campaign for campaign in concerned if not campaign.undecided]
    verdicts = [verdict for campaign in decided for verdict in campaign.verdicts if verdict.claim.claim == claim]
    open_tasks = {campaign.task for campaign in concerned} - {campaign.task for campaign in decided}
    left = sum(campaign.task in open_tasks for campaign in concerned)
    if left and claims.REFUTED not in [verdict.outcome for verdict in verdicts]:
        return f"{UNDECIDED}: {left} of {len(concerned)} campaigns not finished"
    outcomes = [verdict.outcome for verdict in verdicts]
    supported, refuted = outcomes.count(claims.SUPPORTED), outcomes.count(claims.REFUTED)
    agreed = claims.SUPPORTED if supported == len(outcomes) else claims.INCONCLUSIVE
    outcome = claims.REFUTED if refuted else agreed
    of_joint = rows[rows["outcome"] != UNDECIDED].to_dict("records")
    deciding = [row for row in of_joint if row["outcome"] == outcome]
    marks = "*" * any(row["remarks"] for row in of_joint) + "†" * any(map(note_on_rates, deciding))
    unfinished = f", {left} of {len(concerned)} campaigns not finished" if left else ""
    return f"{outcome}{marks}: {supported} of {len(outcomes)} verdicts supported, {refuted} refuted{unfinished}"


def rates(campaigns: Sequence[Campaign]) -> pd.DataFrame:
    """Return one row per campaign, norm and rate, with columns ``RATES``.

    ``runs``: the number of tuning runs; ``ended`` of them finished or diverged. ``mean``: the mean validation score of
    those that finished, in the displayed unit; ``values``: each of them. In campaigns about stable ranges these are the
    final runs and their test scores. ``chosen``: whether the rate is the norm's choice. ``edge``, ``uncertainty``: see
    :class:`rmsexp.rules.selection.Choice`; empty at the other rates.
    """
    rows = [
        _place(campaign) | {"key": campaign.rate, "norm": norm} | row
        for campaign in campaigns
        for norm in campaign.every_arm
        for row in _of_rates(campaign, norm)
    ]
    return pd.DataFrame(rows, columns=list(RATES))


def _of_rates(campaign: Campaign, norm: str) -> list[dict[str, Any]]:
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


def readable_rates(campaign: Campaign) -> pd.DataFrame:
    """Return the tuning of one campaign as text: one row per norm; a column per rate, then the choice or range."""
    by_norm = {norm: {row["rate"]: row for row in _of_rates(campaign, norm)} for norm in campaign.every_arm}
    tried, (split, metric) = sorted({rate for rows in by_norm.values() for rate in rows}), campaign.score
    table = []
    for norm, rows in by_norm.items():
        cells = {f"{rate:g}": _rate(rows[rate]) if rate in rows else formats.NO_VALUE for rate in tried}
        if campaign.tolerance is not None:
            cells[f"stable range of {campaign.rate}"] = _range(campaign, norm)
        else:
            cells |= _choice(campaign.choice.get(norm), names.unit_of_difference(metric))
            cells[f"{split} {names.metric_label(metric)}, final runs"] = _final(campaign, norm)
        table.append({"norm": names.label(norm)} | cells)
    return pd.DataFrame(table)


def _rate(row: dict[str, Any]) -> str:
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
        known = f"{formats.two_digits(choice.uncertainty)} {unit}"
        uncertainty = "not known" if math.isnan(choice.uncertainty) else known
    return {"chosen rate": rate, "uncertainty of tuning": uncertainty}


def _range(campaign: Campaign, norm: str) -> str:
    """Return the stable range of a norm, such as "0.0011 to 0.0071 (2.7 octaves, 90 % interval 2.2 to 3.1)"."""
    if campaign.undecided:
        return formats.NO_VALUE
    if (found := campaign.ranges[norm]) is None:
        return "diverged at every rate"
    widths = np.array([*campaign.scores[norm].values()])
    low, high = significance.interval(widths, claims.ALPHA)
    width = f"{'at least ' * found.at_least}{found.width:.2f} octaves"
    return f"{found.low:.2g} to {found.high:.2g} ({width}, 90 % interval {low:.2f} to {high:.2f})"


def _final(campaign: Campaign, norm: str) -> str:
    """Return the mean score of the final runs that finished, once the campaign is decided, and their number."""
    ended = [result for _, result in campaign.of_stage("final", norm) if result.ended]
    values = [result.score for result in ended if result.status == "finished"]
    if campaign.undecided or not values:
        return formats.NO_VALUE
    mean, sd, interval = statistics.estimate(np.array(values))
    unit = names.scale_and_unit(campaign.score.metric)[1]
    spread = "" if math.isnan(interval) else f" ± {formats.two_digits(interval)} (sd {formats.two_digits(sd)})"
    (seeds,) = formats.of_seeds(len(values), len(ended)) or [formats.counted(len(values), "seed")]
    return f"{formats.four_digits(mean)}{spread} {unit}, {seeds}".replace(" ,", ",")
