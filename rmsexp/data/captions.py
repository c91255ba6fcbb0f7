"""Captioned images: feature vectors of the images, and token ids of the captions."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from rmsexp.data import DataError, Report, Source
from rmsexp.data.files import digest_of
from rmsexp.data.image_features import extract, sizes
from rmsexp.data.sequences import Sequences

Words = list[str]

EOS, UNK = range(2)  # the first ids: the end of a caption, an unknown word
NAMES = ("<eos>", "<unk>")  # the words with the ids EOS and UNK
PER_IMAGE = 5  # captions per image
VOCABULARY_IMAGES = 1000  # first validation images whose captions add words to the vocabulary, as in the authors' code


@dataclass(frozen=True)
class CaptionedImages:
    """The images of a split with their captions: captions ``5 i`` to ``5 i + 4`` belong to image i.

    ``features`` is float32 of shape (image, size), with rows of norm 1. Each sequence in ``captions`` ends in EOS.
    """

    features: np.ndarray
    captions: Sequences

    def __len__(self) -> int:
        return len(self.features)


@dataclass(frozen=True)
class Captions:
    """An encoded data set. ``words[i]`` is the word with id i. ``splits`` has train, valid and test."""

    words: list[str]
    splits: Mapping[str, CaptionedImages]


@dataclass(frozen=True)
class Picture:
    """The path of an image file, and the image's captions as lists of words."""

    path: Path
    captions: list[Words]


def pictures(
    name: str, splits: Mapping[str, Sequence[Picture]], files: Sequence[Path], folder: Path, kind: str
) -> Source[Captions]:
    """Return the data set ``name`` of captioned images. ``load`` computes the features that are not stored yet.

    ``splits`` has the images of each split. ``files`` are the files that splits and captions were read from. ``kind``
    is a kind of :mod:`rmsexp.data.image_features`. Features are stored below ``<folder>/features/<kind>``.
    Only the first five captions of an image are used. The digest covers the names and contents of ``files``, ``kind``,
    and the names and sizes of each split's images, but not their pixels.

    Raises: DataError if a split has no images, if one of ``files`` cannot be read, or if an image is missing, has fewer
    than five captions, or an empty one among the first five.
    """
    for split, members in splits.items():
        if not members:
            raise DataError(f"The {split} split of {name} has no images.\nReplace {' and '.join(map(str, files))}.")
    captions = {
        split: [words for picture in members for words in _first_captions(picture)] for split, members in splits.items()
    }
    images = {split: [picture.path for picture in members] for split, members in splits.items()}
    listing = [(split, sizes(paths)) for split, paths in images.items()]

    def load(report: Report) -> Captions:
        place = folder / "features" / kind
        features = {
            split: np.asarray(np.load(extract(paths, kind, place, report), mmap_mode="r"))
            for split, paths in images.items()
        }
        return encode(captions, features, report)

    digest = hashlib.sha256(repr((digest_of(files), kind, listing)).encode()).hexdigest()
    return Source(name, digest, False, load)


def _first_captions(picture: Picture) -> list[Words]:
    """Return the first five captions of an image, as the authors of order-embedding do; some of COCO have more.

    Raises: DataError if there are fewer than five captions, or if one of the first five is empty.
    """
    captions = picture.captions[:PER_IMAGE]
    if len(captions) < PER_IMAGE or not all(captions):
        raise DataError(
            f"{picture.path.name} needs {PER_IMAGE} captions that are not empty.\n"
            "Add captions, or remove the image from its split."
        )
    return captions


def tokenise(text: str) -> Words:
    """Return the words of a text in lower case and without punctuation: "A T-shirt." gives ["a", "tshirt"].

    This is how the captions of the Karpathy split are tokenised.
    """
    return re.sub(r"[^\w\s]|_", "", text.lower()).split()


def encode(captions: Mapping[str, Sequence[Words]], features: Mapping[str, np.ndarray], report: Report) -> Captions:
    """Encode captions as ids, and join them with the features of their images.

    ``captions`` has the captions of each split, five consecutive ones per image, in the order of the rows of
    ``features``. The vocabulary has EOS, UNK, and all words of train and of the first 5,000 captions of valid, the most
    frequent first. Equally frequent words are in alphabetical order. Other words become UNK. The numbers of images and
    captions and the share of UNK among the tokens (with EOS) of each split are reported, and the vocabulary's size.
    """
    known = chain(captions["train"], captions["valid"][: PER_IMAGE * VOCABULARY_IMAGES])
    counts = Counter(chain.from_iterable(known))
    words = [*NAMES, *sorted(counts, key=lambda word: (-counts[word], word))]
    ids = {word: number for number, word in enumerate(words)}
    splits = {
        split: CaptionedImages(
            features[split],
            Sequences.from_lists([[*(ids.get(word, UNK) for word in caption), EOS] for caption in texts]),
        )
        for split, texts in captions.items()
    }
    for split, images in splits.items():
        unknown = 100 * images.captions.count(UNK) / len(images.captions.tokens)
        report(f"{split}: {len(images):,} images, {len(images.captions):,} captions, {unknown:.2f} % of tokens unknown")
    report(f"{len(words):,} words")
    return Captions(words, splits)
