"""Cached results are complete or absent, are made by one process, and are made again if damaged."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rmsexp.data import DataError, cache
from rmsexp.data.cache import cached, key, staging


def read(folder: Path) -> str:
    if not (text := (folder / "value").read_text()):
        raise ValueError("empty")
    return text


class Maker:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, folder: Path) -> None:
        assert list(folder.iterdir()) == []
        self.calls += 1
        (folder / "value").write_text(f"made {self.calls}")


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_result_is_made_once_and_then_read(tmp_path: Path) -> None:
    make = Maker()
    folder = tmp_path / "deep" / "entry"
    assert cached(folder, read, make, print) == "made 1"
    assert cached(folder, read, make, print) == "made 1"
    assert visible(folder.parent) == ["entry"]


def test_damaged_entry_and_leftovers_of_a_killed_process_are_replaced(tmp_path: Path) -> None:
    for name in ("entry", ".entry.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "value").touch()
        (tmp_path / name / "stray").touch()
    assert cached(tmp_path / "entry", read, Maker(), print) == "made 1"
    assert visible(tmp_path) == ["entry"]
    assert visible(tmp_path / "entry") == ["digest", "value"]


def damaged(folder: Path, number: int) -> None:
    """Change one byte of a file of the folder; ``number`` chooses the file and the byte."""
    rng = np.random.default_rng(number)
    files = sorted(folder.iterdir())
    path = files[number % len(files)]
    content = bytearray(path.read_bytes())
    content[rng.integers(len(content))] ^= int(rng.integers(1, 256))
    path.write_bytes(content)


def test_each_changed_byte_is_noticed_and_repaired(tmp_path: Path) -> None:
    """The bytes are in all files of the folder, that with the digest included."""
    folder = tmp_path / "entry"

    def make(temporary: Path) -> None:
        for name, size in (("a", 1), ("b", 50)):
            (temporary / name).write_bytes(bytes(range(256)) * size)

    def load(stored: Path) -> bytes:
        return (stored / "a").read_bytes() + (stored / "b").read_bytes()

    whole = cached(folder, load, make, print)
    for number in range(30):
        reports: list[str] = []
        damaged(folder, number)
        assert cached(folder, load, make, reports.append) == whole
        assert reports == [f"{folder} is damaged (its digest does not fit); its content is computed again"]
    assert cached(folder, load, make, pytest.fail) == whole


def _without_digest(folder: Path) -> None:
    (folder / "digest").unlink()


def _further_file(folder: Path) -> None:
    (folder / "further").touch()


def _renamed_file(folder: Path) -> None:
    (folder / "value").rename(folder / "other")


def _file_for_folder(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.touch()


def _folder_of_another_name(folder: Path) -> None:
    cached(folder.with_name("other"), read, Maker(), print)
    shutil.rmtree(folder)
    folder.with_name("other").rename(folder)


@pytest.mark.parametrize(
    "damage",
    [
        *(_without_digest, _further_file, _renamed_file, _file_for_folder, _folder_of_another_name),
    ],
)
def test_every_other_change_of_a_folder_is_repaired(damage: Callable[[Path], None], tmp_path: Path) -> None:
    folder, make, reports = tmp_path / "entry", Maker(), []
    cached(folder, read, make, print)
    damage(folder)
    assert cached(folder, read, make, reports.append) == "made 2"
    (line,) = reports
    assert line.startswith(f"{folder} is damaged (")
    assert line.endswith("); its content is computed again")
    assert cached(folder, read, make, pytest.fail) == "made 2"


def test_a_file_that_the_disk_cannot_read_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, make, reports = tmp_path / "entry", Maker(), []
    cached(folder, read, make, print)

    def fail_in_folder(checked: Path, _: Path) -> str:
        if checked == folder:
            raise OSError(errno.EIO, "Input/output error")
        return "0"

    monkeypatch.setattr(cache, "_folder_digest", fail_in_folder)
    assert cached(folder, read, make, reports.append) == "made 2"
    assert reports == [f"{folder} is damaged ([Errno 5] Input/output error); its content is computed again"]


def test_a_folder_that_may_not_be_read_is_not_taken_for_damaged(tmp_path: Path) -> None:
    folder, make = tmp_path / "entry", Maker()
    cached(folder, read, make, print)

    def refuse(_: Path) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    with pytest.raises(DataError, match=r"entry cannot be read \(Permission denied\)"):
        cached(folder, refuse, make, print)
    assert visible(folder) == ["digest", "value"]
    assert make.calls == 1


def test_damage_that_cannot_be_repaired_is_reported_and_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system is read-only."""
    folder, make, reports = tmp_path / "entry", Maker(), []
    cached(folder, read, make, print)
    _further_file(folder)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(DataError, match=r"entry cannot be stored \(Read-only file system\)"):
        cached(folder, read, make, reports.append)
    assert len(reports) == 1


def test_failure_stores_nothing_and_frees_the_lock(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "value").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached(tmp_path / "entry", read, fail, print)
    assert visible(tmp_path) == []
    assert cached(tmp_path / "entry", read, Maker(), print) == "made 1"


def test_only_one_of_two_processes_makes_the_result(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        results = pool.starmap(_made_by, [(tmp_path / "entry", name) for name in ("a", "b")], chunksize=1)
    assert results in (["a", "a"], ["b", "b"])


def _made_by(folder: Path, name: str) -> str:
    def make(temporary: Path) -> None:
        (temporary / "value").write_text(name)

    return cached(folder, read, make, print)


def test_staging_excludes_other_processes(tmp_path: Path) -> None:
    """In the ``with`` block nobody else gets the lock, not even a shared one; afterwards the lock is free.

    The temporary folder is removed after the block, unless it was renamed.
    """
    with staging(tmp_path / "entry") as temporary:
        (temporary / "value").touch()
        with (tmp_path / ".entry.lock").open("w") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        assert visible(temporary) == ["value"]
    with (tmp_path / ".entry.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert visible(tmp_path) == []
    with staging(tmp_path / "entry") as temporary:
        temporary.rename(tmp_path / "entry")
    assert visible(tmp_path) == ["entry"]


def test_key_changes_with_each_part_and_with_the_source(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text("x = 1\n")
    names = [key(str(source), "a", 1), key(str(source), "a", "1"), key(str(source), "a1"), key(str(source), "a", 1.0)]
    assert key(str(source), "a", 1) == names[0]
    source.write_text("x = 2\n")
    names.append(key(str(source), "a", 1))
    assert len(set(names)) == 5
    assert all(len(name) == 16 and set(name) <= set("0123456789abcdef") for name in names)
