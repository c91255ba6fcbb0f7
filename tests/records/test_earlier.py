"""Files that earlier processes left: damaged ones are renamed and named, and another run's are refused."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml

from rmsexp import config
from rmsexp.config import Job
from rmsexp.records import record
from rmsexp.records.earlier import UNCHECKED, Earlier, RefusedError, name_of
from rmsexp.system import atomic, readers

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
    metrics = folder.metrics_digest(folder.append(ROWS))
    folder.write_status("finished", 4, run=name_of(job), checkpoint=4, metrics=metrics)
    return folder


def refuse_all(earlier: Earlier, job: Job) -> None:
    earlier.refuse_other_run(job)
    earlier.refuse_other_config(job)
    earlier.refuse_other_data("data")


def test_an_undamaged_record_is_accepted(folder: record.RunFolder, jobs: dict[str, Job]) -> None:
    earlier = Earlier.read(folder)
    refuse_all(earlier, jobs["job"])
    assert (earlier.has_ended(jobs["job"]), earlier.has_ended(jobs["longer"])) == (True, False)
    assert earlier.contradiction(jobs["job"]) is None
    assert earlier.notices == earlier.repair() == []
    assert (earlier.step, earlier.sessions) == (4, [{"from_step": 0}])


def test_a_run_that_has_not_begun_is_accepted(tmp_path: Path, jobs: dict[str, Job]) -> None:
    earlier = Earlier.read(record.RunFolder(tmp_path))
    refuse_all(earlier, jobs["job"])
    assert not earlier.has_ended(jobs["job"])
    assert (earlier.repair(), earlier.step, earlier.sessions) == ([], 0, [])


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"{}", b"\xff\xfe\x00", b"[" * 100_000, b"a: &a [*a"])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named_and_kept_under_another_name(
    folder: record.RunFolder, jobs: dict[str, Job], name: str, content: bytes
) -> None:
    path = folder.path / name
    path.write_bytes(content)
    earlier = Earlier.read(folder)
    if (name, content) == (record.CONFIG, b"{}"):  # a valid config, but not the run's
        with pytest.raises(RefusedError, match="was begun with another config"):
            earlier.refuse_other_config(jobs["job"])
        return
    refuse_all(earlier, jobs["job"])
    assert earlier.has_ended(jobs["job"]) == (name != record.STATUS)
    (line,) = earlier.repair()
    assert line.startswith((f"{path} ", f"{path}, line ", f"{path}: "))
    assert line.endswith(f"; it is written again, and the damaged file is kept as {name}.old0")
    assert len(line) < 300 + len(str(path))
    assert "\n" not in line
    assert not path.exists()
    assert path.with_name(f"{name}.old0").read_bytes() == content


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(folder: record.RunFolder, jobs: dict[str, Job], name: str) -> None:
    (folder.path / name).unlink()
    earlier = Earlier.read(folder)
    refuse_all(earlier, jobs["job"])
    assert earlier.repair() == [f"{folder.path / name} is missing; it is written again"]


def test_files_that_a_process_did_not_write_before_it_died_are_not_missing(tmp_path: Path) -> None:
    folder = record.RunFolder(tmp_path)
    folder.write_status("running", 0)
    assert Earlier.read(folder).repair() == []


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ("seed", "holds the run cifar10/demo/rms/seed0; give the folder its old name back, or start a new run"),
        ("norm", "holds the run cifar10/demo/rms/seed0; give the folder its old name back, or start a new run"),
        ("lr", "holds the run cifar10/demo/rms/seed0; give the folder its old name back, or start a new run"),
    ],
)
def test_the_folder_of_another_run_is_refused(
    folder: record.RunFolder, jobs: dict[str, Job], job: str, message: str
) -> None:
    with pytest.raises(RefusedError, match=f"{folder.path} {message} with force=true"):
        Earlier.read(folder).refuse_other_run(jobs[job])


def test_another_config_and_other_data_are_refused(folder: record.RunFolder, jobs: dict[str, Job]) -> None:
    earlier = Earlier.read(folder)
    with pytest.raises(RefusedError, match=r"was begun with another config \(optim.lr is now 0.5\); start a new run"):
        earlier.refuse_other_config(jobs["lr"])
    with pytest.raises(RefusedError, match=r"was trained on other data \(digest data, now other\); set data.root"):
        earlier.refuse_other_data("other")


@pytest.mark.parametrize("kind", ["subwords", "words"])
def test_other_subwords_and_words_are_refused(folder: record.RunFolder, kind: str) -> None:
    run = json.loads(folder.run_path.read_text())
    for notes, now, refused in (
        ({kind: "a"}, {kind: "a"}, False),
        ({kind: "a"}, {kind: "b"}, True),
        ({}, {kind: "b"}, False),  # an older record
    ):
        atomic.write_json(folder.run_path, run | {"notes": notes})
        with pytest.raises(RefusedError, match=f"was trained with other {kind}") if refused else nullcontext():
            Earlier.read(folder).refuse_other_tokens(now)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ({"status": "finished", "step": 8}, "says finished at step 8, but the metrics end at step 4"),
        ({"status": "diverged", "step": 3}, "says diverged at step 3, but the metrics end at step 4"),
        ({"status": "diverged", "step": 5}, None),
        ({"status": "finished", "step": 4}, None),
    ],
)
def test_the_status_of_an_older_version_is_compared_with_the_metrics(
    folder: record.RunFolder, jobs: dict[str, Job], status: dict[str, Any], message: str | None
) -> None:
    atomic.write_json(folder.status_path, status)
    earlier = Earlier.read(folder)
    assert earlier.has_ended(jobs["job"])
    contradiction = earlier.contradiction(jobs["job"])
    assert contradiction == (None if message is None else f"{folder.status_path} {message}")
    assert earlier.notices == [UNCHECKED]


def test_the_status_of_another_run_and_missing_metrics_contradict(
    folder: record.RunFolder, jobs: dict[str, Job]
) -> None:
    status = readers.read_json(folder.status_path)
    folder.write_status("finished", 4, run="another", checkpoint=4, metrics=status["metrics"])
    assert Earlier.read(folder).contradiction(jobs["job"]) == f"{folder.status_path} is of the run another"
    atomic.write_json(folder.status_path, status)
    folder.metrics_path.unlink()
    assert Earlier.read(folder).contradiction(jobs["job"]) == f"{folder.metrics_path} is missing"
