"""The verdicts on the claims of campaigns: a row per claim and campaign, and a matrix of claims and tasks.

Differences are in the displayed unit; positive means that the norm named first in the claim is better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from rmsexp.compare.records import names
from rmsexp.compare.records.campaigns import Campaign, State
from rmsexp.compare.tables import formats
from rmsexp.rules import claims, seeds

UNDECIDED = "not decided yet"
COLUMNS = (
    *("root", "task", "campaign", "claim", "test", "a", "b", "family", "outcome", "score", "unit", "difference"),
    *("low", "high", "level", "margin", "seeds", "p", "adjusted_p", "diverged_a", "diverged_b", "diverged_both"),
    *("luck_a", "luck_b", "with_luck", "reason", "remarks"),
)
EVERY = "every task"
CHOSEN_RATES = "only at the chosen learning rates; inconclusive with the uncertainty of their choice (rate luck)"
LUCK_UNKNOWN = "only at the chosen learning rates; the uncertainty of their choice (rate luck) is not known"


def table(states: Sequence[State]) -> pd.DataFrame:
    """Return one row per campaign and claim, with columns ``COLUMNS``.

    ``campaign``: the name, as in :class:`rmsexp.compare.records.campaigns.State`, so that no two campaigns share it.
    ``difference``, ``low``, ``high``: the mean difference and its interval at confidence ``level``, adjusted in a
    family. ``seeds``: the number of pairs that were tested. ``luck_a``, ``luck_b``: a bound of how much better each
    norm would be at another rate (:class:`rmsexp.rules.selection.Choice`); NaN without tuning. ``with_luck``:
    the outcome of the interval widened by both, None if that is not known. ``remarks``: what a reader must know, such
    as that the campaign's file has changed. A claim of an unfinished campaign has the outcome ``UNDECIDED`` and NaN.
    """
    rows = [row for state in states for row in _rows(state)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _rows(state: State) -> list[dict[str, Any]]:
    campaign = state.campaign
    shared = {"root": str(campaign.root), "task": campaign.task, "campaign": state.name}
    shared |= {"score": " ".join(campaign.score), "unit": unit(campaign)}
    rows = []
    for number, claim in enumerate(campaign.claims):
        row = shared | {key: getattr(claim, key) for key in ("claim", "test", "a", "b", "family")}
        row |= {"luck_a": _luck(state, claim.a), "luck_b": _luck(state, claim.b)}
        row["margin"] = math.nan if claim.margin is None else claim.margin
        row["remarks"] = "; ".join(state.remarks_on(claim))
        if state.undecided:
            row |= {"outcome": UNDECIDED, "reason": state.undecided}
        else:
            verdict = state.verdicts[number]
            keys = ("outcome", "difference", "low", "high", "level", "p", "adjusted_p")
            row |= {key: getattr(verdict, key) for key in (*keys, "diverged_a", "diverged_b", "diverged_both")}
            row["seeds"], row["reason"] = verdict.pairs, "; ".join(filter(None, (verdict.reason, _power(verdict))))
            row["with_luck"] = claims.with_luck(verdict, row["luck_a"], row["luck_b"])
        rows.append(row)
    return rows


def _luck(state: State, norm: str) -> float:
    return state.choice[norm].luck if norm in state.choice else math.nan


def marked(row: Mapping[Any, Any]) -> str:
    """Return the outcome of a row, with "*" if it has remarks and "†" if it holds :func:`note_on_rates`."""
    return f"{row['outcome']}{'*' * bool(row['remarks'])}{'†' * bool(note_on_rates(row))}"


def note_on_rates(row: Mapping[Any, Any]) -> str:
    """Return what "†" means in a row; "" for a row without it.

    The interval, widened by the rate luck, would leave the claim inconclusive, or the rate luck is not known.
    """
    if isinstance(row["with_luck"], str):
        return CHOSEN_RATES * (row["with_luck"] != row["outcome"])
    decided = row["outcome"] in (claims.SUPPORTED, claims.REFUTED) and not math.isnan(row["low"])
    return LUCK_UNKNOWN * decided


def notes_on_rates(table: pd.DataFrame) -> list[str]:
    """Return what "†" means in the rows of :func:`table`: a text for each of its meanings there."""
    return list(dict.fromkeys(filter(None, map(note_on_rates, table.to_dict("records")))))


def _power(verdict: claims.Verdict) -> str:
    """Return the power of an inconclusive test with a margin, as text; "" for others."""
    chance = seeds.power_of(verdict)
    if verdict.outcome != claims.INCONCLUSIVE or math.isnan(chance):
        return ""
    return f"the power for a true difference of 0 is {chance:.2f} with {verdict.pairs} seeds and this spread"


def unit(campaign: Campaign) -> str:
    """Return the unit of differences of scores."""
    return names.unit_of_difference(campaign.score.metric)


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table as text."""
    return pd.DataFrame([_readable(row) for row in table.to_dict("records")])


