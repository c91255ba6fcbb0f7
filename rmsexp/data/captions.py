"""Captioned images: feature vectors of the images, and token ids of the captions.

The publishers' files of two data sets are read here: Flickr8k (Hodosh et al. 2013) and COCO (Chen et al. 2015).
"""

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rmsexp.data import DataError, Report, Source
from rmsexp.data.files import checked, digest_of, read_lines, require
from rmsexp.data.image_features import extract, sizes
from rmsexp.data.sequences import Sequences

Words = list[str]

EOS, UNK = range(2)  # the first ids: the end of a caption, an unknown word
NAMES = ("<eos>", "<unk>")  # the words with the ids EOS and UNK
PER_IMAGE = 5  # captions per image
VOCABULARY_IMAGES = 1000  # first validation images whose captions add words to the vocabulary, as in the authors' code


@dataclass(frozen=True)
class CaptionedImages:
    """The images of a split with their captions: captions ``5 i`` to ``5 i + 4`` belong to image i."""

    features: np.ndarray  # float32 (image, size), with rows of norm 1
    captions: Sequences  # each ends in EOS

    def __len__(self) -> int:
        return len(self.features)

    def first(self, count: int | None) -> "CaptionedImages":
        """Return the first ``count`` images with their captions, or all if there are fewer or ``count`` is None."""
        features = self.features[:count]
        return CaptionedImages(features, self.captions.first(PER_IMAGE * len(features)))


@dataclass(frozen=True)
class Captions:
    """An encoded data set. ``words[i]`` is the word with id i. ``splits`` has train, valid and test."""

    words: list[str]
    splits: Mapping[str, CaptionedImages]


class Picture(NamedTuple):
    """The path of an image file, and the image's captions as lists of words."""

    path: Path
    captions: list[Words]


def pictures(
    name: str, splits: Mapping[str, Sequence[Picture]], files: Sequence[Path], folder: Path, kind: str
) -> Source[Captions]:
    """Return the data set ``name`` of captioned images. Only the first five captions of an image are used.

    ``files`` are those that splits and captions were read from. ``kind`` is the kind of image features
    (:mod:`rmsexp.data.image_features`), which are stored below ``<folder>/features/<kind>``. The digest covers names
    and contents of ``files``, ``kind``, and the names and sizes of each split's images, but not their pixels.

    Raises: DataError if a split has no images, if one of ``files`` cannot be read, or if an image is missing, has fewer
    than five captions, or an empty one among the first five.
    """
    captions: dict[str, list[Words]] = {}
    for split, members in splits.items():
        if not members:
            raise DataError(f"The {split} split of {name} has no images.\nReplace {' and '.join(map(str, files))}.")
        for picture in members:
            first = picture.captions[:PER_IMAGE]  # as the authors of order-embedding do; some images of COCO have more
            if len(first) < PER_IMAGE or not all(first):
                raise DataError(
                    f"{picture.path.name} needs {PER_IMAGE} captions that are not empty.\n"
                    "Add captions, or remove the image from its split."
                )
            captions.setdefault(split, []).extend(first)
    images = {split: [picture.path for picture in members] for split, members in splits.items()}
    listing = [(split, sizes(paths)) for split, paths in images.items()]

    def load(report: Report) -> Captions:
        place = folder / "features" / kind
        features = {split: extract(paths, kind, place, report) for split, paths in images.items()}
        return encode(captions, features, report)

    digest = hashlib.sha256(repr((digest_of(files), kind, listing)).encode()).hexdigest()
    return Source(name, digest, False, load)


def tokenise(text: str) -> Words:
    """Return the words, lower case, no punctuation, as in the Karpathy split: "A T-shirt." gives ["a", "tshirt"]."""
    return re.sub(r"[^\w\s]|_", "", text.lower()).split()


