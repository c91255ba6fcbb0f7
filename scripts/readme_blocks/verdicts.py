"""The verdicts of campaigns, and which campaigns are not decided yet or have not begun."""

from __future__ import annotations

from pathlib import Path

from readme_blocks.evidence import Evidence
from readme_blocks.text import listed, paragraphs, table
from rmsexp.compare.records.campaigns import State
from rmsexp.compare.tables import verdicts

NONE = "No campaign is among the committed records yet."
CAMPAIGNS = Path(__file__).parents[2] / "configs" / "campaign"
WHOLE = "docs/campaigns.md#verdicts"  # the place of the table of :func:`whole`
RATES = "docs/campaigns.md#learning-rates"  # the place where rate luck is explained
CONDITIONS = "results/README.md#campaigns"  # what the verdicts of the committed campaigns hold for
COLUMNS = ["claim", "task", "verdict", "difference (interval)", "margin", "seeds"]


def readme(evidence: Evidence) -> str:
    """A table of the outcomes, claim by task, and a line for the campaigns that are not decided."""
    decided = _decided(evidence)
    scales = listed(sorted({f"`scale={state.campaign.runs.get('scale', 'demo')}`" for state in decided}))
    fused = all(state.campaign.runs.get("norm.impl") == "fused" for state in decided)
    conditions = (
        f"Small models, short runs ({scales}{', fused norms' * fused}; [conditions]({CONDITIONS})). *Equals*: the "
        f"difference's whole interval lies within a [margin]({WHOLE}); *not worse*: above minus the margin. Empty "
        "cell: no such claim."
    )
    lines = [*([conditions] if decided else []), *_remarks(evidence, brief=True)]
    return paragraphs(_outcomes(decided), " ".join(lines))


def whole(evidence: Evidence) -> str:
    """A row per claim of a decided campaign, with its difference, margin and number of seeds."""
    decided = _decided(evidence)
    rows = verdicts.readable(verdicts.table(decided))[COLUMNS].to_dict("records") if decided else []
    levels = verdicts.table(decided)["level"] if decided else [0.9]
    what = (
        "Differences of mean scores, positive if the norm named first is better, with the intervals that decide: of "
        f"90 %, and in a family of up to {100 * max(levels):.3g} %. Claims of different families, or of none, are not "
        "corrected for each other."
    )
    return paragraphs(table(rows) if rows else "", " ".join([*([what] if rows else []), *_remarks(evidence)]))


def _decided(evidence: Evidence) -> list[State]:
    return [state for state in evidence.campaigns if not state.undecided]


def _outcomes(decided: list[State]) -> str:
    """Return the matrix of claims and tasks, with the outcomes alone; an empty string without decided campaigns."""
    numbers, rows = verdicts.table(decided), []
    for claim in dict.fromkeys(numbers["claim"]):
        row = {"claim": str(claim)}
        for task in dict.fromkeys(numbers["task"]):
            same = numbers[(numbers["claim"] == claim) & (numbers["task"] == task)].to_dict("records")
            row[f"`{task}`"] = "; ".join(map(verdicts.marked, same))
        rows.append(row)
    return table(rows) if rows else ""


def _differing(state: State) -> list[str]:
    """Return the remarks that the models of a claim's norms differ in more than the norm."""
    return [line for claim in state.campaign.claims for line in state.campaign.differing_models(claim, state.results)]


def _remarks(evidence: Evidence, brief: bool = False) -> list[str]:
    """Return remarks on the decided campaigns, and which campaigns are not decided, one sentence each.

    With ``brief``, there is a link to the remarks on campaigns, and undecided campaigns are only named; otherwise it is
    said which have begun and what is left.
    """
    if not evidence.campaigns:
        return [NONE]
    found = {state.campaign.name: state.all_remarks() for state in _decided(evidence)}
    remarks = [f"\\* `{name}`: {'; '.join(lines)}." for name, lines in found.items() if lines]
    if brief and remarks:
        differing = {line for state in _decided(evidence) for line in _differing(state)}
        only = all(line in differing for lines in found.values() for line in lines)
        what = f"the models differ in more than the norm ([how]({WHOLE}))" if only else f"has [remarks]({WHOLE})"
        remarks = [f"\\* {what}."]
    luck = f"([rate luck]({RATES if brief else RATES[RATES.index('#') :]}))"
    notes = verdicts.notes_on_rates(verdicts.table(_decided(evidence)))
    remarks += [f"† {text.replace('(rate luck)', luck)}." for text in notes]
    left = {f"`{state.campaign.name}`": state.undecided for state in evidence.campaigns if state.undecided}
    begun = {state.campaign.name for state in evidence.campaigns}
    waiting = [f"`{path.stem}`" for path in sorted(CAMPAIGNS.glob("quality_*.yaml")) if path.stem not in begun]
    running = [f"{name} ({what})" for name, what in left.items()]
    lists = {"Not decided yet": running, "Not begun": waiting}
    if brief:
        lists = {"Not decided yet": sorted([*left, *waiting])}
    return [*remarks, *(f"{what}: {listed(names)}." for what, names in lists.items() if names)]
