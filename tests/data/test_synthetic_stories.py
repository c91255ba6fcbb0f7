"""Synthetic cloze questions: each has one answer, and finding it takes two sentences of the passage."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pytest

from rmsexp.data import Source
from rmsexp.data.cloze import EOS, NIL, NUM, PLACEHOLDER, UNK, Cloze
from rmsexp.data.synthetic.stories import ASKED, ENTITIES, NOT_ASKED, stories


class Question(NamedTuple):
    passage: str
    event: str
    answer: str

    @property
    def words(self) -> list[str]:
        return self.passage.split()

    @property
    def people(self) -> list[str]:
        return [word for word in self.words if word in ENTITIES]


@pytest.fixture(scope="module")
def source() -> Source[Cloze]:
    return stories()


@pytest.fixture(scope="module")
def cloze(source: Source[Cloze]) -> Cloze:
    return source.load(lambda _: None)


@pytest.fixture(scope="module")
def valid(cloze: Cloze) -> list[Question]:
    return list(questions(cloze, "valid"))


def questions(cloze: Cloze, split: str) -> Iterator[Question]:
    examples = cloze.splits[split]
    for passage, question, answer in zip(examples.passages, examples.questions, examples.answers, strict=True):
        passage_text, question_text = (" ".join(cloze.words[k] for k in ids) for ids in (passage, question))
        before, event = question_text.split(" when ")
        assert before == f"{PLACEHOLDER} was near"
        yield Question(passage_text, event, cloze.words[answer])


def links(passage: str) -> dict[str, str]:
    """Parse a passage by the grammar, and return event -> person who was near. Assert that each sentence fits."""
    people, opened = {}, ""  # opened: event or person of an episode's first sentence, until the second is read
    for sentence in passage.removesuffix(" .").split(" . "):
        if re.fullmatch(r"@\w+ (slept|laughed|waited|read)", sentence):
            continue
        if who := re.fullmatch(r"(@\w+) (went out|entered a \w+)", sentence):
            assert not opened
            opened = who[1]
        elif event := re.fullmatch(r"(.+) there", sentence):
            if (person := event[1].removesuffix(" went")) in ENTITIES:
                people[opened.split(" in a ")[0]] = person
            else:
                assert opened in ENTITIES
                people[event[1]] = opened
            opened = ""
        elif who := re.fullmatch(r"it frightened (@\w+)", sentence):
            assert opened
            people[opened], opened = who[1], ""
        else:
            assert not opened
            opened = sentence
    assert not opened
    return people


def nearest(question: Question, *, before: bool, after: bool) -> str:
    """Return the entity nearest to the event, before or after it as allowed; on any side if there is none there."""
    at = question.passage.split(f"{question.event} ")[0].count(" ") + question.event.count(" ")
    places = [place for place, word in enumerate(question.words) if word in ENTITIES]
    allowed = [place for place in places if (before and place < at) or (after and place > at)]
    return question.words[min(allowed or places, key=lambda place: abs(place - at))]


SHALLOW: dict[str, Callable[[Question], str]] = {
    "first": lambda question: question.people[0],
    "second": lambda question: question.people[1],
    "third": lambda question: question.people[2],
    "last": lambda question: question.people[-1],
    "most frequent": lambda question: max(question.people, key=question.people.count),
    "nearest before": lambda question: nearest(question, before=True, after=False),
    "nearest after": lambda question: nearest(question, before=False, after=True),
    "nearest": lambda question: nearest(question, before=True, after=True),
}


def error(answer: Callable[[Question], str], questions: list[Question]) -> float:
    return float(np.mean([answer(question) != question.answer for question in questions]))


def test_names_sizes_and_types(source: Source, cloze: Cloze) -> None:
    assert (source.name, source.builtin) == ("stories", True)
    assert {name: len(split) for name, split in cloze.splits.items()} == {"train": 5000, "valid": 500}
    assert len(set(cloze.words)) == len(cloze.words) == 66
    assert [cloze.words[k] for k in cloze.entities] == list(ENTITIES)
    for split in cloze.splits.values():
        for sequences in (split.passages, split.questions):
            assert sequences.tokens.dtype == np.int32
            assert sequences.lengths.min() > 0
            assert set(sequences.tokens.tolist()).isdisjoint((NIL, EOS, UNK, NUM))
        assert split.answers.dtype == np.int32
        assert split.passages.lengths.max() <= 36
        assert split.questions.lengths.max() <= 8
    used = {int(k) for split in cloze.splits.values() for k in (*split.passages.tokens, *split.questions.tokens)}
    assert used == set(range(4, 66))


def test_questions_depend_on_the_seed_only(cloze: Cloze) -> None:
    small = stories(n_train=30, n_valid=10)
    assert small.digest == stories(n_train=30, n_valid=10).digest
    assert small.digest != stories(n_train=30, n_valid=10, seed=1).digest
    passages = small.load(lambda _: None).splits["train"].passages
    np.testing.assert_array_equal(passages[29], cloze.splits["train"].passages[29])


def test_questions_are_the_same_everywhere(source: Source[Cloze]) -> None:
    """The questions have the recorded digest, which must not depend on the processor or on numpy's version."""
    assert source.digest == "8c7674812b0ee017c8e0bc54bb5262310e749dbc7247b4ed8ff1dfab9e7238bb"


def test_splits_share_no_story(cloze: Cloze) -> None:
    passages = [question.passage for split in cloze.splits for question in questions(cloze, split)]
    assert len(set(passages)) == len(passages) == 5500


@pytest.mark.parametrize("split", ["train", "valid"])
def test_linking_both_facts_always_gives_the_answer(cloze: Cloze, split: str) -> None:
    lengths = {1, 2, 3} if split == "train" else {3}
    for question in questions(cloze, split):
        near = links(question.passage)
        assert near[question.event] == question.answer
        assert question.event in ASKED
        assert set(near) <= {*ASKED, *NOT_ASKED}
        assert len(set(near.values())) == len(near)
        assert len(near) in lengths


@pytest.mark.parametrize("heuristic", SHALLOW)
def test_shallow_heuristics_fail(valid: list[Question], heuristic: str) -> None:
    near_the_event = heuristic.startswith("nearest")
    assert error(SHALLOW[heuristic], valid) > (0.4 if near_the_event else 0.6)


def test_error_of_guessing_is_as_documented(cloze: Cloze, valid: list[Question]) -> None:
    at_random = np.mean([1 - 1 / len(set(question.people)) for question in valid])
    assert at_random == pytest.approx(0.69, abs=0.01)
    assert {len(set(question.people)) for question in valid} == {3, 4}
    answers = cloze.splits["train"].answers
    most_frequent = cloze.words[np.bincount(answers).argmax()]
    assert error(lambda _: most_frequent, valid) > 0.85
    assert np.bincount(answers)[cloze.entities].min() > 0.8 * len(answers) / len(ENTITIES)
