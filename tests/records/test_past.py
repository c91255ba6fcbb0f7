"""Files that earlier processes left: damaged ones and those of another run are refused."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml

from rmsexp import config
from rmsexp.config import Job
from rmsexp.records import record
from rmsexp.records.past import Past, RefusedError, name_of
from rmsexp.system import atomic

ROWS: list[record.Row] = [{"step": step, "split": "test", "loss": 1.0} for step in (0, 4)]
FILES = (record.STATUS, record.RUN, record.CONFIG)


@pytest.fixture(scope="module")
def jobs() -> dict[str, Job]:
    words = {"job": [], "seed": ["seed=1"], "norm": ["norm=ln"], "lr": ["optim.lr=0.5"], "longer": ["max_steps=8"]}
    return {name: config.job(["max_steps=4", *more]) for name, more in words.items()}


@pytest.fixture
def folder(tmp_path: Path, jobs: dict[str, Job]) -> record.RunFolder:
    """A run that finished at step 4."""
    job, folder = jobs["job"], record.RunFolder(tmp_path / "seed0")
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


def test_an_undamaged_record_is_accepted(folder: record.RunFolder, jobs: dict[str, Job]) -> None:
    past = accepted(Past.read(folder), jobs["job"])
    assert [past.has_ended(steps) for steps in (2, 4, 8)] == [True, True, False]
    assert (past.step, past.checkpoint, past.sessions) == (4, 4, [{"from_step": 0}])


def test_a_run_that_has_not_begun_is_accepted(tmp_path: Path, jobs: dict[str, Job]) -> None:
    past = accepted(Past.read(record.RunFolder(tmp_path)), jobs["job"])
    assert not past.has_ended(4)
    assert (past.step, past.checkpoint, past.sessions) == (0, None, [])


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"{}", b"\xff\xfe\x00", b"[" * 100_000, b"a: &a [*a"])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_refused_in_one_line(
    folder: record.RunFolder, jobs: dict[str, Job], name: str, content: bytes
) -> None:
    path = folder.path / name
    path.write_bytes(content)
    with pytest.raises(RefusedError) as caught:
        accepted(Past.read(folder), jobs["job"])
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
    folder: record.RunFolder, jobs: dict[str, Job], name: str
) -> None:
    (folder.path / name).unlink()
    if name == record.STATUS:
        assert not accepted(Past.read(folder), jobs["job"]).has_ended(4)
        return
    with pytest.raises(RefusedError, match=f"^{folder.path / name} is missing; restore the file, or start a new run"):
        accepted(Past.read(folder), jobs["job"]).has_ended(4)
    folder.write_status("interrupted", 4)
    assert not accepted(Past.read(folder), jobs["job"]).has_ended(4)


def test_metrics_that_have_changed_since_the_end_are_refused(folder: record.RunFolder) -> None:
    folder.append(ROWS[:1])
    for steps in (4, 8):
        with pytest.raises(RefusedError, match=f"{folder.metrics_path} has changed since status.json was written"):
            Past.read(folder).has_ended(steps)


@pytest.mark.parametrize("job", ["seed", "norm", "lr"])
def test_the_folder_of_another_run_is_refused(folder: record.RunFolder, jobs: dict[str, Job], job: str) -> None:
    message = "holds the run cifar10/demo/rms/seed0; give the folder its old name back, or start a new run"
    with pytest.raises(RefusedError, match=f"{folder.path} {message} with force=true"):
        Past.read(folder).refuse_other(run=name_of(jobs[job]))


def test_another_config_and_other_data_are_refused(folder: record.RunFolder, jobs: dict[str, Job]) -> None:
    past = Past.read(folder)
    with pytest.raises(RefusedError, match=r"was begun with another config \(optim.lr is now 0.5\); start a new run"):
        past.refuse_other(config=jobs["lr"].resolved)
    with pytest.raises(RefusedError, match=r"was trained on other data \(digest data, now other\); set data.root"):
        past.refuse_other(data="other")


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
