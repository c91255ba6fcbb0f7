"""Images and the captions that describe them: feature vectors, and token ids."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from rmsexp.data import DataError, Source
from rmsexp.data.files import digest_of
from rmsexp.data.image_features import extract, sizes
from rmsexp.data.sequences import Sequences

Words = list[str]

EOS, UNK = range(2)  # the first ids: the end of a caption, an unknown word
NAMES = ("<eos>", "<unk>")
PER_IMAGE = 5  # captions
VOCABULARY_IMAGES = 1000  # of valid, the first ones, whose words are known: the release's, whatever else is in valid
TOLERANCE = 1e-3  # of a row's length
BLOCK = 4096  # rows checked at a time


@dataclass(frozen=True)
class Described:
    """A split. Captions ``5 i`` to ``5 i + 4`` belong to image i.

    ``features``: float32 of shape (image, size), rows of unit length, possibly memory-mapped. ``captions``: each ends
    in EOS.
    """

    features: np.ndarray
    captions: Sequences

    def __len__(self) -> int:
        return len(self.features)


@dataclass(frozen=True)
class Captions:
    """Images with captions, encoded. ``words``: the vocabulary by id; ``splits``: train, valid and test."""

    words: list[str]
    splits: Mapping[str, Described]


@dataclass(frozen=True)
class Picture:
    """An image's file, and its captions as words."""

    path: Path
    captions: list[Words]


def pictures(
    name: str, splits: Mapping[str, Sequence[Picture]], files: Sequence[Path], folder: Path, kind: str
) -> Source[Captions]:
    """A source of images whose features, of a kind of :mod:`rmsexp.data.image_features`, are computed where missing.

    They are kept in ``<folder>/features/<kind>/<split>.npy``. ``files`` are those that the captions come from. The
    digest is the sha256 of their names and content, the features' kind, and the images' names and sizes: what an image
    shows is not in it.

    Raises: DataError if a split has no images, or an image is not there, has fewer than five captions, or an empty one.
    """
    for split, members in splits.items():
        if not members:
            raise DataError(f"The {split} split of {name} has no images.\nReplace {' and '.join(map(str, files))}.")
    captions = {split: [words for one in members for words in _five(one)] for split, members in splits.items()}
    images = {split: [one.path for one in members] for split, members in splits.items()}
    listing = [(split, sizes(paths)) for split, paths in images.items()]

    def load(report: Callable[[str], None]) -> Captions:
        features = {}
        for split, paths in images.items():
            target = folder / "features" / kind / f"{split}.npy"
            extract(paths, kind, target, report)
            features[split] = read_features(target, len(paths))
        return encode(captions, features, report)

    return Source(name, digest(files, kind, listing), False, load)


def digest(files: Iterable[Path], *parts: object) -> str:
    """The sha256 of the files' names and content and of the parts, told apart by ``repr``; in hexadecimal.

    Raises: DataError if a file cannot be read.
    """
    return hashlib.sha256(repr((digest_of(files), *parts)).encode()).hexdigest()


def _five(picture: Picture) -> list[Words]:
    """The first five captions; a few images of COCO have more, which the release left out."""
    captions = picture.captions[:PER_IMAGE]
    if len(captions) < PER_IMAGE:
        raise DataError(
            f"{picture.path.name} has {len(captions)} captions, not {PER_IMAGE}.\nAdd some, or take it from its split."
        )
    if not all(captions):
        raise DataError(f"{picture.path.name} has a caption without words.\nRepair it, or take it from its split.")
    return captions


def tokenise(text: str) -> Words:
    """Lower-case words of letters and digits, like the Karpathy split's ``tokens``: "T-shirt" becomes "tshirt"."""
    return re.sub(r"[^\w\s]|_", "", text.lower()).split()


def encode(
    captions: Mapping[str, Sequence[Words]], features: Mapping[str, np.ndarray], report: Callable[[str], None]
) -> Captions:
    """Captions as ids, and their vocabulary: all words of train and of the first 5,000 valid captions, by frequency.

    Equally frequent words are in alphabetical order. ``report`` is told the counts.

    Raises: DataError if the features of two splits differ in size.
    """
    widths = {split: rows.shape[1] for split, rows in features.items()}
    if len(set(widths.values())) > 1:
        raise DataError(f"The features differ in size: {widths}.\nAll splits need features of the same kind.")
    known = chain(captions["train"], captions["valid"][: PER_IMAGE * VOCABULARY_IMAGES])
    counts = Counter(chain.from_iterable(known))
    words = [*NAMES, *sorted(counts, key=lambda word: (-counts[word], word))]
    ids = {word: number for number, word in enumerate(words)}
    splits = {
        split: Described(features[split], Sequences.of([[*(ids.get(word, UNK) for word in one), EOS] for one in texts]))
        for split, texts in captions.items()
    }
    for split, described in splits.items():
        unknown = 100 * float((described.captions.tokens == UNK).mean())
        report(f"{split}: {len(described):,} images, {len(described.captions):,} captions, {unknown:.2f} % unknown")
    report(f"{len(words):,} words")
    return Captions(words, splits)


def read_features(path: Path, images: int) -> np.ndarray:
    """Features from a .npy file, float32 of shape (images, size), memory-mapped.

    Raises: DataError if the file cannot be read, has another shape, or has a row that is not finite or of unit length.
    """
    try:
        features = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} cannot be read ({error}).\nReplace or delete the file.") from None
    if features.dtype != np.float32 or features.ndim != 2 or len(features) != images:
        raise DataError(
            f"{path} holds {features.dtype} of shape {features.shape}, not float32 of shape ({images}, size): "
            "a row of features for each image.\nReplace the file."
        )
    for start in range(0, images, BLOCK):
        lengths = np.linalg.norm(features[start : start + BLOCK], axis=1)
        if len(bad := np.flatnonzero(~(np.abs(lengths - 1) <= TOLERANCE))):  # NaN is no distance either
            raise DataError(
                f"{path}, row {start + bad[0]} (the first is 0): its length is {lengths[bad[0]]:.4g}, not 1.\n"
                "Features are rows of finite numbers, scaled to unit length; replace the file."
            )
    return features


def missing(name: str, path: Path, origin: str) -> DataError:
    """For a file or folder of a data set that has to be put there by hand; ``origin`` says where to get it."""
    return DataError(f"{name} is not complete: there is no {path}.\n{origin}; scale=demo needs no data.")
