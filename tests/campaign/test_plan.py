"""Which runs the rules ask for, and the file ``campaign.json``."""

from __future__ import annotations

import fcntl
import json
import math
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.campaigns import EQUAL, ask, do, write_run

from rmsexp.campaign import campaign_file, question
from rmsexp.campaign import results as campaign_results
from rmsexp.campaign.campaign_file import Job
from rmsexp.campaign.question import Question

BETTER = {"claim": "RMSNorm is better than no norm", "test": "superiority", "a": "rms", "b": "none", "seeds": 2}

pytestmark = pytest.mark.usefixtures("quick_folders")


def value(job: Job) -> float:
    """Return a score that is best at the middle rate, with some spread over seeds."""
    return 20 - abs(math.log2(job.rate / 2e-3)) + 0.01 * (job.seed % 7) * len(job.norm)


def test_stages_follow_each_other(tmp_path: Path) -> None:
    """All norms at all rates with one seed, then the two best rates with two more, then final runs at the best one."""
    asked = ask(tmp_path, "pilot.rate=1e-3")
    first, second, third = do(asked, value)
    assert [(job.stage, job.norm, job.rate, job.seed) for job in first] == [
        *(("pilot", norm, 1e-3, 2000) for norm in ("ln", "rms")),
        *(("tune", norm, rate, 1000) for norm in ("ln", "rms") for rate in (1e-3, 2e-3, 4e-3)),
    ]
    assert {(job.stage, job.norm, job.rate, job.seed) for job in second} == {
        ("tune", norm, rate, seed) for norm in ("ln", "rms") for rate in (1e-3, 2e-3) for seed in (1001, 1002)
    }
    assert {(job.stage, job.norm, job.rate, job.seed) for job in third} == {
        ("final", norm, 2e-3, seed) for norm in ("ln", "rms") for seed in (0, 1)
    }
    for job in [*first, *second, *third]:
        assert ("scored" if job.stage == "final" else "validation") in job.folder


def test_the_plan_is_a_function_of_file_and_records(tmp_path: Path) -> None:
    """Deleting campaign.json loses nothing. The plan does not depend on the order in which runs end."""
    asked = ask(tmp_path)
    do(asked, value)
    path = asked.folder / campaign_file.FILE
    written = path.read_text()
    path.unlink()
    campaign = asked.update()
    assert path.read_text() == written
    assert campaign_results.load(path) == campaign
    assert campaign.command == ("tiny", "--config-dir", asked.config_dir)
    again = ask(tmp_path / "again")
    todo = list(again.update().jobs)
    while todo:  # one at a time, the last first
        write_run(again, todo[-1], value(todo[-1]))
        current = again.update()
        todo = current.left
    assert set(current.jobs) == set(campaign.jobs)
    assert current.seeds == campaign.seeds


def test_the_grid_is_extended_for_every_norm(tmp_path: Path) -> None:
    asked = ask(tmp_path)
    do(asked, lambda job: value(job) if job.norm == "ln" else 20 + math.log2(job.rate))
    campaign = asked.update()
    rates = {
        norm: {job.rate for job in campaign.jobs if job.norm == norm and job.stage == "tune"} for norm in ("ln", "rms")
    }
    assert rates["ln"] == rates["rms"] == {1e-3, 2e-3, 4e-3, 8e-3, 16e-3}
    assert campaign.choice["rms"].rate == 16e-3
    assert campaign.choice["rms"].edge == "highest"


@pytest.mark.parametrize(("spread", "needed"), [(0.1, 2), (20.0, 4)])
def test_the_spread_at_the_first_look_decides_the_number_of_seeds(spread: float, needed: int, tmp_path: Path) -> None:
    asked = ask(tmp_path)

    def scattered(job: Job) -> float:
        return value(job) + (spread * (-1) ** job.seed if job.stage == "final" and job.norm == "rms" else 0)

    rounds = do(asked, scattered)
    campaign = asked.update()
    assert campaign.seeds.needed == needed
    assert [len(jobs) for jobs in rounds[2:]] == ([4] if needed == 2 else [4, 4])
    assert campaign.final_seeds == list(range(needed))


