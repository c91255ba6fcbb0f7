"""Cloze questions: sentences, the vocabulary, and stored questions; CNN's and LAMBADA's files."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from helpers.pictures import silent

from rmsexp.data import DataError, Report, cloze
from rmsexp.data.cloze import EOS, NIL, NUM, PLACEHOLDER, RESERVED, UNK, Cloze, Question, cnn, encode, lambada


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
    assert result.words[:9] == [*RESERVED, "the", "saw", "cat", "@entity1", PLACEHOLDER]
    assert {result.words[id] for id in result.entities} == {f"@entity{number}" for number in range(4)}
    assert result.entities.dtype == np.int64
    assert len(result.words) == 9 + 3
    assert "@entity7" in encode("a", splits(test=[question("@entity5 .", "@placeholder", "@entity7")])).words
    assert texts(result, "train")[1] == ("@entity0 <unk> the cat saw <num> <unk> <num>", "the @placeholder", "cat")
    assert texts(result, "valid") == [
        ("the @entity3 saw <unk> saw <unk> <unk> <num>", "@placeholder <unk> <unk>", "<unk>")
    ]


def test_reserved_names_in_the_text_get_the_reserved_ids() -> None:
    result = encode("a", splits(train=[question("<num> <unk> <unk>", "@placeholder", "<nil>")]))
    assert result.splits["train"].passages[0].tolist() == [NUM, UNK, UNK]
    assert result.splits["train"].answers.tolist() == [NIL]
    assert (NIL, EOS, UNK, NUM) == (0, 1, 2, 3)
    assert len(set(result.words)) == len(result.words)


@pytest.mark.parametrize("split", ["train", "valid"])
def test_empty_split_is_refused(split: str) -> None:
    with pytest.raises(DataError, match=rf"No example of my data is left in its {split} split\.\n"):
        encode("my data", splits(**{split: []}))


def test_stored_questions_stay_in_their_files(tmp_path: Path) -> None:
    made = list[str]()

    def load(stamp: str) -> Cloze:
        def make(_: Report) -> Cloze:
            made.append(stamp)
            return encode("a", splits(test=[question("a the", "@placeholder", "@entity1")]))

        return cloze.stored(tmp_path, "a", "digest", stamp, make).load(silent)

    first, again, _ = map(load, "xxy")
    assert made == ["x", "y"]
    fresh = encode("a", splits(test=[question("a the", "@placeholder", "@entity1")]))
    assert again.words == fresh.words
    assert list(again.splits) == ["train", "valid", "test"]
    for split in fresh.splits:
        assert texts(first, split) == texts(again, split) == texts(fresh, split)
    assert not again.splits["train"].passages.tokens.flags.writeable


# CNN

PASSAGE = "@entity1 met @entity2 in Rome . it rained . then @entity2 left @entity3 ? yes"
LINES = ["http://x.y/z", "", PASSAGE, "", "@placeholder left", "", "@entity2", ""]
LINES += ["@entity1:A: b", "@entity2:C", "@entity3:"]


def lines(**changed: str) -> list[str]:
    """Return the lines of a question file, changed as the arguments say: ``line3="..."`` replaces line 3."""
    result = list(LINES)
    for name, line in changed.items():
        result[int(name.removeprefix("line")) - 1] = line
    return result


def test_lines_may_end_as_on_windows() -> None:
    assert cloze.parsed("\r\n".join(LINES)) == cloze.parsed("\n".join(LINES))


def test_a_name_of_an_entity_may_contain_any_character() -> None:
    assert cloze.parsed("\n".join([*LINES, "@entity9:a\u2028b"]))


def write_file(path: Path, content: list[str] | bytes = LINES) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else "\n".join(content).encode())
    return path


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(lines(line5="who left"), id="no gap"),
        pytest.param(lines(line5="@placeholders"), id="gap inside a word"),
        pytest.param(lines(line7="@entity4"), id="unknown answer"),
        pytest.param(lines(line7="Rome"), id="answer no entity"),
        pytest.param(lines(line3="  "), id="empty passage"),
        pytest.param(LINES[:8], id="no table"),
        pytest.param([], id="empty file"),
        pytest.param(LINES[:2] + LINES[4:], id="no passage block"),
        pytest.param(lines(line11="@entity03:x"), id="leading zero"),
    ],
)
def test_damaged_texts_are_refused(content: list[str]) -> None:
    with pytest.raises(ValueError, match=r"."):
        cloze.parsed("\n".join(content))


@pytest.mark.parametrize(
    ("passage", "question", "count", "expected"),
    [
        ("a b . c d . e f .", "c @placeholder e f", 2, "c d . e f ."),
        ("a b . c d . e f .", "e f b", 1, "e f ."),
        ("a b . c d . e f .", "z", 2, "a b . c d ."),
        ("b b b . a c . a b .", "a b", 1, "a b ."),
        ("a b . , @placeholder ? a .", "@placeholder , ?", 1, "a b ."),
        ("a b", "c", 4, "a b"),
        ("a . b ! c ? d . e", "e d c b a", 4, "a . b ! c ? d ."),
    ],
    ids=["in order", "most", "ties to the earlier", "different words", "no punctuation", "no end", "four"],
)
def test_sentences_that_share_most_words_are_kept(passage: str, question: str, count: int, expected: str) -> None:
    assert " ".join(cloze.most_related(passage.split(), question.split(), count)) == expected


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """Return a ``data.root`` with three question files in training, one in validation and one in test."""
    for split, count in (("training", 3), ("validation", 1), ("test", 1)):
        for number in range(count):
            write_file(
                tmp_path / "cnn" / "questions" / split / f"{number}.question",
                [*lines(line1=f"{split}{number}"), *["", " "] * number],
            )
    return tmp_path


def load_cnn(root: Path, sentences: int | None = None, damaged: str = "refuse") -> tuple[Cloze, list[str]]:
    reports: list[str] = []
    return cnn(root, sentences, damaged).load(reports.append), reports


def test_files_of_all_splits_are_encoded(questions: Path) -> None:
    result, reports = load_cnn(questions)
    assert {split: len(examples) for split, examples in result.splits.items()} == {"train": 3, "valid": 1, "test": 1}
    assert {result.words[id] for id in result.entities} == {f"@entity{number}" for number in range(4)}
    assert texts(result, "test")[0][0] == PASSAGE.lower()
    assert [result.words[id] for id in result.splits["train"].answers] == ["@entity2"] * 3
    assert reports == [
        f"reading 5 files of {questions}/cnn/questions (once)",
        f"CNN: 3 train, 1 valid, 1 test examples; {len(result.words)} words, 4 of them entities",
    ]
    assert load_cnn(questions)[1] == reports[1:]
    os.utime(questions / "cnn/questions/test/0.question", ns=(0, 0))  # as after a change that keeps the size
    assert load_cnn(questions)[1] == reports


def test_passages_are_cut_to_their_most_related_sentences(questions: Path) -> None:
    result, _ = load_cnn(questions, sentences=1)
    assert texts(result, "train")[0][0] == "then @entity2 left @entity3 ?"
    write_file(questions / "cnn" / "questions" / "validation" / "0.question", lines(line5="@placeholder rained"))
    result, _ = load_cnn(questions, sentences=1)
    assert texts(result, "valid")[0][0] == "<unk> <unk> <unk>"  # "it rained .", not in training text


@pytest.mark.parametrize("content", [lines(line7="@entity9"), b"", "\n".join(LINES).encode() + b"\n@entity4:\xe9\n"])
def test_damaged_files_are_refused_by_name_or_left_out(content: list[str] | bytes, questions: Path) -> None:
    path = write_file(questions / "cnn" / "questions" / "training" / "1.question", content)
    with pytest.raises(DataError, match=rf"^{path} is damaged: .*\n.*data\.damaged=skip"):
        load_cnn(questions)
    result, reports = load_cnn(questions, damaged="skip")
    assert len(result.splits["train"]) == 2
    assert reports[1].startswith(f"left out: {path} (")


def test_a_file_that_cannot_be_opened_is_not_left_out(questions: Path) -> None:
    """It may be intact, and the data would be stored without it."""
    path = questions / "cnn" / "questions" / "training" / "3.question"
    path.mkdir()
    with pytest.raises(DataError, match=rf"{path} cannot be read \(Is a directory\)"):
        load_cnn(questions, damaged="skip")
    assert not list((questions / "cloze").glob("[!.]*"))


def test_digest_depends_on_names_and_sizes(questions: Path) -> None:
    folder = questions / "cnn" / "questions" / "training"
    before = cnn(questions, None, "refuse")
    assert (before.name, len(before.digest), before.builtin) == ("CNN", 64, False)
    (folder / "readme.txt").write_text("no question")
    assert cnn(questions, 4, "refuse").digest == before.digest
    (folder / "1.question").rename(folder / "3.question")
    renamed = cnn(questions, None, "refuse").digest
    write_file(folder / "3.question", lines(line1="longer"))
    assert len({before.digest, renamed, cnn(questions, None, "refuse").digest}) == 3


# LAMBADA

DEVELOPMENT = [
    "the cat saw the dog . `` who ? '' reports the dog to the cat",  # kept
    "The CAT saw 7 owls . they all saw the 7 owls",  # kept; has upper case
    "the dog saw the cat",  # no passage
    "the dog saw it . then came the bird",  # the answer is not in the passage
]
TEST = ["a bird ! it was the owl and a bird ' and , the dog ? '' the bird"]


def write_lambada(root: Path, development: list[str] | bytes = DEVELOPMENT, test: list[str] = TEST) -> Path:
    folder = root / "lambada"
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in (("development", development), ("test", test)):
        content = lines if isinstance(lines, bytes) else "".join(f"{line}\n" for line in lines).encode()
        (folder / f"lambada_{name}_plain_text.txt").write_bytes(content)
    return root


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
    path = write_file(tmp_path / "file", [line, ""])
    assert cloze.read_questions(path) == [Question(passage.split(), question.split(), "d")]


def test_all_but_frequent_words_and_numbers_are_anonymised() -> None:
    passage, question = "ann met 12 men and ann ran .", "so @placeholder met bob"
    result = cloze.anonymised(Question(passage.split(), question.split(), "ann"), {"and", ".", "so"}, 4)
    assert " ".join(result.passage) == "@entity0 @entity1 12 @entity2 and @entity0 @entity3 ."
    assert " ".join(result.question) == "so @placeholder @entity1 <unk>"
    assert result.answer == "@entity0"


@pytest.mark.parametrize(("near", "positions"), [(1, {0, 1, 2}), (3, {4, 5, 6}), (30, {12})])
def test_shortened_passage_has_the_last_answer_at_any_position(near: int, positions: set[int]) -> None:
    """The last answer takes every position for which the passage has enough words before and after this answer."""
    words = [*"abcdefgh", "answer", *"ijk", "answer", *"lm"]
    passages = [
        cloze.shortened(Question(words, ["@placeholder"], "answer"), near, place).passage for place in range(40)
    ]
    assert {len(passage) - 1 - passage[::-1].index("answer") for passage in passages} == positions
    for passage in passages:
        assert len(passage) == min(2 * near + 1, len(words))
        assert "".join(passage) in "".join(words)


def test_questions_without_an_answer_in_their_passage_are_left_out(tmp_path: Path) -> None:
    result = lambada(write_lambada(tmp_path), 2, 12).load(silent)
    assert [len(result.splits[split]) for split in ("train", "valid")] == [6, 1]
    # In the training text, "the" occurs 6 times, and "cat" and "saw" 3 times each, "cat" first.
    assert [texts(result, "train")[0]] == [
        ("cat @entity0 the @entity1 @entity2 @entity3 @entity4", "<unk> the @entity1 <unk> the @placeholder", "cat"),
    ]
    assert texts(result, "train")[5] == (
        "the cat @entity0 <num> @entity1 @entity2",
        "<unk> <unk> @entity0 the <num> @placeholder",
        "@entity1",
    )
    assert texts(result, "valid")[0] == (
        "@entity0 @entity1 @entity2 @entity3 @entity4 the @entity5 @entity6 @entity0 @entity1 @entity7 @entity6 "
        "@entity8 the @entity9 @entity10 @entity11",
        "the @placeholder",
        "@entity1",
    )
    assert len(result.entities) == 12


def test_validation_questions_may_be_the_last_training_questions(tmp_path: Path) -> None:
    usual, split = (lambada(write_lambada(tmp_path), 2, 12, count) for count in (None, 1))
    assert usual.digest != split.digest
    result = split.load(silent)
    assert [len(result.splits[name]) for name in ("train", "valid", "test")] == [3, 1, 1]
    assert texts(result, "test")[0] == texts(usual.load(silent), "valid")[0]
    with pytest.raises(ValueError, match=r"data\.validation=2 leaves none of the 2 training questions"):
        lambada(write_lambada(tmp_path), 2, 12, 2).load(silent)


@pytest.mark.parametrize("vocabulary", [6, 99])
def test_numbers_and_words_that_occur_once_are_not_frequent(vocabulary: int, tmp_path: Path) -> None:
    words = lambada(write_lambada(tmp_path), vocabulary, 12).load(silent).words
    assert [word for word in words[4:] if word[0] != "@"] == ["the", "cat", "saw", "dog", ".", "owls"]


def test_questions_are_encoded_once_for_each_vocabulary_and_text(tmp_path: Path) -> None:
    sources = [lambada(write_lambada(tmp_path), words, names) for words, names in ((2, 12), (3, 12), (2, 12), (2, 1))]
    results = [source.load(silent) for source in sources]
    words = [result.words for result in results]
    assert len({source.digest for source in sources}) == 1
    assert words[0] == words[2] != words[1] != words[3] != words[0]
    assert texts(results[3], "valid")[0][2] == "<unk>"  # the answer is no entity
    changed = lambada(write_lambada(tmp_path, test=[*TEST, *DEVELOPMENT]), 2, 12)
    assert changed.digest != sources[0].digest
    assert len(changed.load(silent).splits["valid"]) == 3
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
    source = lambada(write_lambada(tmp_path, content), 10, 12)
    with pytest.raises(DataError) as error:
        source.load(silent)
    path = tmp_path / "lambada" / "lambada_development_plain_text.txt"
    assert str(error.value).startswith(f"{path}, line {line}: {problem}")
    assert str(error.value).count("\n") == 1
