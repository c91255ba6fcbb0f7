"""The verdicts of campaigns, and which campaigns are not decided yet or have not begun."""

from __future__ import annotations

from pathlib import Path

from readme_blocks.evidence import Evidence
from readme_blocks.text import listed, paragraphs, table
from rmsexp.campaign.remarks import differing_models
from rmsexp.campaign.results import Campaign
from rmsexp.records.frames import names
from rmsexp.report.tables import verdicts
from rmsexp.rules import claims

NONE = "No campaign is among the committed records yet."
CAMPAIGNS = Path(__file__).parents[2] / "configs" / "campaign"
WHOLE = "docs/campaigns.md#verdicts"  # the place of the table of :func:`whole`
CLAIMS = "docs/campaigns.md#claims"  # the place where what stands beside an outcome is explained
RATES = "docs/campaigns.md#learning-rates"  # the place where the uncertainty of rates is explained
CONDITIONS = "results/README.md#campaigns"  # what the verdicts of the committed campaigns hold for
COLUMNS = [
    *("claim", "task", "verdict", "difference (90 % interval)", "interval in its family", "margin"),
    *("smallest margin", "seeds"),
]


def readme(evidence: Evidence) -> str:
    """A table of the outcomes, claim by task, and a line for the campaigns that are not decided."""
    decided = _decided(evidence)
    scales = listed(sorted({f"`scale={answer.runs.get('scale', 'demo')}`" for answer in decided}))
    fused = all(answer.runs.get("norm.impl") == "fused" for answer in decided)
    conditions = (
        f"`{{scales}}`{', fused norms' * fused} ([conditions]({CONDITIONS}); [all claims, with intervals]({WHOLE})). "
        "*Equals*: within a margin."
    ).replace("`{scales}`", scales)
    lines = [*([conditions] if decided else []), *_remarks(evidence, brief=True)]
    return paragraphs(_outcomes(decided), " ".join(lines))


def answer(evidence: Evidence) -> str:
    """On which tasks RMSNorm and pRMSNorm equal LayerNorm, in sentences."""
    decided = _decided(evidence)
    rows = verdicts.newest(verdicts.table(decided), decided)
    records = rows.to_dict("records")
    parts, blind = [], set()
    for norm in ("rms", "prms"):
        name = f"{names.label(norm)} equals {names.label('ln')}"
        own = [row for row in records if row["claim"] == name]
        tasks: dict[str, list[str]] = {}
        for row in own:
            tasks.setdefault(row["outcome"], []).append(f"`{row['task']}`")
            blind |= {f"`{row['task']}`"} if row["blind"] else set()
        words = {claims.INCONCLUSIVE: "open", claims.REFUTED: "not"}
        others = "".join(f"; {words[key]}: {listed(found)}" for key, found in tasks.items() if key in words)
        parts += own and [
            f"{name} within a margin on {len(tasks.get(claims.SUPPORTED, []))} of {len(own)} tasks{others}."
        ]
    if blind:
        parts.append(f"On {listed(sorted(blind))} no norm equals {names.label('ln')}, too.")
    marks = "" if rows["rates"].notna().all() else ", rates chosen from octaves"
    improving = sum(bool(row["improving"]) for row in records)
    return (
        f"Small models, short runs{marks}: {' '.join(parts)} In {improving} of {len(rows)} verdicts the runs still "
        "improved when they ended."
    )


def whole(evidence: Evidence) -> str:
    """A row per claim of a decided campaign, with its difference, margin and number of seeds."""
    decided = _decided(evidence)
    rows = verdicts.readable(verdicts.table(decided))[COLUMNS].to_dict("records") if decided else []
    what = (
        "Differences of mean scores, positive if the norm named first is better. Claims of a family are decided by the "
        "interval in its family, the others by the 90 % interval; claims of different families, or of none, are not "
        f"corrected for each other. [What stands beside a verdict]({CLAIMS[CLAIMS.index('#') :]})."
    )
    return paragraphs(table(rows) if rows else "", " ".join([*([what] if rows else []), *_remarks(evidence)]))


def _decided(evidence: Evidence) -> list[Campaign]:
    return [answer for answer in evidence.campaigns if not answer.undecided]


def _outcomes(decided: list[Campaign]) -> str:
    """Return the matrix of claims and tasks, with the outcomes alone; an empty string without decided campaigns.

    Claims that are made on one of several tasks only are left out.
    """
    numbers, rows = verdicts.newest(verdicts.table(decided), decided), []
    for claim in dict.fromkeys(numbers["claim"]):
        unasked = not numbers.loc[numbers["claim"] == claim, "registered"].any()
        row = {"claim": f"{claim}{' (not registered)' * unasked}"}
        if numbers.loc[numbers["claim"] == claim, "task"].nunique() < min(2, numbers["task"].nunique()):
            continue
        for task in dict.fromkeys(numbers["task"]):
            same = numbers[(numbers["claim"] == claim) & (numbers["task"] == task)].to_dict("records")
            row[f"`{task}`"] = "; ".join(verdicts.qualified(entry | {"registered": True}) for entry in same)
        rows.append(row)
    return table(rows) if rows else ""


def _differing(answer: Campaign) -> list[str]:
    """Return the remarks that the models of a claim's norms differ in more than the norm."""
    return [line for claim in answer.claims for line in differing_models(answer, claim)]


def _remarks(evidence: Evidence, brief: bool = False) -> list[str]:
    """Return remarks on the decided campaigns, and which campaigns are not decided, one sentence each.

    With ``brief``, there is a link to the remarks on campaigns, and undecided campaigns are counted; otherwise it is
    said which have begun and what is left.
    """
    if not evidence.campaigns:
        return [NONE]
    found = {answer.name: answer.all_remarks() for answer in _decided(evidence)}
    remarks = [f"\\* `{name}`: {'; '.join(lines)}." for name, lines in found.items() if lines]
    if brief and remarks:
        differing = {line for answer in _decided(evidence) for line in _differing(answer)}
        only = all(line in differing for lines in found.values() for line in lines)
        what = f"the models differ in more than the norm ([how]({WHOLE}))" if only else f"has [remarks]({WHOLE})"
        remarks = [f"\\* {what}."]
    table = verdicts.table(_decided(evidence))
    why = f"[what their choice may have cost]({RATES if brief else RATES[RATES.index('#') :]})"
    notes = verdicts.notes_on_rates(table)
    remarks += [f"† {text.replace('what their choice may have cost', why)}." for text in notes]
    if brief:
        remarks += [f"[What the other words mean]({CLAIMS})."] if _decided(evidence) else []
    left = {f"`{answer.name}`": answer.undecided for answer in evidence.campaigns if answer.undecided}
    begun = {answer.name for answer in evidence.campaigns}
    waiting = [f"`{path.stem}`" for path in sorted(CAMPAIGNS.glob("quality_*.yaml")) if path.stem not in begun]
    running = [f"{name} ({what})" for name, what in left.items()]
    lists = {"Not decided yet": running, "Not begun": waiting}
    if brief:
        count = len(left) + len(waiting)
        lists = {"Not decided yet": [f"{count} campaign{'s' * (count > 1)}"] * (count > 0)}
    return [*remarks, *(f"{what}: {listed(names)}." for what, names in lists.items() if names)]
