"""Files of data sets: lines, digests, downloads, messages about unusable files; results are stored whole and once."""

import errno
import multiprocessing
import os
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.parallel_text import write

from rmsexp.data import DataError
from rmsexp.data import files as module
from rmsexp.data.files import cached, digest_of, digest_of_contents, hub_rows, key, read_lines, require


@pytest.mark.parametrize("name", ["a", "a.gz"])
def test_only_line_feeds_end_lines(name: str, tmp_path: Path) -> None:
    lines = ["one\u2028\u2029", "", " \x85\x0b\x0c\x1c\xa0", "a\rb", "ü 💬", "last"]
    assert list(read_lines(write(tmp_path / name, "\n".join(lines)))) == lines
    assert list(read_lines(write(tmp_path / name, "\ufeff" + "\r\n".join([*lines, ""]) + "\r\n"))) == [*lines, ""]


@pytest.mark.parametrize("name", ["a", "a.gz"])
@pytest.mark.parametrize(
    ("content", "line"),
    [(b"\xff", 1), (b"one\nca\xc3\xa9 \xe9t\n", 2), (b"\n\n\xc3", 3), (b"a\n\xed\xa0\x80\nb", 2), (b"a\n\0b\0", 2)],
)
def test_lines_that_are_not_utf8_are_named(content: bytes, line: int, name: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(DataError, match=f"^{path}, line {line}: .*UTF-8"):
        list(read_lines(path))


@pytest.mark.parametrize("damage", ["truncated", "checksum", "body", "not gzip"])
def test_damaged_gzip_is_named(damage: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.en.gz", "".join(f"line {number}\n" for number in range(500)))
    content = path.read_bytes()
    broken = {
        "truncated": content[:-20],
        "checksum": content[:-8] + bytes(8),
        "body": content[:40] + b"\xff" * 40 + content[80:],
        "not gzip": b"line 1\n",
    }
    path.write_bytes(broken[damage])
    with pytest.raises(DataError, match=rf"^{path} cannot be read \(.+\)\.\n.+$"):
        list(read_lines(path))


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for function in (lambda path: list(read_lines(path)), lambda path: digest_of([path])):
        with pytest.raises(DataError, match=rf"{tmp_path}/absent cannot be read \(No such file"):
            function(tmp_path / "absent")


def test_missing_files_are_named_with_their_origin(tmp_path: Path) -> None:
    (tmp_path / "present").touch()
    require("CNN", tmp_path, [tmp_path / "present"], "Unpack it.")
    message = rf"^CNN is incomplete: in {tmp_path} there is no a/b \(2 files are missing\).\nUnpack it\. "
    with pytest.raises(DataError, match=message):
        require("CNN", tmp_path, [tmp_path / name for name in ("a/b", "present", "c")], "Unpack it.")


def test_digests_depend_on_content_and_order_and_one_of_them_on_names(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    for path, content in zip(paths, ("one", "two", "one"), strict=True):
        path.write_text(content)
    before = digest_of(paths[:2]), digest_of_contents(paths[:2])
    assert len(before[0]) == len(before[1]) == 64
    renamed = [paths[2], paths[1]]
    assert digest_of(renamed) != before[0]
    assert digest_of_contents(renamed) == before[1]
    for digest, old in zip((digest_of, digest_of_contents), before, strict=True):
        paths[1].write_text("two")
        assert digest(paths[1::-1]) != old == digest(paths[:2])
        paths[1].write_text("longer")
        assert digest(paths[:2]) != old
    assert len({module.digest_of_words(words) for words in (["a", "b"], ["b", "a"], ["ab"])}) == 3


def parquet(folder: Path, split: str, *parts: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(parts):
        name = f"{split}-{number:05}-of-{len(parts):05}.parquet"
        pd.DataFrame({"text": rows}).to_parquet(folder / name)


def files(root: Path) -> list[list[Path]]:
    return module.hub_files("Mine", root / "mine", "me/mine", "0123", "raw", ("train", "test"), "task=mine")


def test_files_of_the_hub_are_downloaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []

    def snapshot(_: str, **options: Any) -> None:
        calls.append(options)
        parquet(options["local_dir"] / "raw", "train", ["a", "b"], ["c"])
        parquet(options["local_dir"] / "raw", "test", ["d"])

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    parquet(tmp_path / "mine/raw", "train", ["a", "b"], ["c"])  # test is missing, as after a kill
    for other in ("test-00000-of-00002", "test-a-of-b"):  # another revision's, and one that is none of the hub's
        (tmp_path / f"mine/raw/{other}.parquet").touch()
    for _ in range(2):
        train, test = files(tmp_path)
        assert list(hub_rows(train, lambda row: row["text"])) == ["a", "b", "c"]
        assert [path.name for path in test] == ["test-00000-of-00001.parquet"]
    (call,) = calls
    assert (call["revision"], call["allow_patterns"]) == ("0123", ["raw/train-*", "raw/test-*"])


@pytest.mark.parametrize("damage", ["other file", "cut", "other column", "no text"])
def test_damaged_parquet_is_named(damage: str, tmp_path: Path) -> None:
    parquet(tmp_path, "test", ["a"], ["b"])
    first, second = sorted(tmp_path.iterdir())
    if damage in ("other file", "cut"):
        second.write_bytes(bytes(range(256)) if damage == "other file" else second.read_bytes()[:-9])
    else:
        pd.DataFrame({"other": ["b"]} if damage == "other column" else {"text": [None]}).to_parquet(second)
    rows = hub_rows([first, second], lambda row: row["text"].encode())
    assert next(rows) == b"a"
    with pytest.raises(DataError, match=rf"^{second} cannot be read \(\w+: .+\)\.\nDelete it to download it again\.$"):
        next(rows)


def test_an_incomplete_download_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: None)
    parquet(tmp_path / "mine/raw", "test", ["d"])
    parquet(tmp_path / "mine/raw", "train", ["a"], ["b"])
    (tmp_path / "mine/raw/train-00001-of-00002.parquet").unlink()
    message = rf"^Mine is not in {tmp_path}/mine, or damaged.*\n.*task=mine data\.root="
    with pytest.raises(DataError, match=message):
        files(tmp_path)


@pytest.mark.parametrize(
    ("error", "reason"), [(TimeoutError(), "TimeoutError"), (OSError("401.\n\nNo file."), "401. No file.")]
)
def test_why_a_download_failed_is_said_in_a_line(error: Exception, reason: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=re.escape(f"({reason}).\n")), module.downloading("x", tmp_path, "", tmp_path):
        raise error


# Stored results


def read(folder: Path) -> str:
    if not (text := (folder / "value").read_text()):
        raise ValueError("empty")
    return text


def make(folder: Path) -> None:
    assert list(folder.iterdir()) == []
    (folder / "value").write_text("made")


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_result_is_made_once_and_then_read(tmp_path: Path) -> None:
    """What a killed process left is removed."""
    folder = tmp_path / "deep" / "entry"
    (tmp_path / "deep" / ".entry.tmp" / "stray").mkdir(parents=True)
    assert cached(folder, read, make) == "made"
    assert cached(folder, read, lambda _: pytest.fail("made again")) == "made"
    assert visible(folder.parent) == ["entry"]


@pytest.mark.parametrize("content", ["", None])
def test_a_damaged_folder_is_named(content: str | None, tmp_path: Path) -> None:
    folder = tmp_path / "entry"
    folder.mkdir()
    if content is not None:
        (folder / "value").write_text(content)
    with pytest.raises(DataError, match=rf"^{folder} cannot be read .*\nDelete this folder"):
        cached(folder, read, make)


def test_failure_stores_nothing_and_frees_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path) -> None:
        make(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached(tmp_path / "entry", read, fail)
    assert visible(tmp_path) == []

    def full(file: int) -> None:
        if Path(f"/proc/self/fd/{file}").readlink().name == "value":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(DataError, match=rf"{tmp_path}/entry cannot be stored \(No space left on device\)"):
            cached(tmp_path / "entry", read, make)
    assert visible(tmp_path) == []
    assert cached(tmp_path / "entry", read, make) == "made"


def test_only_one_of_two_processes_makes_the_result(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        results = pool.starmap(_made_by, [(tmp_path / "entry", name) for name in ("a", "b")], chunksize=1)
    assert results in (["a", "a"], ["b", "b"])


def _made_by(folder: Path, name: str) -> str:
    return cached(folder, read, lambda temporary: (temporary / "value").write_text(name) and None)


def test_key_changes_with_each_part_and_with_the_source(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text("x = 1\n")
    names = [key(str(source), "a", 1), key(str(source), "a", "1"), key(str(source), "a1"), key(str(source), "a", 1.0)]
    assert key(str(source), "a", 1) == names[0]
    source.write_text("x = 2\n")
    names.append(key(str(source), "a", 1))
    assert len(set(names)) == 5
    assert all(len(name) == 16 and set(name) <= set("0123456789abcdef") for name in names)
