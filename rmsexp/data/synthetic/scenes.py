"""Synthetic captioned images, a substitute for COCO and Flickr8k: scenes without pixels.

A scene has a thing, up to two other things with their relations to it, an action and a place. A caption describes all
or a part of the scene, and names a thing more or less exactly ("an animal", "a dog", "a spaniel"). So captions are
ordered by entailment, and short captions are true of several scenes. An image is a feature vector: a random projection
of all facts that the scene entails, plus noise, clipped at 0 and scaled to norm 1.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from rmsexp.data import Source
from rmsexp.data.captions import EOS, NAMES, PER_IMAGE, CaptionedImages, Captions
from rmsexp.data.sequences import Sequences
from rmsexp.data.synthetic import RandomChoices

_KINDS = {  # top kind -> groups separated by commas: a middle kind, then the most specific kinds below it
    "animal": "dog spaniel terrier poodle, bird parrot duck owl, horse pony mare",
    "person": "child boy girl, adult man woman",
    "vehicle": "car taxi jeep, boat canoe ferry",
}
PARENTS = {  # kind -> the next more general kind
    word: parent
    for top, table in _KINDS.items()
    for kind, *leaves in map(str.split, table.split(","))
    for word, parent in ((kind, top), *((leaf, kind) for leaf in leaves))
}
LEAVES = tuple(kind for kind in PARENTS if kind not in PARENTS.values())
QUALITIES = {  # most general kind -> qualities
    "animal": ("brown", "white", "black", "spotted"),
    "person": ("young", "old", "happy", "tired"),
    "vehicle": ("red", "blue", "green", "yellow"),
}
SIZES = ("big", "small")
ACTIONS = {  # most general kind -> actions
    "animal": ("sleeps", "runs", "eats", "drinks"),
    "person": ("sleeps", "runs", "reads", "sings"),
    "vehicle": ("waits", "turns", "stops", "burns"),
}
PLACES = (
    *("on a beach", "on a bridge", "on a hill", "in a street", "in a garden", "in a market"),
    *("by a river", "by a house"),
)
RELATIONS = ("behind", "beside", "before", "near")
ORDERS = (  # possible orders of a caption's parts
    ("subject", "others", "action", "place"),
    ("place", "subject", "others", "action"),
    ("subject", "relative", "place", "others"),
)
_BY_KIND = {word for table in (QUALITIES, ACTIONS) for words in table.values() for word in words}
_WORDS = {*_KINDS, *PARENTS, *SIZES, *RELATIONS, *_BY_KIND, *" ".join(PLACES).split(), "an", "and", "that"}
WORDS = (*NAMES, *sorted(_WORDS))  # the vocabulary, by id

FEATURES = 256  # numbers per image
SPARSITY = 192  # subtracted from a fact's random bytes (0 to 255); negative differences, three quarters, become 0
NOISE = 3  # divisor of the noise, which is a centred sum of 8 random bytes, with a standard deviation of 209


@dataclass(frozen=True)
class Thing:
    """A thing of a scene, or the part of it that a caption describes. An empty attribute is absent or not mentioned."""

    kind: str
    quality: str = ""
    size: str = ""


@dataclass(frozen=True)
class Scene:
    """A scene, or the part of it that a caption describes. ``others`` has pairs (relation to ``thing``, thing)."""

    thing: Thing
    others: tuple[tuple[str, Thing], ...] = ()
    action: str = ""
    place: str = ""


def scenes(n_train: int = 3000, n_valid: int = 250, n_test: int = 250, seed: int = 0) -> Source[Captions]:
    """Return images of 256 features with five captions each. No two images, in any splits, show the same scene.

    Each caption of an image entails the one before it. The first describes about a fifth of the scene's details, the
    last all of them.
    """
    ids = {word: number for number, word in enumerate(WORDS)}
    seen: set[Scene] = set()
    content = hashlib.sha256()
    splits: dict[str, CaptionedImages] = {}
    for index, (name, count) in enumerate((("valid", n_valid), ("test", n_test), ("train", n_train))):
        rng = _RandomScenes(seed, index)
        features, captions = np.empty((count, FEATURES), dtype=np.float32), list[str]()
        while len(captions) < PER_IMAGE * count:
            scene = rng.scene()
            if scene not in seen:
                seen.add(scene)
                features[len(captions) // PER_IMAGE] = rng.image(scene)
                captions += [render(part, rng.choice(ORDERS)) for part in rng.described_parts(scene)]
        content.update(features.tobytes() + repr(captions).encode())
        encoded = [[ids[word] for word in (*caption.split(), NAMES[EOS])] for caption in captions]
        splits[name] = CaptionedImages(features, Sequences.from_lists(encoded))
    result = Captions(list(WORDS), splits)
    return Source("scenes", content.hexdigest(), True, lambda _: result)


def facts(scene: Scene) -> set[str]:
    """Return all facts that a scene entails; a brown spaniel entails "dog", "brown" and "brown animal", for example."""
    entailed = {scene.action, scene.place}
    for relation, thing in (("", scene.thing), *scene.others):
        attributes = {"", thing.quality, thing.size, relation}
        entailed |= attributes | {
            f"{attribute} {kind}".strip() for attribute in attributes for kind in lineage(thing.kind)
        }
    return entailed - {""}


def lineage(kind: str) -> tuple[str, ...]:
    """Return a kind, followed by its more general kinds."""
    return (kind, *lineage(PARENTS[kind])) if kind in PARENTS else (kind,)


def render(scene: Scene, order: Sequence[str]) -> str:
    """Return a caption that describes the whole ``scene``, with its parts in this ``order``, one of ORDERS."""
    parts = {
        "subject": _noun_phrase(scene.thing),
        "others": " and ".join(f"{relation} {_noun_phrase(thing)}" for relation, thing in scene.others),
        "action": scene.action,
        "relative": scene.action and f"that {scene.action}",
        "place": scene.place,
    }
    return " ".join(parts[name] for name in order if parts[name])


def _noun_phrase(thing: Thing) -> str:
    words = " ".join(word for word in (thing.size, thing.quality, thing.kind) if word)
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


@cache
def _mixing(fact: str) -> np.ndarray:
    """Return what a fact adds to each feature, int64 (FEATURES,), from 0 to 63: the same in every scene."""
    weights = np.frombuffer(hashlib.shake_128(fact.encode()).digest(FEATURES), dtype=np.uint8).astype(np.int64)
    return (weights - SPARSITY).clip(min=0)


class _RandomScenes(RandomChoices):
    """Draws random scenes, the parts of a scene that its captions describe, and the image of a scene."""

    def scene(self) -> Scene:
        thing = self._thing()
        others = tuple((self.choice(RELATIONS), self._thing()) for _ in range(self.below(3)))
        return Scene(thing, others, self.choice(ACTIONS[lineage(thing.kind)[-1]]), self.choice(PLACES))

    def _thing(self) -> Thing:
        kind = self.choice(LEAVES)
        return Thing(kind, self.choice(("", *QUALITIES[lineage(kind)[-1]])), self.choice(("", *SIZES)))

    def described_parts(self, scene: Scene) -> list[Scene]:
        """Return the five parts of a scene that its captions describe; the last is the whole scene.

        For each detail, the first caption that has it is chosen at random; all later captions have it, too.
        """
        action, place = self.below(PER_IMAGE), self.below(PER_IMAGE)
        thing, *others = ([self.below(PER_IMAGE) for _ in range(5)] for _ in range(1 + len(scene.others)))
        return [
            Scene(
                _described_part(scene.thing, thing, caption),
                tuple(
                    (relation, _described_part(other, since, caption))
                    for (relation, other), since in zip(scene.others, others, strict=True)
                    if since[0] <= caption
                ),
                scene.action if action <= caption else "",
                scene.place if place <= caption else "",
            )
            for caption in range(PER_IMAGE)
        ]

    def image(self, scene: Scene) -> np.ndarray:
        """Return a scene's features with random noise, float64 of shape (FEATURES,), non-negative and of norm 1.

        They are integers divided by the square root of an integer, and so the same on every machine.
        """
        noise = self.bits.random_raw(FEATURES).view(np.uint8).reshape(FEATURES, 8).sum(axis=1, dtype=np.int64) - 1020
        mixed = (sum(map(_mixing, facts(scene))) + noise // NOISE).clip(min=0)
        return mixed / np.sqrt(np.square(mixed).sum())


def _described_part(thing: Thing, since: Sequence[int], caption: int) -> Thing:
    """Return the part of a thing that the caption with number ``caption``, from 0 to 4, describes.

    ``since`` has five numbers of captions: of the first one that mentions the thing (not used here), of the two from
    which on its kind is one step more specific, and of the first ones that mention its quality and its size.
    """
    _, *exact, quality, size = (first <= caption for first in since)
    return Thing(lineage(thing.kind)[2 - sum(exact)], thing.quality if quality else "", thing.size if size else "")