def encode(captions: Mapping[str, Sequence[Words]], features: Mapping[str, np.ndarray], report: Report) -> Captions:
    """Encode captions as ids, and join them with the features of their images.

    ``captions`` has the captions of each split, five consecutive ones per image, in the order of the rows of
    ``features``. The vocabulary has EOS, UNK, and all words of train and of the first 5,000 captions of valid, the most
    frequent first, equally frequent ones in alphabetical order. Other words become UNK.
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
        unknown = 100 * (images.captions.tokens == UNK).mean()
        report(f"{split}: {len(images):,} images, {len(images.captions):,} captions, {unknown:.2f} % of tokens unknown")
    report(f"{len(words):,} words")
    return Captions(words, splits)


FLICKR8K_SPLITS = {"train": "train", "valid": "dev", "test": "test"}  # our name of a split -> its name in the files
FLICKR8K_LINE = re.compile(r"([^#\t]+)#\d+\t(.+)")
FLICKR8K_ORIGIN = (
    "The authors offer Flickr8k_text.zip and Flickr8k_Dataset.zip at https://forms.illinois.edu/sec/1713398. "
    "Put their files into the folders Flickr8k_text and Flicker8k_Dataset (spelt so) of this folder."
)


def flickr8k(root: Path, features: str) -> Source[Captions]:
    """Return the captioned images below ``<root>/flickr8k``: 6,000 in train, 1,000 in valid and 1,000 in test.

    ``Flickr8k_text`` must have Flickr8k.token.txt (the captions) and Flickr_8k.{train,dev,test}Images.txt (the names of
    the images of each split). ``Flicker8k_Dataset`` (sic) must have the images. Captions of images that are in no split
    are ignored. ``features`` is a kind of :mod:`rmsexp.data.image_features`.

    Raises: DataError if a file is missing or a line is malformed, or as in :func:`pictures`.
    """
    folder = root / "flickr8k"
    text, images = folder / "Flickr8k_text", folder / "Flicker8k_Dataset"
    tokens = text / "Flickr8k.token.txt"
    lists = {split: text / f"Flickr_8k.{name}Images.txt" for split, name in FLICKR8K_SPLITS.items()}
    require("Flickr8k", folder, [tokens, *lists.values(), images], FLICKR8K_ORIGIN)
    captions = read_captions(tokens)
    splits = {
        split: [Picture(images / name, captions.get(name, [])) for line in read_lines(path) if (name := line.strip())]
        for split, path in lists.items()
    }
    return pictures("Flickr8k", splits, [tokens, *lists.values()], folder, features)


def read_captions(path: Path) -> dict[str, list[Words]]:
    """Return captions by name of image, from lines ``<name>#<number><tab><caption>``.

    Raises: DataError if the file cannot be read, or a line has another form.
    """
    captions: defaultdict[str, list[Words]] = defaultdict(list)
    for number, line in enumerate(read_lines(path), 1):
        match = FLICKR8K_LINE.fullmatch(line)
        if not match:
            raise DataError(
                f"{path}, line {number}: not a caption: {line[:60]!r}.\n"
                "A line is an image's name, # and a number, a tab, and a caption; repair the line."
            )
        captions[match[1]].append(tokenise(match[2]))
    return dict(captions)


KARPATHY = {"train": "train", "restval": "train", "val": "valid", "test": "test"}  # split in dataset_coco.json -> ours
VALID_IMAGES = 5000  # number of official training images that become our validation split, without dataset_coco.json
COCO_ORIGIN = (
    "Images and annotations are at https://cocodataset.org, the Karpathy split, dataset_coco.json, at "
    "https://cs.stanford.edu/people/karpathy/deepimagesent. Put them into this folder."
)


def coco(root: Path, features: str) -> Source[Captions]:
    """Return the images and captions below ``<root>/coco``. ``features``: a kind of :mod:`rmsexp.data.image_features`.

    If ``dataset_coco.json`` exists, it defines the splits: those of Karpathy & Fei-Fei (2015), as in the paper. Their
    split restval is added to train, and images are in ``<filepath>/<filename>``, as the file says.

    Otherwise two official files, ``annotations/captions_{train,val}2017.json``, define the splits: the last 5,000
    images of train, sorted by id, are our valid, and val is our test. Images are in ``{train,val}2017/<file_name>``.

    Raises: DataError if no such files exist, if one is malformed, or as in :func:`pictures`.
    """
    folder = root / "coco"
    karpathy = folder / "dataset_coco.json"
    if karpathy.exists():
        return pictures("COCO", read_karpathy(karpathy, folder), [karpathy], folder, features)
    files = [folder / "annotations" / f"captions_{part}2017.json" for part in ("train", "val")]
    require("COCO", folder, files, f"There is no dataset_coco.json either. {COCO_ORIGIN}")
    train, test = (read_official(path, folder / path.stem.removeprefix("captions_")) for path in files)
    splits = {"train": train[:-VALID_IMAGES], "valid": train[-VALID_IMAGES:], "test": test}
    return pictures("COCO, 2017", splits, files, folder, features)


def read_karpathy(path: Path, folder: Path) -> dict[str, list[Picture]]:
    """Return the images, in ``folder``, of train, valid and test with their captions, in the order of the file.

    Raises: DataError if ``path`` cannot be read or is not the Karpathy split.
    """
    splits: dict[str, list[Picture]] = {"train": [], "valid": [], "test": []}
    with checked(path, "the Karpathy split") as content:
        for image in json.loads(content)["images"]:
            captions = [list(map(str, sentence["tokens"])) for sentence in image["sentences"]]
            splits[KARPATHY[image["split"]]].append(Picture(folder / image["filepath"] / image["filename"], captions))
    return splits


def read_official(path: Path, folder: Path) -> list[Picture]:
    """Return the images, in ``folder``, of an official file of captions, with all captions, sorted by their ids.

    Raises: DataError if ``path`` cannot be read or is no file of captions.
    """
    captions: defaultdict[int, list[Words]] = defaultdict(list)
    with checked(path, "a file of COCO's captions") as content:
        annotations = json.loads(content)
        for annotation in annotations["annotations"]:
            captions[annotation["image_id"]].append(tokenise(annotation["caption"]))
        images = sorted(annotations["images"], key=lambda image: image["id"])
        return [Picture(folder / image["file_name"], captions[image["id"]]) for image in images]
