"""Downloads are verified, and never leave incomplete files. The tests download from file: URLs."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from rmsexp.data import DataError
from rmsexp.data.download import fetched

CONTENT = b"text of the file\n" * 1000


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "served.txt").write_bytes(CONTENT)
    return (tmp_path / "served.txt").as_uri()


def digest(algorithm: str) -> str:
    return hashlib.new(algorithm, CONTENT).hexdigest()


def test_file_is_downloaded_verified_and_removed_unless_moved(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "deep" / "folder"
    with fetched(url, folder, "the file", "sha256", digest("sha256")) as path:
        assert path.name == "served.txt"
        assert path.read_bytes() == CONTENT
        assert path.parent.parent == folder
    assert list(folder.iterdir()) == []
    with fetched(url, folder, "the file", "md5", digest("md5")) as path:
        path.rename(folder / "moved")
    assert [path.name for path in folder.iterdir()] == ["moved"]
    assert capsys.readouterr().err == f"downloading {url} (0.0 MB)\n" * 2


def test_wrong_content_is_refused_with_both_digests_and_not_stored(url: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    with (
        pytest.raises(DataError) as error,
        fetched(url, folder, "the file", "sha256", "0" * 64),
    ):
        pytest.fail("entered with a wrong file")
    message = str(error.value)
    assert all(part in message for part in (url, "is not the file", digest("sha256"), "0" * 64, "17,000 bytes"))
    assert message.count("\n") == 1
    assert list(folder.iterdir()) == []


def test_without_a_response_no_folder_is_created(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match="No such file"),
        fetched((tmp_path / "absent").as_uri(), tmp_path / "folder", "the file", "md5", ""),
    ):
        pytest.fail("entered without a file")
    assert list(tmp_path.iterdir()) == []
