"""Cloze questions: sentences, the vocabulary, and stored questions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from rmsexp.data import DataError, cloze
from rmsexp.data.cloze import (
    EOS,
    NIL,
    NUM,
    PLACEHOLDER,
    RESERVED,
    UNK,
    Cloze,
    Question,
    encode,
    stored,
)


def question(passage: str, gap: str, answer: str) -> Question:
    return Question(passage.split(), gap.split(), answer)


TRAIN = [
    question("the @entity1 saw the cat 10 times", "@placeholder saw it", "@entity1"),
    question("@entity0 and the cat saw 10 or 7", "the @placeholder", "cat"),
]
VALID = [question("the @entity3 saw and saw a dog 99", "@placeholder was it", "dog")]


def splits(**changed: list[Question]) -> Mapping[str, list[Question]]:
    return {"train": TRAIN, "valid": VALID, **changed}


def texts(result: Cloze, split: str) -> list[tuple[str, str, str]]:
    examples, words = result.splits[split], result.words
    return [
        (
            " ".join(words[id] for id in examples.passages[i]),
            " ".join(words[id] for id in examples.questions[i]),
            words[examples.answers[i]],
        )
        for i in range(len(examples))
    ]


def test_words_are_ordered_by_frequency_and_first_appearance() -> None:
    result = encode("a", splits())
    # frequencies in TRAIN: the 4, saw 3, cat 3, @entity1 2, the placeholder 2; numbers and rarer words are left out
    assert result.words[:4] == list(RESERVED)
    assert result.words[4:7] == ["the", "saw", "cat"]
    assert result.words[7:9] == ["@entity1", PLACEHOLDER]
    assert (NIL, EOS, UNK, NUM) == (0, 1, 2, 3)
    assert not {"10", "and", "it", "dog"} & set(result.words)


def test_every_entity_up_to_the_highest_of_any_split_is_a_word() -> None:
    result = encode("a", splits())
    assert {result.words[id] for id in result.entities} == {f"@entity{number}" for number in range(4)}
    assert result.entities.dtype == np.int64
    assert "@entity7" in encode("a", splits(test=[question("@entity5 .", "@placeholder", "@entity7")])).words


def test_unknown_words_and_numbers() -> None:
    result = encode("a", splits())
    assert texts(result, "train")[1] == ("@entity0 <unk> the cat saw <num> <unk> <num>", "the @placeholder", "cat")
    assert texts(result, "valid") == [
        ("the @entity3 saw <unk> saw <unk> <unk> <num>", "@placeholder <unk> <unk>", "<unk>")
    ]


def test_reserved_names_in_the_text_get_the_reserved_ids() -> None:
    result = encode("a", splits(train=[question("<num> <unk> <unk>", "@placeholder", "<nil>")]))
    assert result.splits["train"].passages[0].tolist() == [NUM, UNK, UNK]
    assert result.splits["train"].answers.tolist() == [NIL]
    assert len(set(result.words)) == len(result.words)


def test_chunks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = encode("a", splits())
    monkeypatch.setattr(cloze, "CHUNK", 3)
    chunked = encode("a", splits())
    assert chunked.words == whole.words
    assert all(texts(chunked, split) == texts(whole, split) for split in ("train", "valid"))


@pytest.mark.parametrize("split", ["train", "valid"])
def test_empty_split_is_refused(split: str) -> None:
    with pytest.raises(DataError, match=rf"No example of my data is left in its {split} split\.\n"):
        encode("my data", splits(**{split: []}))


def load(root: Path, stamp: str = "x", **changed: list[Question]) -> tuple[Cloze, int]:
    """Return the stored questions, and how often ``stored`` called ``make``."""
    calls = 0

    def make() -> Cloze:
        nonlocal calls
        calls += 1
        return encode("a", splits(**changed))

    return stored(root, "a", stamp, make, lambda _: None), calls


def test_stored_questions_stay_in_their_files(tmp_path: Path) -> None:
    test = [question("a the", "@placeholder", "@entity1")]
    (first, made), (again, made_again) = load(tmp_path, test=test), load(tmp_path, test=test)
    assert (made, made_again) == (1, 0)
    fresh = encode("a", splits(test=test))
    assert again.words == fresh.words
    assert again.entities.tolist() == fresh.entities.tolist()
    assert list(again.splits) == ["train", "valid", "test"]
    for split in fresh.splits:
        assert texts(first, split) == texts(again, split) == texts(fresh, split)
    assert not again.splits["train"].passages.tokens.flags.writeable
    assert load(tmp_path, "y")[1] == 1
