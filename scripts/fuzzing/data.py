"""Readers of data sets, of what is derived from them, and of the files that the paper's authors published."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import random
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image
from torchvision.datasets import CIFAR10

from fuzzing.damage import Files, damaged
from fuzzing.workers import Broken, Reader
from rmsexp.data import (
    DataError,
    Images,
    authors_files,
    captions,
    cifar10,
    cnn,
    coco,
    download,
    flickr8k,
    lambada,
    parallel,
    translation,
    unpickle,
    whitening,
)
from rmsexp.data.synthetic import phrases

WORDS = ("a", "red", "house", "sleeps", "under", "the", "old", "gate", ".", "?", "@entity0", "12")
SPLITS = ("train", "val", "test")


def silent(_: str) -> None: ...


def only(pattern: str) -> Callable[[Files, random.Random], Files]:
    """Return a function that damages only files whose path matches ``pattern``."""

    def vary(files: Files, rng: random.Random) -> Files:
        chosen = {name: content for name, content in files.items() if fnmatch(name, pattern)}
        return {name: content for name, content in files.items() if name not in chosen} | damaged(chosen, rng)

    return vary


def text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def put(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def draw(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12 + number, 12), (9 * number, 90, 20)).save(path)


def values(value: Any) -> object:
    """Return nested values with the type, shape and bytes of arrays instead of the arrays."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: values(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [values(inner) for inner in value]
    return values(vars(value)) if hasattr(value, "__dataclass_fields__") else value


# Pickles and published files


def make_pickle(folder: Path) -> None:
    value = {
        "a": [1, 2.5, None, "x", b"y"],
        "b": np.arange(6.0).reshape(2, 3),
        "c": np.array(["u", "vw"]),
        "d": (True,),
    }
    put(folder / "a.pkl", pickle.dumps(value, 2))


def read_pickle(folder: Path) -> object:
    """Read a pickle, check that it holds plain values only, and look at each of them."""
    value = unpickle.unpickle((folder / "a.pkl").read_bytes())
    pending, seen = [value], set()
    while pending:
        inner = pending.pop()
        if id(inner) in seen:
            continue
        seen.add(id(inner))
        if isinstance(inner, dict | list | tuple | set | frozenset):
            pending += [*inner.items()] if isinstance(inner, dict) else [*inner]
        elif isinstance(inner, np.ndarray | np.generic):
            if inner.dtype.kind not in "biufcSU":
                raise Broken(f"an array of {inner.dtype}")
            inner.tobytes()
        elif not isinstance(inner, int | float | complex | str | bytes | bytearray | None):
            raise Broken(f"a value of {type(inner)}")
    return None


def make_published(folder: Path) -> None:
    """Write small files in the formats of the three that the paper's authors published."""
    rows = [f"{epoch},{10.5 * epoch},{0.5 / (epoch + 1)},{0.6 / (epoch + 1)}" for epoch in range(3)]
    put(folder / "results.csv", "\n".join([",".join(authors_files.CIFAR10_COLUMNS), *rows]))
    names = [name for metrics in authors_files.READER_LISTS.values() for name in metrics.values()]
    put(folder / "stats.pkl", pickle.dumps({name: [0.5, np.float64(0.25), np.float32(1)] for name in names}, 2))
    arrays = {"Wemb": np.ones((5, 3), "f4"), "ff_image_W": np.ones((4, 3), "f4"), "encoder_Ux": np.ones((3, 3), "f4")}
    content = io.BytesIO()
    np.savez(content, **arrays)
    put(folder / "order.npz", content.getvalue())
    put(folder / "order.pkl", pickle.dumps({"options": {"method": "order"}, "worddict": {"a": 2, "b": 3}}, 0))


def make_batch(folder: Path) -> None:
    """Write files as those of CIFAR-10, with one image in each."""
    for number, (name, _) in enumerate(CIFAR10.train_list + CIFAR10.test_list):
        pixels = np.full((1, 3072), number, np.uint8)
        put(folder / "cifar10" / CIFAR10.base_folder / name, pickle.dumps({"data": pixels, "labels": [number]}, 2))


def read_batch(folder: Path) -> object:
    return cifar10.read_batch(folder / "cifar10" / CIFAR10.base_folder / "test_batch")


