"""LAMBADA (Paperno et al. 2016) as cloze questions with anonymised words: a small substitute for CNN's questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from hashlib import sha256
from pathlib import Path

from rmsexp.data import DataError, Report, Source
from rmsexp.data.cache import key
from rmsexp.data.cloze import PLACEHOLDER, RESERVED, UNK, Cloze, Question, encode, split_sentences, stored
from rmsexp.data.files import digest_of, missing, read_lines

CLOSING_QUOTES = ("''", "'")
NEAR = (3, 6, 12)  # each training passage is cut to at most 2 * near + 1 words, once for each of these values of near
ORIGIN = "The files of Paperno et al. (2016) are on Zenodo (record 2630551, CC BY 4.0). Put them into this folder."


def files(root: Path) -> list[Path]:
    """Return the files of development and of test below ``root``. Raises: DataError if one is missing."""
    folder = root / "lambada"
    paths = [folder / f"lambada_{name}_plain_text.txt" for name in ("development", "test")]
    if absent := [path for path in paths if not path.is_file()]:
        raise missing("LAMBADA", folder, absent, ORIGIN)
    return paths


def lambada(root: Path, vocabulary: int, entities: int, validation: int | None = None) -> Source[Cloze]:
    """Return the questions in ``<root>/lambada/lambada_{development,test}_plain_text.txt``.

    The last word of a line is the answer, the rest of the last sentence is the question, and the text before this
    sentence is the passage. Questions whose answer is not in the passage are left out. We train on development and
    validate on test, because LAMBADA's own training text has no questions. With ``validation``, we validate on that
    number of development questions, the last ones, and test on test.

    Each training passage is cut to three lengths around the answer (see NEAR), so a training question gives three
    examples: from a few thousand whole passages, a model does not learn within minutes that answers are words of the
    passage. Passages of other splits are whole.

    Words that consist of digits become NUM. Of the other words, the ``vocabulary`` most frequent ones of the whole
    training questions (passages, questions and answers) are kept if they occur at least twice. Of a passage's remaining
    words, the ``entities`` most frequent ones are anonymised as in CNN, and the rest become UNK. Words that occur less
    than twice in the shortened training text become UNK, too (see :func:`rmsexp.data.cloze.encode`).

    Raises: DataError if a file is missing. ``load`` raises DataError if a line is malformed or no question is left, and
    ValueError if ``validation`` leaves no training question.
    """
    paths = files(root)
    digest = digest_of(paths)
    if validation is not None:
        digest = sha256(f"{digest}, validation {validation}".encode()).hexdigest()

    def load(report: Report) -> Cloze:
        stamp = key(__file__, digest, vocabulary, entities)
        return stored(root, "LAMBADA", stamp, lambda: _make(paths, vocabulary, entities, validation), report)

    return Source("LAMBADA", digest, False, load)


def _make(paths: Sequence[Path], vocabulary: int, entities: int, validation: int | None) -> Cloze:
    development, test = (
        [example for example in read_questions(path) if example.answer in example.passage] for path in paths
    )
    whole = {"train": development, "valid": test}
    if validation is not None:
        if validation >= len(development):
            raise ValueError(f"data.validation={validation} leaves none of the {len(development)} training questions")
        whole = {"train": development[:-validation], "valid": development[-validation:], "test": test}
    frequent = _frequent(whole["train"], vocabulary)
    cut = [shortened(example, near, place) for place, example in enumerate(whole["train"]) for near in NEAR]
    splits = {
        split: [anonymised(example, frequent, entities) for example in examples]
        for split, examples in (whole | {"train": cut}).items()
    }
    return encode("LAMBADA", splits)


def read_questions(path: Path) -> list[Question]:
    """Return the question of each line of a file, in lower case; words are not anonymised yet.

    The passage is whole; it may be empty or lack the answer. The gap is the last word of the question. A sentence ends
    with ``.``, ``?`` or ``!`` and any closing quotes after it.

    Raises: DataError if the file cannot be read; DataError with the number of the line if a line has fewer than two
    words or is not UTF-8.
    """
    questions = []
    for number, line in enumerate(read_lines(path), 1):
        words = line.lower().split()
        if len(words) < 2:
            raise DataError(
                f"{path}, line {number}: {'only one word' if words else 'empty'}.\n"
                "A line needs a text and the word that follows it; repair or delete the line."
            )
        *passage, question = split_sentences([*words[:-1], PLACEHOLDER], CLOSING_QUOTES)
        questions.append(Question([word for sentence in passage for word in sentence], question, words[-1]))
    return questions


def shortened(question: Question, near: int, place: int) -> Question:
    """Return the question with its passage cut to at most n = ``2 near + 1`` words.

    The last occurrence of the answer, which must be in the passage, is kept. Its position in the result is ``place``
    modulo n, as far as the start and the end of the passage allow.
    """
    length = 2 * near + 1
    last = len(question.passage) - 1 - question.passage[::-1].index(question.answer)
    start = max(0, min(last - place % length, len(question.passage) - length))
    return question._replace(passage=question.passage[start : start + length])


def anonymised(question: Question, frequent: Collection[str], entities: int) -> Question:
    """Return the question with rare words, in passage, question and answer, replaced by ``@entityN`` or "<unk>".

    Rare words are those that are neither in ``frequent`` nor numbers. The ``entities`` rare words that occur most often
    in the passage become ``@entity0``, ``@entity1`` and so on, numbered by first appearance, and the others "<unk>".
    """
    rare = Counter(word for word in question.passage if word not in frequent and not word.isdigit())
    chosen = {word for word, _ in rare.most_common(entities)}  # of equally frequent ones, those that appear first
    names = {word: f"@entity{number}" for number, word in enumerate(word for word in rare if word in chosen)}

    def anonymise(word: str) -> str:
        unchanged = word in frequent or word.isdigit() or word == PLACEHOLDER
        return word if unchanged else names.get(word, RESERVED[UNK])

    return Question(
        [anonymise(word) for word in question.passage],
        [anonymise(word) for word in question.question],
        anonymise(question.answer),
    )


def _frequent(questions: list[Question], vocabulary: int) -> set[str]:
    """Return the ``vocabulary`` most frequent words, less those that occur only once.

    Passages, questions and answers are counted, without numbers and the placeholder. Of equally frequent words, those
    that appear first are preferred.
    """
    counts: Counter[str] = Counter()
    for example in questions:
        words = (*example.passage, *example.question, example.answer)
        counts.update(word for word in words if not word.isdigit())
    del counts[PLACEHOLDER]
    return {word for word, count in counts.most_common(vocabulary) if count > 1}
