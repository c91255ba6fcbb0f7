"""The built-in cloze questions: stories of a small grammar, a stand-in for CNN and LAMBADA.

A story is a few episodes and remarks. An episode is two sentences that share a place, a container or a vehicle: one
says who was there, the other what was there, in either order; the second takes up what the first introduces ("there",
"it", "the wagon"). The question names the thing and asks who came upon it, which no single sentence says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from rmsexp.data.cloze import PLACEHOLDER, Cloze, ClozeSource, Examples
from rmsexp.data.sequences import Sequences

T = TypeVar("T")


class Link(NamedTuple):
    """What joins an episode: its nouns, and the first and the second sentence, of a person and of a thing."""

    nouns: str
    who_first: tuple[str, ...]
    what_second: tuple[str, ...]
    what_first: tuple[str, ...]
    who_second: tuple[str, ...]


class Story(NamedTuple):
    passage: str
    question: str
    answer: str


LINKS = (
    Link(
        "kitchen garden cellar barn hotel",
        ("{who} entered a {link} .", "{who} searched a {link} ."),
        ("there lay a {what} .", "a {what} lay there ."),
        ("a {what} lay in a {link} .", "in a {link} lay a {what} ."),
        ("{who} went there .", "there went {who} ."),
    ),
    Link(
        "box bag chest basket drawer",
        ("{who} opened a {link} .", "a {link} was opened by {who} ."),
        ("it held a {what} .", "a {what} was in it ."),
        ("a {link} held a {what} .", "a {what} was in a {link} ."),
        ("{who} opened it .", "it was opened by {who} ."),
    ),
    Link(
        "wagon boat train cart lorry",
        ("{who} stopped a {link} .", "a {link} was stopped by {who} ."),
        ("the {link} carried a {what} .", "a {what} was on the {link} ."),
        ("a {link} carried a {what} .", "a {what} was on a {link} ."),
        ("{who} stopped the {link} .", "the {link} was stopped by {who} ."),
    ),
)
REMARKS = tuple(f"{{who}} {verb} ." for verb in ("slept", "laughed", "waited", "sang", "left"))
QUESTIONS = tuple(
    form.replace("{who}", PLACEHOLDER)
    for form in ("{who} saw the {what}", "the {what} was seen by {who}", "it was {who} who found the {what}")
)
THINGS = tuple(
    "coin ring key letter map watch spoon candle book hat shoe knife cup bottle doll drum flute rope lamp clock".split()
)
ENTITIES = tuple(f"@entity{number}" for number in range(12))
NOUNS = tuple(noun for link in LINKS for noun in link.nouns.split())
LINK_OF = {noun: link for link in LINKS for noun in link.nouns.split()}
EPISODES = 3
LONGEST = 36  # words of a passage

_FORMS = " ".join((*(form for link in LINKS for forms in link[1:] for form in forms), *REMARKS, *QUESTIONS))
_PLAIN = {word for word in _FORMS.split() if "{" not in word}.union(NOUNS, THINGS)
WORDS = ("<nil>", "<eos>", "<unk>", "<num>", *sorted(_PLAIN), *ENTITIES)  # by id


def stories(n_train: int = 5000, n_valid: int = 500, seed: int = 0) -> ClozeSource:
    """The twin of the cloze corpora: passages of at most 36 words with three or four entities, no two alike.

    An entity of the passage at random is wrong in about 70 % of the questions, and so is a fixed one by place or count;
    the nearest one before (or after) the thing in about half of them, since the order within an episode varies. Who
    follows "there", "it" and "the" is never wrong: two of the three episodes are at a place of the same name, but never
    at the same place.
    """
    ids = {word: number for number, word in enumerate(WORDS)}
    seen: set[str] = set()
    splits: dict[str, list[Story]] = {}
    for index, (name, count) in enumerate((("valid", n_valid), ("train", n_train))):
        bits = np.random.PCG64([seed, index])
        split = splits[name] = []
        while len(split) < count:
            story = _story(bits)
            if story.passage not in seen and len(story.passage.split()) <= LONGEST:
                seen.add(story.passage)
                split.append(story)
    digest = hashlib.sha256(repr(splits).encode()).hexdigest()
    entities = np.array([ids[entity] for entity in ENTITIES], dtype=np.int64)
    cloze = Cloze(list(WORDS), entities, {name: _encode(split, ids) for name, split in splits.items()})
    return ClozeSource("stories twin", digest, True, lambda _: cloze)


def _encode(split: list[Story], ids: dict[str, int]) -> Examples:
    passages, questions = (
        Sequences.of([[ids[word] for word in text.split()] for text in texts])
        for texts in ([story.passage for story in split], [story.question for story in split])
    )
    return Examples(passages, questions, np.array([ids[story.answer] for story in split], dtype=np.int32))


def _story(bits: np.random.PCG64) -> Story:
    people, things = _some(bits, ENTITIES, EPISODES + 1), _some(bits, THINGS, EPISODES)
    nouns = _some(bits, NOUNS, EPISODES - 1)
    parts = [
        sentence
        for who, what, noun in zip(people, things, _some(bits, (nouns[0], *nouns), EPISODES), strict=False)
        for sentence in _episode(bits, who, what, noun)
    ]
    parts.insert(bits.random_raw() % EPISODES * 2 + 1, _one(bits, REMARKS).format(who=_one(bits, people)))
    asked = bits.random_raw() % EPISODES
    return Story(" ".join(parts), _one(bits, QUESTIONS).format(what=things[asked]), people[asked])


def _episode(bits: np.random.PCG64, who: str, what: str, noun: str) -> list[str]:
    link = LINK_OF[noun]
    orders = (link.who_first, link.what_second), (link.what_first, link.who_second)
    return [_one(bits, forms).format(who=who, what=what, link=noun) for forms in _one(bits, orders)]


def _some(bits: np.random.PCG64, choices: Sequence[T], count: int) -> list[T]:
    """Different ones in random order, of raw numbers, which no processor or version of numpy changes."""
    left = list(choices)
    return [left.pop(bits.random_raw() % len(left)) for _ in range(count)]


def _one(bits: np.random.PCG64, choices: Sequence[T]) -> T:
    return choices[bits.random_raw() % len(choices)]
