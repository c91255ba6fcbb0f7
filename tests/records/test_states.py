"""The states of runs, sweeps and campaigns, from complete, unfinished and damaged records."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.campaigns import Campaign
from helpers.records import make_row, write_run

from rmsexp.campaign import progress, results
from rmsexp.campaign.campaign_file import Job
from rmsexp.records import record
from rmsexp.records.states import Evaluation, Run, read_run
from rmsexp.system import atomic, clock

SECONDS = 40 / 9 + 0.3  # in the evaluation, checkpoints and log of a run of 400 steps, as write_run writes them


def run_in(results: Path) -> Run:
    """Return the state of the only run."""
    (run,) = progress.read(results).runs
    return run


def test_a_finished_run_has_its_last_evaluation_and_time(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "ln", steps=400)
    rows, _ = record.RunFolder(folder).read_metrics()
    run = run_in(tmp_path)
    assert (run.folder, run.state, run.step, run.steps, run.error) == (folder, "finished", 400, 400, None)
    assert (run.series, run.setting, run.problems) == ("ln", folder.parents[1], ())
    assert run.evaluation == Evaluation(400, "test", "error", rows[-1]["error"])
    assert run.seconds == pytest.approx(40 + SECONDS)
    assert run.seconds_left == 0


def test_a_running_run_is_as_far_as_its_metrics_and_has_time_left(tmp_path: Path) -> None:
    folder = write_run(tmp_path, steps=400, status="running")
    atomic.write_json(folder / record.STATUS, {"status": "running", "step": 100, "error": None})  # at a checkpoint
    (folder / record.CONFIG).write_text("max_steps: 1000\n")
    with record.RunFolder(folder).locked():
        run = run_in(tmp_path)
    assert (run.state, run.step, run.steps) == ("running", 400, 1000)
    assert run.seconds_per_step == pytest.approx((40 + SECONDS) / 400)
    assert run.seconds_left == pytest.approx(1.5 * (40 + SECONDS))


def test_a_run_without_a_process_is_interrupted_at_its_checkpoint(tmp_path: Path) -> None:
    folder = write_run(tmp_path, steps=400, status="running")
    atomic.write_json(folder / record.STATUS, {"status": "running", "step": 100, "error": None})
    run = run_in(tmp_path)
    assert (run.state, run.step, run.steps) == ("interrupted", 100, None)
    assert run.error == "the process died without writing a status"
    assert run.seconds_left is None  # the number of steps is unknown


def test_a_run_that_failed_before_its_first_step_has_only_a_status(tmp_path: Path) -> None:
    folder = tmp_path / "rnnsearch/small/rms/seed0"
    folder.mkdir(parents=True)
    record.RunFolder(folder).write_status("failed", 0, "no data\nget some")
    run = run_in(tmp_path)
    assert (run.state, run.step, run.error, run.problems) == ("failed", 0, "no data\nget some", ())
    assert run.evaluation is run.seconds_left is None


# --- evaluations


def write_rows(folder: Path, rows: list[record.Row], **target: str) -> Run:
    folder.mkdir(parents=True, exist_ok=True)
    target = {"split": "test", "selection": "valid", "metric": "error", "mode": "min"} | target
    atomic.write_json(folder / record.RUN, {"target": target, "dataset": {"digest": "0"}, "sessions": []})
    (folder / record.METRICS).unlink(missing_ok=True)
    record.RunFolder(folder).append(rows)
    record.RunFolder(folder).write_status("interrupted", 5)
    return read_run(folder)


def row(split: str, step: int, error: float | None) -> record.Row:
    return make_row(step, 1.0, split) | {"error": error}


def test_the_evaluation_is_on_the_targets_split_if_that_was_evaluated_last(tmp_path: Path) -> None:
    rows = [row("train", 10, 0.1), row("valid", 10, 0.2), row("test", 10, 0.3), row("interim", 10, 0.4)]
    assert write_rows(tmp_path, rows).evaluation == Evaluation(10, "test", "error", 0.3)
    rows += [row("interim", 20, 0.5), row("valid", 20, 0.6)]
    assert write_rows(tmp_path, rows).evaluation == Evaluation(20, "valid", "error", 0.6)
    rows += [row("interim", 30, None), row("train", 31, 0.7)]
    assert write_rows(tmp_path, rows).evaluation == Evaluation(30, "interim", "error", None)
    assert write_rows(tmp_path, rows, metric="bleu").evaluation is None


@pytest.mark.parametrize("count", [0, 200])
def test_the_evaluation_may_be_far_from_the_end_of_the_metrics(tmp_path: Path, count: int) -> None:
    run = write_rows(tmp_path, [row("test", 1, 0.25)] + [row("train", step, 0.1) for step in range(2, count + 2)])
    assert run.evaluation == Evaluation(1, "test", "error", 0.25)
    assert run.seconds == 5 * (count + 1)  # make_row: `step` seconds in each of 5 buckets but the warm-up


# --- damage


def remove(path: Path) -> None:
    path.unlink()


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize("damage", [remove, make_folder, cut])
@pytest.mark.parametrize("name", [record.STATUS, record.RUN, record.METRICS])
def test_a_damaged_file_of_an_ended_run_is_a_problem(tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    folder = write_run(tmp_path, steps=40)
    files = record.RunFolder(folder)
    files.write_status("finished", 40)
    assert not progress.read(tmp_path).problems
    damage(folder / name)
    overview = progress.read(tmp_path)
    assert [run.state for run in overview.runs] == ["unknown" if name == record.STATUS else "finished"]
    problem = overview.problems[0]
    assert str(folder / name) in problem
    if damage is remove:
        assert problem == f"{folder / name} is missing"


VALUES: tuple[Any, ...] = (None, True, -1, 1e308, 10**400, "x", [], {}, [{}], {"a": 1})


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{value!s:.10}")
def test_strange_values_in_records_are_no_mistake_of_the_program(tmp_path: Path, value: Any) -> None:
    folder = write_run(tmp_path, steps=40, target={"metric": value, "split": value, "selection": value})
    changes: list[dict[str, Any]] = [{key: value} for key in ("step", "split", "seconds", "error")]
    changes += [{"seconds": dict.fromkeys(clock.BUCKETS, value)}, {"step": 1e308}]
    for change in changes:
        atomic.write_json(folder / record.STATUS, {"status": "running", "step": 7, "error": value})
        (folder / record.CONFIG).write_text(f"max_steps: {json.dumps(value)}\n")
        for metric in ("error", value):
            target = {"metric": metric, "split": "test"}
            stored = {"target": target, "dataset": {"digest": "0"}, "sessions": []}
            atomic.write_json(folder / record.RUN, stored)
            (folder / record.METRICS).write_text(json.dumps(row("test", 3, 0.5) | change) + "\n")
            run = run_in(tmp_path)
            assert run.state == ("interrupted" if value is None or value == "x" else "unknown")
            assert run.seconds_left is None or 0 <= run.seconds_left < 1e30


def test_a_folder_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nothing is no folder; name the folder of your results"):
        progress.read(tmp_path / "nothing")


# --- campaigns


@pytest.fixture
def campaign() -> Campaign:
    """Return a campaign of two norms with four tuning runs and two final runs each."""
    return Campaign(
        level={"ln": 16.0, "rms": 16.1}, best={"ln": 0.001, "rms": 0.001}, grid=(0.001, 0.002), seeds=2, claims=()
    )


def stages(root: Path) -> dict[str, dict[str, int]]:
    (found,) = progress.read(root).campaigns
    return {stage.name: dict(stage.states) for stage in found.stages}


def test_a_campaign_has_the_states_of_its_runs_by_stage(tmp_path: Path, campaign: Campaign) -> None:
    campaign.gone, campaign.diverged = {("rms", 1)}, {("ln", 0)}
    campaign.write(tmp_path)
    assert stages(tmp_path) == {"tune": {"finished": 26}, "final": {"finished": 2, "diverged": 1, "not started": 1}}
    (found,) = progress.read(tmp_path).campaigns
    assert (found.name, found.question) == ("quality_cifar10", "Does RMSNorm match LayerNorm on cifar10?")
    assert [stage.left for stage in found.stages] == [0, 1]
    assert found.seconds_left == pytest.approx(110)  # as the other final run of its norm: 1000 steps of 0.11 s
    assert found.next == f"python -m rmsexp.campaign quality_cifar10 results={tmp_path}"


def test_the_default_folder_is_not_named_in_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, campaign: Campaign
) -> None:
    campaign.write_file(tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    (found,) = progress.read(Path("results")).campaigns
    assert found.next == "python -m rmsexp.campaign quality_cifar10"
    assert found.seconds_left is None


def test_time_left_without_finished_runs_of_the_stage_is_that_of_other_stages(
    tmp_path: Path, campaign: Campaign
) -> None:
    campaign.gone = {(norm, seed) for norm in ("ln", "rms") for seed in range(2)}
    campaign.write(tmp_path)
    (found,) = progress.read(tmp_path).campaigns
    assert found.seconds_left == pytest.approx(4 * 110)


def test_runs_that_come_count_in_the_total_and_in_the_time_left(
    tmp_path: Path, campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tuning runs but one are there, and no final runs: two more of each norm come, which take 110 s."""
    campaign.needed = None
    path = campaign.write(tmp_path)
    content = json.loads(path.read_text())
    content["jobs"] = [job for job in content["jobs"] if job["stage"] == "tune"]
    path.write_text(json.dumps(content))
    (tmp_path / content["jobs"][0]["folder"] / record.STATUS).write_text('{"status": "failed", "step": 0, "error": ""}')

    coming = [Job("final", norm, 0.001, seed, "") for norm in ("ln", "rms") for seed in range(2)]
    monkeypatch.setattr(results.Campaign, "coming", lambda *_: coming)
    (found,) = progress.read(tmp_path).campaigns
    stages = [(stage.name, stage.left, stage.coming) for stage in found.stages]
    assert stages == [("tune", 1, 0), ("final", 0, 4)]
    assert found.seconds_left == pytest.approx(5 * 110)


