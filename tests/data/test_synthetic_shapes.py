"""Synthetic images: reproducible, balanced over classes, and not classified by the nearest mean image."""

from __future__ import annotations

import numpy as np
import pytest

from rmsexp.data import Images
from rmsexp.data.synthetic import shapes


@pytest.fixture(scope="module")
def images() -> Images:
    return shapes.shapes(n_train=1000, n_test=600)


def test_names_shapes_and_types(images: Images) -> None:
    assert images.train_x.shape == (1000, 3, 32, 32)
    assert images.test_x.shape == (600, 3, 32, 32)
    assert images.train_x.dtype == np.uint8
    assert images.train_y.dtype == np.int64
    assert images.builtin
    assert images.name == "shapes"


def test_images_depend_on_the_seed_only() -> None:
    first, again = (shapes.shapes(n_train=30, n_test=10) for _ in range(2))
    assert again.digest == first.digest
    np.testing.assert_array_equal(again.train_x, first.train_x)
    assert shapes.shapes(n_train=30, n_test=10, seed=1).digest != first.digest


def test_classes_are_balanced_and_shuffled(images: Images) -> None:
    np.testing.assert_array_equal(np.bincount(images.train_y), [100] * 10)
    np.testing.assert_array_equal(np.bincount(images.test_y), [60] * 10)
    assert len(set(images.train_y[:20].tolist())) < 20
    assert (np.diff(images.train_y) != 1).any()


def test_splits_share_no_image(images: Images) -> None:
    train = {image.tobytes() for image in images.train_x}
    assert len(train) == 1000
    assert train.isdisjoint(image.tobytes() for image in images.test_x)


def test_nearest_mean_image_does_not_classify(images: Images) -> None:
    """The class whose mean training image is nearest is the right class of less than 35 % of the test images."""
    means = np.stack([images.train_x[images.train_y == k].mean(axis=0) for k in range(10)])
    distances = ((images.test_x[:, None].astype(float) - means) ** 2).sum(axis=(2, 3, 4))
    assert (distances.argmin(axis=1) == images.test_y).mean() < 0.35
