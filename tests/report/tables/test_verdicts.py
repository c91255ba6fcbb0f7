"""The table of verdicts, the matrix of claims and tasks, and the table of tuning."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.campaigns import EQUAL, Campaign, three

from rmsexp.campaign import answers
from rmsexp.campaign import results as campaign_results
from rmsexp.records import record
from rmsexp.report.tables import campaign_rates, verdicts
from rmsexp.report.tables.formats import NO_VALUE


def states(root: Path, *made: Campaign) -> list[answers.Answer]:
    for campaign in made:
        campaign.write(root)
    problems: list[str] = []
    found = answers.load(root, problems)
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
    text = verdicts.readable(table)
    column = "difference (90 % interval)"
    assert text[column][0] == "-0.11 (-0.25 to +0.03) points"
    assert "(no interval) points among the pairs" in text[column][3]
    assert text["diverged runs"][3] == "1 none"
    assert text["uncertainty of the rates of first / second norm"][0] == "0.025 / 0.025 points"
    assert text["margin"].tolist()[:2] == ["1.5 points", NO_VALUE]


def test_claims_with_the_same_text_share_a_row(tmp_path: Path) -> None:
    matrix = verdicts.matrix(states(tmp_path, *three())).set_index("claim")
    assert list(matrix.columns) == ["cifar10", "order_embedding", "rnnsearch", "every task"]
    equal = matrix.loc[EQUAL["claim"]]
    assert equal["cifar10"] == "supported: -0.11 (-0.25 to +0.03) points, 8 seeds"
    assert equal["rnnsearch"] == "not decided yet: 12 of 24 final runs"
    assert equal["every task"] == "not decided yet: 1 of 3 campaigns not finished"
    assert matrix.loc["pRMSNorm is not worse than RMSNorm", ["cifar10", "every task"]].tolist() == [NO_VALUE, NO_VALUE]


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


def unknown(state: answers.Answer) -> answers.Answer:
    """Return the state with verdicts of which the uncertainty of the rates is not known."""
    return state._replace(verdicts=[replace(verdict, rates=math.nan) for verdict in state.verdicts])


def test_a_verdict_that_holds_for_the_chosen_rates_only_is_marked(tmp_path: Path) -> None:
    (state,) = states(tmp_path, Campaign())
    table = verdicts.table([unknown(state)])
    text = verdicts.readable(table)
    assert text["verdict"].tolist() == ["supported†", "supported†"]
    assert verdicts.CHOSEN_RATES in text["why"][0]
    assert verdicts.notes_on_rates(table) == [verdicts.CHOSEN_RATES]
    assert verdicts.matrix([unknown(state)])["cifar10"][0].startswith("supported†: ")


@pytest.mark.parametrize(
    ("made", "verdict"),
    [
        (Campaign(), "supported"),
        (Campaign(level=Campaign().level | {"rms": 16.6}), "supported, but worse"),
        (Campaign(level=Campaign().level | {"none": 16.2}), "supported, cannot see a difference"),
        (Campaign(gain=0.4), "supported"),
        (Campaign(gain=0.8), "supported, still improving"),
    ],
)
def test_what_limits_a_verdict_stands_beside_it(made: Campaign, verdict: str, tmp_path: Path) -> None:
    (state,) = states(tmp_path, made)
    assert verdicts.readable(verdicts.table([state]))["verdict"][0] == verdict


def test_the_smallest_margin_and_its_share_of_the_gain(tmp_path: Path) -> None:
    (state,) = states(tmp_path, Campaign())
    row = verdicts.table([state]).iloc[0]
    assert row["smallest_margin"] == -row["low"]
    assert row["gain_over_none"] == pytest.approx(8, abs=0.5)
    assert verdicts.readable(verdicts.table([state]))["smallest margin"].tolist() == [
        "0.25 points (3 % of the gain over no norm)",
        NO_VALUE,
    ]


def test_superiority_is_set_against_the_margin_too(tmp_path: Path) -> None:
    (state,) = states(tmp_path, Campaign(level=Campaign().level | {"none": 17.0}))
    assert verdicts.readable(verdicts.table([state]))["verdict"][1] == "supported, not by the margin"


def test_a_rate_at_the_edge_and_another_model_are_remarks_on_the_claims_of_the_norm(tmp_path: Path) -> None:
    (state,) = states(tmp_path, Campaign())
    for job, _ in state.jobs("tune", "none"):
        path = tmp_path / job.folder / record.CONFIG
        path.write_text(f"{path.read_text()}model: {{data_init: true, width: 8}}\n")
    for norm in ("ln", "rms"):
        for job, _ in state.jobs("tune", norm):
            path = tmp_path / job.folder / record.CONFIG
            path.write_text(f"{path.read_text()}model: {{data_init: false, width: 8}}\n")
    assert verdicts.table([state])["remarks"].tolist() == ["", "model.data_init is False with rms and True with none"]
    assert verdicts.matrix([state])["cifar10"].str.startswith("supported*").tolist() == [False, True]
    shutil.rmtree(tmp_path / state.jobs("tune", "none")[0][0].folder.split("/")[0])  # nothing can be compared
    (gone,) = states(tmp_path)
    assert verdicts.table([gone])["remarks"].tolist() == ["", ""]
    edge = state._replace(choice=state.choice | {"ln": replace(state.choice["ln"], edge="lowest")})
    assert "the chosen rate of ln is the lowest of the extended grid" in edge.all_remarks()


def test_the_power_of_an_inconclusive_test(tmp_path: Path) -> None:
    (state,) = states(tmp_path, Campaign(level=Campaign().level | {"rms": 17.4}))
    row, other = verdicts.readable(verdicts.table([state])).to_dict("records")
    assert row["verdict"] == "inconclusive"
    assert "; the power for a true difference of 0 is 1.00 with 8 seeds and this spread" in row["why"]
    assert "power" not in other["why"]


def test_a_difference_is_among_the_pairs_that_finished(tmp_path: Path) -> None:
    (state,) = states(tmp_path, Campaign(diverged={("none", 3)}))
    cell = verdicts.matrix([state])["cifar10"][1]
    assert cell.endswith(" (no interval) points among the pairs that finished (1 with no norm diverged), 8 seeds")


def test_the_outcome_on_every_task_has_the_marks_of_those_that_decide_it(tmp_path: Path) -> None:
    first, second = states(tmp_path, Campaign(), Campaign(name="again", task="order_embedding"))
    matrix = verdicts.matrix([unknown(first), second._replace(remarks=["of two commits"])]).set_index("claim")
    assert matrix.loc[EQUAL["claim"], "every task"].startswith("supported*†: 2 of 2")


def test_a_refutation_at_known_rates_has_no_mark_on_every_task(tmp_path: Path) -> None:
    worse, equal = states(
        tmp_path,
        Campaign(name="again", task="order_embedding", level=Campaign().level | {"rms": 30.0}),
        Campaign(),
    )
    matrix = verdicts.matrix([worse, unknown(equal)]).set_index("claim")
    assert "†" in matrix.loc[EQUAL["claim"], "cifar10"]
    assert matrix.loc[EQUAL["claim"], "every task"].startswith("refuted: ")


def test_one_campaign_has_no_column_for_every_task(tmp_path: Path) -> None:
    assert list(verdicts.matrix(states(tmp_path, Campaign())).columns) == ["claim", "cifar10"]


def test_two_campaigns_of_a_task_are_named(tmp_path: Path) -> None:
    matrix = verdicts.matrix(states(tmp_path, Campaign(name="one"), Campaign(name="two", needed=None)))
    first, second = matrix["cifar10"][0].split("; ")
    assert first.endswith("[one]")
    assert second.startswith("not decided yet")


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"commits": ("abc", "def")}, "its final runs come from 2 commits: abc, def"),
        (
            {"changes": {"registered": {"digest": "d", "commit": "abc", "date": "", "changed": "margin 2"}}},
            "the campaign's file has changed since it was registered: margin 2",
        ),
    ],
)
def test_remarks_stand_beside_the_verdicts(tmp_path: Path, changes: dict[str, Any], remark: str) -> None:
    found = states(tmp_path, Campaign(**changes))
    assert all(remark in why for why in verdicts.readable(verdicts.table(found))["why"])
    assert verdicts.matrix(found)["cifar10"][0].startswith("supported*: ")


def test_the_table_of_tuning(tmp_path: Path) -> None:
    (state,) = states(tmp_path, Campaign())
    table = campaign_rates.table([state])
    assert len(table.groupby("norm")) == 3
    chosen = table[table["chosen"]].set_index("norm")
    assert chosen["rate"].to_dict() == Campaign().best
    assert chosen["uncertainty"].notna().all()
    assert table[~table["chosen"]]["uncertainty"].isna().all()
    ln = table[table["norm"] == "ln"].set_index("rate")["runs"]
    assert ln[[0.001, 0.002, 0.003364, 0.004, 0.004757, 0.008]].tolist() == [1, 1, 3, 3, 3, 1]
    text = campaign_rates.readable(state).set_index("norm")
    assert text.loc["LayerNorm", "0.004"] == "15.85 (3 seeds), chosen"
    assert text.loc["LayerNorm", "chosen rate"] == "0.004"
    assert text.loc["LayerNorm", "test error, final runs"] == "16.08 ± 0.38 (sd 0.46) %, 8 seeds"


def test_tuning_that_diverged_or_is_not_finished(tmp_path: Path) -> None:
    path = Campaign().write(tmp_path)
    jobs = [job for job in campaign_results.load(path).jobs if job.stage == "tune" and job.norm == "rms"]
    for job, status in ((jobs[0], "diverged"), (jobs[-1], "running")):
        (tmp_path / job.folder / "status.json").write_text(f'{{"status": "{status}", "step": 9, "error": null}}')
    (state,) = answers.load(tmp_path, [])
    text = campaign_rates.readable(state).set_index("norm").loc["RMSNorm"]
    assert text[["0.001", "0.008"]].tolist() == ["1 diverged", "1 not finished"]
    assert text["chosen rate"] == "not chosen yet"
    assert math.isnan(campaign_rates.table([state]).query("norm == 'rms' and rate == 0.001")["mean"].iloc[0])


def test_a_line_for_the_terminal(tmp_path: Path) -> None:
    (state,) = states(tmp_path, Campaign())
    row = verdicts.table([state]).iloc[0].to_dict()
    start = "supported: RMSNorm equals LayerNorm: -0.11 (-0.25 to +0.03) points, 8 seeds; the 90 % interval lies"
    assert verdicts.line(row).startswith(start)
    one_sided = row | {"alone_low": -math.inf, "alone_high": math.inf, "score": "test bleu", "unit": "BLEU"}
    assert ": -0.11 (no bound to no bound) BLEU, 8 seeds; " in verdicts.line(one_sided)
    near = row | {"difference": 0.5, "alone_low": 0.0, "alone_high": 0.9963, "margin": 1.0}
    assert " +0.50 (+0.00 to +0.996) points, " in verdicts.line(near)
    assert ": RMSNorm equals LayerNorm: 8 seeds; " in verdicts.line(row | {"difference": math.nan, "low": math.nan})
