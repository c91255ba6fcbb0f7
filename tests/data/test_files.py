"""Files of data sets: lines, digests and arrays, and messages about files that cannot be read."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from rmsexp.data import DataError, authors_files, cifar10, cnn, coco, flickr8k, lambada, parallel, text
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
        (gzip.compress(b"a line\n", mtime=0), "compressed"),
        *((compress(b"a line\n"), "compressed") for compress in (lzma.compress, bz2.compress)),
    ],
)
def test_compressed_text_and_utf_16_are_named(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{path} is {message}"):
        read_lines(path)
    data = LanguageModelData(name="files", train=str(path), valid=str(path), test=str(path))
    with pytest.raises(DataError, match=f"{path} is {message}"):
        SOURCES["files"](data, tmp_path).splits["train"]()
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


CIFAR_FILES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"]
CIFAR = [f"cifar10/cifar-10-batches-py/{name}" for name in CIFAR_FILES]
MULTI30K = [f"multi30k/task1/raw/{name}" for name in parallel.MULTI30K_SHA256]
WMT14 = [f"wmt14/{split}.{side}.gz" for split in ("train", *parallel.WMT14_TESTS) for side in ("en", "de")]
TOP4 = [f"top4/{name}" for name in authors_files.TOP4_FILES]
CNN = ["cnn/questions/training/a.question", "cnn/questions/validation/b.question"]
LAMBADA = [f"lambada/lambada_{name}_plain_text.txt" for name in ("development", "test")]
RELEASE = [f"coco/{path}" for name in ("train", "val", "test") for path in (f"{name}.txt", f"images/10crop/{name}.npy")]
FLICKR8K = [f"flickr8k/Flickr8k_text/Flickr_8k.{name}Images.txt" for name in ("train", "dev", "test")]
FLICKR8K += ["flickr8k/Flickr8k_text/Flickr8k.token.txt", "flickr8k/Flicker8k_Dataset/1.jpg"]
OFFICIAL = [f"coco/annotations/captions_{part}2014.json" for part in ("train", "val")]
WIKITEXT = [f"wikitext103/{split}.txt" for split in ("train", "valid", "test")]
DATA_SETS: dict[str, tuple[list[str], Callable[[Path], object]]] = {
    "cifar10": (CIFAR, cifar10.load),
    "multi30k": (MULTI30K, lambda root: parallel.multi30k(root, "en", "de")),
    "wmt14": (WMT14, lambda root: parallel.wmt14(root, "en", "de", print)),
    "wikitext103": (WIKITEXT, lambda root: text.wikitext103(root, print)),
    "lambada": (LAMBADA, lambda root: lambada.lambada(root, 10, 10)),
    "lambada as text": (LAMBADA, lambda root: text.lambada(root, 1, rest=False)),
    "cnn": (CNN, lambda root: cnn.cnn(root, None, "refuse")),
    "top4": (TOP4, authors_files.top4),
    "coco_release": (RELEASE, coco.coco_release),
    "coco": (OFFICIAL, lambda root: coco.coco(root, "descriptor")),
    "coco, Karpathy": (["coco/dataset_coco.json"], lambda root: coco.coco(root, "descriptor")),
    "flickr8k": (FLICKR8K, lambda root: flickr8k.flickr8k(root, "descriptor")),
}


def message_for(name: str, files: Sequence[str], right: Path, root: Path) -> str:
    """Return the message of a data set whose files lie below ``right``, with data.root=``root``."""
    for file in files:
        (right / file).parent.mkdir(parents=True, exist_ok=True)
        (right / file).touch()
    before = sorted(right.rglob("*"))
    with pytest.raises(DataError) as error:
        DATA_SETS[name][1](root)
    assert sorted(right.rglob("*")) == before  # nothing was made or downloaded
    assert str(error.value).count("\n") == 1
    return str(error.value)


@pytest.mark.parametrize("name", DATA_SETS)
def test_a_root_that_is_too_deep_is_corrected(name: str, tmp_path: Path) -> None:
    files, right = DATA_SETS[name][0], tmp_path / "data"
    for folder in list(Path(files[0]).parents)[:-1]:
        message = message_for(name, files, right, right / folder)
        assert message.endswith(f": write data.root={right}."), folder


@pytest.mark.parametrize("name", ["cifar10", "multi30k", "wmt14", "cnn", "coco"])
def test_a_root_that_is_too_high_is_corrected(name: str, tmp_path: Path) -> None:
    right = tmp_path / "data"
    right.mkdir()
    message = message_for(name, DATA_SETS[name][0], right, tmp_path)
    assert message.endswith(f": write data.root={right}.")


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
