"""Synthetic data: the same on every machine, different in every split, with names, sizes and types as documented."""

from __future__ import annotations

import re

import numpy as np
import pytest

from rmsexp.data.captions import EOS, PER_IMAGE, UNK
from rmsexp.data.cloze import NUM
from rmsexp.data.synthetic.phrases import phrases
from rmsexp.data.synthetic.scenes import scenes
from rmsexp.data.synthetic.shapes import shapes
from rmsexp.data.synthetic.stories import ENTITIES, stories

SPLITS = ("train", "valid", "test")
# phenomenon -> (pattern of the source, pattern of the target); a pair that matches both has the phenomenon
PHENOMENA = {
    "subordinate clause": (r" because ", r", weil .* \w+\.$"),
    "fronted adverb": (r"^[^,]* at night\.$", r"^Nachts \w+ (der|die|das|dies|ein|kein|jed)"),
    "separable prefix": (r"^\w+ (\w+ )?\w+ (calls?|invites?) [^,]*[^e]\.$", r" (an|ein)\.$"),
    "perfect": (r"^[^,]* (has|have) ", r" (hat|haben) .*\w+(t|en)\b"),
    "compound": (r" school (gate|door|window|table)", r" Schul(tor|tür|fenster|tisch)"),
    "accusative": (r" (sees|has seen) the (dog|bird|friend)\b", r" den (Hund|Vogel|Freund)\b"),
}


@pytest.mark.parametrize(
    ("data", "digest"),
    [
        (phrases, "50a96e429c7c446f804cad3628c7121bee734632b5c28ed29b2ce59c2a99a554"),
        (stories, "8c7674812b0ee017c8e0bc54bb5262310e749dbc7247b4ed8ff1dfab9e7238bb"),
        (scenes, "218b1755e034074978fc0556b51a315470d3cfb787b58adbb8286ab65754eee1"),
    ],
)
def test_data_depend_on_the_seed_only(data: type, digest: str) -> None:
    """The digest must not depend on the processor or on numpy's version."""
    assert data().digest == digest != data(seed=1).digest


def test_phrases() -> None:
    corpus = phrases()
    text = {split: corpus.text(split) for split in SPLITS}
    assert {split: list(map(len, pairs)) for split, pairs in text.items()} == {
        "train": [6000, 6000],
        "valid": [200, 200],
        "test": [200, 200],
    }
    assert len({source for sources, _ in text.values() for source in sources}) == 6400
    assert phrases(30, 10, 10).text("valid") == tuple(lines[:10] for lines in text["valid"])
    for phenomenon, patterns in PHENOMENA.items():
        matches = [all(map(re.search, patterns, pair)) for pair in zip(*text["train"], strict=True)]
        assert sum(matches) >= 5, phenomenon
    translations = dict(zip(*text["train"], strict=True))
    assert translations["An old bird paints these strange sisters."] == "Ein alter Vogel malt diese fremden Schwestern."
    source = "This bird has called every baker because a woman waits."
    assert translations[source] == "Dieser Vogel hat jeden Bäcker angerufen, weil eine Frau wartet."


def test_stories() -> None:
    source = stories()
    cloze = source.load(lambda _: None)
    assert (source.name, source.builtin) == ("stories", True)
    assert {name: len(split) for name, split in cloze.splits.items()} == {"train": 5000, "valid": 500}
    assert [cloze.words[k] for k in cloze.entities] == list(ENTITIES)
    for split in cloze.splits.values():
        assert split.passages.tokens.dtype == split.questions.tokens.dtype == split.answers.dtype == np.int32
        assert split.passages.tokens.min() > NUM
        assert all(answer in passage for answer, passage in zip(split.answers, split.passages, strict=True))
    passages = [ids.tobytes() for split in cloze.splits.values() for ids in split.passages]
    assert len(set(passages)) == len(passages) == 5500


def test_scenes() -> None:
    source = scenes()
    captions = source.load(lambda _: None)
    assert (source.name, source.builtin) == ("scenes", True)
    assert {name: len(split) for name, split in captions.splits.items()} == {"train": 3000, "valid": 250, "test": 250}
    for split in captions.splits.values():
        assert len(split.captions) == PER_IMAGE * len(split)
        np.testing.assert_allclose(np.linalg.norm(split.features, axis=1), 1, rtol=1e-6)
        np.testing.assert_array_equal(np.flatnonzero(split.captions.tokens == EOS) + 1, split.captions.offsets[1:])
    assert set(captions.splits["train"].captions.tokens.tolist()) == set(range(len(captions.words))) - {UNK}
    images = [row.tobytes() for split in captions.splits.values() for row in split.features]
    assert len(set(images)) == len(images)


def test_shapes() -> None:
    images = shapes(n_train=300, n_test=100)
    assert (images.name, images.builtin) == ("shapes", True)
    assert (images.train_x.shape, images.train_x.dtype) == ((300, 3, 32, 32), np.uint8)
    assert np.bincount(images.train_y).tolist() == [30] * 10
    assert np.bincount(images.test_y).tolist() == [10] * 10
    assert len({image.tobytes() for pixels in (images.train_x, images.test_x) for image in pixels}) == 400
    again = shapes(n_train=300, n_test=100)
    np.testing.assert_array_equal(again.train_x, images.train_x)
    assert again.digest == images.digest != shapes(n_train=300, n_test=100, seed=1).digest
