"""What runs take, in uncontended seconds: from records, or from trials."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.campaigns import ask, write_run

from rmsexp import config
from rmsexp.campaign import progress
from rmsexp.campaign.campaign_file import Job
from rmsexp.campaign.question import Question
from rmsexp.records import record
from rmsexp.system import atomic, clock
from rmsexp.system.command_line import ReportedError
from rmsexp.work import cost, runner


def jobs(asked: Question) -> list[Job]:
    return list(asked.update().jobs)


@pytest.mark.usefixtures("quick_folders")
def test_the_time_that_threads_waited_does_not_count(tmp_path: Path) -> None:
    """A run of 20 steps has 20 seconds in each bucket. The waiting is the mean over the processes of a run."""
    asked = ask(tmp_path)
    first, second, third, damaged, *_ = jobs(asked)
    whole = 20 * len(clock.BUCKETS)
    assert progress.cost(write_run(asked, first).path) == whole
    assert progress.cost(write_run(asked, second, contention=None).path) == whole
    files = write_run(asked, third, contention={"waited": 0.1})
    run = files.read_run()
    (session,) = run["sessions"]
    atomic.write_json(files.run_path, run | {"sessions": [session, session | {"contention": {"waited": 0.3}}]})
    assert progress.cost(files.path) == pytest.approx(whole / 1.2)
    files = write_run(asked, damaged)
    for row in ("", '{"split": "train", "step": 1}', '{"split": "train", "step": 1, "seconds": {"eval": -1}}'):
        files.metrics_path.write_text(row)
        assert progress.cost(files.path) == 0


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
        plan = progress.Plan({"all": [*done, *jobs]}, states, (), longer)
        return [stage.seconds_left for stage in plan.progress(tmp_path, done, trial)]

    assert [seconds([job], finished, 2.0)[0] for job in left[::2]] == [15, 100, None, 30, 100, None]
    tried.clear()
    assert seconds(left, finished) == [None]
    assert tried == ["rms", "none"]
    assert seconds([left[6]], finished | {Job("final", "ln", 1e-3, 0, ""): 50.0}) == [50]


def test_a_trial_leaves_nothing_behind(tmp_path: Path) -> None:
    """It is done in a hidden folder of the campaign, does not evaluate test splits, and is removed afterwards."""
    asked, folders = ask(tmp_path), list[Path]()
    asked = replace(asked, words=(*asked.words, "logger=tensorboard"))
    original = runner.execute

    def execute(job: object, *arguments: object) -> runner.Outcome:
        assert arguments[0].pauses  # type: ignore[attr-defined]  # it pauses while others measure
        outcome = original(job, *arguments)  # type: ignore[arg-type]
        folders.append(job.folder)  # type: ignore[attr-defined]
        assert {row["split"] for row in record.RunFolder(folders[0]).read_metrics()[0]} == {"train", "interim", "valid"}
        assert job.config.logger.tensorboard is None  # type: ignore[attr-defined]
        assert list(record.find_runs(asked.results)) == []
        return outcome

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "execute", execute)
        found = cost.trial(asked, Job("tune", "rms", 1e-3, 0, ""))
    assert 0 < found < 60
    assert str(folders[0]).startswith(f"{asked.folder}/.trial-")
    assert list(asked.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("task", "key", "value"), [("language_model", "warmup", 300), ("cifar10", "period", 300)], ids=("warm-up", "period")
)
def test_the_parts_of_a_schedule_fit_a_trial(
    task: str, key: str, value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {"task": task, "scale": "demo", "schedule.steps": 1000, f"schedule.{key}": value}
    runs |= {"data.validation": 100} if task == "cifar10" else {}
    asked = ask(tmp_path, runs=runs)
    schedules = list[Any]()

    def execute(job: config.Job, *_: object) -> runner.Outcome:
        schedules.append(job.config.schedule)
        return runner.Outcome("failed", 0, "not run")

    monkeypatch.setattr(runner, "execute", execute)
    with pytest.raises(ReportedError, match="not run"):
        cost.trial(asked, Job("tune", "ln", 1e-3, 0, ""))
    assert [(schedule.steps, getattr(schedule, key)) for schedule in schedules] == [(200, 1)]


def test_a_run_is_extrapolated_from_a_trial(tmp_path: Path) -> None:
    """Training is proportional to the steps; evaluations are twenty of the first examples, three of the whole split."""
    clock = {"warmup": 5.0, "data": 1.0, "train": 3.0, "eval": 1.0, "checkpoint": 9.0, "log": 9.0}
    rows = [{"step": 10, "split": "interim", "seconds": clock}]
    rows += [{"step": 20, "split": split, "seconds": clock | {"eval": 4.0}} for split in ("interim", "valid")]
    files = record.RunFolder(tmp_path)
    assert cost.extrapolated(files, None) == 0  # it diverged
    files.append(rows)
    atomic.write_json(files.run_path, {"dataset": {"digest": ""}, "sessions": [{"from_step": 0}]})
    whole = SimpleNamespace(max_steps=1000, evaluation="scored", eval_every=100)
    assert cost.extrapolated(files, whole) == 5 + 4 * 50 + 20 * 1 + 3 * 2
    whole.evaluation = None  # then the trial had two evaluations, and the run has one before training, too
    assert cost.extrapolated(files, whole) == 5 + 4 * 50 + 11 * 2
