"""The table of verdicts, the matrix of claims and tasks, and the table of tuning."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from helpers.campaigns import EQUAL, Campaign, three

from rmsexp.campaign import results as campaign_results
from rmsexp.report.tables import verdicts
from rmsexp.report.tables.formats import NO_VALUE


def states(root: Path, *made: Campaign) -> list[campaign_results.Campaign]:
    for campaign in made:
        campaign.write(root)
    problems: list[str] = []
    found = campaign_results.load_all(root, problems)
    assert problems == []
    return found


def test_a_row_per_claim_and_campaign(tmp_path: Path) -> None:
    table = verdicts.table(states(tmp_path, *three()))
    assert table["outcome"].tolist() == [
        *("supported", "supported"),
        *("inconclusive", "supported", "refuted"),
        *("not decided yet", "not decided yet"),
    ]
    assert table["unit"].unique().tolist() == ["points", "BLEU"]
    undecided = table[table["task"] == "rnnsearch"]
    assert undecided["difference"].isna().all()
    assert set(undecided["reason"]) == {"12 of 24 final runs"}


def test_the_outcome_on_every_task(tmp_path: Path) -> None:
    matrix = verdicts.matrix(states(tmp_path, *three()[:2])).set_index("claim")
    assert matrix["every task"].tolist() == [
        "inconclusive: 1 of 2 verdicts supported, 0 refuted",
        "supported: 2 of 2 verdicts supported, 0 refuted",
        NO_VALUE,
    ]


def test_a_claim_that_one_task_refutes_is_refuted_on_every_task(tmp_path: Path) -> None:
    worse = Campaign(level=Campaign().level | {"rms": 30.0})
    matrix = verdicts.matrix(states(tmp_path, worse, three()[2])).set_index("claim")
    expected = "refuted: 0 of 1 verdicts supported, 1 refuted, 1 of 2 campaigns not finished"
    assert matrix.loc[EQUAL["claim"], "every task"] == expected


def unknown(state: campaign_results.Campaign) -> campaign_results.Campaign:
    """Return the state with verdicts of which the uncertainty of the rates is not known."""
    found = replace(state)
    vars(found)["verdicts"] = [replace(verdict, rates=math.nan) for verdict in state.verdicts]
    return found


def test_a_verdict_that_holds_for_the_chosen_rates_only_is_marked(tmp_path: Path) -> None:
    (state,) = states(tmp_path, Campaign())
    table = verdicts.table([unknown(state)])
    text = verdicts.readable(table)
    assert text["verdict"].tolist() == ["supported†", "supported†"]
    assert verdicts.CHOSEN_RATES in text["why"][0]
    assert verdicts.CHOSEN_RATES in [verdicts.note_on_rates(row) for row in table.to_dict("records")]
    assert verdicts.matrix([unknown(state)])["cifar10"][0].startswith("supported†: ")


def test_superiority_is_set_against_the_margin_too(tmp_path: Path) -> None:
    (state,) = states(tmp_path, Campaign(level=Campaign().level | {"none": 17.0}))
    assert verdicts.readable(verdicts.table([state]))["verdict"][1] == "supported, not by the margin"
