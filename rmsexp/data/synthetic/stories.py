"""Synthetic cloze questions, a substitute for CNN and LAMBADA: stories from a small grammar.

A story has one to three episodes and one remark, which interrupts an episode. An episode has two sentences in either
order: a person came somewhere, and an event happened there. The second sentence refers to the first by "there" or "it".
The question names an event and asks who was near. No single sentence answers it.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np

from rmsexp.data import Source
from rmsexp.data.cloze import PLACEHOLDER, RESERVED, Cloze, Examples
from rmsexp.data.sequences import Sequences
from rmsexp.data.synthetic.random_choices import RandomChoices

EPISODES = (  # (first sentence, second sentence)
    ("{who} went out .", "{event} there ."),
    ("{who} entered a {place} .", "{event} there ."),
    ("{event} .", "it frightened {who} ."),
    ("{event} in a {place} .", "{who} went there ."),
)
REMARKS = tuple(f"{{who}} {verb} ." for verb in ("slept", "laughed", "waited", "read"))
QUESTION = f"{PLACEHOLDER} was near when {{event}}"
ASKED = ("a dog barked", "a bell rang", "music played")  # events that questions may be about
NOT_ASKED = (  # other events
    *("rain fell", "wind blew", "birds sang", "water ran", "dust flew", "leaves rustled", "smoke rose"),
    *("a fire burned", "a child cried", "a horse neighed", "a door slammed"),
)
PLACES = ("barn", "garden", "kitchen", "cellar", "hotel")
ENTITIES = tuple(f"@entity{number}" for number in range(12))
LENGTHS = {"train": (1, 2, 3), "valid": (3,)}  # episodes per story

_FORMS = " ".join((*(sentence for episode in EPISODES for sentence in episode), *REMARKS, QUESTION, *ASKED, *NOT_ASKED))
_PLAIN = {word for word in _FORMS.split() if "{" not in word}.union(PLACES)
WORDS = (*RESERVED, *sorted(_PLAIN), *ENTITIES)  # by id


class Story(NamedTuple):
    """A story and its question, as text. The digest of the data depends on these names."""

    passage: str
    question: str
    answer: str


def stories(n_train: int = 5000, n_valid: int = 500, seed: int = 0) -> Source[Cloze]:
    """Return questions about stories. Passages have at most 36 words and four entities, and are all different.

    Validation stories have three episodes and three or four entities. A random entity of the passage is the wrong
    answer to 69 % of the questions. The first, the last and the most frequent entity are wrong about as often. The
    entity nearest to the event, before or after it, is wrong in almost half of the questions. A third of the stories
    have two events that questions may be about, and the others one. A model that links people to events, but ignores
    the question, is therefore wrong in 17 % of the questions.

    Training stories have one to three episodes. From the short ones, a model learns that the answer is in the passage.
    """
    ids = {word: number for number, word in enumerate(WORDS)}
    seen: set[str] = set()
    splits: dict[str, list[Story]] = {}
    for index, (name, count) in enumerate((("valid", n_valid), ("train", n_train))):
        rng = RandomChoices(seed, index)
        split = splits[name] = []
        while len(split) < count:
            story = _story(rng, rng.choice(LENGTHS[name]))
            if story.passage not in seen:
                seen.add(story.passage)
                split.append(story)
    digest = hashlib.sha256(repr(splits).encode()).hexdigest()
    entities = np.array([ids[entity] for entity in ENTITIES], dtype=np.int64)
    cloze = Cloze(list(WORDS), entities, {name: _encoded(split, ids) for name, split in splits.items()})
    return Source("stories twin", digest, True, lambda _: cloze)


def _encoded(split: list[Story], ids: dict[str, int]) -> Examples:
    passages, questions, answers = (
        [[ids[word] for word in text.split()] for text in texts] for texts in zip(*split, strict=True)
    )
    return Examples(
        Sequences.from_lists(passages), Sequences.from_lists(questions), np.array(answers, dtype=np.int32)[:, 0]
    )


def _story(rng: RandomChoices, episodes: int) -> Story:
    """Draw a story with ``episodes`` episodes. Its remark is about one of their people or about another person."""
    asked = min(episodes, rng.choice((1, 1, 2)))
    events = rng.sample(ASKED, asked) + rng.sample(NOT_ASKED, episodes - asked)
    people = rng.sample(ENTITIES, episodes + 1)
    sentences = [
        sentence.format(who=who, event=event, place=rng.choice(PLACES))
        for who, event in rng.sample(list(zip(people, events, strict=False)), episodes)
        for sentence in rng.choice(EPISODES)
    ]
    sentences.insert(rng.below(episodes) * 2 + 1, rng.choice(REMARKS).format(who=rng.choice(people)))
    return Story(" ".join(sentences), QUESTION.format(event=events[0]), people[0])
