"""Campaigns read from their files, and what is computed from the records of their runs."""

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.campaigns import BETTER, EQUAL, STEPS, Campaign, loaded
from helpers.records import edit

from rmsexp.campaign import progress
from rmsexp.campaign import results as campaign_results
from rmsexp.campaign.campaign_file import Job
from rmsexp.campaign.results import Result
from rmsexp.records import record
from rmsexp.system import atomic


def again(campaign: campaign_results.Campaign) -> campaign_results.Campaign:
    """Return the campaign as it is read after its files have changed."""
    return campaign_results.load(campaign.path)


def of_stage(campaign: campaign_results.Campaign, stage: str) -> list[campaign_results.Job]:
    return [job for job in campaign.jobs if job.stage == stage]


def edit_rows(folder: Path, edit: Any) -> None:
    """Replace the last test row of a run's metrics by what ``edit`` returns; None removes it."""
    path = folder / record.METRICS
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    edited = [edit(row) if (row["split"], row["step"]) == ("test", STEPS) else row for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in edited if row is not None))


def test_scores_are_means_of_the_last_three_evaluations_in_the_displayed_unit(tmp_path: Path) -> None:
    campaign = loaded(tmp_path)
    job, tuned = of_stage(campaign, "final")[0], of_stage(campaign, "tune")[0]
    rows, _ = record.RunFolder(tmp_path / job.folder).read_metrics()
    errors = [row["error"] for row in rows if row["split"] == "test"]
    assert campaign.results[job].score == pytest.approx(100 * sum(errors) / 3)
    assert campaign.results[tuned].score > 1


def test_rates_are_chosen_by_validation_once_tuning_is_finished(tmp_path: Path) -> None:
    campaign = loaded(tmp_path)
    assert {norm: choice.rate for norm, choice in campaign.choice.items()} == Campaign().best
    assert campaign.tuning.runs == ()
    tuned = of_stage(campaign, "tune")[0]
    shutil.rmtree(tmp_path / tuned.folder)
    assert again(campaign).choice == {}
    assert again(campaign).tuning.runs == ((tuned.norm, tuned.rate, tuned.seed),)


def test_verdicts_of_a_finished_campaign(tmp_path: Path) -> None:
    campaign = loaded(tmp_path)
    equal, better = campaign.verdicts
    assert (equal.outcome, better.outcome) == ("supported", "supported")
    assert equal.difference == pytest.approx(-0.1, abs=0.2)  # positive: RMSNorm is better
    assert better.difference == pytest.approx(7.9, abs=0.2)
    assert equal.pairs == 8
    assert campaign.remarks == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gone": {("rms", 2), ("ln", 5)}}, "22 of 24 final runs"),
        ({"needed": None}, "24 final runs, but the number of seeds is not chosen"),
        ({"seeds": 0}, "no final runs, 42 of the 42 tuning runs planned so far"),
    ],
)
def test_an_unfinished_campaign_has_no_verdicts(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    campaign = loaded(tmp_path, **changes)
    assert campaign.undecided == reason
    assert campaign.verdicts == []


def test_runs_that_have_not_ended_are_counted_by_status(tmp_path: Path) -> None:
    campaign = loaded(tmp_path)
    first, second, third, *_ = of_stage(campaign, "final")
    for job, status in ((first, "failed"), (second, "interrupted")):
        atomic.write_json(tmp_path / job.folder / record.STATUS, {"status": status, "step": 3, "error": "full disk"})
    edit_rows(tmp_path / third.folder, lambda _: None)
    assert again(campaign).undecided == "21 of 24 final runs, 1 failed, 1 interrupted, 1 incomplete"


def test_diverged_runs_count_as_diverged(tmp_path: Path) -> None:
    """So do those that finished with evaluations that are not finite: a repetition would end in the same way."""
    campaign = loaded(tmp_path, diverged={("rms", 3), ("none", 1)})
    equal, better = campaign.verdicts
    assert (equal.outcome, equal.diverged_a, equal.diverged_b) == ("inconclusive", 1, 0)
    assert (better.diverged_a, better.diverged_b, better.pairs) == (1, 1, 8)
    job = next(job for job in of_stage(campaign, "final") if (job.norm, job.seed) == ("rms", 4))
    edit_rows(tmp_path / job.folder, lambda row: row | {"error": None})
    assert again(campaign).results[job].status == "diverged"
    assert again(campaign).verdicts[0].diverged_a == 2


def other_run(folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name("seed1"), folder)


def changed_metrics(folder: Path) -> None:
    files = record.RunFolder(folder)
    files.write_status("finished", STEPS)
    files.metrics_path.write_bytes(files.metrics_path.read_bytes().replace(b"1", b"2"))


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda folder: (folder / record.RUN).write_text("{"), record.RUN),
        (lambda folder: (folder / record.STATUS).write_text("{"), record.STATUS),
        (changed_metrics, record.METRICS),
        (other_run, record.RUN),
    ],
)
def test_a_damaged_record_counts_as_missing_and_is_named(tmp_path: Path, damage: Any, named: str) -> None:
    campaign = loaded(tmp_path)
    job = of_stage(campaign, "final")[0]
    damage(tmp_path / job.folder)
    found = again(campaign)
    assert (found.results[job], found.undecided) == (Result("missing"), "23 of 24 final runs")
    for lines in (found.problems, found.remarks):
        assert [str(tmp_path / job.folder) in line and named in line for line in lines] == [True]


