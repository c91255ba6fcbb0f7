"""The answers of campaigns: their results, chosen rates, verdicts and remarks, as reports show them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from rmsexp.campaign.campaign_file import Job
from rmsexp.campaign.remarks import differing_models, remarks
from rmsexp.campaign.results import Campaign, Result, Results, load_all, of_stage
from rmsexp.rules import claims, selection


class Answer(NamedTuple):
    """A campaign with all that reports show of it. The fields are named like the methods of :class:`Campaign`.

    ``name``: the campaign's name, followed by its root where another root has a campaign of this name.
    """

    campaign: Campaign
    name: str
    results: Results
    undecided: str
    choice: dict[str, selection.Choice]
    verdicts: list[claims.Verdict]
    remarks: list[str]

    @property
    def every_claim(self) -> list[claims.Claim]:
        """The campaign's claims, and those that are decided from its runs without being registered."""
        return [*self.campaign.claims, *self.campaign.unregistered()]

    def remarks_on(self, claim: claims.Claim) -> list[str]:
        """Return the remarks on the campaign; on other differences between the claim's norms; on rates at an edge."""
        edges = {norm: self.choice[norm].edge for norm in (claim.a, claim.b) if norm in self.choice}
        at_edge = [
            f"the chosen rate of {norm} is the {edge} of the extended grid" for norm, edge in edges.items() if edge
        ]
        ranges = self.campaign.ranges(self.results)
        at_edge += [
            f"the stable range of {norm} reaches an end of the grid, so it is at least this wide"
            for norm in (claim.a, claim.b)
            if (found := ranges.get(norm)) is not None and found.at_least
        ]
        return [*self.remarks, *differing_models(self.campaign, claim, self.results), *at_edge]

    def all_remarks(self) -> list[str]:
        """Return the remarks on the campaign and, if it is decided, on each of its claims."""
        of_claims = [line for claim in self.every_claim for line in self.remarks_on(claim) if not self.undecided]
        return list(dict.fromkeys([*self.remarks, *of_claims]))

    def jobs(self, stage: str, norm: str) -> list[tuple[Job, Result]]:
        return of_stage(self.results, stage, norm)

    def rated(self, norm: str) -> list[tuple[Job, Result]]:
        """Return the runs of a norm at several rates: of tuning or, for claims about stable ranges, the final runs."""
        return self.jobs("tune" if self.campaign.tolerance is None else "final", norm)

    def rated_score(self, result: Result) -> float:
        """Return the score of one of the runs of :meth:`rated`."""
        return result.validation if self.campaign.tolerance is None else result.test


def load(root: Path, problems: list[str]) -> list[Answer]:
    """Load the answers of all campaigns below ``root``, the decided ones first.

    A line for each damaged file is added to ``problems``.
    """
    found = []
    loaded = load_all(root, problems)
    count = Counter(campaign.name for campaign in loaded)
    for campaign in loaded:
        name = campaign.name + f" ({campaign.root})" * (count[campaign.name] > 1)
        lost: list[str] = []
        try:
            answer = answer_of(campaign, name, campaign.results(lost))
        except Exception as error:  # the other campaigns are reported
            problems.append(f"{campaign.path}: campaign left out: {error!r}")
            continue
        if lost:
            answer.remarks.append(f"the records of {len(lost)} of its runs do not count: {lost[0]}")
        found.append(answer)
    return sorted(found, key=lambda answer: bool(answer.undecided))


def answer_of(campaign: Campaign, name: str, results: Results) -> Answer:
    """Return the answer of a campaign with these results of its runs."""
    undecided, choice = campaign.undecided(results), campaign.choice(results)
    return Answer(campaign, name, results, undecided, choice, campaign.verdicts(results), remarks(campaign, results))
