"""Readers of pickles, of files that the paper's authors published, and of what this package derives and verifies."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
from torchvision.datasets import CIFAR10

from fuzzing import datasets
from fuzzing.inputs import once, only, plain, put, silent
from fuzzing.workers import Broken, Reader
from rmsexp.data import DataError, Images, authors_files, cifar10, download, parallel, translation, unpickle, whitening
from rmsexp.data.synthetic import phrases
from rmsexp.norms.kernels import build


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
        return plain(cifar10.load(folder))


def read_csv(folder: Path) -> object:
    return authors_files.cifar10_rows(folder / "results.csv")


def read_stats(folder: Path) -> object:
    return authors_files.reader_rows(folder / "stats.pkl")


def order_model(folder: Path) -> object:
    return authors_files.order_model(folder / "order.npz").ids(["<eos>", "<unk>", "a", "zebra"])


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
        corpus = parallel.multi30k(folder, "en", "de")
        return [corpus.text(split) for split in corpus.splits]


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
        return plain([result.train, result.held_out, dict(result.counts), codecs])

    prepare.__name__ = f"prepare_{kind}"
    return prepare


def load_whitened(folder: Path) -> object:
    """Whiten a few small images, or take the result from the folder's cache."""
    pixels = np.random.Generator(np.random.PCG64(0)).integers(0, 256, (20, 3, 4, 4), np.uint8)
    images = Images(pixels, np.arange(20), pixels[:4], np.arange(4), "small", "digest", False)
    return plain(whitening.whitened(images, 1e-3, folder, silent))


def load_kernels(folder: Path) -> object:
    """Return the content of the library of kernels in the folder's cache; a text stands for what is compiled."""

    def compile_text(_: object, __: object, ___: object, library: Path) -> None:
        library.write_bytes(b"the kernels\n" * 20)
        library.with_name(f"{library.name}.sha256").write_text(hashlib.sha256(library.read_bytes()).hexdigest())

    with mock.patch.multiple(build, CACHE=folder / "kernels", _compile=compile_text, inform=silent):
        return build._library().read_bytes()


def make_download(folder: Path) -> None:
    put(folder / "served/file.txt", b"the content of a file\n" * 20)


def download_file(folder: Path) -> object:
    digest = hashlib.sha256(b"the content of a file\n" * 20).hexdigest()
    url = (folder / "served/file.txt").as_uri()
    with download.fetched(url, folder / "stored", "a file", "sha256", digest) as path:
        return path.read_bytes()


ERRORS = (DataError,)
karpathy, lambada = datasets.load_karpathy, datasets.load_lambada
moses, sentencepiece = prepare_translation("moses_bpe"), prepare_translation("sentencepiece")
READERS = (
    Reader("unpickle", make_pickle, read_pickle, (Exception,)),
    Reader("published results.csv", make_published, read_csv, ERRORS),
    Reader("published stats.pkl", make_published, read_stats, ERRORS),
    Reader("published order.npz", make_published, order_model, ERRORS),
    Reader("batch of CIFAR-10", make_batch, read_batch, ERRORS),
    Reader("CIFAR-10", make_batch, load_cifar10, ERRORS, once(load_cifar10)),
    Reader("Multi30k", make_multi30k, load_multi30k, ERRORS, once(load_multi30k)),
    Reader("download", make_download, download_file, (DataError, OSError), once(download_file)),
    Reader("cache of features", datasets.make_karpathy, karpathy, ERRORS, once(karpathy), only("coco/features/*")),
    Reader("cache of questions", datasets.make_lambada, lambada, ERRORS, once(lambada), only("cloze/*")),
    Reader("cache of whitened images", load_whitened, load_whitened, ERRORS, once(load_whitened)),
    Reader("cache of kernels", load_kernels, load_kernels, (OSError, build.BuildError), once(load_kernels)),
    Reader("cache of sentencepiece", sentencepiece, sentencepiece, ERRORS, once(sentencepiece)),
    Reader("cache of BPE", moses, moses, ERRORS, once(moses)),
)
