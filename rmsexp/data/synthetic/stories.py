"""Synthetic cloze questions, a substitute for CNN and LAMBADA: stories from a small grammar.

A story has one to three episodes and one remark, which stands between the two sentences of an episode. One sentence of
an episode names a person, the other an event near this person, in either order. The second sentence refers to the first
by "there" or "it". The question names an event and asks who was near. No single sentence answers the question.
"""

import hashlib
from typing import NamedTuple

from rmsexp.data import Source
from rmsexp.data.cloze import PLACEHOLDER, RESERVED, Cloze, Examples
from rmsexp.data.synthetic import RandomChoices

EPISODES = (  # (first sentence, second sentence)
    ("{who} went out .", "{event} there ."),
    ("{who} entered a {place} .", "{event} there ."),
    ("{event} .", "it frightened {who} ."),
    ("{event} in a {place} .", "{who} went there ."),
)
REMARKS = tuple(f"{{who}} {verb} ." for verb in ("slept", "laughed", "waited", "read"))
QUESTION = f"{PLACEHOLDER} was near when {{event}}"
ASKED = ("a dog barked", "a bell rang", "music played")  # events that questions may be about
NOT_ASKED = (  # events that no question is about
    *("rain fell", "wind blew", "birds sang", "water ran", "dust flew", "leaves rustled", "smoke rose"),
    *("a fire burned", "a child cried", "a horse neighed", "a door slammed"),
)
PLACES = ("barn", "garden", "kitchen", "cellar", "hotel")
ENTITIES = tuple(f"@entity{number}" for number in range(12))
LENGTHS = {"train": (1, 2, 3), "valid": (3,)}  # episodes per story

_FORMS = " ".join((*(sentence for episode in EPISODES for sentence in episode), *REMARKS, QUESTION, *ASKED, *NOT_ASKED))
_PLAIN = {word for word in _FORMS.split() if "{" not in word}.union(PLACES)
WORDS = (*RESERVED, *sorted(_PLAIN), *ENTITIES)  # the vocabulary, by id


class Story(NamedTuple):
    """A story and its question, as text. Renaming the class or a field changes the digest of the data."""

    passage: str
    question: str
    answer: str


def stories(n_train: int = 5000, n_valid: int = 500, seed: int = 0) -> Source[Cloze]:
    """Return questions about stories, in the splits train and valid.

    Passages have at most 36 words and four entities; no two passages, in any splits, are equal.

    Validation stories have three episodes and three or four entities. Simple answers to their questions are often
    wrong: a random entity of the passage is wrong for 69 % of the questions; the first, the last or the most frequent
    entity for about as many; and the entity nearest to the event, before or after it, for almost half. A third of the
    stories have two of the events in ASKED, and the others one. So a model that links people to events, but ignores the
    question, is wrong for 17 % of the questions.

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
    encoded = {
        name: Examples.from_lists([[ids[word] for word in text.split()] for text in story] for story in split)
        for name, split in splits.items()
    }
    cloze = Cloze(list(WORDS), encoded)
    return Source("stories", digest, True, lambda _: cloze)


def _story(rng: RandomChoices, episodes: int) -> Story:
    """Draw a story with ``episodes`` episodes. The remark is about a person of an episode or about one more person."""
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
