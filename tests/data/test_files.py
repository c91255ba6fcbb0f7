"""Files of data sets: lines, digests and arrays, and messages about files that cannot be read."""

from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path

import numpy as np
import pytest

from rmsexp.data import DataError
from rmsexp.data.files import FLOAT32, StoredArray, digest_of, digest_of_contents, read_lines, write_array
from rmsexp.data.pairs import read_pairs
from rmsexp.tasks.language_model import SOURCES
from rmsexp.tasks.language_model import DataConfig as LanguageModelData


def test_only_line_feeds_end_lines(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes("\ufeffone\u2028\x0b\r\n\n two".encode())
    assert read_lines(path) == ["one\u2028\x0b\r", "", " two"]
    path.write_bytes(b"one\n\n")
    assert read_lines(path) == ["one", ""]


@pytest.mark.parametrize(
    ("content", "line", "byte"), [(b"\xff", 1, 1), (b"one\nca\xc3\xa9 \xe9t\n", 2, 6), (b"\n\n\xc3", 3, 1)]
)
def test_bytes_that_are_not_utf8_are_named(content: bytes, line: int, byte: int, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    with pytest.raises(DataError) as error:
        read_lines(path)
    assert f"{path}, line {line}: not UTF-8" in str(error.value)
    assert f"at byte {byte} of the line" in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("Größe\nzwei".encode("utf-16"), "in UTF-16 or UTF-32, not in UTF-8"),
        ("size\ntwo".encode("utf-16-le"), "in UTF-16 or UTF-32, not in UTF-8"),
        ("size\ntwo".encode("utf-16-be"), "in UTF-16 or UTF-32, not in UTF-8"),
        ("size\ntwo".encode("utf-32-be"), "in UTF-16 or UTF-32, not in UTF-8"),
        *((compress(b"a line\n"), "compressed") for compress in (gzip.compress, lzma.compress, bz2.compress)),
    ],
)
def test_compressed_text_and_utf_16_are_named(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{path} is {message}"):
        read_lines(path)
    data = LanguageModelData(name="files", train=str(path), valid=str(path), test=str(path))
    with pytest.raises(DataError, match=f"{path} is {message}"):
        SOURCES["files"](data, tmp_path)
    with pytest.raises(DataError, match=f"{path} is {message}"):
        next(read_pairs(path, path))


def test_null_bytes_alone_are_text(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"a\0b\nBZh is a name\n")
    assert read_lines(path) == ["a\0b", "BZh is a name"]


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for function in (read_lines, lambda path: digest_of([path]), lambda path: digest_of_contents([path])):
        with pytest.raises(DataError, match=rf"{tmp_path}/absent cannot be read \(No such file"):
            function(tmp_path / "absent")


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
    paths[1].write_text("two")
    assert digest_of_contents(paths[:2]) == before


def test_blocks_of_rows_become_one_array(tmp_path: Path) -> None:
    rows = np.arange(12.0).reshape(6, 2)
    write_array(tmp_path / "a.npy", FLOAT32, rows.shape, (rows[:4], np.asfortranarray(rows[4:])))
    array = np.load(tmp_path / "a.npy", mmap_mode="r")
    assert array.dtype == np.float32
    assert np.array_equal(array, rows)


@pytest.mark.parametrize("shape", [(7,), (7, 3), (7, 2, 3), (0, 3), (0,)])
def test_stored_arrays_are_indexed_like_arrays(shape: tuple[int, ...], tmp_path: Path) -> None:
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    np.save(tmp_path / "a.npy", array)
    stored = StoredArray(tmp_path / "a.npy")
    (tmp_path / "a.npy").unlink()
    assert (stored.shape, stored.dtype, len(stored)) == (array.shape, array.dtype, len(array))
    for rows in (slice(None), slice(2, 5), slice(-3, 99), slice(5, 2), slice(6, 0, -2), np.empty(0, dtype=np.int64)):
        np.testing.assert_array_equal(stored[rows], array[rows], strict=True)
    np.testing.assert_array_equal(stored, array, strict=True)
    if len(array):
        chosen = np.array([5, 0, 5, -1])
        np.testing.assert_array_equal(stored[chosen], array[chosen], strict=True)
    with pytest.raises(IndexError):
        stored[np.array([len(array)])]
