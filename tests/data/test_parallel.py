"""Parallel text: lines of files are read unchanged; corpora are located, downloaded and verified."""

import hashlib
import os
import signal
import tarfile
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pandas as pd
import pytest
from helpers.parallel_text import write

from rmsexp.data import DataError, parallel
from rmsexp.data.parallel import files, in_processes, multi30k, read_pairs, wmt14
from rmsexp.system import cores


@pytest.fixture
def prefixes(tmp_path: Path) -> dict[str, str]:
    """Write two plain files for train, two .gz files for valid, one of each for test; return the splits' prefixes.

    The prefixes contain a dot.
    """
    for name, endings in (("train", ("", "")), ("valid", (".gz", ".gz")), ("test", ("", ".gz"))):
        for language, ending in zip(("en", "de"), endings, strict=True):
            write(tmp_path / f"news.{name}.{language}{ending}", f"{name} {language}\n")
    return {name: str(tmp_path / f"news.{name}") for name in ("train", "valid", "test")}


def test_files_of_any_name(prefixes: dict[str, str]) -> None:
    corpus = files(prefixes, "en", "de")
    assert (corpus.name, corpus.source, corpus.target, corpus.builtin) == ("news.train en-de", "en", "de", False)
    for split in ("train", "valid", "test"):
        assert corpus.text(split) == ([f"{split} en"], [f"{split} de"])
        assert corpus.text(split) == corpus.text(split)


def test_all_missing_files_are_named(prefixes: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "news.train.de").unlink()
    (tmp_path / "news.valid.en.gz").unlink()
    with pytest.raises(DataError) as error:
        files(prefixes, "en", "de")
    message = str(error.value)
    assert f"{prefixes['train']}.de (train)" in message
    assert f"{prefixes['valid']}.en (valid)" in message
    assert "(test)" not in message
    assert message.count("\n") == 1


def test_digest_depends_on_content_direction_and_splits_but_not_on_the_folder(
    prefixes: dict[str, str], tmp_path: Path
) -> None:
    before = files(prefixes, "en", "de").digest
    assert files(dict(reversed(prefixes.items())), "en", "de").digest == before
    assert files(prefixes, "de", "en").digest != before
    assert files(prefixes | {"valid": prefixes["test"], "test": prefixes["valid"]}, "en", "de").digest != before
    elsewhere = prefixes | {"train": str(tmp_path / "copy")}
    for language in ("en", "de"):
        write(tmp_path / f"copy.{language}", f"train {language}\n")
    assert files(elsewhere, "en", "de").digest == before
    write(tmp_path / "copy.de", "train DE\n")
    assert files(elsewhere, "en", "de").digest != before


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that stands for the server of Multi30k; ``parallel`` expects the digests of its files."""
    digests = {}
    for name in parallel.MULTI30K_SHA256:
        path = write(tmp_path / "upstream" / name, f"a line of {name}\n")
        digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(parallel, "MULTI30K_SHA256", digests)
    monkeypatch.setattr(parallel, "MULTI30K_URL", (tmp_path / "upstream").as_uri())
    return tmp_path / "upstream"


def test_multi30k_is_downloaded_once(upstream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = multi30k(tmp_path, "de", "en")
    folder = tmp_path / "multi30k" / "task1" / "raw"
    names = sorted(path.name for path in folder.iterdir() if path.name != ".lock")
    assert names == sorted(path.name for path in upstream.iterdir())
    monkeypatch.setattr(parallel, "MULTI30K_URL", "unused")
    corpus = multi30k(tmp_path, "de", "en")
    assert (corpus.name, corpus.digest) == ("Multi30k de-en", fetched.digest)
    assert multi30k(tmp_path, "en", "de").digest != corpus.digest
    assert {split: corpus.text(split)[1] for split in corpus.splits} == {
        "train": ["a line of train.en.gz"],
        "valid": ["a line of val.en.gz"],
        "test": ["a line of test_2016_flickr.en.gz"],
        "test2017": ["a line of test_2017_flickr.en.gz"],
    }


def test_damaged_multi30k_is_refused_in_the_folder_and_in_a_download(upstream: Path, tmp_path: Path) -> None:
    multi30k(tmp_path, "en", "de")
    path = tmp_path / "multi30k" / "task1" / "raw" / "val.de.gz"
    write(path, "something else\n")
    with pytest.raises(DataError, match=rf"{path} is damaged: .*\nDelete it to download it again"):
        multi30k(tmp_path, "en", "de")
    path.unlink()
    write(upstream / "val.de.gz", "something else\n")
    with pytest.raises(DataError, match=r"^Multi30k is not in "):
        multi30k(tmp_path, "en", "de")
    assert not path.exists()


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the hub's files of WMT14 to ``data.root``, and let sacreBLEU read small test sets in place of its own.

    The training text has 4 pairs in two files; the test sets wmt13, wmt14 and wmt17 have 2, 3 and 4.
    """
    from sacrebleu.dataset import DATASETS

    folder = tmp_path / "libraries"
    translations = [("A dog.", "Ein Hund."), ("Two\nlines\r\nhere", "Zwei\u2028Zeilen"), (" three ", "drei"), ("", "")]
    (tmp_path / "wmt14/de-en").mkdir(parents=True)
    for part in range(2):
        rows = [{"en": en, "de": de} for en, de in translations[2 * part : 2 * part + 2]]
        path = tmp_path / f"wmt14/de-en/train-{part:05}-of-00002.parquet"
        pd.DataFrame({"translation": rows}).to_parquet(path)
    for number, name in enumerate(("wmt13", "wmt14", "wmt17"), 2):
        dataset = DATASETS[name]
        for member, language in zip(dataset.langpairs["en-de"], ("en", "de"), strict=True):
            lines = (f'<seg id="{line}"> {name} {language}  {line} </seg>\n' for line in range(number))
            write(folder / name / member, f'<doc docid="a" genre="news" origlang="en">\n{"".join(lines)}</doc>\n')
        archive = folder / f"{name}.tgz"
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(folder / name, ".")
        monkeypatch.setattr(dataset, "data", [archive.as_uri()])
        monkeypatch.setattr(dataset, "md5", [hashlib.md5(archive.read_bytes()).hexdigest()])
        monkeypatch.setattr(dataset, "_outdir", str(folder / "sacrebleu" / name))
        monkeypatch.setattr(dataset, "_rawdir", str(folder / "sacrebleu" / name / "raw"))
    monkeypatch.setattr("sacrebleu.utils.SACREBLEU_DIR", str(folder / "sacrebleu"))
    sets = {"valid": ("wmt13", 2), "test": ("wmt14", 3), "test2017": ("wmt17", 4)}
    monkeypatch.setattr(parallel, "WMT14_TESTS", sets)
    return folder


