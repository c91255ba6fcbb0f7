"""CNN's questions: DeepMind's files, and the selection of sentences."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmsexp.data import DataError
from rmsexp.data.cloze import Cloze, Examples
from rmsexp.data.cnn import cnn, most_related, parsed

PASSAGE = "@entity1 met @entity2 in Rome . it rained . then @entity2 left @entity3 ? yes"
LINES = [
    "http://x.y/z",
    "",
    PASSAGE,
    "",
    "@placeholder left",
    "",
    "@entity2",
    "",
    "@entity1:A: b",
    "@entity2:C",
    "@entity3:",
]


def lines(**changed: str) -> list[str]:
    """Return the lines of a question file, changed as the arguments say: ``line3="..."`` replaces line 3."""
    result = list(LINES)
    for name, line in changed.items():
        result[int(name.removeprefix("line")) - 1] = line
    return result


def write(path: Path, content: list[str] | bytes = LINES) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else "\n".join(content).encode())
    return path


def test_text_is_read_in_lower_case() -> None:
    for ending in ("", "\n", "\n\n \n"):
        question = parsed("\n".join(LINES) + ending)
        assert question.passage == PASSAGE.lower().split()
        assert question.question == ["@placeholder", "left"]
        assert question.answer == "@entity2"


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
        parsed("\n".join(content))


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
    assert " ".join(most_related(passage.split(), question.split(), count)) == expected


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a ``data.root`` with three question files in training, one in validation and one in test."""
    for split, count in (("training", 3), ("validation", 1), ("test", 1)):
        for number in range(count):
            write(tmp_path / "cnn" / "questions" / split / f"{number}.question", lines(line1=f"{split}{number}"))
    return tmp_path


def load(root: Path, sentences: int | None = None, damaged: str = "refuse") -> tuple[Cloze, list[str]]:
    reports: list[str] = []
    return cnn(root, sentences, damaged).load(reports.append), reports


def text(result: Cloze, examples: Examples, index: int = 0) -> str:
    return " ".join(result.words[id] for id in examples.passages[index])


def test_files_of_all_splits_are_encoded(root: Path) -> None:
    result, reports = load(root)
    assert {split: len(examples) for split, examples in result.splits.items()} == {"train": 3, "valid": 1, "test": 1}
    assert {result.words[id] for id in result.entities} == {f"@entity{number}" for number in range(4)}
    assert text(result, result.splits["test"]) == PASSAGE.lower()
    assert [result.words[id] for id in result.splits["train"].answers] == ["@entity2"] * 3
    assert reports == [
        f"reading 5 files of {root}/cnn/questions (once)",
        f"CNN: 3 train, 1 valid, 1 test examples; {len(result.words)} words, 4 of them entities",
    ]
    assert load(root)[1] == reports[1:]


def test_passages_are_cut_to_their_most_related_sentences(root: Path) -> None:
    result, _ = load(root, sentences=1)
    assert text(result, result.splits["train"]) == "then @entity2 left @entity3 ?"
    write(root / "cnn" / "questions" / "validation" / "0.question", lines(line5="@placeholder rained"))
    result, _ = load(root, sentences=1)
    assert text(result, result.splits["valid"]) == "<unk> <unk> <unk>"  # "it rained .", not in training text


@pytest.mark.parametrize("content", [lines(line7="@entity9"), b"", "\n".join(LINES).encode() + b"\n@entity4:\xe9\n"])
def test_damaged_files_are_refused_by_name_or_left_out(content: list[str] | bytes, root: Path) -> None:
    path = write(root / "cnn" / "questions" / "training" / "1.question", content)
    with pytest.raises(DataError, match=rf"^{path} is damaged: .*\n.*data\.damaged=skip"):
        load(root)
    result, reports = load(root, damaged="skip")
    assert len(result.splits["train"]) == 2
    assert reports[1].startswith(f"left out: {path} (")


def test_a_file_that_cannot_be_opened_is_not_left_out(root: Path) -> None:
    """It may be intact, and the data would be stored without it."""
    path = root / "cnn" / "questions" / "training" / "3.question"
    path.mkdir()
    with pytest.raises(DataError, match=rf"{path} cannot be read \(Is a directory\)"):
        load(root, damaged="skip")
    assert not list((root / "cloze").glob("[!.]*"))


def test_split_of_only_damaged_files_is_refused(root: Path) -> None:
    write(root / "cnn" / "questions" / "validation" / "0.question", b"")
    with pytest.raises(DataError, match="No example of CNN is left in its valid split"):
        load(root, damaged="skip")


def test_digest_depends_on_names_and_sizes(root: Path) -> None:
    folder = root / "cnn" / "questions" / "training"
    before = cnn(root, None, "refuse")
    assert (before.name, len(before.digest), before.builtin) == ("CNN", 64, False)
    (folder / "readme.txt").write_text("no question")
    assert cnn(root, 4, "refuse").digest == before.digest
    (folder / "1.question").rename(folder / "3.question")
    renamed = cnn(root, None, "refuse").digest
    write(folder / "3.question", lines(line1="longer"))
    assert len({before.digest, renamed, cnn(root, None, "refuse").digest}) == 3
