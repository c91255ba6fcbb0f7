"""The record on disk: writes are atomic, damaged files are read up to the damage, and one process writes at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from helpers.records import write_run

from rmsexp.commands import result
from rmsexp.records import record
from rmsexp.system import atomic, readers

HOLDER = """
import sys
from pathlib import Path
from rmsexp.records import record
with record.RunFolder(Path(sys.argv[1])).lock.held():
    print("held", flush=True)
    sys.stdin.read()
"""
ROWS: list[record.Row] = [{"step": step, "split": "train", "loss": 1 / (step + 1)} for step in range(3)]


@pytest.fixture
def folder(tmp_path: Path) -> record.RunFolder:
    (tmp_path / "seed0").mkdir()
    return record.RunFolder(tmp_path / "seed0")


@pytest.fixture
def holder(folder: record.RunFolder) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of ``folder``."""
    command = [sys.executable, "-c", HOLDER, str(folder.path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_appended_rows_are_read_in_order(folder: record.RunFolder) -> None:
    first = folder.append(ROWS[:2])
    assert folder.append(ROWS[2:]) == folder.metrics_path.stat().st_size > first
    assert folder.read_metrics() == (ROWS, None)


def test_a_row_that_is_not_json_is_not_written(folder: record.RunFolder) -> None:
    folder.append(ROWS)
    with pytest.raises(ValueError, match="not JSON compliant"):
        folder.append([{"step": 3, "split": "train", "loss": float("nan")}])
    assert folder.read_metrics() == (ROWS, None)


NO_ROWS = (b'{"step": 3, "spl', b'{"split": "train"}', b'{"step": "1", "split": "train"}', b'{"step": 1, "split": 2}')


@pytest.mark.parametrize("line", [*NO_ROWS, b"null", b"[1, 2]", b"[" * 100_000, b"\xff\xfe"])
def test_reading_stops_at_the_first_damaged_line_and_names_it(folder: record.RunFolder, line: bytes) -> None:
    folder.append(ROWS)
    with folder.metrics_path.open("ab") as file:
        file.write(line + f"\n{json.dumps(ROWS[0])}\n".encode())
    rows, warning = folder.read_metrics()
    assert rows == ROWS
    assert warning.startswith(f"{folder.metrics_path}:4: ")


def test_a_file_truncated_at_any_byte_keeps_the_rows_before(folder: record.RunFolder) -> None:
    ends = [folder.append([row]) for row in ROWS]
    whole = folder.metrics_path.read_bytes()
    for length in range(len(whole) + 1):
        folder.metrics_path.write_bytes(whole[:length])
        rows, warning = folder.read_metrics()
        complete = sum(end - 1 <= length for end in ends)  # a row is complete without its line break
        assert rows == ROWS[:complete]
        assert (warning is None) == (length in {0, *ends, *(end - 1 for end in ends)})


@pytest.mark.parametrize("status", ["running", "interrupted", "failed", "finished", "diverged"])
def test_metrics_that_changed_since_the_status_was_written_are_named(
    folder: record.RunFolder, status: record.Status
) -> None:
    """Only the record of a run that has ended is complete."""
    folder.append(ROWS[:2])
    folder.write_status(status, 1)
    assert folder.read_metrics() == (ROWS[:2], None)
    folder.append(ROWS[2:])
    rows, problem = folder.read_metrics()
    assert rows == ROWS
    changed = f"{folder.metrics_path} has changed since status.json was written: its digest is another"
    assert problem == (changed if status in record.ENDED else None)


def test_cut_drops_the_rows_that_a_restarted_run_writes_again(folder: record.RunFolder) -> None:
    length = folder.append(ROWS[:1])
    folder.append(ROWS[1:])
    with folder.metrics_path.open("a") as file:
        file.write('{"step": 9')
    folder.cut_metrics(length)
    assert folder.metrics_path.stat().st_size == length
    folder.append(ROWS[1:])
    assert folder.read_metrics() == (ROWS, None)


def test_cut_refuses_a_file_that_lost_rows(folder: record.RunFolder) -> None:
    length = folder.append(ROWS)
    with pytest.raises(ValueError, match=f"{length} bytes, fewer than the {length + 1}"):
        folder.cut_metrics(length + 1)
    assert folder.read_metrics() == (ROWS, None)
    folder.metrics_path.unlink()
    with pytest.raises(ValueError, match="has 0 bytes"):
        folder.cut_metrics(9)
    assert not folder.metrics_path.exists()


@pytest.mark.parametrize("broken", [(os, "fsync"), (Path, "replace")], ids=str)
def test_write_atomic_replaces_the_file_or_leaves_it_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: tuple[object, str]
) -> None:
    path = tmp_path / "file"
    for content in ("text\n", b"\x00\xff", "old"):
        atomic.write_atomic(path, content)
        assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    monkeypatch.setattr(*broken, Mock(side_effect=OSError(28, "No space left on device")))
    for name in ("file", "another"):
        with pytest.raises(OSError, match="No space"):
            atomic.write_atomic(tmp_path / name, "new")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"file": "old"}


def test_moving_the_folder_aside_keeps_its_lock_and_its_content(folder: record.RunFolder) -> None:
    for number in range(2):
        folder.path.mkdir(exist_ok=True)
        (folder.path / "file").write_text(str(number))
        with folder.lock.held():
            folder.move_aside()
            assert folder.is_locked()
        assert not folder.path.exists()
    folder.move_aside()  # does nothing without a folder
    for number in range(2):
        assert (folder.path.with_name(f"seed0.old{number}") / "file").read_text() == str(number)
    assert not folder.path.with_name("seed0.old2").exists()


