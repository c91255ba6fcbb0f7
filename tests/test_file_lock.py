"""Locks of files: who holds one, and file systems that have none."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import NoReturn

import pytest

from rmsexp.system import mounts
from rmsexp.system.file_lock import NO_LOCKS, NoLocksError, host_only, try_to_lock, wait_for_lock

MOUNTED = """\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
40 21 0:44 / {folder} rw - lustre 10.0.0.1@tcp:/scratch rw,noflock
41 40 0:45 / {folder}/inner rw - nfs4 server:/export rw,vers=4.2
42 40 0:46 / {folder}/auto rw - autofs /etc/auto.home rw,fd=7
43 42 0:47 / {folder}/auto rw - nfs4 server:/home rw,vers=4.2
"""


def fail(patch: pytest.MonkeyPatch, number: int) -> None:
    def flock(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    patch.setattr(fcntl, "flock", flock)


def test_a_lock_excludes_others(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as one, (tmp_path / "lock").open() as other:
        wait_for_lock(one, pytest.fail)
        assert not try_to_lock(other, fcntl.LOCK_EX)
        assert not try_to_lock(other, fcntl.LOCK_SH)
    with (tmp_path / "lock").open() as one, (tmp_path / "lock").open() as other:
        assert try_to_lock(one, fcntl.LOCK_SH)
        assert try_to_lock(other, fcntl.LOCK_SH)


def test_waiting_is_announced_once_another_process_holds_the_lock(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as one, (tmp_path / "lock").open("w") as other:
        wait_for_lock(one)
        lines: list[str] = []

        def release() -> None:
            lines.append("waiting")
            fcntl.flock(one, fcntl.LOCK_UN)

        wait_for_lock(other, release)
        assert lines == ["waiting"]
        assert not try_to_lock(one, fcntl.LOCK_EX)


@pytest.mark.parametrize("number", [errno.EWOULDBLOCK, errno.EAGAIN])
def test_only_would_block_means_another_process(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, number)
    with (tmp_path / "lock").open("w") as file:
        assert not try_to_lock(file, fcntl.LOCK_EX)


@pytest.mark.parametrize("number", NO_LOCKS)
def test_a_file_system_without_locks_is_named(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "with a blank"
    folder.mkdir()
    (tmp_path / "mountinfo").write_text(MOUNTED.format(folder=str(folder).replace(" ", r"\040")))
    monkeypatch.setattr(mounts, "MOUNTINFO", tmp_path / "mountinfo")
    fail(monkeypatch, number)
    with (folder / "lock").open("w") as file:
        for attempt in (wait_for_lock, lambda file: try_to_lock(file, fcntl.LOCK_EX)):
            with pytest.raises(NoLocksError) as caught:
                attempt(file)
            (line,) = str(caught.value).splitlines()
            assert line == (
                f"the file system of {file.name}, lustre at {folder}, has no locks ({os.strerror(number)}); "
                "choose a folder on another file system"
            )


def test_another_failure_is_not_about_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, errno.EIO)
    with (tmp_path / "lock").open("w") as file, pytest.raises(OSError, match=r"Input/output error: '.*lock'") as caught:
        wait_for_lock(file)
    assert not isinstance(caught.value, NoLocksError)


def test_the_mount_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTED.format(folder=tmp_path))
    monkeypatch.setattr(mounts, "MOUNTINFO", tmp_path / "mountinfo")
    (tmp_path / "link").symlink_to(tmp_path / "inner")
    expected = {"/etc/hosts": "ext4", f"{tmp_path}/innermost": "lustre", f"{tmp_path}/link/x": "nfs4"}
    expected[f"{tmp_path}/auto/x"] = "nfs4"  # the last one mounted there
    for path, kind in expected.items():
        mount = mounts.mount_of(Path(path))
        assert mount is not None
        assert mount.kind == kind
    monkeypatch.setattr(mounts, "MOUNTINFO", tmp_path / "missing")
    assert mounts.mount_of(tmp_path) is None


@pytest.mark.parametrize(("options", "named"), [("rw,vers=3,nolock,local_lock=all", "local_lock=all"), ("rw", None)])
def test_locks_that_other_machines_do_not_see_are_named(
    options: str, named: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mountinfo").write_text(f"36 1 0:40 / {tmp_path} rw - nfs server:/home {options}\n")
    monkeypatch.setattr(mounts, "MOUNTINFO", tmp_path / "mountinfo")
    warning = host_only(tmp_path / "results")
    if named is None:
        assert warning is None
    else:
        assert warning is not None
        assert f"is on nfs mounted with {named}, whose locks other machines do not see" in warning