def test_a_campaign_in_which_every_norm_diverges_is_decided(tmp_path: Path) -> None:
    campaign = loaded(tmp_path, claims=[EQUAL], lost=["none", "ln", "rms"])
    assert (campaign.undecided, campaign.coming()) == ("", [])
    (verdict,) = campaign.verdicts
    assert (verdict.outcome, verdict.diverged_both) == ("inconclusive", 8)
    assert progress.read(tmp_path).campaigns[0].next.endswith(f"rmsexp.report {tmp_path}")


def test_a_norm_that_diverges_at_every_rate_is_worse_than_any(tmp_path: Path) -> None:
    campaign = loaded(tmp_path, lost=["none"])
    assert campaign.choice["none"].rate is None
    assert (campaign.verdicts[1].outcome, campaign.verdicts[1].diverged_b) == ("supported", 8)


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"format": 2}, "format"),
        ({"score": "error"}, "score"),
        ({"grid": [0.001, math.nan]}, "grid[1]"),
        ({"seeds": {"min_seeds": 8, "max_seeds": 16, "needed": None}}, "tune"),
        ({"seeds": {"tune": [1], "min_seeds": 8, "max_seeds": 8, "needed": 10**9}}, "needed"),
        ({"seeds": {"tune": [], "min_seeds": 8, "max_seeds": 8, "needed": 8}}, "one seed"),
        ({"grid": [0.001, 0.003]}, "an octave apart"),
        ({"rules": 4}, "rules"),
        ({"claims": [{"claim": "x", "test": "better", "a": "rms", "b": "ln"}]}, "test=better"),
        ({"claims": [BETTER | {"one_sided": True}]}, "one_sided"),
    ],
)
def test_a_damaged_file_is_a_problem_and_other_campaigns_are_read(
    tmp_path: Path, changes: dict[str, Any], place: str
) -> None:
    path = Campaign(changes=changes).write(tmp_path)
    Campaign(name="whole").write_file(tmp_path)
    problems: list[str] = []
    assert [campaign.name for campaign in campaign_results.load_all(tmp_path, problems=problems)] == ["whole"]
    (line,) = problems
    assert str(path) in line
    assert place in line
    assert "\n" not in line


def test_decided_campaigns_come_first(tmp_path: Path) -> None:
    Campaign(gone={("rms", 2)}).write(tmp_path / "amd")
    Campaign().write(tmp_path / "intel")
    assert [campaign.root.name for campaign in campaign_results.load_all(tmp_path, problems=[])] == ["intel", "amd"]


def test_a_campaign_of_the_first_rules_is_read_and_its_rates_have_no_known_uncertainty(tmp_path: Path) -> None:
    campaign = loaded(tmp_path, rules=1)
    assert json.loads(campaign.path.read_text())["seeds"]["look"] == campaign.seeds.min_seeds == 8
    assert campaign.remarks == []
    assert {norm: choice.rate for norm, choice in campaign.choice.items()} == Campaign().best
    assert all(math.isnan(verdict.rates) for verdict in campaign.verdicts)


class Scattered(Campaign):
    """A campaign whose tuning runs scatter by 2.3 points, except those of the first seed."""

    def _value(self, job: Job) -> Callable[[int, str], float]:
        value, sign = super()._value(job), (-1) ** round(4 * math.log2(job.rate / self.grid[0]))
        noise = sign * {1001: 2.0, 1002: -2.0}.get(job.seed, 0.0)
        return lambda step, split: value(step, split) + noise


