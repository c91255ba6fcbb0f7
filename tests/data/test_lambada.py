"""LAMBADA: the split into passage and question, the selection of questions, and the anonymised words."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmsexp.data import DataError
from rmsexp.data.cloze import Cloze, Question
from rmsexp.data.lambada import anonymised, lambada, read_questions, shortened

DEVELOPMENT = [
    "the cat saw the dog . `` who ? '' reports the dog to the cat",  # kept
    "The CAT saw 7 owls . they all saw the 7 owls",  # kept; has upper case
    "the dog saw the cat",  # no passage
    "the dog saw it . then came the bird",  # the answer is not in the passage
]
TEST = ["a bird ! it was the owl and a bird ' and , the dog ? '' the bird"]


def write(root: Path, development: list[str] | bytes = DEVELOPMENT, test: list[str] = TEST) -> Path:
    folder = root / "lambada"
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in (("development", development), ("test", test)):
        content = lines if isinstance(lines, bytes) else "".join(f"{line}\n" for line in lines).encode()
        (folder / f"lambada_{name}_plain_text.txt").write_bytes(content)
    return root


def text(result: Cloze, split: str, index: int) -> tuple[str, str, str]:
    examples, words = result.splits[split], result.words
    parts = (examples.passages[index], examples.questions[index])
    passage, question = (" ".join(words[id] for id in part) for part in parts)
    return passage, question, words[examples.answers[index]]


def read_line(tmp_path: Path, line: str) -> tuple[str, str, str]:
    path = tmp_path / "file"
    path.write_text(line + "\n")
    (question,) = read_questions(path)
    return " ".join(question.passage), " ".join(question.question), question.answer


@pytest.mark.parametrize(
    ("line", "passage", "question"),
    [
        ("a b . c d", "a b .", "c @placeholder"),
        ("a . b ? '' c d", "a . b ? ''", "c @placeholder"),
        ("a ! ' c d", "a ! '", "c @placeholder"),
        ("a . `` c '' d", "a .", "`` c '' @placeholder"),
        ("a . '' '' d", "a . '' ''", "@placeholder"),
        ("a . . d", "a . .", "@placeholder"),
        ("a b ... d", "", "a b ... @placeholder"),
        (" A  B .\tC D ", "a b .", "c @placeholder"),
    ],
)
def test_question_is_the_last_sentence(line: str, passage: str, question: str, tmp_path: Path) -> None:
    assert read_line(tmp_path, line) == (passage, question, "d")


def test_all_but_frequent_words_and_numbers_are_anonymised() -> None:
    passage, question = "ann met 12 men and ann ran .", "so @placeholder met bob"
    result = anonymised(Question(passage.split(), question.split(), "ann"), {"and", ".", "so"}, 4)
    assert " ".join(result.passage) == "@entity0 @entity1 12 @entity2 and @entity0 @entity3 ."
    assert " ".join(result.question) == "so @placeholder @entity1 <unk>"
    assert result.answer == "@entity0"


@pytest.mark.parametrize(("near", "positions"), [(1, {0, 1, 2}), (3, {4, 5, 6}), (30, {12})])
def test_shortened_passage_has_the_last_answer_at_any_position(near: int, positions: set[int]) -> None:
    """The last answer takes every position for which the passage has enough words before and after this answer."""
    words = [*"abcdefgh", "answer", *"ijk", "answer", *"lm"]
    passages = [shortened(Question(words, ["@placeholder"], "answer"), near, place).passage for place in range(40)]
    assert {len(passage) - 1 - passage[::-1].index("answer") for passage in passages} == positions
    for passage in passages:
        assert len(passage) == min(2 * near + 1, len(words))
        assert "".join(passage) in "".join(words)


def test_questions_without_an_answer_in_their_passage_are_left_out(tmp_path: Path) -> None:
    result = lambada(write(tmp_path), 2, 12).load(lambda _: None)
    assert [len(result.splits[split]) for split in ("train", "valid")] == [6, 1]
    # In the training text, "the" occurs 6 times, and "cat" and "saw" 3 times each, "cat" first.
    assert [text(result, "train", 0)] == [
        ("cat @entity0 the @entity1 @entity2 @entity3 @entity4", "<unk> the @entity1 <unk> the @placeholder", "cat"),
    ]
    assert text(result, "train", 5) == (
        "the cat @entity0 <num> @entity1 @entity2",
        "<unk> <unk> @entity0 the <num> @placeholder",
        "@entity1",
    )
    assert text(result, "valid", 0) == (
        "@entity0 @entity1 @entity2 @entity3 @entity4 the @entity5 @entity6 @entity0 @entity1 @entity7 @entity6 "
        "@entity8 the @entity9 @entity10 @entity11",
        "the @placeholder",
        "@entity1",
    )
    assert len(result.entities) == 12


def test_validation_questions_may_be_the_last_training_questions(tmp_path: Path) -> None:
    usual, split = (lambada(write(tmp_path), 2, 12, count) for count in (None, 1))
    assert usual.digest != split.digest
    result = split.load(lambda _: None)
    assert [len(result.splits[name]) for name in ("train", "valid", "test")] == [3, 1, 1]
    assert text(result, "test", 0) == text(usual.load(lambda _: None), "valid", 0)
    with pytest.raises(ValueError, match=r"data\.validation=2 leaves none of the 2 training questions"):
        lambada(write(tmp_path), 2, 12, 2).load(lambda _: None)


def test_answer_that_is_no_entity_is_unknown(tmp_path: Path) -> None:
    result = lambada(write(tmp_path), 2, 1).load(lambda _: None)
    assert text(result, "valid", 0)[2] == "<unk>"


def test_questions_are_encoded_once_for_each_vocabulary_and_text(tmp_path: Path) -> None:
    digests = [lambada(write(tmp_path), words, names) for words, names in ((2, 12), (3, 12), (2, 12), (2, 3))]
    words = [source.load(lambda _: None).words for source in digests]
    assert len({source.digest for source in digests}) == 1
    assert words[0] == words[2] != words[1] != words[3] != words[0]
    changed = lambada(write(tmp_path, test=[*TEST, *DEVELOPMENT]), 2, 12)
    assert changed.digest != digests[0].digest
    assert len(changed.load(lambda _: None).splits["valid"]) == 3
    assert len(list((tmp_path / "cloze").glob("[!.]*"))) == 4


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        (b"a . b\nbird\n", 2, "only one word."),
        (b"a . b\n\na . b\n", 2, "empty."),
        (b"a . b\na . \xe9\n", 2, "not UTF-8"),
    ],
)
def test_malformed_lines_are_named(content: bytes, line: int, problem: str, tmp_path: Path) -> None:
    source = lambada(write(tmp_path, content), 10, 12)
    with pytest.raises(DataError) as error:
        source.load(lambda _: None)
    path = tmp_path / "lambada" / "lambada_development_plain_text.txt"
    assert str(error.value).startswith(f"{path}, line {line}: {problem}")
    assert str(error.value).count("\n") == 1