def test_temporaries_of_the_run_and_of_its_checkpoints_are_removed(folder: record.RunFolder) -> None:
    folder.checkpoints.mkdir()
    names = [folder.path / record.STATUS, folder.checkpoints / "last.pt"]
    for path in names:
        path.write_text("")
        path.with_name(f".{path.name}.17.tmp").write_text("")
    folder.remove_temporaries()
    assert sorted(path for path in folder.path.rglob("*") if path.is_file()) == sorted(names)


def test_running_without_a_living_process_is_interrupted(
    folder: record.RunFolder, holder: subprocess.Popen[str]
) -> None:
    atomic.write_json(folder.status_path, {"status": "running", "step": 7})
    assert folder.read_status() == {"status": "running", "step": 7}
    holder.kill()
    holder.wait()
    error = "the process died without writing a status"
    assert folder.read_status() == {"status": "interrupted", "step": 7, "error": error}
    assert readers.read_json(folder.status_path)["status"] == "running"  # reading changes nothing


def test_a_run_that_ends_while_its_status_is_read_is_not_called_dead(
    folder: record.RunFolder, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process writes the status and frees the lock after the file was read, and before the lock is looked at."""
    atomic.write_json(folder.status_path, {"status": "running", "step": 7})

    def end() -> bool:
        atomic.write_json(folder.status_path, {"status": "finished", "step": 8})
        return False

    assert holder.poll() is None
    monkeypatch.setattr(record.RunFolder, "is_locked", lambda _: end())
    assert folder.read_status() == {"status": "finished", "step": 8}


EDITED = {"status": "diverged", "step": 8, "error": "x", "run": "x", "checkpoint": 8, "metrics": None, "digest": "x"}


@pytest.mark.parametrize(("key", "value"), EDITED.items())
def test_a_status_that_was_edited_is_refused(folder: record.RunFolder, key: str, value: object) -> None:
    folder.write_status("finished", 4, "why", run="a", checkpoint=4)
    expected = {"status": "finished", "step": 4, "error": "why", "process": os.getpid()}
    assert expected.items() <= folder.read_status().items()
    for content in (
        {k: v for k, v in readers.read_json(folder.status_path).items() if k != "digest"},
        readers.read_json(folder.status_path) | {key: value},
    ):
        atomic.write_json(folder.status_path, content)
        with pytest.raises(ValueError, match=rf"{folder.status_path} has changed since it was written"):
            folder.read_status()


def test_sources_replace_those_of_an_earlier_session(folder: record.RunFolder) -> None:
    for sources in ({"mine": b"x", "helper": b"y"}, {"mine": b"z"}, {}):
        folder.write_sources(sources)
        assert folder.read_sources() == sources


@pytest.mark.parametrize("name", [record.RUN, record.STATUS, record.METRICS])
def test_read_returns_the_whole_record(tmp_path: Path, name: str) -> None:
    folder = write_run(tmp_path, "ln", seed=2)
    read = result.read(folder)
    assert (read.run["series"], read.run["seed"], read.status["status"]) == ("ln", 2, "finished")
    assert read.metrics == record.RunFolder(folder).read_metrics()[0] != []
    (folder / name).unlink()
    with pytest.raises(OSError, match=name):
        result.read(folder)


def test_find_runs_in_order_without_those_moved_aside_or_hidden(tmp_path: Path) -> None:
    runs = [write_run(tmp_path, series, seed) for series in ("bn", "ln+eps=0.1") for seed in (0, 1)]
    for series, name in (("bn", "seed0.old0"), ("bn", "seed0.old11"), (".hydra", "seed0")):
        folder = tmp_path / "cifar10" / "demo" / series / name
        folder.mkdir(parents=True)
        atomic.write_json(folder / record.RUN, {})
    (tmp_path / "cifar10" / "demo" / "rms" / "seed0").mkdir(parents=True)  # a run that has not begun
    assert list(record.find_runs(tmp_path)) == runs
    assert list(record.find_runs(tmp_path / "cifar10" / "demo" / "bn")) == runs[:2]
    assert list(record.find_runs(tmp_path / "nothing")) == []
    (runs[0] / record.RUN).unlink()
    (runs[1] / record.METRICS).unlink()
    assert list(record.find_runs(tmp_path)) == runs


def test_runs_in_linked_folders_are_found_once(tmp_path: Path) -> None:
    """A task's folder may be a link to a larger disk; links inside of the results, and circles, add nothing."""
    results, disk = tmp_path / "results", tmp_path / "disk"
    here, there = write_run(results), write_run(disk)
    (results / "linked").symlink_to(disk / "cifar10")
    (results / "again").symlink_to(results / "cifar10")
    (results / "up").symlink_to(tmp_path)
    (disk / "cifar10" / "circle").symlink_to(disk / "cifar10")
    assert list(record.find_runs(results)) == [here, results / "linked" / there.relative_to(disk / "cifar10")]


@pytest.mark.parametrize(
    ("name", "content", "key"),
    [
        (record.STATUS, {}, "status"),
        (record.STATUS, {"status": "done", "step": 1}, "status is 'done'"),
        (record.STATUS, {"status": "failed", "step": -1}, "step is "),
        (record.STATUS, {"status": "failed", "step": True}, "step is "),
        (record.RUN, {"dataset": {}, "sessions": []}, "dataset has no digest"),
        (record.RUN, {"dataset": {"digest": "a"}, "sessions": [{"from_step": "0"}]}, r"sessions\[0\].from_step"),
    ],
)
def test_a_file_with_impossible_values_is_refused(
    folder: record.RunFolder, name: str, content: dict[str, object], key: str
) -> None:
    atomic.write_json(folder.path / name, content)
    with pytest.raises(ValueError, match=f"{folder.path / name}: .*{key}"):
        folder.read_status() if name == record.STATUS else folder.read_run()