def test_time_left_of_an_interrupted_run_is_at_its_own_pace(tmp_path: Path, campaign: Campaign) -> None:
    campaign.write(tmp_path)
    folder = tmp_path / campaign.final()[0].folder
    (folder / record.STATUS).write_text('{"status": "interrupted", "step": 600, "error": null}')
    (folder / record.CONFIG).write_text("max_steps: 1000\n")
    (found,) = progress.read(tmp_path).campaigns
    assert found.seconds_left == pytest.approx(0.11 * 400)


def test_the_next_command_has_the_changes_that_were_typed_or_is_the_report(tmp_path: Path, campaign: Campaign) -> None:
    campaign.changes = {"name": "quality+norms=ln-mine", "command": ["quality", "norms=[ln,mine]"]}
    campaign.write_file(tmp_path / "begun")
    (found,) = progress.read(tmp_path / "begun").campaigns
    assert found.next == f"python -m rmsexp.campaign quality 'norms=[ln,mine]' results={tmp_path / 'begun'}"
    campaign.write(tmp_path / "done")
    (found,) = progress.read(tmp_path / "done").campaigns
    assert (found.seconds_left, found.next) == (0, f"python -m rmsexp.report {tmp_path / 'done'}")


def test_a_damaged_campaign_is_a_problem(tmp_path: Path, campaign: Campaign) -> None:
    path = campaign.write_file(tmp_path)
    path.write_text(path.read_text().replace('"jobs"', '"job"'))
    overview = progress.read(tmp_path)
    assert (overview.campaigns, overview.problems) == ([], [f"{path}: it has no jobs"])
