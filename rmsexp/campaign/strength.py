"""How much a verdict says: what its runs still gained at their end, and whether its margin could see a difference.

Everything is in the displayed unit and oriented: positive means better.
"""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

from rmsexp.campaign.answers import Answer
from rmsexp.rules import claims, measures
from rmsexp.rules.claims import SUPERIORITY, SUPPORTED, Claim, Verdict

NONE = "none"  # the norm that claims are measured by: no norm
# Norms whose quality depends on the initial value of an option that no campaign has tuned
UNTUNED = {"dyt": "alpha", "derf": "alpha"}


class Strength(NamedTuple):
    """What stands beside a verdict.

    Attributes:
        margin: the claim's margin; for superiority, the smallest margin of the campaign, NaN if it has none.
        exceeds: for a supported claim of superiority, whether the interval lies above the margin, too.
        gain: by how much b is better than no norm; NaN if that is not known, or not shown by a two-sided 95 % interval.
        blind: whether the claim that no norm equals b is supported with the same margin.
        improving: of each norm of the claim whose runs still gained more than half a margin in the last fifth of their
            steps, the mean gain.
        untuned: options of the norms that matter and were not tuned, such as "alpha of dyt".
    """

    margin: float
    exceeds: bool
    gain: float
    blind: bool
    improving: dict[str, float]
    untuned: tuple[str, ...]


def strength(answer: Answer, verdict: Verdict) -> Strength:
    """Return what stands beside a verdict of a decided campaign."""
    claim = verdict.claim
    margins = [other.margin for other in answer.campaign.claims if other.margin is not None]
    margin = claim.margin if claim.margin is not None else min(margins, default=math.nan)
    gains = {norm: gain(answer, norm) for norm in (claim.a, claim.b)}
    none = _none_against(answer, claim.b)
    within = none is not None and -margin < none.low and none.high < margin
    return Strength(
        margin=margin,
        exceeds=claim.test == SUPERIORITY and verdict.outcome == SUPPORTED and verdict.low > margin,
        gain=-none.difference if none is not None and none.against_zero == "worse" else math.nan,
        blind=claim.margin is not None and claim.a != NONE and within,
        improving={norm: value for norm, value in gains.items() if value > margin / 2},
        untuned=tuple(option for norm in (claim.a, claim.b) for option in _untuned(norm)),
    )


def gain(answer: Answer, norm: str) -> float:
    """Return the mean gain of a norm's finished final runs in the last fifth of their steps; NaN without a run.

    NaN, too, if claims are not about scores.
    """
    if answer.campaign.measure != measures.SCORE:
        return math.nan
    found = [result.gain for _, result in answer.jobs("final", norm) if result.status == "finished"]
    return statistics.fmean(found) if found else math.nan


def _untuned(norm: str) -> list[str]:
    """Return the option of a norm that was not tuned, if there is one, such as ["alpha of dyt"]."""
    name, *options = norm.split("+")
    key = UNTUNED.get(name)
    return [] if key is None or any(option.startswith(key) for option in options) else [f"{key} of {norm}"]


def _none_against(answer: Answer, norm: str) -> Verdict | None:
    """Return the verdict on the claim that no norm is better than a norm, with its 90 % interval; None without runs."""
    scores = answer.campaign.scores(answer.results)
    seeds = sorted({*scores.get(NONE, {})} & {*scores.get(norm, {})})
    if norm == NONE or not seeds:
        return None
    claim = Claim("no norm", SUPERIORITY, NONE, norm)
    return claims.decide([claim], scores, answer.campaign.better, seeds, answer.campaign.uncertainty(answer.results))[0]
