"""Readers of data sets: parallel text, images with captions, and cloze questions."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from PIL import Image

from fuzzing.inputs import only, plain, put, silent
from fuzzing.workers import Reader
from rmsexp.data import DataError, cnn, coco, flickr8k, lambada, parallel

WORDS = ("a", "red", "house", "sleeps", "under", "the", "old", "gate", ".", "?", "@entity0", "12")
SPLITS = ("train", "val", "test")


def text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def draw(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12 + number, 12), (9 * number, 90, 20)).save(path)


# Parallel text


def make_text(folder: Path) -> None:
    rng = random.Random(0)
    for split in ("train", "valid", "test"):
        for language in ("en", "de"):
            put(folder / f"{split}.{language}", "".join(f"{text(rng, 6)}\n" for _ in range(30)))
    put(folder / "packed.en.gz", gzip.compress((folder / "test.en").read_bytes(), mtime=0))
    put(folder / "packed.de.gz", gzip.compress((folder / "test.de").read_bytes(), mtime=0))


def read_text(folder: Path) -> object:
    prefixes = {"train": "train", "valid": "valid", "test": "test", "test2": "packed"}
    corpus = parallel.files({split: str(folder / prefix) for split, prefix in prefixes.items()}, "en", "de")
    return [corpus.text(split) for split in corpus.splits]


# Captions


def make_karpathy(folder: Path) -> None:
    """Write small files as those of the Karpathy split, with the features of their images."""
    images = []
    for number, split in enumerate(("train", "restval", "val", "test")):
        sentences = [{"tokens": ["a", "red", "house", str(k)]} for k in range(5)]
        images.append({"filepath": "val", "filename": f"{number}.png", "split": split, "sentences": sentences})
        draw(folder / "coco/val" / f"{number}.png", number)
    put(folder / "coco/dataset_coco.json", json.dumps({"images": images}))
    load_karpathy(folder)


def make_official(folder: Path) -> None:
    for part in ("train", "val"):
        images = [{"id": number, "file_name": f"{number}.png"} for number in range(2)]
        notes = [{"image_id": number, "caption": f"A red house, {k}."} for number in range(2) for k in range(5)]
        put(folder / f"coco/annotations/captions_{part}2017.json", json.dumps({"images": images, "annotations": notes}))
        for number in range(2):
            draw(folder / f"coco/{part}2017/{number}.png", number)


def make_flickr8k(folder: Path) -> None:
    place = folder / "flickr8k"
    lines = [f"{number}.png#{k}\tA red house , {k} ." for number in range(3) for k in range(5)]
    put(place / "Flickr8k_text/Flickr8k.token.txt", "\n".join(lines))
    for number, name in enumerate(("train", "dev", "test")):
        put(place / f"Flickr8k_text/Flickr_8k.{name}Images.txt", f"{number}.png\n")
        draw(place / f"Flicker8k_Dataset/{number}.png", number)


def load_karpathy(folder: Path) -> object:
    return plain(coco.coco(folder, "descriptor").load(silent))


def load_official(folder: Path) -> object:
    with mock.patch.object(coco, "VALID_IMAGES", 1):
        return plain(coco.coco(folder, "descriptor").load(silent))


def load_flickr8k(folder: Path) -> object:
    return plain(flickr8k.flickr8k(folder, "descriptor").load(silent))


# Cloze questions


def make_cnn(folder: Path) -> None:
    """Write small question files as DeepMind's."""
    for split in ("training", "validation", "test"):
        for number in range(3):
            passage = f"@entity1 met @entity{number + 2} in Rome . it rained . then @entity1 left ?"
            names = f"@entity1:Ann\n@entity{number + 2}:Bob: x"
            content = f"http://x/{number}\n\n{passage}\n\n@placeholder left\n\n@entity1\n\n{names}"
            put(folder / f"cnn/questions/{split}/{number}.question", content)


def make_lambada(folder: Path) -> None:
    """Write small files as those of LAMBADA, and encode them."""
    rng = random.Random(0)
    for name in ("development", "test"):
        lines = [f"the gate {text(rng, 12)} . the house and the gate" for _ in range(5)]
        put(folder / f"lambada/lambada_{name}_plain_text.txt", "\n".join(lines))
    load_lambada(folder)


def load_cnn(damage: str) -> Callable[[Path], object]:
    return lambda folder: plain(cnn.cnn(folder, 2, damage).load(silent))


def load_lambada(folder: Path) -> object:
    return plain(lambada.lambada(folder, 20, 3).load(silent))


ERRORS = (DataError,)
READERS = (
    Reader("parallel text", make_text, read_text, ERRORS),
    Reader("COCO Karpathy", make_karpathy, load_karpathy, ERRORS),
    Reader("COCO official", make_official, load_official, ERRORS),
    Reader("Flickr8k", make_flickr8k, load_flickr8k, ERRORS),
    Reader("CNN", make_cnn, load_cnn("refuse"), ERRORS),
    Reader("CNN, damage skipped", make_cnn, load_cnn("skip"), ERRORS),
    Reader("LAMBADA", make_lambada, load_lambada, ERRORS, vary=only("lambada/*")),
)
