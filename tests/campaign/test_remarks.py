"""What a reader of the verdicts of a campaign must know."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.campaigns import loaded

from rmsexp.campaign import answers
from rmsexp.campaign import results as campaign_results
from rmsexp.campaign.remarks import remarks
from rmsexp.records import record
from rmsexp.system import atomic


def register(path: Path, commit: str) -> None:
    """Change the registered commit of a campaign, in both of its files."""
    stored, registration = (json.loads(file.read_text()) for file in (path, path.with_name("registered.json")))
    stored["registered"]["commit"] = registration["commit"] = commit
    atomic.write_json(path, stored)
    atomic.write_json(path.with_name("registered.json"), registration)


def test_runs_on_different_data_are_named(tmp_path: Path) -> None:
    campaign, _ = loaded(tmp_path)
    path = tmp_path / campaign.jobs[0].folder / record.RUN
    run = json.loads(path.read_text())
    atomic.write_json(path, run | {"dataset": run["dataset"] | {"digest": "1"}})
    (remark,) = remarks(campaign, campaign.results())
    assert remark == "its tuning and final runs used different data, with the digests 0, 1"


def test_remarks_beside_the_verdicts(tmp_path: Path) -> None:
    campaign, results = loaded(tmp_path, commits=("abc", "def"))
    assert remarks(campaign, results) == ["its final runs come from 2 commits: abc, def"]
    stored = json.loads(campaign.path.read_text())
    stored["registered"] |= {"changed": "margin 1.0 is 1.5 now"}
    atomic.write_json(campaign.path, stored)
    assert remarks(campaign_results.load(campaign.path), results)[0].endswith(
        "it was registered: margin 1.0 is 1.5 now"
    )
    atomic.write_json(campaign.path, stored | {"registered": None})
    assert remarks(campaign_results.load(campaign.path), results)[0].startswith("not registered")


@pytest.mark.parametrize(
    ("name", "change", "remark"),
    [
        ("campaign.json", lambda stored: stored["claims"][0].update(margin=3.0), "differ in claims, so one was"),
        (
            "campaign.json",
            lambda stored: (
                stored["registered"].update(changed="question was a and is b"),
                stored.update(question="b"),
                stored["seeds"].update(max_seeds=20),
            ),
            "differ in final, so",
        ),
        ("campaign.json", lambda stored: stored["runs"].update(threads=1), "differ in runs, so"),
        ("campaign.json", lambda stored: stored["registered"].update(date="2026"), "differ in date, so"),
        ("registered.json", lambda stored: stored["rules"]["grid"].pop(), "differ in grid, digest, so"),
        ("registered.json", lambda stored: stored.pop("rules"), "has no rules"),
    ],
)
def test_rules_that_differ_from_the_registration_are_named(
    name: str, change: Callable[[dict[str, Any]], Any], remark: str, tmp_path: Path
) -> None:
    campaign, results = loaded(tmp_path)
    path = campaign.path.with_name(name)
    stored = json.loads(path.read_text())
    change(stored)
    atomic.write_json(path, stored)
    lines = remarks(campaign_results.load(campaign.path), results)
    assert remark in next(line for line in lines if path.name in line)


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        (lambda stored: stored["seeds"].update(needed=12), "has 12 as the number of seeds, and by its records it is 8"),
        (lambda stored: stored["jobs"].remove(final(stored, "ln", 2)), "(such as ln at 0.004 with seed 2), so"),
        (lambda stored: stored.update(mode="max"), "does not list the final runs"),
    ],
)
def test_a_file_that_is_not_what_the_rules_make_of_the_records_is_named(
    change: Callable[[dict[str, Any]], Any], remark: str, tmp_path: Path
) -> None:
    campaign, results = loaded(tmp_path)
    assert remarks(campaign, results) == []
    stored = json.loads(campaign.path.read_text())
    change(stored)
    atomic.write_json(campaign.path, stored)
    changed = campaign_results.load(campaign.path)
    assert any(remark in line for line in remarks(changed, changed.results()))


def final(stored: dict[str, Any], norm: str, seed: int) -> dict[str, Any]:
    """Return a final run in the content of a campaign's file."""
    return next(job for job in stored["jobs"] if (job["stage"], job["norm"], job["seed"]) == ("final", norm, seed))


def test_the_remarks_say_why_records_do_not_count(tmp_path: Path) -> None:
    campaign, _ = loaded(tmp_path)
    folder = tmp_path / next(job.folder for job in campaign.jobs if job.stage == "final")
    (folder / "run.json").write_text("{")
    (state,) = answers.load(tmp_path, [])
    assert state.undecided == "23 of 24 final runs"
    (line,) = state.remarks
    assert line.startswith(f"the records of 1 of its runs do not count: {folder}")


