"""Plain text: sentences, the user's files, LAMBADA and WikiText-103; its tokens, bytes and pieces, without loss."""

import gzip
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rmsexp.data import DataError, Source, text
from rmsexp.data.text import SPLITS, Text, Tokens

TEXTS = [
    "The old dog sees the house.\n",
    "  two  spaces \n\n\ttab\r\nno end",
    "Größe 東京 \N{GRINNING FACE}\x00\x7f",
    "\n",
    "",
]


def read(plain: Text) -> Mapping[str, bytes]:
    return plain.load(lambda _: None)


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
        read(text.files(*[str(tmp_path / "a")] * 3))


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
    assert text.lambada(tmp_path, 2, rest=False).digest == plain.digest != text.lambada(tmp_path, 4, rest=False).digest
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
    train = ["", " = A title = \n", "", " An article ; it has @,@ <unk> words . \n"]
    for split, rows in (("train", train), ("validation", [" = Größe = \n"]), ("test", ["", " The end . \n"])):
        pd.DataFrame({"text": rows}).to_parquet(folder / f"{split}-00000-of-00001.parquet")
    plain = text.wikitext103(tmp_path)
    assert read(plain) == {
        "train": b"\n = A title = \n\n An article ; it has @,@ <unk> words . \n",
        "valid": " = Größe = \n".encode(),
        "test": b"\n The end . \n",
    }
    assert (plain.name, plain.builtin) == ("WikiText-103", False)


def mine(contents: Mapping[str, bytes]) -> Text:
    return Source("mine", "0", False, lambda _: contents)


def prepared(root: Path, kind: str, plain: Text | None = None, vocabulary: int = 330) -> Tokens:
    return text.prepare(plain or text.sentences(60, 12, 13), kind, vocabulary, root, lambda _: None)


@pytest.mark.parametrize("kind", text.KINDS)
def test_text_is_restored_from_tokens(kind: str, tmp_path: Path) -> None:
    plain = text.sentences(60, 12, 13)
    found = prepared(tmp_path, kind, plain)
    tokeniser = found.tokeniser
    assert tokeniser.size == (256 if kind == "bytes" else 330)
    assert found.splits["train"].dtype == (np.uint8 if kind == "bytes" else np.uint16)
    for split, content in read(plain).items():
        assert tokeniser.decode(found.splits[split].tolist()).encode() == content
    for content in TEXTS:
        ids = tokeniser.encode(content.encode())
        assert tokeniser.decode(ids.tolist()) == content
        assert int(tokeniser.lengths[ids].sum()) == len(content.encode())
        assert (ids == tokeniser.line_end).sum() == content.count("\n")
        assert ids.size == 0 or ids.max() < tokeniser.size
    assert len(tokeniser.lengths) == tokeniser.size


def test_pieces_are_longer_than_bytes_and_are_learnt_from_training_text_once(tmp_path: Path) -> None:
    plain, messages = text.sentences(60, 12, 13), list[str]()
    first = text.prepare(plain, "sentencepiece", 330, tmp_path, messages.append)
    assert messages[0] == "learning 330 pieces (once)"
    assert len(first.splits["train"]) < 0.7 * len(read(plain)["train"])
    count = len(messages)
    again = text.prepare(plain, "sentencepiece", 330, tmp_path, messages.append)
    assert len(messages) == count
    assert all(np.array_equal(again.splits[split], first.splits[split]) for split in SPLITS)
    other = text.prepare(plain, "sentencepiece", 340, tmp_path, messages.append)
    assert (other.tokeniser.size, len(messages)) == (340, 2 * count)
    for model in tmp_path.glob("tokens/*/model"):
        model.write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"Delete this folder"):
        prepared(tmp_path, "sentencepiece", plain)


def test_of_long_texts_every_nth_line_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    learnt, learn = list[str](), text.learn_pieces

    def recording(lines: Iterable[str], *rest: Any, **ids: Any) -> bytes:
        learnt.extend(lines)
        return learn(learnt, *rest, **ids)

    monkeypatch.setattr(text, "learn_pieces", recording)
    monkeypatch.setattr(text, "MOST_LINES", 25)
    plain = text.sentences(60, 12, 13)
    text.prepare(plain, "sentencepiece", 320, tmp_path, lambda _: None)
    assert learnt == read(plain)["train"].decode().split("\n")[:-1:3]
    longest, learnt[:] = max(map(len, learnt)), []
    monkeypatch.setattr(text, "LONGEST", longest - 1)
    text.prepare(plain, "sentencepiece", 330, tmp_path, lambda _: None)
    assert "".join(learnt) == "".join(read(plain)["train"].decode().split("\n")[:-1:3])
    assert max(map(len, learnt)) == longest - 1


@pytest.mark.parametrize("size", [1, 7])
def test_chunks_do_not_change_the_tokens(size: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(text, "LINES", size)
    contents = {"train": read(text.sentences(60))["train"], "valid": "".join(TEXTS).encode(), "test": b"\n\nb\n"}
    found = prepared(tmp_path, "sentencepiece", mine(contents))
    for split, content in contents.items():
        assert np.array_equal(found.splits[split], found.tokeniser.encode(content))


def test_pieces_need_text(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"does not fit the training text of mine"):
        prepared(tmp_path, "sentencepiece", mine(dict.fromkeys(SPLITS, b"\n\n")))
    plain = mine({"train": read(text.sentences(60))["train"], "valid": b"a\n\xff", "test": b"b"})
    assert prepared(tmp_path, "bytes", plain).tokeniser.decode([97, 10, 255]) == "a\n\ufffd"
    with pytest.raises(DataError, match=r"^The valid text of mine is not UTF-8 \(invalid start byte at byte 2\)\."):
        prepared(tmp_path, "sentencepiece", plain)
