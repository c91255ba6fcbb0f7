"""Parallel text: lines of files are read unchanged; corpora are located, downloaded and verified."""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from rmsexp.data import DataError, UnavailableError, parallel
from rmsexp.data.parallel import files, multi30k, wmt14


def write(path: Path, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


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
    names = sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))
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
    with pytest.raises(DataError, match=rf"{path} is damaged: its sha256 is (?s:.*)\nDelete it to download it again"):
        multi30k(tmp_path, "en", "de")
    path.unlink()
    write(upstream / "val.de.gz", "something else\n")
    with pytest.raises(UnavailableError, match=r"^Multi30k is not in .* failed \(invalid hash value"):
        multi30k(tmp_path, "en", "de")
    assert not path.exists()


@pytest.mark.parametrize(("source", "target"), [("en", "fr"), ("cs", "de"), ("en", "en")])
def test_other_languages_are_refused(source: str, target: str, tmp_path: Path) -> None:
    message = rf"data\.source={source} data\.target={target}: .* en for one of them and de for the other"
    with pytest.raises(ValueError, match=message):
        multi30k(tmp_path, source, target)
    with pytest.raises(ValueError, match=message):
        wmt14(tmp_path, source, target, print)


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with small substitutes for what ``datasets`` and sacreBLEU download.

    The training text has 4 pairs; the test sets wmt13, wmt14 and wmt17 have 2, 3 and 4.
    """
    from sacrebleu.dataset import DATASETS

    folder = tmp_path / "libraries"
    translations = [("A dog.", "Ein Hund."), ("Two\nlines\r\nhere", "Zwei\u2028Zeilen"), (" three ", "drei"), ("", "")]
    rows = "".join(json.dumps({"translation": {"en": en, "de": de}}) + "\n" for en, de in translations)
    write(folder / "hub" / "train.json", rows)
    config = "configs:\n- config_name: de-en\n  data_files:\n  - split: train\n    path: train.json\n"
    write(folder / "hub" / "README.md", f"---\n{config}---\n")
    monkeypatch.setattr(parallel, "WMT14_TRAIN", str(folder / "hub"))
    monkeypatch.setattr(parallel, "WMT14_PAIRS", 4)
    monkeypatch.setattr(parallel, "REPORT_PAIRS", 2)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(folder / "cache"))
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
    sets = {"valid": ("wmt13", 2), "test": ("wmt14", 3), "test2017": ("wmt17", 4)}
    monkeypatch.setattr(parallel, "WMT14_TESTS", sets)
    return folder


def test_wmt14_is_written_once_as_plain_text(libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[str] = []
    written = wmt14(tmp_path, "en", "de", reports.append)
    assert [line.split()[0] for line in reports] == ["downloading", "2", "4"]
    names = sorted(path.name for path in (tmp_path / "wmt14").iterdir() if not path.name.startswith("."))
    assert names == sorted(f"{split}.{lang}" for split in written.splits for lang in ("en", "de"))
    assert written.text("train") == (
        ["A dog.", "Two lines here", " three ", ""],
        ["Ein Hund.", "Zwei\u2028Zeilen", "drei", ""],
    )
    assert written.text("valid") == (["wmt13 en 0", "wmt13 en 1"], ["wmt13 de 0", "wmt13 de 1"])
    assert [len(written.text(split)[0]) for split in ("test", "test2017")] == [3, 4]
    libraries.rename(tmp_path / "gone")
    monkeypatch.setattr(parallel, "WMT14_TRAIN", "unused")
    again = wmt14(tmp_path, "de", "en", reports.append)
    assert len(reports) == 3
    assert again.text("train") == written.text("train")[::-1]
    assert (written.name, again.name) == ("WMT14 en-de", "WMT14 de-en")
    assert wmt14(tmp_path, "en", "de", reports.append).digest == written.digest


@pytest.mark.usefixtures("libraries")
def test_an_incomplete_training_text_of_wmt14_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "WMT14_PAIRS", 5)
    with pytest.raises(UnavailableError, match=r"failed \(it has 4 pairs, not 5\)"):
        wmt14(tmp_path, "en", "de", lambda _: None)
    assert not list((tmp_path / "wmt14").glob("*train*.??"))


@pytest.mark.usefixtures("libraries")
def test_wmt14_uses_existing_files(tmp_path: Path) -> None:
    write(tmp_path / "wmt14" / "train.en.gz", "a line\n")
    write(tmp_path / "wmt14" / "train.de", "eine Zeile\n")
    reports: list[str] = []
    assert wmt14(tmp_path, "en", "de", reports.append).text("train") == (["a line"], ["eine Zeile"])
    assert reports == []


@pytest.mark.usefixtures("libraries")
def test_existing_file_of_one_language_is_not_overwritten(tmp_path: Path) -> None:
    path = write(tmp_path / "wmt14" / "train.de", "eine Zeile\n")
    with pytest.raises(DataError, match=r"only train\.de exists\.\nAdd the other file, or delete"):
        wmt14(tmp_path, "en", "de", print)
    assert path.read_text() == "eine Zeile\n"


@pytest.mark.usefixtures("libraries")
def test_a_signal_during_sacrebleus_download_is_not_taken_for_its_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: str) -> str:
        raise SystemExit(143)

    monkeypatch.setattr("sacrebleu.utils.get_source_file", stopped)
    with pytest.raises(SystemExit) as raised:
        wmt14(tmp_path, "en", "de", lambda _: None)
    assert raised.value.code == 143
