"""The states of runs and campaigns, and what is refused, from complete, unfinished and damaged records."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.campaigns import Campaign
from helpers.records import edit, make_row, write_run

from rmsexp import config
from rmsexp.campaign import progress, results
from rmsexp.campaign.campaign_file import Job as CampaignJob
from rmsexp.config import Job
from rmsexp.records import record
from rmsexp.records.states import Past, RefusedError, Run, name_of, read_run
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
    assert run.evaluation == f"test error {rows[-1]['error']:.4f}"
    assert run.seconds == pytest.approx(40 + SECONDS)
    assert run.seconds_left == 0


def test_a_running_run_is_as_far_as_its_metrics_and_has_time_left(tmp_path: Path) -> None:
    folder = write_run(tmp_path, steps=400, status="running")
    atomic.write_json(folder / record.STATUS, {"status": "running", "step": 100, "error": None})  # at a checkpoint
    (folder / record.CONFIG).write_text("max_steps: 1000\n")
    with record.RunFolder(folder).lock.held():
        run = run_in(tmp_path)
    assert (run.state, run.step, run.steps) == ("running", 400, 1000)
    assert run.seconds_left == pytest.approx(1.5 * (40 + SECONDS))


def test_a_run_without_a_process_is_interrupted_at_its_checkpoint(tmp_path: Path) -> None:
    folder = write_run(tmp_path, steps=400, status="running")
    atomic.write_json(folder / record.STATUS, {"status": "running", "step": 100, "error": None})
    run = run_in(tmp_path)
    assert (run.state, run.step, run.steps) == ("interrupted", 100, None)
    assert run.error == "the process died without writing a status"
    assert run.seconds_left is None  # the number of steps is unknown
    edit(folder / record.RUN, lambda content: content.update(impl="own"))
    assert run_in(tmp_path).step == 400  # a Recorder has no checkpoint


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
    rows = [row("train", 10, 0.1), row("valid", 10, 0.2), row("test", 10, 0.3), row("valid_sample", 10, 0.4)]
    assert write_rows(tmp_path, rows).evaluation == "test error 0.3000"
    rows += [row("valid_sample", 20, 0.5), row("valid", 20, 0.6)]
    assert write_rows(tmp_path, rows).evaluation == "valid error 0.6000"
    rows += [row("interim", 30, None), row("train", 31, 0.7)]  # the name of valid_sample in older records
    assert write_rows(tmp_path, rows).evaluation == "valid_sample error nan"
    assert write_rows(tmp_path, rows, metric="bleu").evaluation == ""


# --- damage


@pytest.mark.parametrize("is_missing", [True, False])
@pytest.mark.parametrize("name", [record.STATUS, record.RUN, record.METRICS])
def test_a_damaged_file_of_an_ended_run_is_a_problem(tmp_path: Path, name: str, is_missing: bool) -> None:
    folder = write_run(tmp_path, steps=40)
    record.RunFolder(folder).write_status("finished", 40)
    assert not progress.read(tmp_path).problems
    path = folder / name
    content = path.read_bytes()
    path.unlink()
    if not is_missing:
        path.write_bytes(content[:-3])
    overview = progress.read(tmp_path)
    assert [run.state for run in overview.runs] == ["unknown"]
    assert str(path) in overview.problems[0]
    assert (overview.problems[0] == f"{path} is missing") == is_missing


@pytest.mark.parametrize(
    "value", [None, True, -1, 1e308, 10**400, "x", [], {}, [{}], {"a": 1}], ids=lambda value: f"{value!s:.10}"
)
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


# --- campaigns


@pytest.fixture
def campaign() -> Campaign:
    """Return a campaign of two norms with four tuning runs and two final runs each."""
    return Campaign(
        level={"ln": 16.0, "rms": 16.1}, best={"ln": 0.001, "rms": 0.001}, grid=(0.001, 0.002), seeds=2, claims=()
    )


def left(campaign: progress.CampaignState) -> float | None:
    return progress.total(stage.seconds_left for stage in campaign.stages)


def test_a_campaign_has_the_states_of_its_runs_by_stage(tmp_path: Path, campaign: Campaign) -> None:
    campaign.gone, campaign.diverged = {("rms", 1)}, {("ln", 0)}
    campaign.write(tmp_path)
    (found,) = progress.read(tmp_path).campaigns
    states = {stage.name: dict(stage.states) for stage in found.stages}
    assert states == {"tune": {"finished": 26}, "final": {"finished": 2, "diverged": 1, "not started": 1}}
    assert (found.name, found.question) == ("quality_cifar10", "Does RMSNorm match LayerNorm on cifar10?")
    assert left(found) == pytest.approx(110)  # as the other final run of its norm: 1000 steps of 0.11 s
    assert found.next == f"python -m rmsexp.campaign quality_cifar10 results={tmp_path}"


def test_runs_that_come_count_in_the_total_and_in_the_time_left(
    tmp_path: Path, campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tuning runs but one are there, and no final runs: two more of each norm come, which take 110 s each.

    The time of a run of a stage without finished runs is that of other stages.
    """
    campaign.needed = None
    path = campaign.write(tmp_path)
    content = json.loads(path.read_text())
    content["jobs"] = [job for job in content["jobs"] if job["stage"] == "tune"]
    path.write_text(json.dumps(content))
    (tmp_path / content["jobs"][0]["folder"] / record.STATUS).write_text('{"status": "failed", "step": 0, "error": ""}')

    coming = [CampaignJob("final", norm, 0.001, seed, "") for norm in ("ln", "rms") for seed in range(2)]
    monkeypatch.setattr(results.Campaign, "coming", lambda *_: coming)
    (found,) = progress.read(tmp_path).campaigns
    stages = [(stage.name, stage.coming) for stage in found.stages]
    assert stages == [("tune", 0), ("final", 4)]
    assert left(found) == pytest.approx(5 * 110)