def test_a_missing_registration_is_named(tmp_path: Path) -> None:
    campaign, results = loaded(tmp_path)
    campaign.path.with_name("registered.json").unlink()
    (line,) = remarks(campaign, results)
    assert line == "its registered.json is missing, so its rules may have changed since"


def test_final_runs_of_another_commit_than_the_registered_one_are_named(tmp_path: Path) -> None:
    campaign, results = loaded(tmp_path, commits=("abc", "abc"))
    for registered, lines in (
        ("abc", []),
        ("def", ["its final runs come from commit abc, but def is registered"]),
    ):
        register(campaign.path, registered)
        assert remarks(campaign_results.load(campaign.path), results) == lines


def test_code_without_git_is_not_compared_with_the_registered_digest(tmp_path: Path) -> None:
    """The registered digest is of the package and the configs, that of a run is of the package."""
    campaign, results = loaded(tmp_path, commits=("code 0123", "code 0123"))
    register(campaign.path, "code 4567")
    assert remarks(campaign_results.load(campaign.path), results) == []
    register(campaign.path, "def")
    assert remarks(campaign_results.load(campaign.path), results) == []


def test_final_runs_from_before_the_registration_are_named(tmp_path: Path) -> None:
    """A second campaign may find the runs of a first, whose verdict is known, in their folders."""
    campaign, _ = loaded(tmp_path)
    final = [job for job in campaign.jobs if job.stage == "final"]
    for job, started in zip(final, ("2026-11-21T23:50:00+00:00", "2026-11-21T23:59:30+00:00", "damaged"), strict=False):
        path = tmp_path / job.folder / record.RUN
        run = json.loads(path.read_text())
        run["sessions"][0]["started"] = started
        atomic.write_json(path, run)
    (remark,) = remarks(campaign, campaign.results())  # the second: clocks of machines may differ
    assert remark == "1 of its 2 final runs began before its rules were registered"


def test_runs_of_several_recipes_are_named(tmp_path: Path) -> None:
    """A recipe that was changed between tuning and the final runs, or is another one for a norm, is no longer one."""
    campaign, _ = loaded(tmp_path)
    for job in campaign.jobs:
        rate = {"optim": {"lr": job.rate}, "evaluation": "validation" if job.stage == "tune" else "scored"}
        own = {"norm": {"name": job.norm}, "model": {"width": 2.0 if (job.norm, job.stage) == ("ln", "final") else 1}}
        text = yaml.safe_dump(rate | own | {"seed": job.seed, "batch_size": 64 if job.norm == "rms" else 32})
        (tmp_path / job.folder / record.CONFIG).write_text(text)
    assert remarks(campaign, campaign.results()) == [
        "the tuning and final runs of all norms have several recipes: batch_size is 32 or 64",
        "the tuning and final runs of ln have several recipes: model.width is 1 or 2.0",
    ]
    (tmp_path / campaign.jobs[0].folder / record.CONFIG).write_text("{")
    assert campaign.results()[campaign.jobs[0]].status == "finished"


def test_a_module_that_changed_between_final_runs_is_named(tmp_path: Path) -> None:
    campaign, _ = loaded(tmp_path)
    job = next(job for job in campaign.jobs if (job.stage, job.norm) == ("final", "rms"))
    path = tmp_path / job.folder / record.RUN
    run = json.loads(path.read_text())
    run["sessions"][0][record.OWN_CODE] = "0123"
    atomic.write_json(path, run)
    assert remarks(campaign, campaign.results()) == ["the Python module of rms changed between its runs"]


@pytest.mark.parametrize("dirty", [True, None])  # None: git did not say
def test_runs_with_uncommitted_changes_are_of_their_commit(dirty: bool | None, tmp_path: Path) -> None:
    campaign, _ = loaded(tmp_path)
    job = next(job for job in campaign.jobs if job.stage == "final")
    path = tmp_path / job.folder / record.RUN
    run = json.loads(path.read_text())
    run["sessions"][0]["git"]["dirty"] = dirty
    atomic.write_json(path, run)
    assert remarks(campaign, campaign.results()) == [
        "its final runs were made with uncommitted changes, so they cannot be repeated from the commit alone; "
        "the verdicts stand, marked *"
    ]
    register(campaign.path, "abc+")
    assert len(remarks(campaign_results.load(campaign.path), campaign.results())) == 1