def load_cifar10(folder: Path) -> object:
    """Read CIFAR-10 with the digests of our small files."""
    pixels = [np.full((1, 3072), number, np.uint8) for number in range(6)]
    digests = [
        hashlib.md5(pickle.dumps({"data": image, "labels": [number]}, 2)).hexdigest()
        for number, image in enumerate(pixels)
    ]
    names = [name for name, _ in CIFAR10.train_list + CIFAR10.test_list]
    entries = [list(entry) for entry in zip(names, digests, strict=True)]
    with mock.patch.multiple(CIFAR10, train_list=entries[:-1], test_list=entries[-1:]):
        return values(cifar10.load(folder))


def order_model(folder: Path) -> object:
    return authors_files.order_model(folder / "order.npz").ids(["<eos>", "<unk>", "a", "zebra"])


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
    return [read() for read in corpus.splits.values()]


def make_multi30k(folder: Path) -> None:
    for number, name in enumerate(parallel.MULTI30K_SHA256):
        put(
            folder / "multi30k/task1/raw" / name,
            gzip.compress(b"a sentence\nanother one\n" * (1 + number // 2), mtime=0),
        )


def load_multi30k(folder: Path) -> object:
    """Read Multi30k with the digests of our small files."""
    digests = {
        name: hashlib.sha256(gzip.compress(b"a sentence\nanother one\n" * (1 + number // 2), mtime=0)).hexdigest()
        for number, name in enumerate(parallel.MULTI30K_SHA256)
    }
    with mock.patch.object(parallel, "MULTI30K_SHA256", digests):
        return [read() for read in parallel.multi30k(folder, "en", "de").splits.values()]


def prepare_translation(kind: str) -> Callable[[Path], object]:
    """Return a function that encodes a small corpus, or takes it from the folder's cache."""
    vocabulary = {"sentencepiece": 300, "moses_bpe": 30}[kind]

    def prepare(folder: Path) -> object:
        options = translation.TextOptions(kind, vocabulary, 0, max_length=80, overlong="drop")
        result = translation.prepare(phrases.phrases(60, 4, 4), options, folder, silent)
        lines = ["a red house sleeps", "das alte Tor", "⁇ 12"]
        codecs = [
            (codec.size, codec.encode(lines), codec.decode([[3, 4, 5, 2]])) for codec in (result.source, result.target)
        ]
        return values([result.train, result.held_out, dict(result.counts), codecs])

    prepare.__name__ = f"prepare_{kind}"
    return prepare


# Captions


def make_release(folder: Path) -> None:
    """Write small files as those that were released with order-embedding."""
    for name in SPLITS:
        put(folder / "coco" / f"{name}.txt", "".join(f"{name} house {i}\n" for i in range(10)).rstrip("\n"))
        array = io.BytesIO()
        np.save(array, np.eye(2, 16, dtype=np.float32))
        put(folder / "coco/images/10crop" / f"{name}.npy", array.getvalue())


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


def load_release(folder: Path) -> object:
    return values(coco.coco_release(folder).load(silent))


def load_karpathy(folder: Path) -> object:
    return values(coco.coco(folder, "descriptor").load(silent))


def load_official(folder: Path) -> object:
    with mock.patch.object(coco, "VALID_IMAGES", 1):
        return values(coco.coco(folder, "descriptor").load(silent))


def load_flickr8k(folder: Path) -> object:
    return values(flickr8k.flickr8k(folder, "descriptor").load(silent))


def make_features(folder: Path) -> None:
    array = io.BytesIO()
    np.save(array, np.eye(2, 4096, dtype=np.float32))
    put(folder / "features.npy", array.getvalue())


def read_features(folder: Path) -> object:
    return np.asarray(captions.read_features(folder / "features.npy", 2)).sum()


# Cloze questions


def make_cnn(folder: Path) -> None:
    """Write small question files as DeepMind's."""
    for split in ("training", "validation", "test"):
        for number in range(3):
            passage = f"@entity1 met @entity{number + 2} in Rome . it rained . then @entity1 left ?"
            names = f"@entity1:Ann\n@entity{number + 2}:Bob: x"
            content = f"http://x/{number}\n\n{passage}\n\n@placeholder left\n\n@entity1\n\n{names}"
            put(folder / f"cnn/questions/{split}/{number}.question", content)


def make_top4(folder: Path) -> None:
    words = {word: number for number, word in enumerate(("the", "house", "@entity0", "@entity1", "@placeholder"), 4)}
    words |= {"<nil>": 0, "<eos>": 1, "<unk>": 2}
    put(folder / "top4/dict.pkl", pickle.dumps(words, 2))
    for split in ("train4", "valid4"):
        for part, rows in (
            ("pass", [[4, 5, 6, 0], [6, 7, 4, 0]]),
            ("qs", [[8, 4, 0], [5, 8, 0]]),
            ("ans", [[6, 0], [7, 0]]),
        ):
            put(folder / f"top4/{split}_{part}.pkl", pickle.dumps(rows, 2))


def make_lambada(folder: Path) -> None:
    """Write small files as those of LAMBADA, and encode them."""
    rng = random.Random(0)
    for name in ("development", "test"):
        lines = [f"the gate {text(rng, 12)} . the house and the gate" for _ in range(5)]
        put(folder / f"lambada/lambada_{name}_plain_text.txt", "\n".join(lines))
    load_lambada(folder)


def load_cnn(damage: str) -> Callable[[Path], object]:
    return lambda folder: values(cnn.cnn(folder, 2, damage).load(silent))


def load_top4(folder: Path) -> object:
    return values(cnn.top4(folder).load(silent))


def load_lambada(folder: Path) -> object:
    return values(lambada.lambada(folder, 20, 3).load(silent))


# Whitened images and downloads


def load_whitened(folder: Path) -> object:
    """Whiten a few small images, or take the result from the folder's cache."""
    pixels = np.random.Generator(np.random.PCG64(0)).integers(0, 256, (20, 3, 4, 4), np.uint8)
    images = Images(pixels, np.arange(20), pixels[:4], np.arange(4), "small", "digest", False)
    return values(whitening.whitened(images, 1e-3, folder, silent))


def make_download(folder: Path) -> None:
    put(folder / "served/file.txt", b"the content of a file\n" * 20)


def download_file(folder: Path) -> object:
    digest = hashlib.sha256(b"the content of a file\n" * 20).hexdigest()
    url = (folder / "served/file.txt").as_uri()
    with download.fetched(url, folder / "stored", "a file", "sha256", digest) as path:
        return path.read_bytes()


def once(read: Callable[[Path], object]) -> Callable[[Path], list[object]]:
    """Return a function that returns the only right result, that for valid files."""
    return lambda folder: [read(folder)]


ERRORS = (DataError,)
moses, sentencepiece = prepare_translation("moses_bpe"), prepare_translation("sentencepiece")
READERS = (
    Reader("unpickle", make_pickle, read_pickle, (Exception,), share=3),
    Reader("batch of CIFAR-10", make_batch, read_batch, ERRORS),
    Reader("CIFAR-10", make_batch, load_cifar10, ERRORS, once(load_cifar10)),
    Reader(
        "published results.csv",
        make_published,
        lambda folder: authors_files.cifar10_rows(folder / "results.csv"),
        ERRORS,
    ),
    Reader(
        "published stats.pkl", make_published, lambda folder: authors_files.reader_rows(folder / "stats.pkl"), ERRORS
    ),
    Reader("published order.npz", make_published, order_model, ERRORS),
    Reader("parallel text", make_text, read_text, ERRORS),
    Reader("Multi30k", make_multi30k, load_multi30k, ERRORS, once(load_multi30k)),
    Reader("COCO release", make_release, load_release, ERRORS),
    Reader("COCO Karpathy", make_karpathy, load_karpathy, ERRORS),
    Reader("COCO official", make_official, load_official, ERRORS),
    Reader("Flickr8k", make_flickr8k, load_flickr8k, ERRORS),
    Reader("features", make_features, read_features, ERRORS),
    Reader("CNN", make_cnn, load_cnn("refuse"), ERRORS),
    Reader("CNN, damage skipped", make_cnn, load_cnn("skip"), ERRORS),
    Reader("CNN top4", make_top4, load_top4, ERRORS),
    Reader("LAMBADA", make_lambada, load_lambada, ERRORS, vary=only("lambada/*")),
    Reader("download", make_download, download_file, (DataError, OSError), once(download_file)),
    Reader("cache of features", make_karpathy, load_karpathy, ERRORS, once(load_karpathy), only("coco/features/*")),
    Reader("cache of questions", make_lambada, load_lambada, ERRORS, once(load_lambada), only("cloze/*")),
    Reader("cache of whitened images", load_whitened, load_whitened, ERRORS, once(load_whitened)),
    Reader("cache of sentencepiece", sentencepiece, sentencepiece, ERRORS, once(sentencepiece)),
    Reader("cache of BPE", moses, moses, ERRORS, once(moses)),
)
