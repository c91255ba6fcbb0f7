"""Tokens of plain text: bytes and pieces, without loss; their lengths in bytes; the cache."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmsexp.data import DataError, text, tokens
from rmsexp.data.text import PlainText
from rmsexp.data.tokens import Tokens

TEXTS = [
    "The old dog sees the house.\n",
    "  two  spaces \n\n\ttab\r\nno end",
    "Größe 東京 \N{GRINNING FACE}\x00\x7f",
    "\n",
    "",
]


def prepared(root: Path, kind: str, plain: PlainText | None = None, vocabulary: int = 330) -> Tokens:
    return tokens.prepare(plain or text.sentences(60, 12, 13), kind, vocabulary, root, lambda _: None)


@pytest.mark.parametrize("kind", tokens.KINDS)
def test_text_is_restored_from_tokens(kind: str, tmp_path: Path) -> None:
    tokeniser = prepared(tmp_path, kind).tokeniser
    for content in TEXTS:
        ids = tokeniser.encode(content.encode())
        assert tokeniser.decode(ids.tolist()) == content
        assert int(tokeniser.lengths[ids].sum()) == len(content.encode())
        assert (ids == tokeniser.line_end).sum() == content.count("\n")
        assert ids.size == 0 or ids.max() < tokeniser.size
    assert len(tokeniser.lengths) == tokeniser.size


@pytest.mark.parametrize("kind", tokens.KINDS)
def test_every_split_is_encoded_whole(kind: str, tmp_path: Path) -> None:
    plain = text.sentences(60, 12, 13)
    found = prepared(tmp_path, kind, plain)
    for split, read in plain.splits.items():
        assert found.tokeniser.decode(found.splits[split].tolist()).encode() == read()
    assert found.tokeniser.size == (256 if kind == "bytes" else 330)
    assert found.splits["train"].dtype == (np.uint8 if kind == "bytes" else np.uint16)


def test_pieces_are_longer_than_bytes_and_are_learnt_from_training_text_once(tmp_path: Path) -> None:
    plain, messages = text.sentences(60, 12, 13), list[str]()
    first = tokens.prepare(plain, "sentencepiece", 330, tmp_path, messages.append)
    assert messages[0] == "learning 330 pieces (once)"
    assert len(first.splits["train"]) < 0.7 * len(plain.splits["train"]())
    count = len(messages)
    again = tokens.prepare(plain, "sentencepiece", 330, tmp_path, messages.append)
    assert len(messages) == count
    assert all(np.array_equal(again.splits[split], first.splits[split]) for split in text.SPLITS)
    other = tokens.prepare(plain, "sentencepiece", 340, tmp_path, messages.append)
    assert (other.tokeniser.size, len(messages)) == (340, 2 * count)


def test_of_long_texts_every_nth_line_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    learnt, learn = list[str](), tokens.pieces.learn

    def recording(lines: Iterable[str], *rest: Any, **ids: Any) -> bytes:
        learnt.extend(lines)
        return learn(learnt, *rest, **ids)

    monkeypatch.setattr(tokens.pieces, "learn", recording)
    monkeypatch.setattr(tokens, "MOST_LINES", 25)
    plain = text.sentences(60, 12, 13)
    tokens.prepare(plain, "sentencepiece", 320, tmp_path, lambda _: None)
    assert learnt == plain.splits["train"]().decode().split("\n")[:-1:3]


@pytest.mark.parametrize("size", [1, 7])
def test_chunks_do_not_change_the_tokens(size: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tokens, "LINES", size)
    contents = {"train": text.sentences(60).splits["train"](), "valid": "".join(TEXTS).encode(), "test": b"\n\nb\n"}
    plain = PlainText("mine", "0", False, {split: partial(contents.__getitem__, split) for split in contents})
    found = prepared(tmp_path, "sentencepiece", plain)
    for split, content in contents.items():
        assert np.array_equal(found.splits[split], found.tokeniser.encode(content))


def test_nothing_is_learnt_from_an_empty_text(tmp_path: Path) -> None:
    plain = PlainText("mine", "0", False, dict.fromkeys(text.SPLITS, lambda: b"\n\n"))
    with pytest.raises(DataError, match=r"^The training text of mine is empty: there is nothing"):
        prepared(tmp_path, "sentencepiece", plain)


def test_bytes_that_are_no_text_need_bytes_as_tokens(tmp_path: Path) -> None:
    contents = {"train": text.sentences(60).splits["train"](), "valid": b"a\n\xff", "test": b"b"}
    plain = PlainText("mine", "0", False, {split: partial(contents.__getitem__, split) for split in contents})
    assert prepared(tmp_path, "bytes", plain).tokeniser.decode([97, 10, 255]) == "a\n\ufffd"
    with pytest.raises(DataError, match=r"^The valid text of mine is not UTF-8 \(invalid start byte at byte 2\)\."):
        prepared(tmp_path, "sentencepiece", plain)
