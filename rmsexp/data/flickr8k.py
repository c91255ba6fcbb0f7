"""Flickr8k (Hodosh et al. 2013): 8,000 photographs from Flickr with five captions each, in three splits."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from rmsexp.data import DataError, Source
from rmsexp.data.captions import Captions, Picture, Words, pictures, tokenise
from rmsexp.data.files import missing, read_lines

NAMES = {"train": "train", "valid": "dev", "test": "test"}  # our name of a split -> its name in the files
LINE = re.compile(r"([^#\t]+)#\d+\t(.+)")
ORIGIN = (
    "The authors offer Flickr8k_text.zip and Flickr8k_Dataset.zip at https://forms.illinois.edu/sec/1713398. "
    "Put their files into the folders Flickr8k_text and Flicker8k_Dataset (spelt so) of this folder."
)


def flickr8k(root: Path, features: str) -> Source[Captions]:
    """Return the captioned images below ``<root>/flickr8k``: 6,000 in train, 1,000 in valid and 1,000 in test.

    ``Flickr8k_text`` must have Flickr8k.token.txt (the captions) and Flickr_8k.{train,dev,test}Images.txt (the names of
    the images of each split). ``Flicker8k_Dataset`` (sic) must have the images. Captions of images that are in no split
    are ignored. ``features`` is a kind of :mod:`rmsexp.data.image_features`.

    Raises: DataError if a file is missing or a line is malformed, or as in :func:`rmsexp.data.captions.pictures`.
    """
    folder = root / "flickr8k"
    text, images = folder / "Flickr8k_text", folder / "Flicker8k_Dataset"
    tokens = text / "Flickr8k.token.txt"
    lists = {split: text / f"Flickr_8k.{name}Images.txt" for split, name in NAMES.items()}
    if absent := [path for path in (tokens, *lists.values(), images) if not path.exists()]:
        raise missing("Flickr8k", folder, absent, ORIGIN)
    captions = read_captions(tokens)
    splits = {
        split: [Picture(images / name, captions.get(name, [])) for line in read_lines(path) if (name := line.strip())]
        for split, path in lists.items()
    }
    return pictures("Flickr8k", splits, [tokens, *lists.values()], folder, features)


def read_captions(path: Path) -> dict[str, list[Words]]:
    """Return the captions of each image, by its name, from lines ``<name>#<number><tab><caption>``.

    Raises: DataError if the file cannot be read, or a line has another form.
    """
    captions: defaultdict[str, list[Words]] = defaultdict(list)
    for number, line in enumerate(read_lines(path), 1):
        match = LINE.fullmatch(line)
        if not match:
            raise DataError(
                f"{path}, line {number}: not a caption: {line[:60]!r}.\n"
                "A line is an image's name, # and a number, a tab, and a caption; repair the line."
            )
        captions[match[1]].append(tokenise(match[2]))
    return dict(captions)
