"""Files of data sets: lines, digests, downloads, and messages about files that cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rmsexp.data import DataError, UnavailableError
from rmsexp.data.files import (
    digest_of,
    digest_of_contents,
    downloading,
    hub_files,
    hub_rows,
    missing,
    read_lines,
)
from rmsexp.tasks.language_model import DataConfig


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
    assert DataConfig(name="files", train="a", valid="b", test="c").own_files == {
        "train": "a",
        "valid": "b",
        "test": "c",
    }
    for name, paths in (("files", {"train": "a", "test": "b"}), ("lambada", {"valid": "a"})):
        with pytest.raises(ValueError, match=r"data\.valid"):
            DataConfig(name=name, **paths)  # type: ignore[arg-type]


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


def parquet(folder: Path, split: str, *parts: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(parts):
        name = f"{split}-{number:05}-of-{len(parts):05}.parquet"
        pd.DataFrame({"text": rows}).to_parquet(folder / name)


def files(root: Path) -> list[list[Path]]:
    return hub_files("Mine", root / "mine", "me/mine", "0123", "raw", ("train", "test"), "task=mine")


def test_files_of_the_hub_are_downloaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []

    def snapshot(_: str, **options: Any) -> None:
        calls.append(options)
        parquet(options["local_dir"] / "raw", "train", ["a", "b"], ["c"])
        parquet(options["local_dir"] / "raw", "test", ["d"])

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    parquet(tmp_path / "mine/raw", "train", ["a", "b"], ["c"])  # test is missing, as after a kill
    for _ in range(2):
        train, test = files(tmp_path)
        assert [row["text"] for row in hub_rows(train)] == ["a", "b", "c"]
        assert [path.name for path in test] == ["test-00000-of-00001.parquet"]
    (call,) = calls
    assert (call["revision"], call["allow_patterns"]) == ("0123", ["raw/train-*", "raw/test-*"])


def test_an_incomplete_download_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: None)
    parquet(tmp_path / "mine/raw", "test", ["d"])
    parquet(tmp_path / "mine/raw", "train", ["a"], ["b"])
    (tmp_path / "mine/raw/train-00001-of-00002.parquet").unlink()
    message = rf"^Mine is not in {tmp_path}/mine, or damaged.*\n.*task=mine data\.root="
    with pytest.raises(UnavailableError, match=message):
        files(tmp_path)


def test_our_own_errors_pass_unchanged(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^mine$"), downloading("Mine", tmp_path, "", tmp_path):
        raise DataError("mine")
