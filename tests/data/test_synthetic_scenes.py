"""Synthetic captioned images: captions are ordered by entailment, and features predict their words, with noise."""

from __future__ import annotations

import numpy as np
import pytest

from rmsexp.data import Source
from rmsexp.data.captions import EOS, PER_IMAGE, UNK, CaptionedImages, Captions
from rmsexp.data.synthetic.scenes import scenes

SIZES = {"train": 3000, "valid": 250, "test": 250}


@pytest.fixture(scope="module")
def source() -> Source[Captions]:
    return scenes()


@pytest.fixture(scope="module")
def captions(source: Source[Captions]) -> Captions:
    return source.load(lambda _: None)


def content(words: list[str], split: CaptionedImages) -> np.ndarray:
    """Return 1 where one of an image's captions has a word, otherwise 0; float64 of shape (image, word)."""
    bags = np.zeros((len(split), len(words)))
    bags[np.repeat(np.arange(len(split.captions)) // PER_IMAGE, split.captions.lengths), split.captions.tokens] = 1
    return bags


def test_names_sizes_and_types(source: Source, captions: Captions) -> None:
    assert (source.name, source.builtin) == ("scenes", True)
    assert {name: len(split) for name, split in captions.splits.items()} == SIZES
    assert len(set(captions.words)) == len(captions.words) == 71
    for split in captions.splits.values():
        assert len(split.captions) == PER_IMAGE * len(split)
        assert split.captions.tokens.dtype == np.int32
        ends = split.captions.tokens == EOS
        np.testing.assert_array_equal(np.flatnonzero(ends) + 1, split.captions.offsets[1:])
        assert split.captions.lengths.min() == 3  # an article, a noun and EOS
        assert UNK not in split.captions.tokens
    assert set(captions.splits["train"].captions.tokens.tolist()) == set(range(71)) - {UNK}


def test_scenes_depend_on_the_seed_only(captions: Captions) -> None:
    small = scenes(20, 10, 10)
    assert small.digest == scenes(20, 10, 10).digest
    assert small.digest != scenes(20, 10, 10, seed=1).digest
    valid = small.load(lambda _: None).splits["valid"]
    np.testing.assert_array_equal(valid.features, captions.splits["valid"].features[:10])
    np.testing.assert_array_equal(valid.captions[49], captions.splits["valid"].captions[49])


def test_scenes_are_the_same_everywhere(source: Source[Captions]) -> None:
    """The data have the recorded digest, which must not depend on the processor or on numpy's version."""
    assert source.digest == "218b1755e034074978fc0556b51a315470d3cfb787b58adbb8286ab65754eee1"


def test_splits_share_no_image(captions: Captions) -> None:
    images = [row.tobytes() for split in captions.splits.values() for row in split.features]
    assert len(set(images)) == len(images) == 3500
    last_captions = [
        tuple(split.captions[k].tolist())
        for split in captions.splits.values()
        for k in range(PER_IMAGE - 1, len(split.captions), PER_IMAGE)
    ]
    assert len(set(last_captions)) > 0.98 * len(last_captions)  # the last caption nearly always identifies the image


def test_features_predict_the_words_of_captions(captions: Captions) -> None:
    """Linear regression from features to words predicts most of the captions' words, but not all.

    The prediction of the right image is among the ten of 250 that are nearest to the captions for more than 90 % of the
    test images (by chance: 4 %). The regression explains 40 % to 90 % of the variance of the words.
    """
    train, test = captions.splits["train"], captions.splits["test"]
    bags = content(captions.words, train)
    mean, centre = bags.mean(axis=0), train.features.mean(axis=0)
    weights, *_ = np.linalg.lstsq(train.features - centre, bags - mean, rcond=None)
    predicted, truth = (test.features - centre) @ weights, content(captions.words, test) - mean
    errors = ((truth[:, None] - predicted) ** 2).sum(axis=2)  # (image of the captions, image of the prediction)
    ranks = (errors < errors.diagonal()[:, None]).sum(axis=1)
    assert (ranks < 10).mean() > 0.9
    assert np.square(truth - predicted).sum() < 0.6 * np.square(truth).sum()
    assert np.square(truth - predicted).sum() > 0.1 * np.square(truth).sum()  # because of the noise
