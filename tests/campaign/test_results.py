"""Campaigns read from their files, and what is computed from the records of their runs."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers.campaigns import BETTER, EQUAL, STEPS, Campaign, loaded, three

from rmsexp.campaign import answers
from rmsexp.campaign import results as campaign_results
from rmsexp.campaign.remarks import remarks
from rmsexp.campaign.results import Result
from rmsexp.campaign.state import Reader
from rmsexp.records import record
from rmsexp.system import atomic


def test_scores_are_means_of_the_last_three_evaluations_in_the_displayed_unit(tmp_path: Path) -> None:
    campaign, results = loaded(tmp_path)
    job = next(job for job in campaign.jobs if job.stage == "final")
    rows, _ = record.RunFolder(tmp_path / job.folder).read_metrics()
    errors = [row["error"] for row in rows if row["split"] == "test"]
    assert results[job].status == "finished"
    assert results[job].test == pytest.approx(100 * sum(errors) / 3)
    assert results[job].validation != results[job].test
    tuned = next(job for job in campaign.jobs if job.stage == "tune")
    assert math.isnan(results[tuned].test)
    assert results[tuned].validation > 1


def test_rates_are_chosen_by_validation(tmp_path: Path) -> None:
    campaign, results = loaded(tmp_path)
    assert {norm: choice.rate for norm, choice in campaign.choice(results).items()} == Campaign().best
    assert campaign.tuning(results).runs == ()


def test_unfinished_tuning_has_no_choice(tmp_path: Path) -> None:
    campaign, _ = loaded(tmp_path)
    tuned = next(job for job in campaign.jobs if job.stage == "tune")
    shutil.rmtree(tmp_path / tuned.folder)
    results = campaign.results()
    assert campaign.choice(results) == {}
    assert campaign.tuning(results).runs == ((tuned.norm, tuned.rate, tuned.seed),)


def test_verdicts_of_a_finished_campaign(tmp_path: Path) -> None:
    campaign, results = loaded(tmp_path)
    equal, better = campaign.verdicts(results)
    assert (equal.outcome, better.outcome) == ("supported", "supported")
    assert equal.difference == pytest.approx(-0.1, abs=0.2)  # positive: RMSNorm is better
    assert better.difference == pytest.approx(7.9, abs=0.2)
    assert equal.pairs == 8
    assert remarks(campaign, results) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gone": {("rms", 2), ("ln", 5)}}, "22 of 24 final runs"),
        ({"needed": None}, "24 final runs, but the number of seeds is not chosen"),
        ({"seeds": 0}, "no final runs, 42 of the 42 tuning runs planned so far"),
    ],
)
def test_an_unfinished_campaign_has_no_verdicts(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    campaign, results = loaded(tmp_path, **changes)
    assert campaign.undecided(results) == reason
    assert campaign.verdicts(results) == []


def test_runs_that_have_not_ended_are_counted_by_status(tmp_path: Path) -> None:
    campaign, _ = loaded(tmp_path)
    final = [job for job in campaign.jobs if job.stage == "final"]
    for job, status in zip(final, ["failed", "failed", "interrupted"], strict=False):
        atomic.write_json(tmp_path / job.folder / record.STATUS, {"status": status, "step": 3, "error": "full disk"})
    assert campaign.undecided(campaign.results()) == "21 of 24 final runs, 2 failed, 1 interrupted"


def test_diverged_runs_count_as_diverged(tmp_path: Path) -> None:
    campaign, results = loaded(tmp_path, diverged={("rms", 3), ("none", 1)})
    equal, better = campaign.verdicts(results)
    assert (equal.outcome, equal.diverged_a, equal.diverged_b) == ("inconclusive", 1, 0)
    assert (better.diverged_a, better.diverged_b, better.pairs) == (1, 1, 8)


def test_a_finished_run_without_its_last_evaluations_does_not_count(tmp_path: Path) -> None:
    campaign, _ = loaded(tmp_path)
    final = next(job for job in campaign.jobs if job.stage == "final")
    path = tmp_path / final.folder / record.METRICS
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows if (row["split"], row["step"]) != ("test", STEPS)))
    results = campaign.results()
    assert results[final].status == "incomplete"
    assert campaign.undecided(results) == "23 of 24 final runs, 1 incomplete"


def test_a_finished_run_whose_last_evaluations_are_not_finite_counts_as_diverged(tmp_path: Path) -> None:
    """A repetition would end in the same way, so it would never count."""
    campaign, _ = loaded(tmp_path)
    final = next(job for job in campaign.jobs if job.stage == "final")
    path = tmp_path / final.folder / record.METRICS
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    lost = [row | {"error": None} if (row["split"], row["step"]) == ("test", STEPS) else row for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in lost))
    results = campaign.results()
    assert results[final].status == "diverged"
    assert campaign.verdicts(results)


def test_changed_metrics_count_as_missing(tmp_path: Path) -> None:
    campaign, _ = loaded(tmp_path)
    files, problems = record.RunFolder(tmp_path / campaign.jobs[0].folder), list[str]()
    files.write_status("finished", STEPS)
    files.metrics_path.write_bytes(files.metrics_path.read_bytes().replace(b"1", b"2"))
    assert campaign.results(problems)[campaign.jobs[0]].status == "missing"
    assert problems == [f"{files.metrics_path} has changed since status.json was written: its digest is another"]


def test_an_ended_run_without_its_description_is_a_problem(tmp_path: Path) -> None:
    campaign, _ = loaded(tmp_path)
    folder, problems = tmp_path / campaign.jobs[0].folder, list[str]()
    (folder / record.RUN).unlink()
    assert campaign.results(problems)[campaign.jobs[0]].status == "missing"
    assert problems == [f"{folder} has ended, but run.json is missing"]


def test_a_campaign_in_which_every_norm_diverges_is_decided(tmp_path: Path) -> None:
    path = Campaign(claims=[EQUAL]).write(tmp_path)
    stored = json.loads(path.read_text())
    jobs = [
        {"stage": "tune", "norm": norm, "rate": rate, "seed": 1000, "folder": _copied(tmp_path, norm, rate)}
        for norm in stored["norms"]
        for rate in (0.0005, 0.00025)
    ]
    first = [job for job in stored["jobs"] if (job["stage"], job["seed"]) == ("tune", 1000)]
    stored["jobs"] = [*first, *jobs]
    for job in stored["jobs"]:
        atomic.write_json(tmp_path / job["folder"] / record.STATUS, {"status": "diverged", "step": 9, "error": "nan"})
    atomic.write_json(path, stored)
    campaign = campaign_results.load(path)
    results = campaign.results()
    assert campaign.undecided(results) == ""
    (verdict,) = campaign.verdicts(results)
    assert (verdict.outcome, verdict.diverged_both) == ("inconclusive", 8)
    assert Reader(tmp_path).read().campaigns[0].next.endswith(f"rmsexp.report {tmp_path}")


@pytest.mark.parametrize("file", [record.RUN, record.STATUS])
def test_a_damaged_record_counts_as_missing(tmp_path: Path, file: str) -> None:
    campaign, _ = loaded(tmp_path)
    job = campaign.jobs[0]
    (tmp_path / job.folder / file).write_text("{")
    problems: list[str] = []
    results = campaign.results(problems)
    assert results[job] == Result("missing")
    assert [str(tmp_path / job.folder / file) in problem for problem in problems] == [True]


def test_a_copy_of_another_run_does_not_count(tmp_path: Path) -> None:
    campaign, _ = loaded(tmp_path)
    first, second = (tmp_path / job.folder for job in [job for job in campaign.jobs if job.stage == "final"][:2])
    shutil.rmtree(second)
    shutil.copytree(first, second)
    problems: list[str] = []
    assert campaign.undecided(campaign.results(problems)) == "23 of 24 final runs"
    assert "does not count" in problems[0]


def test_a_norm_that_diverges_at_every_rate_is_worse_than_any(tmp_path: Path) -> None:
    path = Campaign(claims=[EQUAL, BETTER]).write(tmp_path)
    stored = json.loads(path.read_text())
    lost = [job for job in stored["jobs"] if job["norm"] == "none"]
    stored["jobs"] = [job for job in stored["jobs"] if job["norm"] != "none" or job["stage"] == "tune"]
    for job in lost:
        atomic.write_json(
            tmp_path / job["folder"] / record.STATUS, {"status": "diverged", "step": 9, "error": "not finite"}
        )
    for rate in (0.0005, 0.00025):  # a norm without a best rate extends the grid at its low edge, twice
        stored["jobs"] += [
            {"stage": "tune", "norm": norm, "rate": rate, "seed": 1000, "folder": _copied(tmp_path, norm, rate)}
            for norm in stored["norms"]
        ]
    atomic.write_json(path, stored)
    campaign = campaign_results.load(path)
    results = campaign.results()
    assert campaign.choice(results)["none"].rate is None
    assert campaign.verdicts(results)[1].outcome == "supported"
    assert campaign.verdicts(results)[1].diverged_b == 8


def _copied(root: Path, norm: str, rate: float) -> str:
    """Copy the run at the lowest rate of the grid to another rate; return its folder."""
    setting = "cifar10/small+evaluation=validation+optim.lr="
    folder = f"{setting}{rate:g}/{norm}/seed1000"
    shutil.copytree(root / f"{setting}0.001/{norm}/seed1000", root / folder)
    run = json.loads((root / folder / record.RUN).read_text())
    atomic.write_json(root / folder / record.RUN, run | {"setting": folder.split("/")[1]})
    return folder


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"format": 2}, "format"),
        ({"score": "error"}, "score"),
        ({"norms": ["ln", "rms"]}, "norms"),
        ({"grid": [0.001, math.nan]}, "grid[1]"),
        ({"grid": [0.001, 0.003]}, "octave"),
        ({"seeds": {"min_seeds": 8, "max_seeds": 16, "needed": None}}, "tune"),
        ({"seeds": {"tune": [1], "min_seeds": 8, "max_seeds": 8, "needed": 10**9}}, "needed"),
        ({"rules": 3}, "rules"),
        ({"claims": [{"claim": "x", "test": "better", "a": "rms", "b": "ln"}]}, "test=better"),
        ({"claims": [BETTER | {"one_sided": True}]}, "one_sided"),
        ({"jobs": [{"stage": "final", "norm": "ln", "rate": 1.0, "seed": 0, "folder": "../../../x"}]}, "folder"),
    ],
)
def test_a_damaged_file_is_a_problem_and_other_campaigns_are_read(
    tmp_path: Path, changes: dict[str, Any], place: str
) -> None:
    path = Campaign(changes=changes).write_file(tmp_path)
    Campaign(name="whole").write_file(tmp_path)
    problems: list[str] = []
    assert [campaign.name for campaign in campaign_results.load_all(tmp_path, problems)] == ["whole"]
    assert len(problems) == 1
    assert str(path) in problems[0]
    assert place in problems[0]
    assert "\n" not in problems[0]


def test_a_copy_of_a_campaign_is_left_out(tmp_path: Path) -> None:
    path = Campaign(name="first").write_file(tmp_path)
    for folder in ("a_copy", "old"):
        shutil.copytree(path.parent, path.parent.with_name(folder))
    problems: list[str] = []
    (loaded,) = campaign_results.load_all(tmp_path, problems)
    assert loaded.path == path
    assert problems == [
        f"{path.parent.with_name(folder) / path.name} describes the campaign first, so this copy is left out"
        for folder in ("a_copy", "old")
    ]


def test_campaigns_of_several_results_folders_are_found(tmp_path: Path) -> None:
    for name in ("amd", "intel"):
        Campaign().write_file(tmp_path / name)
    found = campaign_results.load_all(tmp_path, [])
    assert [campaign.root for campaign in found] == [tmp_path / "amd", tmp_path / "intel"]


def test_decided_campaigns_come_first(tmp_path: Path) -> None:
    for name, gone in (("a", {("rms", 2)}), ("b", set())):
        Campaign(name=name, gone=gone).write(tmp_path / name)
    assert [state.campaign.name for state in answers.load(tmp_path, [])] == ["b", "a"]


def test_the_fake_campaigns_of_other_tests(tmp_path: Path) -> None:
    states = []
    for made in three():
        campaign = campaign_results.load(made.write(tmp_path))
        results = campaign.results()
        states.append((campaign.task, campaign.undecided(results), len(campaign.verdicts(results))))
    assert states == [("cifar10", "", 2), ("order_embedding", "", 3), ("rnnsearch", "12 of 24 final runs", 0)]


def test_a_campaign_of_the_first_rules_is_read_and_its_rates_have_no_known_uncertainty(tmp_path: Path) -> None:
    old = Campaign(rules=1)
    campaign = campaign_results.load(old.write(tmp_path))
    results = campaign.results()
    assert json.loads(campaign.path.read_text())["seeds"]["look"] == campaign.seeds.min_seeds == 8
    assert remarks(campaign, results) == []
    assert {norm: choice.rate for norm, choice in campaign.choice(results).items()} == old.best
    assert all(math.isnan(verdict.rates) for verdict in campaign.verdicts(results))


def test_a_single_rate_is_not_tuned(tmp_path: Path) -> None:
    made = Campaign(grid=(0.004,), best=dict.fromkeys(("none", "ln", "rms"), 0.004))
    campaign = campaign_results.load(made.write(tmp_path))
    results = campaign.results()
    assert {job.stage for job in campaign.jobs} == {"final"}
    assert {verdict.rates for verdict in campaign.verdicts(results)} == {0.0}
    assert remarks(campaign, results) == []


def test_the_papers_claim_about_prms_is_decided_without_being_registered(tmp_path: Path) -> None:
    level = {"ln": 16.0, "rms": 16.1, "prms": 16.2}
    made = Campaign(level=level, best=dict.fromkeys(level, 0.004), claims=(EQUAL,))
    made.write(tmp_path)
    (state,) = answers.load(tmp_path, [])
    equal, papers = state.verdicts
    assert (papers.claim.claim, papers.claim.margin, papers.outcome) == ("pRMSNorm equals LayerNorm", 1.5, "supported")
    assert equal.claim in state.campaign.claims
    assert papers.claim not in state.campaign.claims
