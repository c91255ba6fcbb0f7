"""LAMBADA (Paperno et al. 2016) as cloze questions with anonymised words: real text where CNN's is not at hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from rmsexp.data import DataError, Source
from rmsexp.data.cache import key
from rmsexp.data.cloze import (
    PLACEHOLDER,
    RESERVED,
    UNK,
    Cloze,
    Question,
    encode,
    split_sentences,
    stored,
)
from rmsexp.data.files import digest_of, read_lines

SPLITS = {"train": "development", "valid": "test"}
CLOSING_QUOTES = ("''", "'")
NEAR = (3, 6, 12)  # half of the words of a training passage, but for the answer


def lambada(root: Path, vocabulary: int, entities: int) -> Source[Cloze]:
    """The lines of ``<root>/lambada/lambada_{development,test}_plain_text.txt``, whose last words are the answers.

    Those of development train and those of test validate: there is no third file, since LAMBADA's own training text is
    novels without questions. A question is the last sentence, its passage the text before. Only those whose answer
    occurs in the passage are kept. In training a passage is cut, in three ways, to some words around the answer: a few
    thousand whole ones do not teach a reader in minutes that answers stand in passages. Validation has them whole.

    The ``vocabulary`` most frequent words of the training text stay (of those that occur twice). Of the others, those
    that a passage has most often are anonymised as in CNN, at most ``entities`` of them, and the rest is unknown.

    Raises: DataError if a file is missing.
    """
    folder = root / "lambada"
    paths = {split: folder / f"lambada_{file}_plain_text.txt" for split, file in SPLITS.items()}
    if missing := [path.name for path in paths.values() if not path.is_file()]:
        raise DataError(
            f"LAMBADA is not in {folder}: {' and '.join(missing)} missing. The files of Paperno et al. (2016) are on "
            "Zenodo\n(record 2630551, CC BY 4.0); put them there. scale=demo needs no data."
        )
    digest = digest_of(paths.values())

    def load(report: Callable[[str], None]) -> Cloze:
        stamp = key(__file__, digest, vocabulary, entities)
        cloze, counts = stored(root, "LAMBADA", stamp, lambda: _make(paths, vocabulary, entities))
        report(_summary(cloze, counts))
        return cloze

    return Source("LAMBADA", digest, False, load)


def _summary(cloze: Cloze, counts: Mapping[str, int]) -> str:
    train, valid = counts["train"] // len(NEAR), counts["valid"]
    return (
        f"LAMBADA: {counts['read']:,} questions read, {train + valid:,} kept ({train:,} train, each cut in {len(NEAR)} "
        f"ways, {valid:,} valid), {counts['no_passage']:,} without a passage, {counts['absent']:,} with an answer that "
        f"is not in it; valid: {counts['passage_words'] / valid:.1f} words a passage, "
        f"{counts['passage_entities'] / valid:.1f} different entities, {counts['entity_answers'] / valid:.1%} of "
        f"answers are entities, {counts['unknown_answers'] / valid:.1%} unknown; {len(cloze.words):,} words, "
        f"{len(cloze.entities):,} of them entities"
    )


def _make(paths: Mapping[str, Path], vocabulary: int, entities: int) -> tuple[Cloze, Counter[str]]:
    counts = Counter(read=0, no_passage=0, absent=0, passage_words=0, passage_entities=0)
    counts |= Counter(entity_answers=0, unknown_answers=0)
    kept = {split: [one for one in read_questions(path) if _answerable(one, counts)] for split, path in paths.items()}
    frequent = _frequent(kept["train"], vocabulary)
    kept["train"] = [shortened(one, near, place) for place, one in enumerate(kept["train"]) for near in NEAR]
    splits = {split: [anonymised(one, frequent, entities) for one in questions] for split, questions in kept.items()}
    for one in splits["valid"]:
        counts["passage_words"] += len(one.passage)
        counts["passage_entities"] += len(one.entities)
        counts["entity_answers"] += one.answer in one.entities
        counts["unknown_answers"] += one.answer == RESERVED[UNK]
    return encode("LAMBADA", splits), counts


def read_questions(path: Path) -> list[Question]:
    """A file's questions, whole and nothing anonymised; a passage may be empty, or lack the answer.

    A sentence ends with ``.``, ``?`` or ``!`` and the closing quotes after it.

    Raises: DataError, with the line, for one without a word, or with only one, and for what is not UTF-8.
    """
    questions = []
    for number, line in enumerate(read_lines(path), 1):
        words = line.lower().split()
        if len(words) < 2:
            raise DataError(
                f"{path}, line {number}: {'only one word' if words else 'empty'}, where a text and the word after it "
                "belong.\nRepair or delete the line."
            )
        *passage, question = split_sentences([*words[:-1], PLACEHOLDER], CLOSING_QUOTES)
        questions.append(Question([word for sentence in passage for word in sentence], question, words[-1], {}))
    return questions


def shortened(question: Question, near: int, place: int) -> Question:
    """The question with at most ``2 near + 1`` words of its passage; the answer is there, anywhere by ``place``."""
    words = 2 * near + 1
    last = len(question.passage) - 1 - question.passage[::-1].index(question.answer)
    start = max(0, min(last - place % words, len(question.passage) - words))
    return replace(question, passage=question.passage[start : start + words])


def anonymised(question: Question, frequent: Collection[str], entities: int) -> Question:
    """A question in frequent words, numbers and ``@entityN``, by first appearance; the others are unknown.

    The entities are those of the passage's other words that it has most often, at most ``entities`` of them.
    """
    rare = Counter(word for word in question.passage if word not in frequent and not word.isdigit())
    chosen = {word for word, _ in rare.most_common(entities)}  # of equally frequent ones those that appear first
    names = {word: f"@entity{number}" for number, word in enumerate(word for word in rare if word in chosen)}

    def named(word: str) -> str:
        stays = word in frequent or word.isdigit() or word == PLACEHOLDER
        return word if stays else names.get(word, RESERVED[UNK])

    return Question(
        [named(word) for word in question.passage],
        [named(word) for word in question.question],
        named(question.answer),
        {entity: word for word, entity in names.items()},
    )


def _answerable(question: Question, counts: Counter[str]) -> bool:
    """Whether the passage holds the answer; counts the questions, and why it may not."""
    counts["read"] += 1
    counts["no_passage"] += not question.passage
    counts["absent"] += bool(question.passage) and question.answer not in question.passage
    return question.answer in question.passage


def _frequent(questions: list[Question], vocabulary: int) -> set[str]:
    """The most frequent words; of equally frequent ones those that appear first."""
    counts: Counter[str] = Counter()
    for one in questions:
        counts.update(word for word in (*one.passage, *one.question, one.answer) if not word.isdigit())
    del counts[PLACEHOLDER]
    return {word for word, count in counts.most_common(vocabulary) if count > 1}
