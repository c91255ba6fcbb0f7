"""COCO images with captions (Chen et al. 2015), read from annotation files; the features come from the images."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

from rmsexp.data import DataError, Source
from rmsexp.data.captions import Captions, Picture, pictures, tokenise
from rmsexp.data.files import missing, read_bytes

KARPATHY = {"train": "train", "restval": "train", "val": "valid", "test": "test"}  # split in dataset_coco.json -> ours
VALID_IMAGES = 5000  # number of official training images that become our validation split, without dataset_coco.json
ORIGIN = (
    "Images and annotations are at https://cocodataset.org, the Karpathy split, dataset_coco.json, at "
    "https://cs.stanford.edu/people/karpathy/deepimagesent. Put them into this folder."
)


def coco(root: Path, features: str) -> Source[Captions]:
    """Return the images and captions below ``<root>/coco``.

    ``features`` is a kind of :mod:`rmsexp.data.image_features`.

    If ``dataset_coco.json`` exists, it defines the splits: those of Karpathy & Fei-Fei (2015), as in the paper. Their
    split restval is added to train, and images are in ``<filepath>/<filename>``, as the file says.

    Otherwise two official files, ``annotations/captions_{train,val}2017.json``, define the splits: the last 5,000
    images of train, sorted by id, are our valid, and val is our test. Images are in ``{train,val}2017/<file_name>``.

    Raises: DataError if no such files exist, if one is malformed, or as in :func:`rmsexp.data.captions.pictures`.
    """
    folder = root / "coco"
    karpathy = folder / "dataset_coco.json"
    if karpathy.exists():
        return pictures("COCO", read_karpathy(karpathy, folder), [karpathy], folder, features)
    files = [folder / "annotations" / f"captions_{part}2017.json" for part in ("train", "val")]
    if absent := [path for path in files if not path.exists()]:
        raise missing("COCO", folder, absent, f"There is no dataset_coco.json either. {ORIGIN}")
    train, test = (read_official(path, folder / path.stem.removeprefix("captions_")) for path in files)
    splits = {"train": train[:-VALID_IMAGES], "valid": train[-VALID_IMAGES:], "test": test}
    return pictures("COCO, 2017", splits, files, folder, features)


def read_karpathy(path: Path, folder: Path) -> dict[str, list[Picture]]:
    """Return the images of train, valid and test with their captions, in the order of the file.

    Paths of images begin with ``folder``; the image files are not read.

    Raises: DataError if ``path`` cannot be read or is not the Karpathy split.
    """
    splits: dict[str, list[Picture]] = {"train": [], "valid": [], "test": []}
    content = read_bytes(path)
    try:
        for image in json.loads(content)["images"]:
            captions = [list(map(str, sentence["tokens"])) for sentence in image["sentences"]]
            splits[KARPATHY[image["split"]]].append(Picture(folder / image["filepath"] / image["filename"], captions))
    except (KeyError, TypeError, ValueError) as error:
        raise _malformed(path, "the Karpathy split", error) from None
    return splits


def read_official(path: Path, folder: Path) -> list[Picture]:
    """Return the images of an official file of captions, with all their captions, sorted by the images' ids.

    Paths of images begin with ``folder``; the image files are not read.

    Raises: DataError if ``path`` cannot be read or is no file of captions.
    """
    content, captions = read_bytes(path), defaultdict(list)
    try:
        annotations = json.loads(content)
        for annotation in annotations["annotations"]:
            captions[annotation["image_id"]].append(tokenise(annotation["caption"]))
        images = sorted(annotations["images"], key=lambda image: image["id"])
        return [Picture(folder / image["file_name"], captions[image["id"]]) for image in images]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _malformed(path, "a file of COCO's captions", error) from None


def _malformed(path: Path, kind: str, error: Exception) -> DataError:
    return DataError(f"{path} is not {kind} ({type(error).__name__}: {error}).\nReplace the file.")
