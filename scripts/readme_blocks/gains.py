"""How much the final runs of the committed campaigns still improved in the last fifth of their steps."""

from __future__ import annotations

import statistics

from readme_blocks.evidence import Evidence
from readme_blocks.text import paragraphs, table
from readme_blocks.verdicts import NONE
from rmsexp.campaign.results import Campaign
from rmsexp.config import score
from rmsexp.records.frames import names
from rmsexp.report.tables import formats

LAST = score.EVALUATIONS // 5  # number of evaluations in the last fifth


def last_fifth(evidence: Evidence) -> str:
    """A row per decided campaign: its margins, and the mean and the largest gain of the final runs of each norm."""
    decided = sorted((answer for answer in evidence.campaigns if not answer.undecided), key=lambda one: one.name)
    if not decided:
        return NONE
    norms = names.in_order(norm for answer in decided for norm in answer.norms)
    return paragraphs(
        table([_row(answer, norms) for answer in decided]),
        "A gain is what the metric on the interim validation examples improved by from evaluation "
        f"{score.EVALUATIONS - LAST} to evaluation {score.EVALUATIONS}, in the unit of the margin: the mean over the "
        "finished final runs, and in parentheses the largest gain of a run.",
    )


def _row(answer: Campaign, norms: list[str]) -> dict[str, str]:
    campaign = answer
    margins = sorted({claim.margin for claim in campaign.claims if claim.margin is not None})
    unit = names.unit_of_difference(campaign.score.metric)
    row = {"campaign": f"`{campaign.name}`", "margin": f"{', '.join(f'{margin:g}' for margin in margins)} {unit}"}
    for norm in norms:
        gains = [result.gain for _, result in answer.of_stage("final", norm) if result.status == "finished"]
        mean_and_largest = [statistics.fmean(gains), max(gains)] if gains else []
        texts = [formats.signed(gain, campaign.score.metric) for gain in mean_and_largest]
        row[names.label(norm)] = "{} ({})".format(*texts) if texts else formats.NO_VALUE
    return row
