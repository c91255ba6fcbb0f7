"""Raw parallel text: Multi30k, WMT14, or any two files with one sentence per line.

Pairs are read one by one, so even a large text takes little memory. Chunks of pairs are processed in parallel.
"""

import hashlib
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any, TypeVar

from rmsexp.data import DataError
from rmsexp.data.files import downloading, hub_files, hub_rows, read_lines, sha256_of
from rmsexp.system import cores, process
from rmsexp.system.languages import language

T = TypeVar("T")
R = TypeVar("R")
Pair = tuple[str, str]  # a source line and its target line, without line ends
Pairs = tuple[list[str], list[str]]  # source lines and as many target lines

SIDES = ("source", "target")

MULTI30K_URL = (
    "https://raw.githubusercontent.com/multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw"
)
# our name of a split -> its name in the files
MULTI30K_SPLITS = {"train": "train", "valid": "val", "test": "test_2016_flickr", "test2017": "test_2017_flickr"}
MULTI30K_SHA256 = {
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2017_flickr.en.gz": "76a444ee25172e72695cddb13ae4a3bda59430617be88e0bb46b60504f054074",
    "test_2017_flickr.de.gz": "a2c89666db00c495cd8513b9d708d5a3acc205d7de312ef2bf5fb7ebc1540aee",
}
# repository on the Hugging Face hub, revision, config
WMT14 = "wmt/wmt14", "b199e406369ec1b7634206d3ded5ba45de2fe696", "de-en"
# our name of a split -> (sacreBLEU's name of the test set, its number of sentences)
WMT14_TESTS = {"valid": ("wmt13", 3000), "test": ("wmt14", 2737), "test2017": ("wmt17", 3004)}
LINE_ENDS = re.compile(r"[\r\n]+")
MOST_PROCESSES = 4  # with Moses' truecaser of WMT14 each has up to 600 MB


@dataclass(frozen=True)
class Corpus:
    """Parallel text in two languages, such as "en". ``builtin``: whether this package generates the text.

    ``splits`` maps train, valid, test and further test sets such as test2017 to functions that return an iterator over
    (source line, target line), which raises DataError if files are damaged. ``digest`` is a SHA-256, in hexadecimal, of
    the content and the direction of translation.
    """

    name: str
    digest: str
    builtin: bool
    source: str
    target: str
    splits: Mapping[str, Callable[[], Iterator[Pair]]]

    def text(self, split: str) -> Pairs:
        """Return all lines of a split: those of the source, and those of the target."""
        return next(in_chunks(self.splits[split](), sys.maxsize), ([], []))


def multi30k(root: Path, source: str, target: str) -> Corpus:
    """Return Multi30k, task 1 (Elliott et al. 2016): captions in English and German, 29,000 pairs for training.

    The files are in ``<root>/multi30k/task1/raw``, as published, or are downloaded; digests are verified. The test sets
    are those of 2016 and 2017 (Flickr).

    Raises: DataError if a file is damaged, or if a download fails.
    """
    source, target = language(source), language(target)
    folder = root / "multi30k" / "task1" / "raw"
    if absent := [name for name in MULTI30K_SHA256 if not (folder / name).exists()]:
        from torch.hub import download_url_to_file

        with downloading("Multi30k", folder, "task=rnnsearch scale=small", root):
            for name in absent:
                address = f"{MULTI30K_URL}/{name}"
                download_url_to_file(address, str(folder / name), MULTI30K_SHA256[name], sys.stderr.isatty())
    for name, digest in MULTI30K_SHA256.items():
        if sha256_of(folder / name) != digest:
            raise DataError(f"{folder / name} is damaged: its sha256 is not {digest}.\nDelete it to download it again.")
    prefixes = {split: folder / name for split, name in MULTI30K_SPLITS.items()}
    return _corpus("Multi30k", pairs_of_files(prefixes, source, target), source, target)


def wmt14(root: Path, source: str, target: str) -> Corpus:
    """Return WMT14, English and German: 4.5 million pairs for training, newstest2013 for validation.

    The training text is in ``<root>/wmt14/de-en/train-*.parquet``, as on the Hugging Face hub, from which missing files
    are downloaded. The test sets are newstest2014 as it was scored in 2014 (2,737 sentences) and newstest2017. These
    and newstest2013 are sacreBLEU's English-German test sets, also for translation from German; sacreBLEU downloads
    them to its own folder.

    Raises: DataError if a file cannot be read or downloaded.
    """
    source, target = language(source), language(target)
    task = "task=rnnsearch scale=paper"
    (train,) = hub_files("WMT14", root / "wmt14", *WMT14, ("train",), task)
    tests = {split: _test_set(name, sentences, task, root) for split, (name, sentences) in WMT14_TESTS.items()}
    pairs = {"train": train} | {split: [files[source], files[target]] for split, files in tests.items()}
    corpus = _corpus("WMT14", pairs, source, target)

    def pair(row: dict[str, Any]) -> Pair:
        line, translation = (LINE_ENDS.sub(" ", row["translation"][code]) for code in (source, target))
        return line, translation

    return replace(corpus, splits={**corpus.splits, "train": lambda: hub_rows(train, pair)})