def test_a_verdict_that_would_change_if_the_scatter_of_tuning_runs_counted_says_so(tmp_path: Path) -> None:
    """It counts by today's rules: 2.3 points over the root of 3 seeds, for each norm."""
    before, today = (campaign_results.load(Scattered(rules=rules).write(tmp_path / str(rules))) for rules in (2, 3))
    assert [verdict.outcome for verdict in before.verdicts] == ["supported", "supported"]
    (line,) = before.all_remarks()
    assert line.startswith("rms and ln: inconclusive by today's rules")
    assert [verdict.outcome for verdict in today.verdicts] == ["inconclusive", "supported"]
    assert today.all_remarks() == []
    wider = 1.645**2 * 2 * (2.31**2 / 3) / 4  # z² (s² / n) / 4 of both norms
    halves = [(each.verdicts[0].high - each.verdicts[0].low) / 2 for each in (before, today)]
    assert halves[1] ** 2 - halves[0] ** 2 == pytest.approx(wider, rel=0.01)


def test_the_papers_claim_about_prms_is_decided_without_being_registered(tmp_path: Path) -> None:
    level = {"ln": 16.0, "rms": 16.1, "prms": 16.2}
    campaign = loaded(tmp_path, level=level, best=dict.fromkeys(level, 0.004), claims=(EQUAL,))
    equal, papers = campaign.verdicts
    assert (papers.claim.claim, papers.claim.margin, papers.outcome) == ("pRMSNorm equals LayerNorm", 1.5, "supported")
    assert equal.claim in campaign.claims
    assert papers.claim not in campaign.claims


# --- remarks

Change = Callable[[dict[str, Any]], Any]


def described(campaign: campaign_results.Campaign, number: int = 0) -> Path:
    """Return the description of a final run."""
    return campaign.root / [job for job in campaign.jobs if job.stage == "final"][number].folder / record.RUN


def test_several_commits_are_named(tmp_path: Path) -> None:
    """Without git a run has a digest of the package, and a registration one of the configs, too."""
    campaign = loaded(tmp_path, commits=("abc", "def"))
    assert again(campaign).remarks == ["its final runs and its registration come from 2 commits: abc, def"]
    for runs, registered, number in (
        ("abc", "abc", 0),
        ("abc", "def", 1),
        ("code 01", "code 45", 0),
        ("abc+", "abc", 1),
    ):
        campaign = loaded(tmp_path / f"{runs} {registered}", commits=(runs,))
        stated = {"commit": registered}
        edit(campaign.path, lambda stored, stated=stated: stored["registered"].update(stated))
        edit(campaign.path.with_name("registered.json"), lambda stored, stated=stated: stored.update(stated))
        assert len(again(campaign).remarks) == number


@pytest.mark.parametrize(
    ("file", "changed", "remark"),
    [
        ("campaign", lambda stored: stored.update(registered=None), "not registered"),
        ("campaign", lambda stored: stored["registered"].update(changed="claims"), "has changed since .* claims$"),
        ("run", lambda run: run["sessions"][0]["git"].update(dirty=True), "uncommitted"),
        ("run", lambda run: run["sessions"][0]["git"].update(dirty=None), "uncommitted"),  # git did not say
        ("run", lambda run: run["dataset"].update(digest="1"), "different data, with the digests 0, 1"),
        ("run", lambda run: run["sessions"][0].update(own_code="1"), "runs of .* are of 2 versions of your own code"),
    ],
)
def test_other_rules_than_the_registered_uncommitted_changes_and_different_data_are_named(
    file: str, changed: Change, remark: str, tmp_path: Path
) -> None:
    campaign = loaded(tmp_path)
    edit(campaign.path if file == "campaign" else described(campaign), changed)
    (line,) = again(campaign).remarks
    assert re.search(remark, line)


def test_final_runs_from_before_the_registration_are_named(tmp_path: Path) -> None:
    """A second campaign may find the runs of a first, whose verdict is known, in their folders."""
    campaign = loaded(tmp_path)
    for number, started in enumerate(("2026-11-21T23:50:00+00:00", "2026-11-21T23:59:30+00:00", "damaged")):
        edit(described(campaign, number), lambda run, date=started: run["sessions"][0].update(started=date))
    (line,) = again(campaign).remarks  # the second: clocks of machines may differ
    assert line.startswith("1 of its 2 final runs began before")
