"""Plain text: synthetic sentences, the user's files, LAMBADA's passages, and WikiText-103 by way of ``datasets``."""

from __future__ import annotations

import gzip
from pathlib import Path

import pandas as pd
import pytest

from rmsexp.data import DataError, text
from rmsexp.data.text import SPLITS, PlainText

ROWS = {
    "train": ["", " = A title = \n", "", " An article ; it has @,@ <unk> words . \n"],
    "validation": [" = Größe = \n"],
    "test": ["", " The end . \n"],
}


def read(plain: PlainText) -> dict[str, bytes]:
    return {split: read() for split, read in plain.splits.items()}


def test_files_are_read_as_they_are(tmp_path: Path) -> None:
    contents = {"train": b"one\r\ntwo", "valid": b"\xff\n", "test": "Größe\n".encode()}
    for split, content in contents.items():
        (tmp_path / f"{split}.txt").write_bytes(content)
    paths = [str(tmp_path / f"{split}.txt") for split in SPLITS]
    plain = text.files(*paths)
    assert read(plain) == contents
    assert (plain.name, plain.builtin) == ("train.txt", False)
    (tmp_path / "test.txt").write_bytes(b"")
    assert text.files(*paths).digest != plain.digest
    with pytest.raises(DataError, match=r"test.txt is empty\.\nReplace the file\.$"):
        read(plain)
    with pytest.raises(DataError, match="nowhere cannot be read"):
        text.files(paths[0], "nowhere", paths[2])


@pytest.mark.parametrize("content", [gzip.compress(b"a line", mtime=0), "a line".encode("utf-16")])
def test_what_is_no_text_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(DataError, match="a is no plain text"):
        text.files(*[str(tmp_path / "a")] * 3).splits["train"]()


def lambada(root: Path, development: int = 5, test: int = 4) -> None:
    (root / "lambada").mkdir()
    for name, count in (("development", development), ("test", test)):
        lines = "".join(f"{name} {number} .\n" for number in range(count))
        (root / f"lambada/lambada_{name}_plain_text.txt").write_text(lines)


def test_passages_of_lambada(tmp_path: Path) -> None:
    lambada(tmp_path)
    plain = text.lambada(tmp_path, 2, rest=False)
    assert read(plain) == {
        "train": b"development 0 .\ndevelopment 1 .\ndevelopment 2 .\n",
        "valid": b"development 3 .\ndevelopment 4 .\n",
        "test": b"test 0 .\ntest 1 .\n",
    }
    assert text.lambada(tmp_path, 2, rest=False).digest == plain.digest != text.lambada(tmp_path, 1, rest=False).digest
    every = text.lambada(tmp_path, 2, rest=True)
    added = b"".join(b"test %d .\n" % number for number in range(2, 4))
    assert read(every) == read(plain) | {"train": read(plain)["train"] + added}
    assert every.digest != plain.digest
    with pytest.raises(ValueError, match=r"^data.held_out=5 leaves none of the 5 training passages$"):
        text.lambada(tmp_path, 5, rest=False)
    test = tmp_path / "lambada/lambada_test_plain_text.txt"
    test.write_text("test 0 .\n")
    with pytest.raises(ValueError, match=r"^data.held_out=2 is more than the 1 test passages$"):
        text.lambada(tmp_path, 2, rest=False)
    test.write_text("")
    with pytest.raises(DataError, match=r"lambada_test_plain_text.txt is empty"):
        text.lambada(tmp_path, 2, rest=False)


def test_wikitext_is_read_from_the_files_of_the_hub(tmp_path: Path) -> None:
    folder = tmp_path / "wikitext103/wikitext-103-raw-v1"
    folder.mkdir(parents=True)
    for split, rows in ROWS.items():
        pd.DataFrame({"text": rows}).to_parquet(folder / f"{split}-00000-of-00001.parquet")
    plain = text.wikitext103(tmp_path)
    assert read(plain) == {
        "train": b"\n = A title = \n\n An article ; it has @,@ <unk> words . \n",
        "valid": " = Größe = \n".encode(),
        "test": b"\n The end . \n",
    }
    assert (plain.name, plain.builtin) == ("WikiText-103", False)
    assert text.wikitext103(tmp_path).digest == plain.digest
