"""What runs take, in uncontended seconds: from records, or from trials."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.campaign_runs import ask, write_run

from rmsexp import config
from rmsexp.campaign import plan, time_left
from rmsexp.campaign.campaign_file import Job
from rmsexp.campaign.question import Question
from rmsexp.campaign.runs import CampaignRuns
from rmsexp.campaign.time_left import Cost
from rmsexp.commands import summary
from rmsexp.records import record
from rmsexp.system import atomic, clock
from rmsexp.system.command_line import ReportedError
from rmsexp.work import cost, runner


def jobs(asked: Question) -> list[Job]:
    return list(plan.update(asked)[0].jobs)


@pytest.mark.usefixtures("quick_folders")
def test_the_time_that_threads_waited_does_not_count(tmp_path: Path) -> None:
    """A run of 20 steps has 20 seconds in each bucket. An evaluation takes a second; nothing is known of the parts."""
    asked = ask(tmp_path)
    first, second, third, *_ = jobs(asked)
    total = 20 * len(clock.BUCKETS)
    assert time_left.cost(write_run(asked, first).path) == Cost(total, 0)
    assert time_left.cost(write_run(asked, second, contention={"waited": 0.25}).path) == Cost(total / 1.25, 0)
    assert time_left.cost(write_run(asked, third, contention=None).path) == Cost(total, 0)


@pytest.mark.usefixtures("quick_folders")
def test_the_waiting_is_the_mean_over_the_processes_of_a_run(tmp_path: Path) -> None:
    asked = ask(tmp_path)
    files = write_run(asked, jobs(asked)[0], contention={"waited": 0.1})
    run = files.read_run()
    (first,) = run["sessions"]
    atomic.write_json(files.run_path, run | {"sessions": [first, first | {"contention": {"waited": 0.3}}]})
    assert time_left.waited(files) == pytest.approx(0.2)


@pytest.mark.usefixtures("quick_folders")
def test_runs_without_metrics(tmp_path: Path) -> None:
    asked = ask(tmp_path)
    first, second, *_ = jobs(asked)
    diverged = write_run(asked, first, math.nan)
    diverged.metrics_path.unlink()
    assert time_left.cost(diverged.path) == Cost(0, 0)
    damaged = write_run(asked, second)
    for times in (None, {"eval": "1"}, {"eval": 10**400}, {"eval": -1}):
        row = {"split": "train", "step": 1} | ({} if times is None else {"seconds": times})
        damaged.metrics_path.write_text(json.dumps(row) + "\n")
        with pytest.raises(ValueError, match="lacks times"):
            time_left.cost(damaged.path)


def test_evaluations_of_parts_and_of_the_whole_split() -> None:
    """The clock's times of evaluation up to steps 1, 2 (first examples) and 3, 4 (the whole split, too)."""
    steps = [(1, 2.0, False), (2, 4.0, False), (3, 11.0, True), (4, 18.0, True)]
    rows = [
        {"step": step, "split": split, "seconds": {"eval": seconds}}
        for step, seconds, both in steps
        for split in (["interim", "valid"] if both else ["interim"])
    ]
    assert time_left.evaluations(rows) == (2.0, 5.0)
    assert time_left.evaluations([]) == (0.0, 0.0)


def test_estimates_are_means_of_finished_runs() -> None:
    """A final run takes longer than a tuning run by three evaluations on test. A begun run has its own pace."""
    done = [Job("tune", "ln", 1e-3, seed, "") for seed in range(2)]
    finished: dict[Job, Cost] = dict(zip(done, (Cost(10, 1), Cost(20, 2)), strict=True))
    tried: list[str] = []

    def trial(job: Job) -> Cost | None:
        tried.append(job.norm)
        return Cost(100, 10) if job.norm == "rms" else None

    left = [Job(stage, norm, 1e-3, 7, "") for stage in ("tune", "final") for norm in ("ln", "rms", "none")]  # type: ignore[arg-type]
    found = time_left.seconds_left(left, finished, {}, trial=trial)
    assert list(found.values()) == [15, 100, None, 19.5, 130, None]
    assert tried == ["rms", "none"]
    final = Job("final", "ln", 1e-3, 0, "")
    assert time_left.seconds_left(left[3:4], finished | {final: Cost(50, 1)}, {}) == {left[3]: 50}
    assert time_left.seconds_left(left[:2], finished, {left[0]: 3.0}) == {left[0]: 3.0, left[1]: None}
    assert time_left.seconds_left(left[3:4], finished, {}, longer=2.0) == {left[3]: 34.5}


