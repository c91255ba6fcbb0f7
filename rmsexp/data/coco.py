"""COCO captions (Chen et al. 2015): the features and captions that order-embedding was released with, or the images."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rmsexp.data import DataError, Source
from rmsexp.data.captions import (
    PER_IMAGE,
    Captions,
    Picture,
    Words,
    digest,
    encode,
    missing,
    pictures,
    read_features,
    tokenise,
)
from rmsexp.data.files import read_lines
from rmsexp.data.image_features import sizes

RELEASE = {"train": "train", "valid": "val", "test": "test"}  # its names of the splits
KARPATHY = {"train": "train", "restval": "train", "val": "valid", "test": "test"}
VALID_IMAGES = 5000  # of the training images, where the official split has to do
RELEASE_ORIGIN = "It was at http://www.cs.toronto.edu/~vendrov/order/coco.zip; unpack it there"
ORIGIN = (
    "Images and annotations are at https://cocodataset.org, the Karpathy split, dataset_coco.json, at "
    "https://cs.stanford.edu/people/karpathy/deepimagesent; put them there"
)


def coco_release(root: Path) -> Source[Captions]:
    """The captions and features that order-embedding (Vendrov et al. 2016) was released with, below ``<root>/coco``.

    ``{train,val,test}.txt`` hold one tokenised caption a line, five consecutive lines for each of 113,287, 5,000 and
    5,000 images; ``images/10crop/{train,val,test}.npy`` the features, float32 of shape (image, 4096), memory-mapped.
    The digest is the sha256 of the captions and of the names and sizes of the files of features.

    Raises: DataError if a file is missing or empty, a line is empty, or the lines are no multiple of five.
    """
    folder = root / "coco"
    texts = {split: folder / f"{name}.txt" for split, name in RELEASE.items()}
    features = {split: folder / "images" / "10crop" / f"{name}.npy" for split, name in RELEASE.items()}
    for path in (*texts.values(), *features.values()):
        if not path.exists():
            raise missing("The release of order-embedding", path, RELEASE_ORIGIN)

    def load(report: Callable[[str], None]) -> Captions:
        captions = {split: read_release(path) for split, path in texts.items()}
        rows = {split: read_features(path, len(captions[split]) // PER_IMAGE) for split, path in features.items()}
        return encode(captions, rows, report)

    return Source("COCO", digest(texts.values(), sizes(features.values())), False, load)


def read_release(path: Path) -> list[Words]:
    """The captions of a file of the release, five for each image.

    Raises: DataError as :func:`coco_release`.
    """
    captions = [line.split() for line in read_lines(path)]
    if not all(captions):
        raise DataError(f"{path}, line {captions.index([]) + 1}: an empty caption.\nEach line is one; repair the file.")
    if len(captions) % PER_IMAGE:
        raise DataError(
            f"{path} has {len(captions):,} lines, no multiple of {PER_IMAGE}.\n"
            "Five consecutive lines are the captions of an image; repair or replace the file."
        )
    return captions


def coco(root: Path, features: str) -> Source[Captions]:
    """The images and captions below ``<root>/coco``; ``features``: a kind of :mod:`rmsexp.data.image_features`.

    Where there is ``dataset_coco.json``, the split is the paper's, of Karpathy & Fei-Fei (2015): restval joins train,
    images lie in ``<filepath>/<filename>``. Else ``annotations/captions_{train,val}2017.json`` make it, or those of
    2014: the last 5,000 of train by id are valid, val is test, images lie in ``{train,val}2017/<file_name>``.

    Raises: DataError if a file is missing or malformed, or as :func:`rmsexp.data.captions.pictures`.
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
        raise missing("COCO", absent, f"Neither is there a dataset_coco.json. {ORIGIN}")
    train, test = (read_official(path, folder / path.stem.removeprefix("captions_")) for path in files)
    splits = {"train": train[:-VALID_IMAGES], "valid": train[-VALID_IMAGES:], "test": test}
    return pictures(f"COCO, {files[0].stem[-4:]}", splits, files, folder, features)


def read_karpathy(path: Path, folder: Path) -> dict[str, list[Picture]]:
    """The images of train, valid and test, which lie below ``folder``, in the order of the file.

    Raises: DataError if it cannot be read or is something else.
    """
    splits: dict[str, list[Picture]] = {split: [] for split in RELEASE}
    try:
        for image in _json(path)["images"]:
            captions = [sentence["tokens"] for sentence in image["sentences"]]
            splits[KARPATHY[image["split"]]].append(Picture(folder / image["filepath"] / image["filename"], captions))
    except (KeyError, TypeError) as error:
        raise _malformed(path, "the Karpathy split", error) from None
    return splits


def read_official(path: Path, folder: Path) -> list[Picture]:
    """The images of an official file of captions, which lie in ``folder``, by id.

    Raises: DataError if it cannot be read or is something else.
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
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}).\nReplace the file.") from None


def _malformed(path: Path, what: str, error: Exception) -> DataError:
    return DataError(f"{path} is not {what} ({type(error).__name__}: {error}).\nReplace the file.")
