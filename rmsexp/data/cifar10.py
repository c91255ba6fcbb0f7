"""Read CIFAR-10, or a folder of images, with torchvision, and whiten images with ZCA, once.

Let the row vector x be (pixel - 127.5) / 128 of an image's 3 x height x width pixel values. Let m be the mean and
C = U diag(s) U' the covariance (normalised by the number of images) of the *training* images. Each image of each split
becomes (x - m) W with W = U diag(1 / sqrt(s + eps)) U'.

Deviation: CIFAR-10, precision of whitening
    original: decomposes the covariance in float32 (weight-norm:nn.py:18-22)
    ours: in float64; the whitened images are float32
    why: in float32 the result depends on the library of linear algebra
    effect: not measured; differences are of the size of float32's rounding
"""

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rmsexp.data import DataError, Images, Report, image_features
from rmsexp.data.files import cached, downloading, key, sha256_of

BLOCK = 2048  # images that are computed at a time, to save memory
SMALL_EPS = 1e-3  # below, directions in which training images hardly vary are magnified more than 30 times


def whitened(images: Images, eps: float, root: Path, report: Report) -> Images:
    """Return ``images`` whitened with the regulariser ``eps``: float32, memory-mapped and read-only.

    They are read from ``<root>/whitened``, or computed and stored there. Raises: DataError if they cannot be stored.
    """

    def read(folder: Path) -> dict[str, Any]:
        return {split: np.load(folder / f"{split}.npy", mmap_mode="r") for split in images.x}

    count, dim = len(images.x["train"]), images.x["train"][0].size
    if count < 2 * dim and eps < SMALL_EPS:
        report(
            f"warning: {count:,} images do not determine {dim:,} directions, so test images are distorted; "
            "use data.zca_eps=0.01"
        )
    folder = root / "whitened" / key(__file__, images.digest, eps)
    return replace(images, x=cached(folder, read, lambda folder: _make(folder, images, eps, report)))


def _make(folder: Path, images: Images, eps: float, report: Report) -> None:
    report(f"whitening {sum(map(len, images.x.values())):,} images (once; less than a minute)")
    mean, matrix = fit(images.x["train"], eps)
    for split, pixels in images.x.items():
        result = np.empty(pixels.shape, dtype=np.float32)
        for start in range(0, len(pixels), BLOCK):
            block = (_scaled(pixels[start : start + BLOCK]) - mean) @ matrix
            result[start : start + BLOCK] = block.reshape(-1, *pixels.shape[1:])
        np.save(folder / f"{split}.npy", result)


def fit(pixels: np.ndarray, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean m, (dim,), and the matrix W, (dim, dim), of training images, uint8 (image, ...).

    Float64 is needed because W divides by sqrt(s + eps), where the eigenvalue s may be zero.
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


def load(root: Path) -> Images:
    """Return the 50,000 training and 10,000 test images.

    torchvision compares the MD5 of each file with the published one, and downloads all if one is missing or damaged.

    Raises: DataError if the download fails.
    """
    from torchvision.datasets import CIFAR10  # imported here: the import takes seconds

    folder = root / "cifar10"
    try:
        train, test = (CIFAR10(folder, train=is_train) for is_train in (True, False))
    except RuntimeError:  # a file is missing or damaged
        with downloading("CIFAR-10", folder, "task=cifar10 scale=small", root):
            train, test = (CIFAR10(folder, train=is_train, download=True) for is_train in (True, False))
    return Images(
        {"train": _channels_first(train.data), "test": _channels_first(test.data)},
        {"train": np.array(train.targets, dtype=np.int64), "test": np.array(test.targets, dtype=np.int64)},
        name="CIFAR-10",
        digest=hashlib.sha256(repr([*CIFAR10.train_list, *CIFAR10.test_list]).encode()).hexdigest(),
        builtin=False,
    )


def digest_of_folder(folder: Path) -> str:
    """Return a SHA-256, in hexadecimal, of the paths and contents of the images below ``<folder>/<split>/<class>``.

    Links to folders are followed, as :func:`from_folder` does. Raises: DataError if one leads back to where it is.
    """
    from torchvision.datasets.folder import IMG_EXTENSIONS

    found = list[Path]()
    for at, folders, names in os.walk(folder, followlinks=True):
        if loops := [Path(at, name) for name in folders if Path(at).resolve().is_relative_to(Path(at, name).resolve())]:
            raise DataError(f"{loops[0]} is a link to a folder that contains it.\nRemove the link.")
        if len(Path(at).relative_to(folder).parts) > 1:
            found += [path for path in (Path(at, name) for name in names) if path.suffix.lower() in IMG_EXTENSIONS]
    paths = sorted(path for path in found if path.is_file())
    digests = [(str(path.relative_to(folder)), sha256_of(path)) for path in paths]
    return hashlib.sha256(repr(digests).encode()).hexdigest()


def from_folder(folder: Path, root: Path) -> Images:
    """Return the images of ``<folder>/train/<class>/`` and ``<folder>/test/<class>/``, as 32 x 32 pixels.

    Images are turned as EXIF says, scaled to a shorter side of 32 pixels, cropped to the centre, ordered by a digest
    of their content, so that the last ones, which may become validation images, are of all classes.

    Raises: DataError if a folder or an image cannot be read, or if the classes of training and test differ.
    """
    from torchvision.datasets import ImageFolder
    from torchvision.transforms.functional import center_crop, resize

    digest = digest_of_folder(folder)

    def scaled(path: str) -> np.ndarray:
        return np.asarray(center_crop(resize(image_features.rgb(path), [32]), [32]), np.uint8)

    def make(stored: Path) -> None:
        try:
            splits = {split: ImageFolder(folder / split, loader=scaled) for split in ("train", "test")}
            classes = [data.classes for data in splits.values()]
            if classes[0] != classes[1]:
                raise ValueError(f"the classes of train, {classes[0]}, are not those of test, {classes[1]}")
            for split, data in splits.items():
                found = [
                    (sha256_of(Path(path)), image, label)
                    for (path, _), (image, label) in zip(data.samples, data, strict=True)
                ]
                found.sort(key=lambda item: item[0])
                np.save(stored / f"{split}_x.npy", _channels_first(np.stack([image for _, image, _ in found])))
                np.save(stored / f"{split}_y.npy", np.array([label for *_, label in found], np.int64))
        except (OSError, ValueError) as error:
            raise DataError(f"{folder}: {error}.\nPut images into train/CLASS and test/CLASS of this folder.") from None

    def read(stored: Path) -> dict[str, Any]:
        return {
            part: {name: np.load(stored / f"{name}_{part}.npy") for name in ("train", "test")} for part in ("x", "y")
        }

    arrays = cached(root / "images" / key(__file__, key(image_features.__file__), digest), read, make)
    return Images(**arrays, name=folder.resolve().name, digest=digest, builtin=False)


def _channels_first(images: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