def _test_set(name: str, sentences: int, task: str, root: Path) -> dict[str, Path]:
    """Return the files by language of sacreBLEU's English-German test set ``name``, which has ``sentences`` lines."""
    from sacrebleu.utils import SACREBLEU_DIR, get_reference_files, get_source_file

    folder = Path(SACREBLEU_DIR, name)
    with downloading(f"sacreBLEU's {name}", folder, task, root):
        try:
            files = {"en": get_source_file(name, "en-de"), "de": get_reference_files(name, "en-de")[0]}
        except SystemExit as error:
            if error.code != 1:  # a signal's, while sacreBLEU exits with 1
                raise
            raise OSError("sacreBLEU printed the reason") from None
        for path in files.values():  # sacreBLEU does not notice that a file is incomplete, as it may be after a kill
            if (lines := Path(path).read_bytes().count(b"\n")) != sentences:
                raise OSError(f"{path} has {lines:,} sentences, not {sentences:,}; delete {folder}")
    return {language: Path(path) for language, path in files.items()}


def files(prefixes: Mapping[str, str], source: str, target: str) -> Corpus:
    """Return the parallel text in files of the user.

    ``prefixes`` maps each split to the common part of the paths of its two files: text/train for text/train.en and
    text/train.de, each of which may be compressed (.gz). The splits are train, valid, test and any further test sets.
    The corpus has the name of train's prefix, without folders, followed by the languages: "train en-de".

    Raises: DataError if files are missing or cannot be read.
    """
    paths = {split: Path(prefix) for split, prefix in prefixes.items()}
    return _corpus(paths["train"].name, pairs_of_files(paths, source, target), source, target)


def _corpus(name: str, files: Mapping[str, list[Path]], source: str, target: str) -> Corpus:
    """Return the corpus with the two files of each split. Raises: DataError if a file cannot be read."""
    digests = {split: [sha256_of(path) for path in paths] for split, paths in files.items()}
    return Corpus(
        name=f"{name} {language(source)}-{language(target)}",
        digest=hashlib.sha256(repr(sorted(digests.items())).encode()).hexdigest(),
        builtin=False,
        source=language(source),
        target=language(target),
        splits={split: partial(read_pairs, *paths) for split, paths in files.items()},
    )


def pairs_of_files(prefixes: Mapping[str, Path], source: str, target: str) -> dict[str, list[Path]]:
    """Return files [source, target] by split; .gz if no plain one exists. Raises: DataError naming missing files."""
    pairs = {split: [Path(f"{prefix}.{code}") for code in (source, target)] for split, prefix in prefixes.items()}
    for paths in pairs.values():
        for side, path in enumerate(paths):
            if not path.exists() and Path(f"{path}.gz").exists():
                paths[side] = Path(f"{path}.gz")
    if missing := [f"{path} ({split})" for split, paths in pairs.items() for path in paths if not path.exists()]:
        raise DataError(
            f"Files of parallel text exist neither plain nor as .gz: {', '.join(missing)}.\n"
            "A split's prefix is the path without the dot and the language code; check the prefixes."
        )
    return pairs


def read_pairs(source: Path, target: Path) -> Iterator[Pair]:
    """Yield the pairs of two UTF-8 files, plain or .gz, whose lines with the same number are a pair.

    Raises: DataError if a file is missing, damaged or not UTF-8, if the numbers of lines differ, or if there are none.
    """
    count = 0
    for count, (line, translation) in enumerate(zip_longest(read_lines(source), read_lines(target)), 1):
        if line is None or translation is None:
            shorter, longer = (source, target) if line is None else (target, source)
            raise DataError(
                f"{shorter} has {count - 1:,} lines and {longer} has more.\n"
                "Parallel text has a sentence and its translation on the same line of both; "
                "repair or replace the files."
            )
        yield line, translation
    if not count:
        raise DataError(f"{source} and {target} are empty.\nEach needs one sentence per line; replace the files.")


def in_chunks(pairs: Iterable[Pair], size: int) -> Iterator[Pairs]:
    """Yield the pairs in chunks of ``size``, as source lines and target lines. The last chunk may have fewer."""
    remaining = iter(pairs)
    while chunk := list(islice(remaining, size)):
        yield [source for source, _ in chunk], [target for _, target in chunk]


def in_processes(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield ``function(item)`` for each item, in their order; a few items are taken ahead.

    At most four processes compute, and no more than :func:`cores.threads`. If that is 1, as usual under torchrun, or
    for a single item, this process computes.

    Raises: DataError if a process is killed; whatever ``function`` raises.
    """
    # Unlike those of the standard library, loky's processes do not import the user's script, which may have no guard,
    # and do not inherit open files, whose locks they would hold.
    from joblib.externals.loky import ProcessPoolExecutor

    remaining = iter(items)
    first = list(islice(remaining, 2))
    processes = min(cores.threads(), MOST_PROCESSES)
    if len(first) < 2 or processes < 2:
        yield from map(function, chain(first, remaining))
        return
    pool, pending = ProcessPoolExecutor(processes, initializer=process.follow_parent), deque[Future[R]]()
    try:
        for item in chain(first, remaining):
            pending.append(pool.submit(function, item))
            if len(pending) > processes:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenExecutor:
        raise DataError(
            "A process that prepares data was killed.\nThe machine may have too little memory; start the command again."
        ) from None
    finally:
        pool.shutdown(kill_workers=True)
