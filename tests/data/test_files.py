"""Files of data sets: lines, digests, and messages about files that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmsexp.data import DataError
from rmsexp.data.files import digest_of, digest_of_contents, missing, missing_own_file, read_lines


def test_only_line_feeds_end_lines(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes("\ufeffone\u2028\x0b\r\n\n two".encode())
    assert read_lines(path) == ["one\u2028\x0b\r", "", " two"]
    path.write_bytes(b"one\n\n")
    assert read_lines(path) == ["one", ""]


@pytest.mark.parametrize(("content", "line"), [(b"\xff", 1), (b"one\nca\xc3\xa9 \xe9t\n", 2), (b"\n\n\xc3", 3)])
def test_lines_that_are_not_utf8_are_named(content: bytes, line: int, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"^{path}, line {line}: not UTF-8"):
        read_lines(path)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for function in (read_lines, lambda path: digest_of([path]), lambda path: digest_of_contents([path])):
        with pytest.raises(DataError, match=rf"{tmp_path}/absent cannot be read \(No such file"):
            function(tmp_path / "absent")


def test_missing_files_are_named_with_their_origin(tmp_path: Path) -> None:
    message = str(missing("CNN", tmp_path, [tmp_path / "a/b", tmp_path / "c"], "Unpack it."))
    assert message.startswith(f"CNN is incomplete: in {tmp_path} there is no a/b, nor 1 other files.\nUnpack it.")


def test_own_files_are_needed_with_their_name_only() -> None:
    assert missing_own_file("files", {"train": "a", "valid": "", "test": "b"}) == "valid"
    assert missing_own_file("files", {"train": "a"}) is None
    assert missing_own_file("lambada", {"train": ""}) is None
    with pytest.raises(ValueError, match=r"data\.train"):
        missing_own_file("lambada", {"train": "a"})


def test_digest_depends_on_names_and_content(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.write_text("one")
    before = digest_of(paths)
    assert len(before) == 64
    assert digest_of(paths[::-1]) != before
    paths[1].write_text("two")
    assert digest_of(paths) != before


def test_digest_of_contents_depends_on_contents_alone(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    for path, content in zip(paths, ("one", "two", "one"), strict=True):
        path.write_text(content)
    before = digest_of_contents(paths[:2])
    assert digest_of_contents([paths[2], paths[1]]) == before != digest_of_contents(paths[1::-1])
    paths[1].write_text("longer")
    assert digest_of_contents(paths[:2]) != before
