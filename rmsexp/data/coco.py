"""COCO images with captions (Chen et al. 2015), from one of two sources.

:func:`coco_release` reads the captions and features that the authors of order-embedding published. :func:`coco` reads
annotation files, and computes the features from the images.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from rmsexp.data import DataError, Report, Source
from rmsexp.data.captions import PER_IMAGE, Captions, Picture, Words, digest, encode, pictures, tokenise
from rmsexp.data.files import StoredArray, check_root, missing, read_bytes, read_lines, unreadable
from rmsexp.data.image_features import sizes

RELEASE = {"train": "train", "valid": "val", "test": "test"}  # our name of a split -> its name in the released files
KARPATHY = {"train": "train", "restval": "train", "val": "valid", "test": "test"}  # split in dataset_coco.json -> ours
VALID_IMAGES = 5000  # number of official training images that become our validation split, without dataset_coco.json
TOLERANCE = 1e-3  # largest allowed difference between 1 and the Euclidean norm of a released feature vector
BLOCK = 4096  # feature vectors checked at a time
RELEASE_ORIGIN = "It was at http://www.cs.toronto.edu/~vendrov/order/coco.zip. Unpack it into this folder."
ORIGIN = (
    "Images and annotations are at https://cocodataset.org, the Karpathy split, dataset_coco.json, at "
    "https://cs.stanford.edu/people/karpathy/deepimagesent. Put them into this folder."
)


def coco_release(root: Path) -> Source[Captions]:
    """Return the captions and features that were released with order-embedding (Vendrov et al. 2016).

    They are below ``<root>/coco``. ``{train,val,test}.txt`` have one tokenised caption per line, and five consecutive
    lines for each image; the release has 113,287, 5,000 and 5,000 images. ``images/10crop/{train,val,test}.npy`` have
    the features, float32 of shape (image, 4096), which stay there. The digest covers the captions, and the names
    and sizes of the feature files.

    Raises: DataError if a file is missing. ``load`` raises DataError if a file is not as described.
    """
    folder = root / "coco"
    texts = {split: folder / f"{name}.txt" for split, name in RELEASE.items()}
    features = {split: folder / "images" / "10crop" / f"{name}.npy" for split, name in RELEASE.items()}
    if absent := [path for path in (*texts.values(), *features.values()) if not path.exists()]:
        raise missing("The release of order-embedding", folder, absent, RELEASE_ORIGIN)

    def load(report: Report) -> Captions:
        captions = {split: _captions(path) for split, path in texts.items()}
        rows = {split: _features(path, len(captions[split]) // PER_IMAGE) for split, path in features.items()}
        return encode(captions, rows, report)

    return Source("COCO", digest(texts.values(), sizes(features.values())), False, load)


def _captions(path: Path) -> list[Words]:
    captions = [[*map(sys.intern, line.split())] for line in read_lines(path)]  # one object for each word in memory
    if not all(captions) or len(captions) % PER_IMAGE:
        raise DataError(
            f"{path}: a line is empty, or its {len(captions):,} lines are no multiple of {PER_IMAGE}.\n"
            "Each line must be a caption, and five consecutive ones belong to an image; replace the file."
        )
    return captions


def _features(path: Path, images: int) -> StoredArray:
    """Return the features in a .npy file, float32 of shape (images, size) with rows of norm 1, which stay there."""
    try:
        rows = StoredArray(path)
        if rows.dtype != np.float32 or len(rows.shape) != 2 or len(rows) != images:
            raise ValueError(f"it holds {rows.dtype} of shape {rows.shape}, not float32 of shape ({images}, size)")
        for start in range(0, images, BLOCK):
            lengths = np.linalg.norm(rows[start : start + BLOCK], axis=1)
            if not (np.abs(lengths - 1) <= TOLERANCE).all():  # true for NaN, too
                raise ValueError(f"the Euclidean norm of a row from {start} on is not 1")
    except Exception as error:  # a damaged header may raise any exception
        raise unreadable(path, error) from None
    return rows


def coco(root: Path, features: str) -> Source[Captions]:
    """Return the images and captions below ``<root>/coco``.

    ``features`` is a kind of :mod:`rmsexp.data.image_features`.

    If ``dataset_coco.json`` exists, it defines the splits: those of Karpathy & Fei-Fei (2015), as in the paper. Their
    split restval is added to train, and images are in ``<filepath>/<filename>``, as the file says.

    Otherwise two official files, ``annotations/captions_{train,val}2017.json``, define the splits: the last 5,000
    images of train, sorted by id, are our valid, and val is our test. Images are in ``{train,val}2017/<file_name>``. If
    one of the two files is missing, the files and folders of 2014 are used.

    Raises: DataError if no such files exist, if one is malformed, or as in :func:`rmsexp.data.captions.pictures`.
    """
    folder = root / "coco"
    karpathy = folder / "dataset_coco.json"
    if karpathy.exists():
        return pictures("COCO", read_karpathy(karpathy, folder), [karpathy], folder, features)
    official = [
        [folder / "annotations" / f"captions_{part}{year}.json" for part in ("train", "val")] for year in (2017, 2014)
    ]
    files = next((paths for paths in official if all(path.exists() for path in paths)), None)
    if files is None:
        absent = next(path for path in official[0] if not path.exists())
        for paths in ([karpathy], official[1]):
            check_root("COCO", root, paths)
        raise missing("COCO", folder, [absent], f"There is no dataset_coco.json either. {ORIGIN}")
    train, test = (read_official(path, folder / path.stem.removeprefix("captions_")) for path in files)
    splits = {"train": train[:-VALID_IMAGES], "valid": train[-VALID_IMAGES:], "test": test}
    return pictures(f"COCO, {files[0].stem[-4:]}", splits, files, folder, features)


def read_karpathy(path: Path, folder: Path) -> dict[str, list[Picture]]:
    """Return the images of train, valid and test with their captions, in the order of the file.

    Paths of images begin with ``folder``; the image files are not read.

    Raises: DataError if ``path`` cannot be read or is not the Karpathy split.
    """
    splits: dict[str, list[Picture]] = {split: [] for split in RELEASE}
    try:
        for image in _json(path)["images"]:
            captions = [sentence["tokens"] for sentence in image["sentences"]]
            if not all(isinstance(words, list) and all(isinstance(word, str) for word in words) for words in captions):
                raise TypeError("tokens must be a list of words")
            splits[KARPATHY[image["split"]]].append(Picture(folder / image["filepath"] / image["filename"], captions))
    except (KeyError, TypeError) as error:
        raise _malformed(path, "the Karpathy split", error) from None
    return splits


def read_official(path: Path, folder: Path) -> list[Picture]:
    """Return the images of an official file of captions, with all their captions, sorted by the images' ids.

    Paths of images begin with ``folder``; the image files are not read.

    Raises: DataError if ``path`` cannot be read or is no file of captions.
    """
    content, captions = _json(path), defaultdict(list)
    try:
        for annotation in content["annotations"]:
            captions[annotation["image_id"]].append(tokenise(annotation["caption"]))
        images = sorted(content["images"], key=lambda image: image["id"])
        return [Picture(folder / image["file_name"], captions[image["id"]]) for image in images]
    except (KeyError, TypeError, AttributeError) as error:
        raise _malformed(path, "a file of COCO's captions", error) from None


def _json(path: Path) -> Any:
    try:
        return json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise unreadable(path, error) from None


def _malformed(path: Path, kind: str, error: Exception) -> DataError:
    return DataError(f"{path} is not {kind} ({type(error).__name__}: {error}).\nReplace the file.")
