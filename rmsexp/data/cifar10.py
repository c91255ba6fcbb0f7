"""Read CIFAR-10 with torchvision from ``<root>/cifar10``, where torchvision keeps it, too."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from rmsexp.data import Images
from rmsexp.data.download import downloading


def load(root: Path) -> Images:
    """Return the 50,000 training and 10,000 test images.

    torchvision compares the MD5 of each file with the published one, and downloads all if one is missing or damaged.

    Raises: UnavailableError if the download fails.
    """
    from torchvision.datasets import CIFAR10  # imported here: the import takes seconds

    folder = root / "cifar10"
    try:
        train, test = (CIFAR10(folder, train=is_train) for is_train in (True, False))
    except RuntimeError:  # a file is missing or damaged
        with downloading("CIFAR-10", folder, "task=cifar10 scale=small", root):
            train, test = (CIFAR10(folder, train=is_train, download=True) for is_train in (True, False))
    return Images(
        _channels_first(train.data),
        np.array(train.targets, dtype=np.int64),
        _channels_first(test.data),
        np.array(test.targets, dtype=np.int64),
        name="CIFAR-10",
        digest=hashlib.sha256(repr([*CIFAR10.train_list, *CIFAR10.test_list]).encode()).hexdigest(),
        builtin=False,
    )


def _channels_first(images: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