def _readable(row: dict[Any, Any]) -> dict[str, str]:
    decided = row["outcome"] != UNDECIDED
    diverged = [
        f"{row[key]:.0f} {name}"
        for key, name in (("diverged_a", row["a"]), ("diverged_b", row["b"]), ("diverged_both", "both"))
        if decided and row[key]
    ]
    luck = " / ".join(_number(row[key]) for key in ("luck_a", "luck_b"))
    family = f" (family {row['family']})" if isinstance(row["family"], str) else ""
    return {
        "claim": row["claim"],
        "task": f"{row['task']} ({row['campaign']})",
        "verdict": marked(row) if decided else UNDECIDED,
        "difference (interval)": _difference(row) if decided else formats.NO_VALUE,
        "test": f"{row['test']}{family}",
        "margin": formats.NO_VALUE if math.isnan(row["margin"]) else f"{row['margin']:g} {row['unit']}",
        "seeds": f"{row['seeds']:.0f}" if decided else formats.NO_VALUE,
        "p, adjusted": f"{row['p']:.2g}, {row['adjusted_p']:.2g}" if decided else formats.NO_VALUE,
        "rate luck of first / second norm, at most": f"{luck} {row['unit']}",
        "diverged runs": ", ".join(diverged) or formats.NO_VALUE,
        "why": "; ".join(filter(None, (row["reason"], note_on_rates(row), row["remarks"]))),
    }


def _number(value: float) -> str:
    return formats.NO_VALUE if math.isnan(value) else f"{value:.2g}"


def _difference(row: dict[Any, Any]) -> str:
    """Return a difference with its interval, such as "+0.11 (-0.03 to +0.25) points"."""
    if math.isnan(row["difference"]):
        return formats.NO_VALUE
    metric = row["score"].split()[1]
    interval = formats.ends(row["low"], row["high"], metric, row["margin"])
    interval = "no interval" if math.isnan(row["low"]) else interval
    diverged = lost(row)
    among = f" among the pairs that finished ({', '.join(diverged)})" if diverged else ""
    return f"{formats.signed(row['difference'], metric)} ({interval}) {row['unit']}{among}"


def lost(row: Mapping[Any, Any]) -> list[str]:
    """Return the numbers of pairs in which one of the runs diverged, such as "2 with LayerNorm diverged"."""
    norms = (("diverged_a", row["a"]), ("diverged_b", row["b"]))
    return [f"{row[key]:.0f} with {names.label(name)} diverged" for key, name in norms if row[key]]


def matrix(states: Sequence[State]) -> pd.DataFrame:
    """Return the matrix as text, one row per claim and one column per task; campaigns share a row by the claim's text.

    A cell begins with the outcome. The last column has the outcome on every task, if a claim is of two or more tasks.
    """
    numbers = table(states)
    tasks = list(dict.fromkeys(numbers["task"]))
    rows = []
    for claim in dict.fromkeys(numbers["claim"]):
        same = numbers[numbers["claim"] == claim]
        row = {"claim": str(claim)}
        for task in tasks:
            cells = [_cell(entry, len(same[same["task"] == task]) > 1) for entry in _of(same, task)]
            row[task] = "; ".join(cells) or formats.NO_VALUE
        if len(tasks) > 1:
            row[EVERY] = _every(states, str(claim), same) if same["task"].nunique() > 1 else formats.NO_VALUE
        rows.append(row)
    return pd.DataFrame(rows)


def _of(numbers: pd.DataFrame, task: str) -> list[dict[Any, Any]]:
    return numbers[numbers["task"] == task].to_dict("records")


def _cell(row: dict[Any, Any], several: bool) -> str:
    """Return an outcome with its difference. ``several``: whether other campaigns of the task have the claim, too."""
    name = f" [{row['campaign']}]" if several else ""
    if row["outcome"] == UNDECIDED:
        return f"{UNDECIDED}: {row['reason']}{name}"
    return f"{marked(row)}: {_difference(row)}, {row['seeds']:.0f} seeds{name}"


def _every(states: Sequence[State], claim: str, rows: pd.DataFrame) -> str:
    """Return the outcome of a claim on every task, by an intersection-union test, with its marks.

    A claim that one campaign has refuted is refuted, whatever the others will find. It has "*" if one of the outcomes
    has remarks, and "†" if with the rate luck of all of them it would be another. ``rows``: those of the claim in
    :func:`table`.
    """
    concerned = [state for state in states if claim in [other.claim for other in state.campaign.claims]]
    decided = [state for state in concerned if not state.undecided]
    verdicts = [verdict for state in decided for verdict in state.verdicts if verdict.claim.claim == claim]
    left = len(concerned) - len(decided)
    if left and claims.REFUTED not in [verdict.outcome for verdict in verdicts]:
        return f"{UNDECIDED}: {left} of {len(concerned)} campaigns not finished"
    joint = claims.every(verdicts)
    of_joint = rows[rows["outcome"] != UNDECIDED].to_dict("records")
    with_luck = [row["with_luck"] if note_on_rates(row) else row["outcome"] for row in of_joint]
    marks = "*" * any(row["remarks"] for row in of_joint) + "†" * (claims.joint_outcome(with_luck) != joint.outcome)
    unfinished = f", {left} of {len(concerned)} campaigns not finished" if left else ""
    return f"{joint.outcome}{marks}: {joint.reason}{unfinished}"
