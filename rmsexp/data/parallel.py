"""Raw parallel text: Multi30k, WMT14, or any two files with one sentence per line."""

from __future__ import annotations

import glob
import hashlib
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rmsexp.data import DataError, Report
from rmsexp.data.download import provide
from rmsexp.data.files import check_root, known_sha256_of, sha256_of
from rmsexp.data.pairs import SIDES, Pair, Pairs, in_chunks, read_pairs
from rmsexp.system.languages import language

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
WMT14_TRAIN = "wmt/wmt14"  # the name in the `datasets` library; the config is de-en
WMT14_PAIRS = 4_508_785  # of its training split
# our name of a split -> (sacreBLEU's name of the test set, its number of sentences)
WMT14_TESTS = {"valid": ("wmt13", 3000), "test": ("wmt14", 2737), "test2017": ("wmt17", 3004)}
REPORT_PAIRS = 500_000  # pairs between two progress reports
LINE_ENDS = re.compile(r"[\r\n]+")


@dataclass(frozen=True)
class Corpus:
    """Parallel text in two languages.

    ``source`` and ``target`` are languages such as "en", to which other spellings of their codes are reduced.
    ``splits`` maps train, valid, test and further test sets such as test2017 to functions that return an iterator over
    (source line, target line). If the text is in files, it reads and checks the files, and raises DataError if they are
    damaged. ``digest`` is a SHA-256, in hexadecimal, that identifies the content and the direction of translation.
    ``builtin`` is true if this package generates the text.
    """

    name: str
    digest: str
    builtin: bool
    source: str
    target: str
    splits: Mapping[str, Callable[[], Iterator[Pair]]]

    def __post_init__(self) -> None:
        for side in SIDES:
            object.__setattr__(self, side, language(getattr(self, side)))

    def text(self, split: str) -> Pairs:
        """Return all lines of a split: those of the source, and those of the target."""
        return next(in_chunks(self.splits[split](), sys.maxsize), ([], []))


def multi30k(root: Path, source: str, target: str) -> Corpus:
    """Return Multi30k, task 1 (Elliott et al. 2016): captions in English and German, 29,000 pairs for training.

    The files are in ``<root>/multi30k/task1/raw``, named and compressed as published. Missing files are downloaded. The
    digests of all files are verified on each call. The test sets are those of 2016 and 2017 (Flickr).

    Raises: ValueError if the languages are not en and de; DataError if a file is damaged, or if a download fails.
    """
    source, target = _english_and_german("Multi30k", source, target)
    folder = root / "multi30k" / "task1" / "raw"
    published = {folder / name: digest for name, digest in MULTI30K_SHA256.items()}
    provide("Multi30k", list(published), _fetch_multi30k, MULTI30K_URL, "task=rnnsearch scale=small", root)
    for path, digest in published.items():
        if (actual := sha256_of(path)) != digest:
            raise DataError(
                f"{path} is damaged: its sha256 is {actual}, not {digest}.\nDelete it to download it again."
            )
    return _corpus("Multi30k", {split: folder / name for split, name in MULTI30K_SPLITS.items()}, source, target)


def wmt14(root: Path, source: str, target: str, report: Report) -> Corpus:
    """Return WMT14, English and German: about 4.5 million pairs for training, newstest2013 for validation.

    The test sets are newstest2014 as it was scored in 2014 (2,737 sentences) and newstest2017. The text is in
    ``<root>/wmt14/{train,valid,test,test2017}.{en,de}``; each of these files may be compressed (.gz). A split without
    files is downloaded: train with the ``datasets`` library, the others with sacreBLEU, always from its English-German
    test sets, also for translation from German.

    Raises: ValueError if the languages are not en and de; DataError if a file cannot be read or downloaded, or if a
    split has only one of its two files.
    """
    source, target = _english_and_german("WMT14", source, target)
    folder = root / "wmt14"
    for split, (test_set, sentences) in WMT14_TESTS.items():
        _provide_wmt14(root, folder / split, f"sacreBLEU's {test_set}", partial(_write_test, test_set, sentences))
    _provide_wmt14(root, folder / "train", WMT14_TRAIN, partial(_write_train, report))
    return _corpus("WMT14", {split: folder / split for split in ("train", *WMT14_TESTS)}, source, target)


def files(prefixes: Mapping[str, str], source: str, target: str) -> Corpus:
    """Return the parallel text in files of the user.

    ``prefixes`` maps each split to the common part of the paths of its two files: text/train for text/train.en and
    text/train.de, each of which may be compressed (.gz). If there is none with the code as given, the file with another
    spelling of it is read, such as text/train.de_DE. The splits are train, valid, test and any further test sets. The
    corpus has the name of train's prefix, without folders, followed by the languages: "train en-de".

    Raises: DataError if files are missing or cannot be read.
    """
    paths = {split: Path(prefix) for split, prefix in prefixes.items()}
    return _corpus(paths["train"].name, paths, source, target)


def _corpus(name: str, prefixes: Mapping[str, Path], source: str, target: str) -> Corpus:
    """Return the corpus in the files with these prefixes. ``prefixes`` maps a split to its prefix: <folder>/train, say.

    The digest covers the contents of all files, and the direction of translation, because each direction is another
    experiment.

    Raises: DataError that names all missing files; DataError if a file cannot be read.
    """
    pairs = pairs_of_files(prefixes, source, target)
    digests = {split: [known_sha256_of(path) for path in paths] for split, paths in pairs.items()}
    return Corpus(
        name=f"{name} {language(source)}-{language(target)}",
        digest=hashlib.sha256(repr(sorted(digests.items())).encode()).hexdigest(),
        builtin=False,
        source=source,
        target=target,
        splits={split: partial(read_pairs, *paths) for split, paths in pairs.items()},
    )