def test_norms_have_the_seeds_that_their_claims_need(tmp_path: Path) -> None:
    asked = ask(tmp_path, norms=["none", "ln", "rms"], final={"min_seeds": 4, "max_seeds": 4}, claims=[EQUAL, BETTER])
    do(asked, value)
    final = [job for job in asked.update().jobs if job.stage == "final"]
    assert {norm: sum(job.norm == norm for job in final) for norm in asked.content.norms} == {
        "none": 2,
        "ln": 4,
        "rms": 4,
    }


def test_a_norm_that_diverges_at_every_rate_has_no_final_runs(tmp_path: Path) -> None:
    asked = ask(tmp_path)
    do(asked, lambda job: math.nan if job.norm == "ln" else value(job))
    campaign = asked.update()
    assert {job.norm for job in campaign.jobs if job.stage == "final"} == {"rms"}
    assert not campaign.undecided
    (verdict,) = campaign.verdicts
    assert (verdict.outcome, verdict.diverged_b) == ("inconclusive", 2)


def lock_for_a_moment(asked: Question, at_end: Callable[[], None]) -> threading.Timer:
    """Lock the campaign's folder as another process does; call ``at_end`` before it is free again."""
    asked.folder.mkdir(parents=True, exist_ok=True)
    other = (asked.folder / ".lock").open("w")
    fcntl.flock(other, fcntl.LOCK_EX)
    other.write("17 on another")
    other.flush()

    def end() -> None:
        with other:
            at_end()

    timer = threading.Timer(0.1, end)
    timer.start()
    return timer


def test_only_one_process_at_a_time_writes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever waits reads the records after the other has written, so an older plan never replaces a newer one."""
    monkeypatch.setattr(question, "PATIENCE", 0.0)
    asked, written = ask(tmp_path), list[bool]()
    timer = lock_for_a_moment(asked, lambda: written.append((asked.folder / campaign_file.FILE).exists()))
    left_behind = asked.folder / ".campaign.json.1.tmp"
    left_behind.touch()
    campaign = asked.update()
    timer.join()
    assert written == [False]
    assert campaign.path.exists()
    assert not left_behind.exists()
    line = f"rmsexp: waiting: {asked.folder} is being written by another process (id 17 on another)\n"
    assert capsys.readouterr().err == line


def test_half_and_quarter_octaves_follow_the_octaves(tmp_path: Path) -> None:
    asked = ask(tmp_path, rules=2)
    campaign = asked.update()
    assert len(campaign.jobs) + sum(job.stage == "tune" for job in campaign.coming()) == 2 * 13
    rounds = do(asked, value)
    assert sum(job.stage == "tune" for jobs in rounds for job in jobs) == 2 * 13
    rates = [sorted({job.rate for job in jobs}) for jobs in rounds]
    assert rates[:3] == [[1e-3, 2e-3, 4e-3], [1.414e-3, 2.828e-3], [1.682e-3, 2.378e-3]]
    assert {job.seed for job in rounds[3]} == {1001, 1002}
    assert [job.stage for job in rounds[4]] == ["final"] * 4
    stored = json.loads((asked.folder / campaign_file.FILE).read_text())
    assert (stored["rules"], stored["seeds"]["min_seeds"], stored["seeds"]["max_seeds"]) == (2, 2, 4)
    campaign = asked.update()
    assert all(not math.isnan(verdict.rates) for verdict in campaign.verdicts)
    assert campaign.remarks == ["not registered: the campaign's file has no digest of its rules"]


def test_a_single_rate_is_not_tuned(tmp_path: Path) -> None:
    asked = ask(tmp_path, rules=2, tune={"over": {"optim.lr": [2e-3]}})
    (jobs,) = do(asked, value)
    assert {(job.stage, job.rate) for job in jobs} == {("final", 2e-3)}
    assert [verdict.rates for verdict in asked.update().verdicts] == [0.0]
