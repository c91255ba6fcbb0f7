"""ZCA whitening of images, computed once and kept.

With x = (pixel - 127.5) / 128 and the mean m and covariance C = U diag(s) U' (over N) of the *training* images, every
image becomes (x - m) W, where W = U diag(1 / sqrt(s + eps)) U'.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rmsexp.data import DataError, Images
from rmsexp.record import sync_folder

BLOCK = 2048  # images computed at a time: the memory stays small beside the images themselves
DTYPE = np.dtype("<f4")


@dataclass(frozen=True)
class Whitened:
    """Whitened images, float32 of shape (image, 3, height, width), read-only on the disk; labels int64 (image,)."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


def whitened(images: Images, eps: float, cache: Path, report: Callable[[str], None]) -> Whitened:
    """The images whitened with regulariser ``eps``, from ``<cache>/whitened`` or computed and put there.

    ``report`` is told when they must be computed. Of processes that want the same images, one computes.

    Raises: DataError if they cannot be stored.
    """
    folder = cache / "whitened" / _key(images, eps)
    try:
        arrays = _open(folder, images) or _make(folder, images, eps, report)
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


def _key(images: Images, eps: float) -> str:
    """Changes with all that the result depends on, this file included."""
    source = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    return hashlib.sha256(f"{images.digest} {eps!r} {DTYPE} {source}".encode()).hexdigest()[:16]


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


def _make(folder: Path, images: Images, eps: float, report: Callable[[str], None]) -> dict[str, np.ndarray]:
    """Computes and stores both splits under a lock, which the kernel frees however the process ends."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.tmp")
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (arrays := _open(folder, images)) is not None:
            return arrays  # another process made them while this one waited
        report(f"whitening {len(images.train_x) + len(images.test_x):,} images (once; less than a minute)")
        for leftover in (folder, temporary):  # damaged; of a process that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            temporary.mkdir()
            mean, matrix = fit(images.train_x, eps)
            for split in ("train_x", "test_x"):
                _write(temporary / f"{split}.npy", getattr(images, split), mean, matrix)
            temporary.rename(folder)
            sync_folder(folder.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    arrays = _open(folder, images)
    assert arrays is not None
    return arrays


def _write(path: Path, pixels: np.ndarray, mean: torch.Tensor, matrix: torch.Tensor) -> None:
    """Written, not memory-mapped: on a full disk a write raises OSError, but a mapped page kills the process."""
    with path.open("wb") as file:
        header = {"descr": DTYPE.str, "fortran_order": False, "shape": pixels.shape}
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, len(pixels), BLOCK):
            block = (_scaled(pixels[start : start + BLOCK]) - mean) @ matrix
            file.write(block.numpy().astype(DTYPE).data)
        file.flush()
        os.fsync(file.fileno())
