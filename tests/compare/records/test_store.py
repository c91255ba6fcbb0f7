"""The store of metrics: the same records as without it, and only what has changed is read again."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.records import make_row, write_run
from pandas.api.types import union_categoricals

from rmsexp.compare import Records, load
from rmsexp.records import record
from rmsexp.records.frames import store
from rmsexp.records.frames.load import load_stored
from rmsexp.records.frames.one_run import LoadedRun, load_run
from rmsexp.system.command_line import ReportedError


@pytest.fixture(autouse=True)
def own_store(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "STORE", tmp_path_factory.mktemp("own"))
    store._folder.cache_clear()
    store._report_once.cache_clear()


@pytest.fixture
def read_again(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders of the runs whose metrics were read, and not taken from the store."""
    folders: list[Path] = []

    def read(folder: Path) -> object:
        folders.append(folder)
        return load_run(folder)

    monkeypatch.setattr(store, "load_run", read)
    return folders


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with five runs in two settings."""
    for seed in range(2):
        write_run(tmp_path, "rms", seed)
        write_run(tmp_path, "ln", seed, setting="demo+optim.lr=0.01")
    write_run(tmp_path, "ln", 0, status="diverged")
    return tmp_path


def stored(root: Path) -> Records:
    with ThreadPoolExecutor(1) as pool:
        return load_stored(root, pool)


def assert_equal(found: Records, expected: Records) -> None:
    pd.testing.assert_frame_equal(found.runs, expected.runs)
    pd.testing.assert_frame_equal(found.metrics, expected.metrics, check_categorical=False)  # other unused categories
    assert found.problems == expected.problems


def files() -> list[Path]:
    return sorted(store.STORE.expanduser().glob("*/*.npz"))


def test_records_are_the_same_with_the_store(runs: Path, read_again: list[Path]) -> None:
    expected = load(runs)
    for times in (1, 2):
        found = stored(runs)
        assert_equal(found, expected)
        assert_equal(pickle.loads(pickle.dumps(found)), expected)
        assert found.settings().keys() == expected.settings().keys()
        for setting, records in expected.settings().items():
            assert_equal(found.settings()[setting], records)
        folders = expected.runs["folder"][1:3]
        assert_equal(found.only(folders), expected.only(folders))
        assert_equal(found.select("cifar10", "demo"), expected.select("cifar10", "demo"))
        assert len(read_again) == 5, f"reading {times}"
    assert len(files()) == 5


def test_splits_of_a_run_without_rows_can_be_joined_with_those_of_others(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, series) for series in ("ln", "rms")]
    (folders[1] / record.METRICS).write_text("")
    record.RunFolder(folders[1]).write_status("finished", 400)
    for _ in range(2):  # the second time from the store
        splits = [splits for _, splits in store.metrics([store.read(folder) for folder in folders])]
        assert list(union_categoricals(splits)) == list(splits[0])
        assert len(splits[1]) == 0


def test_without_runs_the_frames_are_empty(tmp_path: Path) -> None:
    assert_equal(stored(tmp_path), load(tmp_path))


def test_only_a_changed_run_is_read_again(runs: Path, read_again: list[Path]) -> None:
    stored(runs)
    read_again.clear()
    folder = record.RunFolder(runs / "cifar10/demo/rms/seed1")
    length = folder.append([make_row(404, 0.5)], folder.metrics_path.stat().st_size)
    folder.write_status("finished", 404, metrics=folder.metrics_digest(length))
    assert_equal(stored(runs), load(runs))
    assert read_again == [folder.path]


@pytest.mark.parametrize("status", ["running", "interrupted", "failed"])
def test_a_run_that_has_not_ended_is_not_stored(status: str, tmp_path: Path, read_again: list[Path]) -> None:
    write_run(tmp_path, status=status)
    for _ in range(2):
        assert_equal(stored(tmp_path), load(tmp_path))
    assert len(read_again) == 2
    assert files() == []


def test_a_run_with_problems_is_not_stored(tmp_path: Path, read_again: list[Path]) -> None:
    path = write_run(tmp_path) / record.METRICS
    path.write_text(path.read_text() + "{damaged")
    for _ in range(2):
        records = stored(tmp_path)
        assert_equal(records, load(tmp_path))
        assert len(records.problems) == 1
    assert len(read_again) == 2


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    """Change a bit of the values."""
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        place = archive.getinfo("values.npy").header_offset + 400
    content[place] ^= 1
    path.write_bytes(bytes(content))


def pickled(path: Path) -> None:
    """Let reading the file call a function."""

    class Malicious:
        def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
            return path.with_name("called").touch, ()  # type: ignore[return-value]

    np.savez(path, header=np.array([Malicious()], dtype=object))


def forge(path: Path) -> None:
    path.write_bytes(b"not an archive")


@pytest.mark.parametrize("damage", [truncate, flip, pickled, forge])
def test_a_damaged_file_is_named_and_the_run_is_read_again(
    damage: Callable[[Path], None], tmp_path: Path, read_again: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path)
    stored(tmp_path)
    read_again.clear()
    (path,) = files()
    damage(path)
    assert_equal(stored(tmp_path), load(tmp_path))
    assert len(read_again) == 1
    assert str(path)[-20:] in capsys.readouterr().err
    assert not path.with_name("called").exists()


def test_a_run_that_changes_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    """Its rows are counted when it is read first, so that the memory for all runs is taken at once."""
    folder = record.RunFolder(write_run(tmp_path))
    found = stored(tmp_path)
    (path,) = files()
    path.unlink()
    length = folder.append([make_row(404, 0.5)], folder.metrics_path.stat().st_size)
    folder.write_status("finished", 404, metrics=folder.metrics_digest(length))
    with pytest.raises(ReportedError, match="has changed while it was read; repeat the command"):
        found.metrics  # noqa: B018


def test_without_space_a_line_says_so_and_records_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left")

    for seed in range(3):
        write_run(tmp_path, seed=seed)
    monkeypatch.setattr(np, "savez", fail)
    assert_equal(stored(tmp_path), load(tmp_path))
    assert capsys.readouterr().err.count("not stored for later reports") == 1
    assert not list(store.STORE.expanduser().rglob("*.tmp"))


def test_metrics_of_the_same_size_and_time_are_read_again(tmp_path: Path, read_again: list[Path]) -> None:
    path = write_run(tmp_path) / record.METRICS
    stored(tmp_path)
    before = path.stat()
    path.write_text(path.read_text().replace('"lr": 0.1', '"lr": 0.2'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    read_again.clear()
    found = stored(tmp_path)
    assert len(read_again) == 1
    assert_equal(found, load(tmp_path))


def test_two_processes_that_store_one_run_leave_a_whole_file(tmp_path: Path) -> None:
    """Each reads what it or the other has stored; neither reads half a file."""
    folder = write_run(tmp_path)
    read = store.read(folder)
    assert read.path is not None
    (expected,) = store.metrics([read])
    loaded = load_run(folder)
    context = get_context("fork")
    writers = [context.Process(target=write_often, args=(read.path, read.key, loaded)) for _ in range(2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        columns, splits = store._content(read.path, read.key)  # raises if the file is not whole
        assert all(np.array_equal(columns[key], expected[0][key], equal_nan=True) for key in expected[0])
        assert list(splits) == list(expected[1])
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0


def write_often(path: Path, key: str, loaded: LoadedRun) -> None:
    for _ in range(100):
        store._write(path, key, loaded)


def test_other_code_reads_runs_again(tmp_path: Path, read_again: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path)
    stored(tmp_path)
    monkeypatch.setattr(store, "_code", lambda: "another")
    stored(tmp_path)
    assert len(read_again) == 2
