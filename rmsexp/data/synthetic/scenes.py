"""The built-in captioned images: described scenes without pixels, a stand-in for COCO and Flickr8k.

A scene is a set of facts. A caption tells some of them, and names things as exactly as it likes ("an animal", "a dog",
"a spaniel"), so captions are ordered by what they entail, and short ones are true of several scenes. An image is its
scene's facts with all that they entail, mixed and noisy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from rmsexp.data import Source
from rmsexp.data.captions import EOS, NAMES, PER_IMAGE, Captions, Described
from rmsexp.data.sequences import Sequences
from rmsexp.data.synthetic.random_choices import Draw

_KINDS = {  # the most general kind, and each kind below it with those below that
    "animal": "dog spaniel terrier poodle, bird parrot duck owl, horse pony mare",
    "person": "child boy girl, adult man woman",
    "vehicle": "car taxi jeep, boat canoe ferry",
}
PARENTS = {  # the next more general kind of a kind
    word: parent
    for top, table in _KINDS.items()
    for kind, *leaves in map(str.split, table.split(","))
    for word, parent in ((kind, top), *((leaf, kind) for leaf in leaves))
}
LEAVES = tuple(kind for kind in PARENTS if kind not in PARENTS.values())
QUALITIES = {  # by the most general kind
    "animal": ("brown", "white", "black", "spotted"),
    "person": ("young", "old", "happy", "tired"),
    "vehicle": ("red", "blue", "green", "yellow"),
}
SIZES = ("big", "small")
ACTIONS = {
    "animal": ("sleeps", "runs", "eats", "drinks"),
    "person": ("sleeps", "runs", "reads", "sings"),
    "vehicle": ("waits", "turns", "stops", "burns"),
}
PLACES = (
    *("on a beach", "on a bridge", "on a hill", "in a street", "in a garden", "in a market"),
    *("by a river", "by a house"),
)
RELATIONS = ("behind", "beside", "before", "near")
ORDERS = (  # of the parts of a caption
    ("subject", "others", "action", "place"),
    ("place", "subject", "others", "action"),
    ("subject", "relative", "place", "others"),
)
_BY_KIND = {word for table in (QUALITIES, ACTIONS) for words in table.values() for word in words}
_TOLD = {*_KINDS, *PARENTS, *SIZES, *RELATIONS, *_BY_KIND, *" ".join(PLACES).split(), "an", "and", "that"}
WORDS = (*NAMES, *sorted(_TOLD))  # by id

FEATURES = 256  # of an image
SPARSITY = 192  # of 256: what is taken off the random byte that mixes a fact into a feature, if there is as much
NOISE = 3  # what the sum of 8 random bytes is divided by; its standard deviation is 209


@dataclass(frozen=True)
class Thing:
    kind: str
    quality: str = ""
    size: str = ""


@dataclass(frozen=True)
class Scene:
    """``others``: relations of the thing to others. What is empty is not told."""

    thing: Thing
    others: tuple[tuple[str, Thing], ...] = ()
    action: str = ""
    place: str = ""


def scenes(n_train: int = 3000, n_valid: int = 250, n_test: int = 250, seed: int = 0) -> Source[Captions]:
    """The twin of the caption corpora: images of 256 features with five captions each, no two scenes alike.

    Each caption of an image entails the one before: the first tells about a fifth of the scene, the last everything.
    """
    ids = {word: number for number, word in enumerate(WORDS)}
    seen: set[Scene] = set()
    content = hashlib.sha256()
    splits: dict[str, Described] = {}
    for index, (name, count) in enumerate((("valid", n_valid), ("test", n_test), ("train", n_train))):
        draw = _Draw(seed, index)
        features, captions = np.empty((count, FEATURES), dtype=np.float32), list[str]()
        while len(captions) < PER_IMAGE * count:
            scene = draw.scene()
            if scene not in seen:
                seen.add(scene)
                features[len(captions) // PER_IMAGE] = draw.image(scene)
                captions += [render(told, draw.one(ORDERS)) for told in draw.told(scene)]
        content.update(features.tobytes() + repr(captions).encode())
        encoded = Sequences.of([[ids[word] for word in (*caption.split(), NAMES[EOS])] for caption in captions])
        splits[name] = Described(features, encoded)
    found = Captions(list(WORDS), splits)
    return Source("scenes twin", content.hexdigest(), True, lambda _: found)


def facts(scene: Scene) -> set[str]:
    """All that a scene entails, such as "dog", "brown", "brown animal" and "behind car"."""
    found = {scene.action, scene.place}
    for relation, thing in (("", scene.thing), *scene.others):
        attributes = {"", thing.quality, thing.size, relation}
        found |= attributes | {
            f"{attribute} {kind}".strip() for attribute in attributes for kind in lineage(thing.kind)
        }
    return found - {""}


def lineage(kind: str) -> tuple[str, ...]:
    """A kind and the more general ones, in this order."""
    return (kind, *lineage(PARENTS[kind])) if kind in PARENTS else (kind,)


def render(scene: Scene, order: Sequence[str]) -> str:
    """A caption; ``order`` is one of ORDERS."""
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
    """What a fact adds to each feature, int64 of shape (FEATURES,): its hash, so that it depends on no other fact."""
    weights = np.frombuffer(hashlib.shake_128(fact.encode()).digest(FEATURES), dtype=np.uint8).astype(np.int64)
    return (weights - SPARSITY).clip(min=0)


class _Draw(Draw):
    """Scenes, captions and images at random; images are sums of integers, a root and quotients, the same everywhere."""

    def scene(self) -> Scene:
        thing = self._thing()
        others = tuple((self.one(RELATIONS), self._thing()) for _ in range(self.below(3)))
        return Scene(thing, others, self.one(ACTIONS[lineage(thing.kind)[-1]]), self.one(PLACES))

    def _thing(self) -> Thing:
        kind = self.one(LEAVES)
        return Thing(kind, self.one(("", *QUALITIES[lineage(kind)[-1]])), self.one(("", *SIZES)))

    def told(self, scene: Scene) -> list[Scene]:
        """What each caption tells: a detail is told from a random caption on, so the last one tells all."""
        action, place = self.below(PER_IMAGE), self.below(PER_IMAGE)
        thing, *others = ([self.below(PER_IMAGE) for _ in range(5)] for _ in range(1 + len(scene.others)))
        return [
            Scene(
                _partly(scene.thing, thing, caption),
                tuple(
                    (relation, _partly(other, since, caption))
                    for (relation, other), since in zip(scene.others, others, strict=True)
                    if since[0] <= caption
                ),
                scene.action if action <= caption else "",
                scene.place if place <= caption else "",
            )
            for caption in range(PER_IMAGE)
        ]

    def image(self, scene: Scene) -> np.ndarray:
        """Float64 of shape (FEATURES,), non-negative and of unit length."""
        noise = self.bits.random_raw(FEATURES).view(np.uint8).reshape(FEATURES, 8).sum(axis=1, dtype=np.int64) - 1020
        mixed = (sum(map(_mixing, facts(scene))) + noise // NOISE).clip(min=0)
        return mixed / np.sqrt(np.square(mixed).sum())


def _partly(thing: Thing, since: Sequence[int], caption: int) -> Thing:
    """``since``: from which captions on it, its kind more exactly (twice), quality and size are told."""
    _, *exact, quality, size = (first <= caption for first in since)
    return Thing(lineage(thing.kind)[2 - sum(exact)], thing.quality if quality else "", thing.size if size else "")
