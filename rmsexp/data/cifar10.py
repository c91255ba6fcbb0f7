"""Read CIFAR-10 from ``<root>/cifar10/cifar-10-batches-py``, whose files are named as torchvision names them.

The address of the archive and the digests of the files are torchvision's. torchvision's reader is not used, because it
unpickles arbitrary objects, which may run code.
"""

from __future__ import annotations

import hashlib
import tarfile
from http.client import HTTPException
from pathlib import Path

import numpy as np

from rmsexp.data import DataError, Images
from rmsexp.data.download import fetched, unavailable
from rmsexp.data.files import check_root, read_bytes
from rmsexp.data.unpickle import UnpicklingError, unpickle

EXTRAS = ("batches.meta", "readme.html")  # files of the archive that are unpacked, but not read


def load(root: Path) -> Images:
    """Return the 50,000 training and 10,000 test images. Download them if their folder below ``root`` is missing.

    The digest of every file that is read is verified each time, which takes about a third of a second in all.

    Raises: DataError if the folder exists but a file is damaged or missing, or if the download fails.
    """
    from torchvision.datasets import CIFAR10  # imported here: the import takes seconds

    folder = root / "cifar10" / CIFAR10.base_folder
    if not folder.is_dir():
        check_root("CIFAR-10", root, [folder / name for name, _ in CIFAR10.train_list + CIFAR10.test_list])
        _download(folder, root)
    train_x, train_y = _split(folder, CIFAR10.train_list)
    test_x, test_y = _split(folder, CIFAR10.test_list)
    return Images(
        train_x,
        train_y,
        test_x,
        test_y,
        name="CIFAR-10",
        digest=hashlib.sha256(repr([*CIFAR10.train_list, *CIFAR10.test_list]).encode()).hexdigest(),
        builtin=False,
    )


def _split(folder: Path, files: list[list[str]]) -> tuple[np.ndarray, np.ndarray]:
    batches = [_parse(folder / name, _verified(folder / name, md5)) for name, md5 in files]
    return np.concatenate([pixels for pixels, _ in batches]), np.concatenate([labels for _, labels in batches])


def read_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the images, uint8 (image, 3, 32, 32), and the labels, int64 (image,), of one pickled file.

    The file's digest is not verified.

    Raises: DataError if the file cannot be read, is no batch of CIFAR-10, or refers to a function or class that
    :func:`rmsexp.data.unpickle.unpickle` does not allow.
    """
    return _parse(path, read_bytes(path, _remedy(path)))


def _verified(path: Path, md5: str) -> bytes:
    content = read_bytes(path, _remedy(path))
    actual = hashlib.md5(content).hexdigest()
    if actual != md5:
        raise DataError(f"{path} is damaged: its md5 is {actual}, not {md5} ({len(content):,} bytes).\n{_remedy(path)}")
    return content


def _remedy(path: Path) -> str:
    return f"Delete the folder {path.parent} to download it again, or replace the file."


def _parse(path: Path, content: bytes) -> tuple[np.ndarray, np.ndarray]:
    try:
        batch = unpickle(content)
    except UnpicklingError as error:
        raise DataError(f"{path} is not a batch of CIFAR-10 ({error}).\n{_remedy(path)}") from None
    fields = batch if isinstance(batch, dict) else {}
    pixels, labels = fields.get("data"), fields.get("labels")
    if not (isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.shape[1:] == (3 * 32 * 32,)):
        raise DataError(
            f"{path} is not a batch of CIFAR-10 ('data' is not uint8 of shape (images, 3072)).\n{_remedy(path)}"
        )
    if not (
        isinstance(labels, list)
        and len(labels) == len(pixels)
        and all(type(label) is int and 0 <= label <= 9 for label in labels)
    ):
        raise DataError(
            f"{path} is not a batch of CIFAR-10 ('labels' is not a list of {len(pixels)} numbers from 0 to 9).\n"
            f"{_remedy(path)}"
        )
    return pixels.reshape(-1, 3, 32, 32), np.array(labels, dtype=np.int64)


def _download(folder: Path, root: Path) -> None:
    """Download the archive, unpack it, and move its folder to ``folder``, which appears complete or not at all.

    Raises: DataError if the download fails or the archive is not as expected; ``root`` is data.root, for the message.
    """
    from torchvision.datasets import CIFAR10

    try:
        with fetched(CIFAR10.url, folder.parent, "the archive of CIFAR-10", "md5", CIFAR10.tgz_md5) as archive:
            names = [name for name, _ in CIFAR10.train_list + CIFAR10.test_list]
            _extract(archive, folder.name, {f"{folder.name}/{name}" for name in (*names, *EXTRAS)})
            _move(archive.with_name(folder.name), folder)
    except (OSError, HTTPException) as error:
        raise unavailable(
            "CIFAR-10", folder, folder.name, CIFAR10.url, error, "task=cifar10 scale=small", root
        ) from None


def _extract(archive: Path, folder: str, expected: set[str]) -> None:
    """Unpack the archive into the folder that holds it.

    Raises: DataError, before anything is unpacked, if the archive has a member other than the folder named ``folder``
    and regular files whose paths are in ``expected``; DataError if the archive is damaged.
    """
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                if not (member.isfile() and member.name in expected) and not (member.isdir() and member.name == folder):
                    raise DataError(
                        f"The archive of CIFAR-10 holds {member.name!r}, which is unexpected; nothing was stored.\n"
                        f"Try again, or put an existing copy of {folder} in its place."
                    )
            # of Python 3.11, versions before 3.11.4 lack the filter; every member was checked above
            tar.extraction_filter = getattr(tarfile, "data_filter", None)
            tar.extractall(archive.parent)
    except tarfile.TarError as error:
        raise DataError(
            f"The archive of CIFAR-10 cannot be unpacked ({error}); nothing was stored.\nTry again."
        ) from None


def _move(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError:
        if not target.is_dir():  # otherwise another process was faster; its files are verified when they are read
            raise