@pytest.mark.usefixtures("quick_folders")
def test_runs_of_another_machine_do_not_say_how_long_runs_take_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor do those of which one process was on another machine, and those of older records, which name none."""
    asked = ask(tmp_path)
    here, there, unknown, *_ = done = [job for job in jobs(asked) if job.norm == "ln"]
    write_run(asked, here)
    write_run(asked, there, machine={"id": "other"})
    path = write_run(asked, unknown).run_path
    older = json.loads(path.read_text())
    del older["sessions"][0]["machine"]
    path.write_text(json.dumps(older))
    assert [cost.is_from_this_machine(asked.results / job.folder) for job in done[:3]] == [True, False, False]
    tried: list[str] = []

    def trial(_: Any, job: Job) -> Cost:
        tried.append(job.norm)
        return Cost(100, 10)

    monkeypatch.setattr(cost, "trial", trial)
    summary.print_plan(CampaignRuns(asked))
    assert tried == ["rms"]
    shutil.rmtree(asked.results / here.folder)
    summary.print_plan(CampaignRuns(asked))
    assert tried == ["rms", "ln", "rms"]
    assert "trying 20 steps of ln, to estimate the cost" in capsys.readouterr().err


def test_a_trial_leaves_nothing_behind(tmp_path: Path) -> None:
    """It is done in a hidden folder of the campaign, does not evaluate test splits, and is removed afterwards."""
    asked, folders = ask(tmp_path), list[Path]()
    asked = replace(asked, words=(*asked.words, "logger=tensorboard"))
    original = runner.execute

    def execute(job: object, *arguments: object) -> runner.Outcome:
        assert arguments[0].pause is not None  # type: ignore[attr-defined]  # it pauses while others measure
        outcome = original(job, *arguments)  # type: ignore[arg-type]
        folders.append(job.folder)  # type: ignore[attr-defined]
        assert {row["split"] for row in record.read(folders[0]).metrics} == {"train", "interim", "valid"}
        assert job.config.logger.tensorboard is None  # type: ignore[attr-defined]
        assert list(record.find_runs(asked.results)) == []
        return outcome

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "execute", execute)
        found = cost.trial(CampaignRuns(asked), Job("tune", "rms", 1e-3, 0, ""))
    assert 0 <= found.evaluation < found.seconds < 60
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
        cost.trial(CampaignRuns(asked), Job("tune", "ln", 1e-3, 0, ""))
    assert [(schedule.steps, getattr(schedule, key)) for schedule in schedules] == [(200, 1)]


@pytest.mark.usefixtures("quick_folders")
@pytest.mark.parametrize(
    ("outcome", "error", "message"),
    [
        (runner.Outcome("failed", 0, "no data (traceback in x)"), ReportedError, "the trial of ln failed: no data$"),
        (runner.Outcome("interrupted", 3, "stopped", signum=15), SystemExit, "143"),
    ],
)
def test_a_trial_that_does_not_end(
    outcome: runner.Outcome, error: type[BaseException], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ask(tmp_path)
    monkeypatch.setattr(runner, "execute", lambda *_: outcome)
    with pytest.raises(error, match=message):
        cost.trial(CampaignRuns(asked), Job("tune", "ln", 1e-3, 0, ""))
    assert list(asked.folder.iterdir()) == []


def test_a_trial_that_diverges_has_no_cost(tmp_path: Path) -> None:
    assert cost.extrapolated(record.RunFolder(tmp_path), None) == Cost(0, 0)


def test_a_run_is_extrapolated_from_a_trial(tmp_path: Path) -> None:
    """Training is proportional to the steps; evaluations are twenty of the first examples, three of the whole split."""
    clock = {"warmup": 5.0, "data": 1.0, "train": 3.0, "eval": 1.0, "checkpoint": 9.0, "log": 9.0}
    rows = [{"step": 10, "split": "interim", "seconds": clock}]
    rows += [{"step": 20, "split": split, "seconds": clock | {"eval": 4.0}} for split in ("interim", "valid")]
    files = record.RunFolder(tmp_path)
    files.append(rows)
    atomic.write_json(files.run_path, {"dataset": {"digest": ""}, "sessions": [{"from_step": 0}]})
    whole = SimpleNamespace(max_steps=1000, evaluation="scored", eval_every=100)
    assert cost.extrapolated(files, whole) == Cost(5 + 4 * 50 + 20 * 1 + 3 * 2, 2)
    whole.evaluation = None  # then the trial had two evaluations, and the run has one before training, too
    assert cost.extrapolated(files, whole) == Cost(5 + 4 * 50 + 11 * 2, 0)
