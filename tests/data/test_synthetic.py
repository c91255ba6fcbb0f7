"""Synthetic data: the same on every machine, different in every split, with names, sizes and types as documented."""

import numpy as np
import pytest

from rmsexp.data.captions import EOS, PER_IMAGE, UNK
from rmsexp.data.cloze import NUM
from rmsexp.data.synthetic.phrases import phrases
from rmsexp.data.synthetic.scenes import scenes
from rmsexp.data.synthetic.shapes import shapes
from rmsexp.data.synthetic.stories import ENTITIES, stories


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


def test_stories_and_scenes_are_encoded_as_they_are_told() -> None:
    """The digests are those of the text."""
    cloze = stories().load(lambda _: None)
    assert {name: len(split) for name, split in cloze.splits.items()} == {"train": 5000, "valid": 500}
    assert [cloze.words[k] for k in cloze.entities] == list(ENTITIES)
    for split in cloze.splits.values():
        assert split.passages.tokens.min() > NUM
        assert all(answer in passage for answer, passage in zip(split.answers, split.passages, strict=True))
    captions = scenes().load(lambda _: None)
    for images in captions.splits.values():
        assert len(images.captions) == PER_IMAGE * len(images)
        np.testing.assert_array_equal(np.flatnonzero(images.captions.tokens == EOS) + 1, images.captions.offsets[1:])
    assert set(captions.splits["train"].captions.tokens.tolist()) == set(range(len(captions.words))) - {UNK}


def test_shapes() -> None:
    images = shapes(n_train=300, n_test=100)
    assert (images.name, images.builtin) == ("shapes", True)
    assert (images.x["train"].shape, images.x["train"].dtype) == ((300, 3, 32, 32), np.uint8)
    assert np.bincount(images.y["train"]).tolist() == [30] * 10
    assert np.bincount(images.y["test"]).tolist() == [10] * 10
    assert len({image.tobytes() for pixels in (images.x["train"], images.x["test"]) for image in pixels}) == 400
    again = shapes(n_train=300, n_test=100)
    np.testing.assert_array_equal(again.x["train"], images.x["train"])
    assert again.digest == images.digest != shapes(n_train=300, n_test=100, seed=1).digest
    assert images.digest == "c48df3edf73906e7e0bc75685b5ce520632cf9bdeb0bf4a1fa4cd288d6be2317"
