"""Cached results are complete or absent, and are made by one process."""

from __future__ import annotations

import errno
import multiprocessing
import os
from pathlib import Path

import pytest

from rmsexp.data import DataError
from rmsexp.data.cache import cached, key


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
    """What a killed process left is removed."""
    make, folder = Maker(), tmp_path / "deep" / "entry"
    (tmp_path / "deep" / ".entry.tmp" / "stray").mkdir(parents=True)
    assert cached(folder, read, make) == "made 1"
    assert cached(folder, read, make) == "made 1"
    assert visible(folder.parent) == ["entry"]


@pytest.mark.parametrize("content", ["", None])
def test_a_damaged_folder_is_named(content: str | None, tmp_path: Path) -> None:
    folder = tmp_path / "entry"
    folder.mkdir()
    if content is not None:
        (folder / "value").write_text(content)
    with pytest.raises(DataError, match=rf"^{folder} cannot be read .*\nDelete this folder"):
        cached(folder, read, Maker())


def test_failure_stores_nothing_and_frees_the_lock(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "value").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached(tmp_path / "entry", read, fail)
    assert visible(tmp_path) == []
    assert cached(tmp_path / "entry", read, Maker()) == "made 1"


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=rf"{tmp_path}/entry cannot be stored \(No space left on device\)"):
        cached(tmp_path / "entry", read, Maker())
    assert visible(tmp_path) == []


def test_only_one_of_two_processes_makes_the_result(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        results = pool.starmap(_made_by, [(tmp_path / "entry", name) for name in ("a", "b")], chunksize=1)
    assert results in (["a", "a"], ["b", "b"])


def _made_by(folder: Path, name: str) -> str:
    def make(temporary: Path) -> None:
        (temporary / "value").write_text(name)

    return cached(folder, read, make)


def test_key_changes_with_each_part_and_with_the_source(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text("x = 1\n")
    names = [key(str(source), "a", 1), key(str(source), "a", "1"), key(str(source), "a1"), key(str(source), "a", 1.0)]
    assert key(str(source), "a", 1) == names[0]
    source.write_text("x = 2\n")
    names.append(key(str(source), "a", 1))
    assert len(set(names)) == 5
    assert all(len(name) == 16 and set(name) <= set("0123456789abcdef") for name in names)
