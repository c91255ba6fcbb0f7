"""Read CIFAR-10 with torchvision from ``<root>/cifar10``, where torchvision keeps it, too."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from rmsexp.data import DataError, Images
from rmsexp.data.download import provide


def load(root: Path) -> Images:
    """Return the 50,000 training and 10,000 test images. Download the files that are missing below ``root``.

    torchvision compares the MD5 of each file with the published one before it reads the file.

    Raises: DataError if a file is damaged, or if the download fails.
    """
    from torchvision.datasets import CIFAR10  # imported here: the import takes seconds
    from torchvision.datasets.utils import check_integrity, download_and_extract_archive

    folder = root / "cifar10"
    batches = [*CIFAR10.train_list, *CIFAR10.test_list]
    published = {folder / CIFAR10.base_folder / name: md5 for name, md5 in batches}
    published[folder / CIFAR10.base_folder / CIFAR10.meta["filename"]] = CIFAR10.meta["md5"]

    def download(temporary: Path) -> None:
        download_and_extract_archive(CIFAR10.url, temporary, filename=CIFAR10.filename, md5=CIFAR10.tgz_md5)

    provide("CIFAR-10", list(published), download, CIFAR10.url, "task=cifar10 scale=small", root)
    try:
        train, test = (CIFAR10(folder, train=is_train) for is_train in (True, False))
    except RuntimeError:
        damaged = next(path for path, md5 in published.items() if not check_integrity(path, md5))
        raise DataError(
            f"{damaged} is damaged: its MD5 is not the published one.\n"
            "Delete the file to download it again, or replace it."
        ) from None
    return Images(
        _channels_first(train.data),
        np.array(train.targets, dtype=np.int64),
        _channels_first(test.data),
        np.array(test.targets, dtype=np.int64),
        name="CIFAR-10",
        digest=hashlib.sha256(repr(batches).encode()).hexdigest(),
        builtin=False,
    )


def _channels_first(images: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
