"""Committed records come from commits of the history without uncommitted changes, but for a stated list of old ones."""

import re
import subprocess
import sys
from pathlib import Path

import committed_records as audit
import pytest

from rmsexp.campaign import campaign_file
from rmsexp.campaign import results as campaign_results


def test_the_committed_records_are_clean_or_listed(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    """In a shallow clone, or without git, commits are unknown; then the script says so and the rest is checked."""
    monkeypatch.setattr(sys, "argv", ["committed_records.py"])
    status = audit.main()
    shown = capsys.readouterr().out
    assert status == 0, shown
    assert (audit.commits(audit.ROOT) is None) == shown.startswith("the history of this checkout is not complete")


def test_a_committed_run_has_at_most_30_kilobytes_and_no_checkpoints() -> None:
    folders = [path.parent for path in audit.REFERENCE.rglob("status.json")]
    assert len(folders) > 600
    sizes = {folder: sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) for folder in folders}
    picture = audit.REFERENCE / "amd-epyc-2-cores/rnnsearch/medium"  # logged every 50 steps for a smooth curve
    assert not {folder: size for folder, size in sizes.items() if size > 30_000 and picture not in folder.parents}
    assert max(sizes.values()) < 34_000
    assert not list(audit.REFERENCE.rglob("*.pt"))


def committed(path: Path) -> float | None:
    """Return when a file of the repository was first committed, in seconds since 1970; None if it was not."""
    command = ["git", "log", "--diff-filter=A", "--follow", "--format=%ct", "--", str(path)]
    dates = subprocess.run(command, cwd=audit.ROOT, capture_output=True, text=True, check=True).stdout.split()
    return float(dates[-1]) if dates else None


def late(campaign: campaign_results.Campaign, registered: float | None) -> list[str]:
    """Return the final runs that began before the campaign's registration was committed, at ``registered``."""
    began = {job.folder: result.began for job, result in campaign.results.items() if job.stage == "final"}
    return [folder for folder, at in began.items() if at is not None and (registered is None or at < registered)]


def test_registrations_were_committed_before_the_first_final_run() -> None:
    """Of campaigns of the first rules, six, two were not. Runs of an earlier campaign may be used again."""
    found = [campaign_results.load(path) for path in campaign_file.find(audit.REFERENCE)]
    assert len(found) >= 6
    if audit.commits(audit.ROOT) is None:
        pytest.skip("the history of this checkout is not complete")
    new = [campaign for campaign in found if campaign.rules > campaign_file.OCTAVE_RULES]
    registrations = {one.name: committed(one.path.with_name(campaign_file.REGISTRATION)) for one in new}
    early = {one.name: set(late(one, registrations[one.name])) for one in new}
    in_time = {job.folder for one in found for job in one.results if job.folder not in early.get(one.name, ())}
    assert {name: runs - in_time for name, runs in early.items() if runs - in_time} == {}


def test_committed_configs_name_no_folder_of_a_machine() -> None:
    """Data and results are named relative to the folder in which the command was typed."""
    configs = [path for path in audit.REFERENCE.rglob("config.yaml") if path.is_file()]
    assert len(configs) > 200
    lines = {line for path in configs for line in path.read_text().splitlines()}
    assert not [line for line in lines if re.match(r" *(root|results): [/~]", line)]