def pairs_of_files(prefixes: Mapping[str, Path], source: str, target: str) -> dict[str, list[Path]]:
    """Return the paths of each split's two files. Raises: DataError that names all missing files."""
    candidates = {split: [_find(prefix, source), _find(prefix, target)] for split, prefix in prefixes.items()}
    missing = [
        f"{prefixes[split]}.{code} ({split})"
        for split, paths in candidates.items()
        for code, path in zip((source, target), paths, strict=True)
        if path is None
    ]
    if missing:
        raise DataError(
            f"Files of parallel text exist neither plain nor as .gz: {', '.join(missing)}.\n"
            "A split's prefix is the path without the dot and the language code; check the prefixes."
        )
    return {split: [path for path in paths if path is not None] for split, paths in candidates.items()}


def _find(prefix: Path, code: str) -> Path | None:
    """Return the file of a language, or None: with the code as it is spelt, or else with the same language's code.

    Raises: DataError if files have several other spellings of the code; ValueError if it is no language code.
    """
    candidates = (Path(f"{prefix}.{code}{ending}") for ending in ("", ".gz"))
    if exact := next((path for path in candidates if path.exists()), None):
        return exact
    paths = sorted(prefix.parent.glob(f"{glob.escape(prefix.name)}.*"))
    found = [path for path in paths if _language_of(path.name.removeprefix(f"{prefix.name}.")) == language(code)]
    if len(found) > 1:
        names = " and ".join(path.name for path in found)
        raise DataError(f"{names} in {prefix.parent} are both of the language {code}.\nName the one by its full code.")
    return found[0] if found else None


def _language_of(ending: str) -> str | None:
    """Return the language of the ending of a file's name, perhaps with .gz, or None if it is more or no code."""
    code = re.sub(r"(?i)\.gz$", "", ending)
    try:
        return None if "." in code else language(code)
    except ValueError:
        return None


def _english_and_german(name: str, source: str, target: str) -> tuple[str, str]:
    """Return the languages of two codes. Raises: ValueError if they are not English and German."""
    languages = language(source, "data.source"), language(target, "data.target")
    if set(languages) != {"en", "de"}:
        raise ValueError(
            f"data.source={source} data.target={target}: {name} needs en for one of them and de for the other"
        )
    return languages


def _fetch_multi30k(folder: Path) -> None:
    from torch.hub import download_url_to_file

    for name, digest in MULTI30K_SHA256.items():
        download_url_to_file(f"{MULTI30K_URL}/{name}", str(folder / name), digest, sys.stderr.isatty())


def _provide_wmt14(root: Path, prefix: Path, origin: str, write: Callable[[Path], None]) -> None:
    """Create the files ``prefix``.en and ``prefix``.de if neither exists, plain or as .gz.

    ``write`` is called with a prefix in a temporary folder. ``origin`` says in messages where the text comes from, and
    ``root`` is data.root.

    Raises: DataError if only one of the two files exists, or if ``write`` fails.
    """
    existing = [path for code in ("en", "de") if (path := _find(prefix, code))]
    if len(existing) == 1:
        raise DataError(
            f"Of {prefix}.en and {prefix}.de only {existing[0].name} exists.\nAdd the other file, or delete this one."
        )
    if not existing:
        check_root("WMT14", root, [prefix.with_name(f"{prefix.name}.{code}*") for code in ("en", "de")])
        name, files = f"The {prefix.name} split of WMT14", [Path(f"{prefix}.{code}") for code in ("en", "de")]
        provide(name, files, lambda folder: write(folder / prefix.name), origin, "task=rnnsearch scale=paper", root)


def _write_train(report: Report, prefix: Path) -> None:
    from datasets import load_dataset  # type: ignore[import-untyped]

    report(f"downloading the training text of WMT14 from {WMT14_TRAIN} (once; about 4.5 million pairs, 1.4 GB)")
    rows = load_dataset(WMT14_TRAIN, "de-en", split="train", streaming=True)
    with prefix.with_suffix(".en").open("wb") as english, prefix.with_suffix(".de").open("wb") as german:
        count = 0
        for count, row in enumerate(rows, 1):
            english.write(LINE_ENDS.sub(" ", row["translation"]["en"]).encode() + b"\n")
            german.write(LINE_ENDS.sub(" ", row["translation"]["de"]).encode() + b"\n")
            if count % REPORT_PAIRS == 0:
                report(f"{count:,} pairs written")
    if count != WMT14_PAIRS:
        raise OSError(f"it has {count:,} pairs, not {WMT14_PAIRS:,}")


def _write_test(test_set: str, sentences: int, prefix: Path) -> None:
    """Write one of sacreBLEU's test sets to ``prefix``.en and ``prefix``.de. sacreBLEU downloads it if necessary.

    Each file must have ``sentences`` lines. They are counted because sacreBLEU does not notice that a file is
    incomplete, as it may be after a kill.

    Raises: OSError if the set cannot be downloaded or has another number of lines.
    """
    from sacrebleu.utils import SACREBLEU_DIR, get_reference_files, get_source_file

    remedy = f"delete {SACREBLEU_DIR}/{test_set} and try again"
    try:
        stored = {"en": get_source_file(test_set, "en-de"), "de": get_reference_files(test_set, "en-de")[0]}
    except SystemExit as error:
        if error.code != 1:  # a signal's, while sacreBLEU exits with 1
            raise
        raise OSError(f"sacreBLEU printed the reason; {remedy}") from None
    for code, name in stored.items():
        lines = Path(name).read_bytes().count(b"\n")
        if lines != sentences:
            raise OSError(f"{name} has {lines:,} sentences, not {sentences:,}; {remedy}")
        shutil.copyfile(name, prefix.with_suffix(f".{code}"))
