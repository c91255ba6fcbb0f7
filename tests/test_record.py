"""The record on disk: what is written is whole, what was cut short is read, and one process writes at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.records import write_run

from rmsexp import record

HOLDER = """
import sys
from pathlib import Path
from rmsexp import record
lock = record.Lock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""
ROWS: list[record.Row] = [{"step": step, "split": "train", "loss": 1 / (step + 1)} for step in range(3)]


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of ``tmp_path / "seed0"``."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "seed0")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_rows_come_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / record.METRICS
    first = record.append(path, ROWS[:2])
    assert record.append(path, ROWS[2:]) == path.stat().st_size > first
    assert record.read_metrics(path) == (ROWS, None)


def test_what_is_not_json_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / record.METRICS
    record.append(path, ROWS)
    with pytest.raises(ValueError, match="not JSON compliant"):
        record.append(path, [{"step": 3, "split": "train", "loss": float("nan")}])
    assert record.read_metrics(path) == (ROWS, None)


@pytest.mark.parametrize("tail", ['{"step": 3, "spl', "null", '{"split": "train"}', '{"step": 3}', "[1, 2]", "\0\0\0"])
def test_reading_stops_at_the_first_bad_line_and_names_it(tmp_path: Path, tail: str) -> None:
    path = tmp_path / record.METRICS
    record.append(path, ROWS)
    with path.open("a") as file:
        file.write(f"{tail}\n{json.dumps(ROWS[0])}\n")
    rows, warning = record.read_metrics(path)
    assert rows == ROWS
    assert warning is not None
    assert warning.startswith(f"{path}:4: ")


def test_every_cut_through_the_file_leaves_the_rows_before_it(tmp_path: Path) -> None:
    path = tmp_path / record.METRICS
    ends = [record.append(path, [row]) for row in ROWS]
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        rows, warning = record.read_metrics(path)
        complete = sum(end - 1 <= length for end in ends)  # only the line's end may be missing
        assert rows == ROWS[:complete]
        assert (warning is None) == (length in {0, *ends, *(end - 1 for end in ends)})


def test_cut_drops_what_a_restarted_run_writes_again(tmp_path: Path) -> None:
    path = tmp_path / record.METRICS
    kept = record.append(path, ROWS[:1])
    record.append(path, ROWS[1:])
    with path.open("a") as file:
        file.write('{"step": 9')
    record.cut(path, kept)
    assert path.stat().st_size == kept
    record.append(path, ROWS[1:])
    assert record.read_metrics(path) == (ROWS, None)


def test_cut_refuses_a_file_that_lost_rows(tmp_path: Path) -> None:
    path = tmp_path / record.METRICS
    length = record.append(path, ROWS)
    with pytest.raises(ValueError, match=f"{length} bytes, fewer than the {length + 1}"):
        record.cut(path, length + 1)
    assert record.read_metrics(path) == (ROWS, None)


@pytest.mark.parametrize("content", ["text\n", b"\x00\xff"])
def test_write_atomic_replaces(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    record.write_atomic(path, content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("broken", ["fsync", "replace"])
@pytest.mark.parametrize("old", ["old", None])
def test_write_atomic_leaves_nothing_on_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, old: str | None
) -> None:
    path = tmp_path / "file"
    if old is not None:
        path.write_text(old)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*{"fsync": (os, "fsync"), "replace": (Path, "replace")}[broken], fail)
    with pytest.raises(OSError, match="No space"):
        record.write_atomic(path, "new")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == ({} if old is None else {"file": old})


@pytest.mark.parametrize(("content", "message"), [("{", "is not JSON"), ("", "is not JSON"), ("[]", "no JSON object")])
def test_damaged_json_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / record.RUN
    path.write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        record.read_json(path)
    assert str(path) in str(caught.value)


def test_json_round_trip(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None, True], "b": {"ä": "\n"}}
    record.write_json(tmp_path / "x.json", value)
    assert record.read_json(tmp_path / "x.json") == value


