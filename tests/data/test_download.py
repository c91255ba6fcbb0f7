"""Downloads: files of the hub are read where they lie, and errors of the libraries name the data set and the folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rmsexp.data import DataError, UnavailableError
from rmsexp.data.download import downloading, hub_files, hub_rows


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
