"""What runs take, in undisturbed seconds: from records, or from trials."""

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.campaigns import ask

from rmsexp.campaign import progress
from rmsexp.campaign.campaign_file import Job
from rmsexp.records import record
from rmsexp.records.states import Run
from rmsexp.work import runner, worker


def test_estimates_are_means_of_finished_runs(tmp_path: Path) -> None:
    """Those of the stage before those of others; tuning runs may have fewer steps. A trial is made once for a norm."""
    finished = {Job("tune", "ln", 1e-3, seed, ""): seconds for seed, seconds in enumerate((10.0, 20.0))}
    left = [
        Job(stage, norm, 1e-3, seed, "")
        for stage in ("tune", "final")
        for norm in ("ln", "rms", "none")
        for seed in (7, 8)
    ]  # type: ignore[arg-type]
    tried: list[str] = []

    def trial(job: Job) -> float | None:
        tried.append(job.norm)
        return 100.0 if job.norm == "rms" else None

    def seconds(jobs: list[Job], done: dict[Job, float], longer: float = 1.0) -> list[float | None]:
        states = dict.fromkeys(done, "finished") | dict.fromkeys(jobs, "missing")
        named = {job._replace(folder=str(number)): state for number, (job, state) in enumerate(states.items())}
        times = dict(zip(map(str, range(len(done))), done.values(), strict=True))
        plan = progress.Plan({"all": list(named)}, named, (), longer)
        read = lambda folder: Run(folder, "", 0, seconds=times.get(folder.name))  # noqa: E731
        return [stage.seconds_left for stage in plan.progress(tmp_path, trial, read)]

    assert [seconds([job], finished, 2.0)[0] for job in left[::2]] == [15, 100, None, 30, 100, None]
    tried.clear()
    assert seconds(left, finished) == [None]
    assert tried == ["rms", "none"]
    assert seconds([left[6]], finished | {Job("final", "ln", 1e-3, 0, ""): 50.0}) == [50]


def test_a_trial_leaves_nothing_behind(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It is done in a hidden folder of the campaign, and is removed afterwards."""
    asked, folders = ask(tmp_path), list[Path]()
    asked = replace(asked, words=(*asked.words, "logger=tensorboard"))
    original = runner.execute

    def execute(job: object, *arguments: object) -> runner.Outcome:
        assert arguments[0].pauses  # type: ignore[attr-defined]  # it pauses while others measure
        outcome = original(job, *arguments)  # type: ignore[arg-type]
        folders.append(job.folder)  # type: ignore[attr-defined]
        assert job.config.logger.tensorboard is None  # type: ignore[attr-defined]
        assert list(record.find_runs(asked.results)) == []
        assert {row["split"] for row in record.RunFolder(job.folder).read_metrics()[0]} == {"train"}  # type: ignore[attr-defined]
        return outcome

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "execute", execute)
        found = worker.trial(asked, Job("tune", "rms", 1e-3, 0, ""))
    assert 0 < found < 60
    assert capfd.readouterr() == ("", "trying 20 steps of rms, to estimate the time of training\n")
    assert str(folders[0]).startswith(f"{asked.folder}/.trial-")
    assert list(asked.folder.iterdir()) == []
