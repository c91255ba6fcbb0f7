"""Whiten images with ZCA, once, and store the result.

Let x = (pixel - 127.5) / 128, as a row of 3 x height x width numbers. Let m be the mean and C = U diag(s) U' the
covariance (divided by N) of the *training* images. Every image becomes (x - m) W with W = U diag(1 / sqrt(s + eps)) U'.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from rmsexp.data import Images, Report, cache
from rmsexp.data.files import FLOAT32, write_float32

BLOCK = 2048  # images computed at a time, which limits memory


@dataclass(frozen=True)
class Whitened:
    """Whitened images, float32 (image, 3, height, width), memory-mapped and read-only; labels, int64 (image,)."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


def whitened(images: Images, eps: float, root: Path, report: Report) -> Whitened:
    """Return the images whitened with regulariser ``eps``, from ``<root>/whitened`` or computed and stored there.

    Raises: DataError if they cannot be stored.
    """
    folder = root / "whitened" / cache.key(__file__, images.digest, eps, FLOAT32.str)
    size_bytes = (images.train_x.size + images.test_x.size) * FLOAT32.itemsize
    with cache.storing("The whitened images", folder, size_bytes):
        train_x, test_x = cache.cached(
            folder, partial(_read, images=images), partial(_make, images=images, eps=eps, report=report)
        )
    return Whitened(train_x, images.train_y, test_x, images.test_y)


def fit(pixels: np.ndarray, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean m, (dim,), and the matrix W, (dim, dim), both float64, of uint8 images of shape (image, ...).

    Float64 is needed because W divides by the roots of eigenvalues that may be as small as ``eps``.
    """
    dim = pixels[0].size
    mean = torch.from_numpy((pixels.mean(axis=0, dtype=np.float64).reshape(dim) - 127.5) / 128)
    covariance = torch.zeros(dim, dim, dtype=torch.float64)
    for start in range(0, len(pixels), BLOCK):
        centred = _scaled(pixels[start : start + BLOCK]) - mean
        covariance.addmm_(centred.T, centred, alpha=1 / len(pixels))
    eigenvalues, vectors = torch.linalg.eigh(covariance)
    return mean, vectors / torch.sqrt(eigenvalues + eps) @ vectors.T


def _scaled(pixels: np.ndarray) -> torch.Tensor:
    return (torch.from_numpy(pixels).flatten(1).double() - 127.5) / 128


def _read(folder: Path, images: Images) -> list[np.ndarray]:
    """Return the stored training and test images.

    Raises: FileNotFoundError, ValueError or EOFError if they are missing, incomplete or of another shape.
    """
    arrays = []
    for name, pixels in (("train_x", images.train_x), ("test_x", images.test_x)):
        array = np.load(folder / f"{name}.npy", mmap_mode="r")
        if array.shape != pixels.shape or array.dtype != FLOAT32:
            raise ValueError(f"{name} has another shape or type")
        arrays.append(array)
    return arrays


def _make(folder: Path, images: Images, eps: float, report: Report) -> None:
    report(f"whitening {len(images.train_x) + len(images.test_x):,} images (once; less than a minute)")
    mean, matrix = fit(images.train_x, eps)
    for name, pixels in (("train_x", images.train_x), ("test_x", images.test_x)):
        write_float32(folder / f"{name}.npy", pixels.shape, _whiten(pixels, mean, matrix))


def _whiten(pixels: np.ndarray, mean: torch.Tensor, matrix: torch.Tensor) -> Iterator[np.ndarray]:
    """Yield blocks of whitened images, float64 of shape (image, dim)."""
    for start in range(0, len(pixels), BLOCK):
        yield ((_scaled(pixels[start : start + BLOCK]) - mean) @ matrix).numpy()
