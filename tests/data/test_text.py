"""Plain text: synthetic sentences, the user's files, LAMBADA's passages, and WikiText-103 by way of ``datasets``."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pandas as pd
import pytest

from rmsexp.data import DataError, UnavailableError, text
from rmsexp.data.text import SPLITS, PlainText

ROWS = {
    "train": ["", " = A title = \n", "", " An article ; it has @,@ <unk> words . \n"],
    "validation": [" = Größe = \n"],
    "test": ["", " The end . \n"],
}


def read(plain: PlainText) -> dict[str, bytes]:
    return {split: read() for split, read in plain.splits.items()}


def test_the_synthetic_sentences_are_always_the_same() -> None:
    plain = text.sentences(50, 5, 6)
    assert (plain.name, plain.builtin) == ("sentences", True)
    lines = {split: content.decode().split("\n") for split, content in read(plain).items()}
    assert {split: len(lines[split]) - 1 for split in SPLITS} == {"train": 50, "valid": 5, "test": 6}
    sentences = [line for split in SPLITS for line in lines[split][:-1]]
    assert len(set(sentences)) == 61
    assert all(line[0].isupper() and line[-1] in ".?" for line in sentences)
    assert all(lines[split][-1] == "" for split in SPLITS)
    assert text.sentences(50, 5, 6).digest == plain.digest != text.sentences(51, 5, 6).digest


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


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a data set in a local folder, as it is on the hub, that ``datasets`` reads in place of WikiText-103."""
    folder = tmp_path / "hub"
    (folder / text.WIKITEXT_CONFIG).mkdir(parents=True)
    files = ""
    for split, rows in ROWS.items():
        name = f"{text.WIKITEXT_CONFIG}/{split}-00000-of-00001.parquet"
        pd.DataFrame({"text": rows}).to_parquet(folder / name)
        files += f"  - split: {split}\n    path: {name}\n"
    (folder / "README.md").write_text(
        f"---\nconfigs:\n- config_name: {text.WIKITEXT_CONFIG}\n  data_files:\n{files}---\n"
    )
    monkeypatch.setattr(text, "WIKITEXT", str(folder))
    lines = {split: (name, len(ROWS[name])) for split, (name, _) in text.WIKITEXT_SPLITS.items()}
    monkeypatch.setattr(text, "WIKITEXT_SPLITS", lines)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.mark.usefixtures("hub")
def test_wikitext_is_downloaded_once(tmp_path: Path) -> None:
    messages: list[str] = []
    root = tmp_path / "data"
    plain = text.wikitext103(root, messages.append)
    expected = {
        "train": b"\n = A title = \n\n An article ; it has @,@ <unk> words . \n",
        "valid": " = Größe = \n".encode(),
        "test": b"\n The end . \n",
    }
    assert read(plain) == expected
    assert (plain.name, plain.builtin, len(messages)) == ("WikiText-103", False, 1)
    again = text.wikitext103(root, messages.append)
    assert (again.digest, read(again), len(messages)) == (plain.digest, expected, 1)
    valid = root / "wikitext103/valid.txt"
    valid.write_text("one\ntwo\n")
    with pytest.raises(DataError, match=r"valid.txt has 2 lines, not 1\.\nDelete its folder to download it again\."):
        read(text.wikitext103(root, messages.append))
    valid.unlink()
    assert read(text.wikitext103(root, messages.append)) == expected


@pytest.mark.usefixtures("hub")
def test_an_incomplete_download_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(text.WIKITEXT_SPLITS, "valid", ("validation", 2))
    with pytest.raises(UnavailableError, match=r"failed \(its valid split has 1 lines, not 2\)"):
        text.wikitext103(tmp_path, lambda _: None)
    assert not list((tmp_path / "wikitext103").glob("*.txt"))


def test_a_failed_download_leaves_nothing(tmp_path: Path, hub: Path) -> None:
    test = next((hub / text.WIKITEXT_CONFIG).glob("test*"))
    test.write_bytes(hashlib.sha256(b"damaged").digest())
    root = tmp_path / "data"
    message = r"^WikiText-103 is not in .*, and the download from .* failed"
    with pytest.raises(UnavailableError, match=message) as raised:
        text.wikitext103(root, lambda _: None)
    assert f"python -m rmsexp.prepare task=language_model scale=large data.root={root}" in str(raised.value)
    assert [path.name for path in (root / "wikitext103").iterdir()] == [".train.txt.lock"]