@pytest.mark.usefixtures("libraries")
def test_wmt14_is_read_where_its_libraries_keep_it(tmp_path: Path) -> None:
    corpus = wmt14(tmp_path, "en", "de")
    assert corpus.text("train") == (
        ["A dog.", "Two lines here", " three ", ""],
        ["Ein Hund.", "Zwei\u2028Zeilen", "drei", ""],
    )
    assert corpus.text("valid") == (["wmt13 en 0", "wmt13 en 1"], ["wmt13 de 0", "wmt13 de 1"])
    assert [len(corpus.text(split)[0]) for split in ("test", "test2017")] == [3, 4]
    backward = wmt14(tmp_path, "de", "en")
    assert all(backward.text(split) == corpus.text(split)[::-1] for split in corpus.splits)
    assert (corpus.name, backward.name) == ("WMT14 en-de", "WMT14 de-en")
    assert wmt14(tmp_path, "en", "de").digest == corpus.digest != backward.digest


@pytest.mark.usefixtures("libraries")
def test_a_signal_during_sacrebleus_download_is_not_taken_for_its_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for status, expected in ((143, SystemExit), (1, DataError)):
        monkeypatch.setattr("sacrebleu.utils.get_source_file", Mock(side_effect=SystemExit(status)))
        with pytest.raises(expected):
            wmt14(tmp_path, "en", "de")


def test_files_that_do_not_fit_are_named(tmp_path: Path) -> None:
    long, short = write(tmp_path / "a", "x\n" * 1001), write(tmp_path / "b", "x\n" * 1000)
    pairs = [(long, short), (short, long), (write(tmp_path / "c", ""), write(tmp_path / "d", ""))]
    problems = [*[f"{short} has 1,000 lines and {long} has more"] * 2, "are empty"]
    for pair, problem in zip(pairs, problems, strict=True):
        with pytest.raises(DataError, match=rf"{problem}\..*\n.*$"):
            list(read_pairs(*pair))


# Processes


@pytest.fixture
def two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "threads", lambda: 2)


def work(item: str) -> tuple[str, int]:
    if item == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return item.upper(), os.getpid()


@pytest.mark.usefixtures("two_processes")
def test_results_are_in_order_and_items_are_taken_as_they_are_needed() -> None:
    taken: list[str] = []

    def items() -> Iterator[str]:
        for item in "abcdefghij":
            taken.append(item)
            yield item

    results = in_processes(work, items())
    first, process = next(results)
    assert len(taken) < 5
    assert [first, *(item for item, _ in results)] == list("ABCDEFGHIJ")
    assert process != os.getpid()


@pytest.mark.usefixtures("two_processes")
@pytest.mark.parametrize("items", ["", "a"])
def test_a_single_item_needs_no_process(items: str) -> None:
    assert list(in_processes(work, items)) == [(item.upper(), os.getpid()) for item in items]


@pytest.mark.usefixtures("two_processes")
def test_a_killed_process_is_named() -> None:
    with pytest.raises(DataError, match="was killed"):
        list(in_processes(work, ["a", "killed", "b"]))
