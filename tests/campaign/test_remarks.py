"""What a reader of the verdicts of a campaign must know."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.campaigns import loaded

from rmsexp.campaign import results as campaign_results
from rmsexp.campaign.results import Campaign
from rmsexp.records import record
from rmsexp.system import atomic

Change = Callable[[dict[str, Any]], Any]


def change(path: Path, changed: Change) -> None:
    content = json.loads(path.read_text())
    changed(content)
    atomic.write_json(path, content)


def remarks(campaign: Campaign) -> list[str]:
    """Return the remarks after the files of a campaign have changed."""
    return campaign_results.load(campaign.path).remarks


def final(campaign: Campaign, number: int = 0) -> Path:
    """Return the description of a final run."""
    return campaign.root / [job for job in campaign.jobs if job.stage == "final"][number].folder / record.RUN


@pytest.mark.parametrize(
    ("name", "changed", "remark"),
    [
        ("campaign.json", lambda stored: stored.update(registered=None), "not registered"),
        ("campaign.json", lambda stored: stored["registered"].update(changed="claims"), "has changed since .* claims$"),
        ("campaign.json", lambda stored: stored["claims"][0].update(margin=3.0), "differ, so"),
        ("campaign.json", lambda stored: stored["registered"].update(date="2026"), "differ, so"),
        ("registered.json", lambda stored: stored["rules"]["grid"].pop(), "differ, so"),
        ("registered.json", lambda stored: stored.pop("rules"), "has no rules"),
    ],
)
def test_rules_that_differ_from_the_registration_are_named(
    name: str, changed: Change, remark: str, tmp_path: Path
) -> None:
    campaign = loaded(tmp_path)
    assert campaign.remarks == []
    change(campaign.path.with_name(name), changed)
    (line,) = remarks(campaign)
    assert re.search(remark, line)
    campaign.path.with_name("registered.json").unlink()
    assert any(remark in remarks(campaign)[-1] for remark in ("registered.json is missing", "not registered"))


def test_several_commits_are_named(tmp_path: Path) -> None:
    """Without git a run has a digest of the package, and a registration one of the configs, too."""
    campaign = loaded(tmp_path, commits=("abc", "def"))
    assert remarks(campaign) == ["its final runs and its registration come from 2 commits: abc, def"]
    for runs, registered, number in (
        ("abc", "abc", 0),
        ("abc", "def", 1),
        ("code 01", "code 45", 0),
        ("abc+", "abc", 1),
    ):
        campaign = loaded(tmp_path / f"{runs} {registered}", commits=(runs,))
        stated = {"commit": registered}
        change(campaign.path, lambda stored, stated=stated: stored["registered"].update(stated))
        change(campaign.path.with_name("registered.json"), lambda stored, stated=stated: stored.update(stated))
        assert len(remarks(campaign)) == number


@pytest.mark.parametrize(
    ("changed", "remark"),
    [
        *(
            (lambda run, dirty=dirty: run["sessions"][0]["git"].update(dirty=dirty), "uncommitted")
            for dirty in (True, None)
        ),
        (lambda run: run["dataset"].update(digest="1"), "different data, with the digests 0, 1"),
    ],
    ids=["dirty", "git did not say", "data"],
)
def test_uncommitted_changes_and_different_data_are_named(changed: Change, remark: str, tmp_path: Path) -> None:
    campaign = loaded(tmp_path)
    change(final(campaign), changed)
    (line,) = remarks(campaign)
    assert remark in line


def test_final_runs_from_before_the_registration_are_named(tmp_path: Path) -> None:
    """A second campaign may find the runs of a first, whose verdict is known, in their folders."""
    campaign = loaded(tmp_path)
    for number, started in enumerate(("2026-11-21T23:50:00+00:00", "2026-11-21T23:59:30+00:00", "damaged")):
        change(final(campaign, number), lambda run, date=started: run["sessions"][0].update(started=date))
    (line,) = remarks(campaign)  # the second: clocks of machines may differ
    assert line.startswith("1 of its 2 final runs began before")


def test_records_that_do_not_count_are_named(tmp_path: Path) -> None:
    campaign = loaded(tmp_path)
    final(campaign).write_text("{")
    assert campaign_results.load(campaign.path).undecided == "23 of 24 final runs"
    (line,) = remarks(campaign)
    assert str(final(campaign)) in line