def test_time_left_of_an_interrupted_run_is_at_its_own_pace(tmp_path: Path, campaign: Campaign) -> None:
    campaign.write(tmp_path)
    folder = tmp_path / campaign.final()[0].folder
    (folder / record.STATUS).write_text('{"status": "interrupted", "step": 600, "error": null}')
    (folder / record.CONFIG).write_text("max_steps: 1000\n")
    (found,) = progress.read(tmp_path).campaigns
    assert left(found) == pytest.approx(0.11 * 400)


def test_the_next_command_has_the_changes_that_were_typed_or_is_the_report(
    tmp_path: Path, campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign.changes = {"name": "quality+norms=ln-mine", "command": ["quality", "norms=[ln,mine]"]}
    campaign.write_file(tmp_path / "begun")
    (found,) = progress.read(tmp_path / "begun").campaigns
    assert found.next == f"python -m rmsexp.campaign quality 'norms=[ln,mine]' results={tmp_path / 'begun'}"
    campaign.write(tmp_path / "done")
    (found,) = progress.read(tmp_path / "done").campaigns
    assert (left(found), found.next) == (0, f"python -m rmsexp.report {tmp_path / 'done'}")
    monkeypatch.chdir(tmp_path)
    Campaign(best={}, level={}, claims=()).write_file(Path("results"))  # the default folder is not named
    assert progress.read(Path("results")).campaigns[0].next == "python -m rmsexp.campaign quality_cifar10"


# --- what earlier processes left: damaged files and those of another run are refused

ROWS: list[record.Row] = [{"step": step, "split": "test", "loss": 1.0} for step in (0, 4)]
FILES = (record.STATUS, record.RUN, record.CONFIG)


@pytest.fixture(scope="module")
def job() -> Job:
    return config.job(["max_steps=4"])


@pytest.fixture
def folder(tmp_path: Path, job: Job) -> record.RunFolder:
    """A run that finished at step 4."""
    folder = record.RunFolder(tmp_path / "seed0")
    folder.path.mkdir()
    run = {"task": "cifar10", "setting": job.setting, "series": job.series, "seed": 0}
    atomic.write_json(folder.run_path, run | {"dataset": {"digest": "data"}, "sessions": [{"from_step": 0}]})
    folder.config_path.write_text(yaml.safe_dump(job.resolved))
    folder.append(ROWS)
    folder.write_status("finished", 4, run=name_of(job), checkpoint=4)
    return folder


def accepted(past: Past, job: Job) -> Past:
    past.refuse_other(run=name_of(job), config=job.resolved, data="data")
    return past


def test_an_undamaged_record_is_accepted(folder: record.RunFolder, job: Job) -> None:
    past = accepted(Past.read(folder), job)
    assert [past.has_ended(steps) for steps in (2, 4, 8)] == [True, True, False]
    assert (past.step, past.checkpoint, past.sessions) == (4, 4, [{"from_step": 0}])


def test_a_run_that_has_not_begun_is_accepted(tmp_path: Path, job: Job) -> None:
    past = accepted(Past.read(record.RunFolder(tmp_path)), job)
    assert not past.has_ended(4)
    assert (past.step, past.checkpoint, past.sessions) == (0, None, [])


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"{}", b"\xff\xfe\x00", b"[" * 100_000, b"a: &a [*a"])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_refused_in_one_line(folder: record.RunFolder, job: Job, name: str, content: bytes) -> None:
    path = folder.path / name
    path.write_bytes(content)
    with pytest.raises(RefusedError) as caught:
        accepted(Past.read(folder), job)
    line = str(caught.value)
    if (name, content) == (record.CONFIG, b"{}"):  # a valid config, but not the run's
        assert "was begun with another config" in line
        return
    assert line.startswith((f"{path} ", f"{path}, line ", f"{path}: "))
    assert "; restore the file, or remove it, and it is written again; or start a new run with force=true" in line
    assert len(line) < 450 + len(str(path))
    assert "\n" not in line
    assert path.read_bytes() == content


@pytest.mark.parametrize("name", [*FILES, record.METRICS])
def test_a_file_that_is_missing_is_named_only_if_the_run_has_ended(
    folder: record.RunFolder, job: Job, name: str
) -> None:
    (folder.path / name).unlink()
    if name == record.STATUS:
        assert not accepted(Past.read(folder), job).has_ended(4)
        return
    with pytest.raises(RefusedError, match=f"^{folder.path / name} is missing; restore the file, or start a new run"):
        accepted(Past.read(folder), job).has_ended(4)
    folder.write_status("interrupted", 4)
    assert not accepted(Past.read(folder), job).has_ended(4)


@pytest.mark.parametrize("kind", ["subwords", "words"])
def test_other_subwords_and_words_are_refused(folder: record.RunFolder, kind: str) -> None:
    run = json.loads(folder.run_path.read_text())
    for notes, now, refused in (
        ({kind: "a"}, {kind: "a"}, False),
        ({kind: "a"}, {kind: "b"}, True),
        ({kind: "a"}, {}, True),
        ({}, {kind: "b"}, False),  # an older record
    ):
        atomic.write_json(folder.run_path, run | {"notes": notes})
        with pytest.raises(RefusedError, match=f"was trained with other {kind}") if refused else nullcontext():
            Past.read(folder).refuse_other(now)