def test_a_second_process_is_refused_and_told_who_writes(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    folder = tmp_path / "seed0"
    assert record.is_locked(folder)
    with pytest.raises(record.RunLockedError, match=f"{folder} is being written by another process .id {holder.pid}."):
        record.Lock(folder)
    record.Lock(tmp_path / "seed1").release()


def test_sigkill_frees_the_lock(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    folder = tmp_path / "seed0"
    holder.send_signal(signal.SIGKILL)
    assert holder.wait() == -signal.SIGKILL
    assert not record.is_locked(folder)
    lock = record.Lock(folder)
    assert lock.path.read_text() == str(os.getpid())
    lock.release()


def test_one_process_cannot_take_a_lock_twice_but_again_after_its_release(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "seed0"
    assert not record.is_locked(folder)
    lock = record.Lock(folder)
    assert record.is_locked(folder)
    with pytest.raises(record.RunLockedError):
        record.Lock(folder)
    lock.release()
    assert not record.is_locked(folder)
    record.Lock(folder).release()


def test_the_lock_survives_moving_the_folder_away(tmp_path: Path) -> None:
    folder = tmp_path / "seed0"
    folder.mkdir()
    lock = record.Lock(folder)
    folder.rename(tmp_path / "seed0.old0")
    assert record.is_locked(folder)
    lock.release()


def test_running_without_a_living_process_is_interrupted(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    folder = tmp_path / "seed0"
    folder.mkdir()
    record.write_json(folder / record.STATUS, {"status": "running", "step": 7})
    assert record.read_status(folder) == {"status": "running", "step": 7}
    holder.kill()
    holder.wait()
    status = record.read_status(folder)
    assert (status["status"], status["step"]) == ("interrupted", 7)
    assert status["error"]
    assert record.read_json(folder / record.STATUS)["status"] == "running"  # reading changes nothing


@pytest.mark.parametrize("status", ["finished", "diverged", "failed", "interrupted"])
def test_an_ended_run_keeps_its_status(tmp_path: Path, status: str) -> None:
    written = {"status": status, "step": 3, "error": None}
    record.write_json(tmp_path / record.STATUS, written)
    assert record.read_status(tmp_path) == written


def test_read_gives_all_of_a_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "ln", seed=2)
    read = record.read(folder)
    assert read.folder == folder
    assert (read.run["series"], read.run["seed"], read.status["status"]) == ("ln", 2, "finished")
    assert read.metrics == record.read_metrics(folder / record.METRICS)[0] != []


@pytest.mark.parametrize("missing", [record.RUN, record.STATUS, record.METRICS])
def test_read_of_an_incomplete_run_is_an_error(tmp_path: Path, missing: str) -> None:
    folder = write_run(tmp_path)
    (folder / missing).unlink()
    with pytest.raises(OSError, match=missing):
        record.read(folder)


def test_find_runs_in_order_without_those_moved_aside_or_hidden(tmp_path: Path) -> None:
    wanted = [write_run(tmp_path, series, seed) for series in ("bn", "ln+eps=0.1") for seed in (0, 1)]
    for series, name in (("bn", "seed0.old0"), ("bn", "seed0.old11"), (".hydra", "seed0")):
        folder = tmp_path / "cifar10" / "demo" / series / name
        folder.mkdir(parents=True)
        record.write_json(folder / record.RUN, {})
    (tmp_path / "cifar10" / "demo" / "rms" / "seed0").mkdir(parents=True)  # a run that has not begun
    assert list(record.find_runs(tmp_path)) == wanted
    assert list(record.find_runs(tmp_path / "cifar10" / "demo" / "bn")) == wanted[:2]
    assert list(record.find_runs(tmp_path / "nothing")) == []
    (wanted[0] / record.RUN).unlink()
    (wanted[1] / record.METRICS).unlink()
    assert list(record.find_runs(tmp_path)) == wanted
