"""ZCA whitening of images, computed once and kept.

With x = (pixel - 127.5) / 128 and the mean m and covariance C = U diag(s) U' (over N) of the *training* images, every
image becomes (x - m) W, where W = U diag(1 / sqrt(s + eps)) U'.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from rmsexp.data import DataError, Images, cache

BLOCK = 2048  # images computed at a time: the memory stays small beside the images themselves
DTYPE = np.dtype("<f4")


@dataclass(frozen=True)
class Whitened:
    """Whitened images, float32 of shape (image, 3, height, width), read-only on the disk; labels int64 (image,)."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


def whitened(images: Images, eps: float, root: Path, report: Callable[[str], None]) -> Whitened:
    """The images whitened with regulariser ``eps``, from ``<root>/whitened`` or computed and put there.

    ``report`` is told when they must be computed. Of processes that want the same images, one computes.

    Raises: DataError if they cannot be stored.
    """
    folder = root / "whitened" / cache.key(__file__, images.digest, eps, DTYPE.str)
    try:
        arrays = cache.cached(
            folder, partial(_open, images=images), partial(_make, images=images, eps=eps, report=report)
        )
    except OSError as error:
        size_bytes = (images.train_x.size + images.test_x.size) * DTYPE.itemsize
        raise DataError(
            f"The whitened images cannot be stored in {folder} ({error.strerror}): "
            f"they need {size_bytes / 1e6:,.0f} MB.\nFree some space there, or choose another data.root."
        ) from None
    return Whitened(arrays["train_x"], images.train_y, arrays["test_x"], images.test_y)


def fit(pixels: np.ndarray, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean, (dim,), and the matrix W, (dim, dim), of uint8 images (image, ...); both float64.

    Float64 since the small eigenvalues matter: they compare with ``eps`` and are divided by.
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


def _open(folder: Path, images: Images) -> dict[str, np.ndarray] | None:
    """The stored splits, or None if they are missing, incomplete or of another shape."""
    arrays: dict[str, np.ndarray] = {}
    for split in ("train_x", "test_x"):
        try:
            arrays[split] = np.load(folder / f"{split}.npy", mmap_mode="r")
        except (FileNotFoundError, ValueError, EOFError):
            return None
        if arrays[split].shape != getattr(images, split).shape or arrays[split].dtype != DTYPE:
            return None
    return arrays


def _make(folder: Path, images: Images, eps: float, report: Callable[[str], None]) -> None:
    report(f"whitening {len(images.train_x) + len(images.test_x):,} images (once; less than a minute)")
    mean, matrix = fit(images.train_x, eps)
    for split in ("train_x", "test_x"):
        _write(folder / f"{split}.npy", getattr(images, split), mean, matrix)


def _write(path: Path, pixels: np.ndarray, mean: torch.Tensor, matrix: torch.Tensor) -> None:
    """Written, not memory-mapped: on a full disk a write raises OSError, but a mapped page kills the process."""
    with path.open("wb") as file:
        header = {"descr": DTYPE.str, "fortran_order": False, "shape": pixels.shape}
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, len(pixels), BLOCK):
            block = (_scaled(pixels[start : start + BLOCK]) - mean) @ matrix
            file.write(block.numpy().astype(DTYPE).data)
