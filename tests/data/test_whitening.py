"""Whitened images equal those of an independent computation, and are stored once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rmsexp.data import Images, whitening

EPS = 1e-5


def make(seed: int = 0) -> Images:
    """Return 500 training and 200 test images of correlated noise, 3 x 4 x 4.

    The last of the 48 values copies the first, so an eigenvalue of the covariance is zero.
    """
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(700, 48)) @ rng.normal(size=(48, 48)) * 6 + 127
    mixed[:, -1] = mixed[:, 0]
    pixels = np.rint(mixed).clip(0, 255).astype(np.uint8).reshape(-1, 3, 4, 4)
    labels = rng.integers(0, 10, 700)
    return Images(pixels[:500], labels[:500], pixels[500:], labels[500:], "noise", f"digest {seed}", True)


def whiten(images: Images, cache: Path, eps: float = EPS) -> tuple[Images, list[str]]:
    reports: list[str] = []
    return whitening.whitened(images, eps, cache, reports.append), reports


def entries(cache: Path) -> list[Path]:
    return sorted(path for path in (cache / "whitened").iterdir() if not path.name.endswith(".lock"))


def test_validation_images_are_the_last_training_images(tmp_path: Path) -> None:
    """They are whitened with the mean and the matrix of the remaining training images."""
    images = make()
    held_out = images.with_validation(100)
    assert held_out.valid_y is not None
    assert list(held_out.train_y) == list(images.train_y[:400])
    assert list(held_out.valid_y) == list(images.train_y[400:])
    assert held_out.digest != images.digest
    assert held_out.digest != images.with_validation(99).digest
    remaining = replace(images, train_x=images.train_x[:400], train_y=images.train_y[:400], test_x=images.train_x[400:])
    expected, result = whiten(remaining, tmp_path / "expected")[0], whiten(held_out, tmp_path)[0]
    assert result.valid_x is not None
    np.testing.assert_array_equal(result.valid_x, expected.test_x)
    np.testing.assert_array_equal(result.train_x, expected.train_x)
    again, reports = whiten(held_out, tmp_path)
    assert reports == []
    np.testing.assert_array_equal(again.valid_x, result.valid_x)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [500, 501])
def test_validation_images_must_leave_training_images(count: int) -> None:
    with pytest.raises(ValueError, match=f"data.validation={count} leaves none of the 500 training images"):
        make().with_validation(count)


def test_whitening_equals_the_formula(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whitened images equal those computed from an SVD of the centred training images."""
    monkeypatch.setattr(whitening, "BLOCK", 64)  # does not divide the number of images
    images = make()
    result, _ = whiten(images, tmp_path)
    train, test = ((x.reshape(len(x), -1).astype(float) - 127.5) / 128 for x in (images.train_x, images.test_x))
    _, singular, rows = np.linalg.svd(train - train.mean(axis=0))
    matrix = rows.T @ np.diag(1 / np.sqrt(singular**2 / len(train) + EPS)) @ rows
    for whitened, x in ((result.train_x, train), (result.test_x, test)):
        assert whitened.dtype == np.float32
        assert whitened.shape == (len(x), 3, 4, 4)
        assert not whitened.flags.writeable
        np.testing.assert_allclose(whitened.reshape(len(x), -1), (x - train.mean(axis=0)) @ matrix, atol=2e-4)
    np.testing.assert_array_equal(result.train_y, images.train_y)
    np.testing.assert_array_equal(result.test_y, images.test_y)


def test_other_eps_source_or_images_have_another_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whiten(make(), tmp_path)
    whiten(make(), tmp_path, eps=1e-2)
    whiten(make(seed=1), tmp_path)
    assert len(entries(tmp_path)) == 3
    (tmp_path / "edited.py").write_text("")
    for module in (whitening, whitening.cifar10):
        with monkeypatch.context() as patch:
            patch.setattr(module, "__file__", str(tmp_path / "edited.py"))
            whiten(make(), tmp_path)
    assert len(entries(tmp_path)) == 5
