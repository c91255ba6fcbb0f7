"""Whole runs of the translation tasks: mistakes, and users' text."""

import gzip
from functools import partial
from pathlib import Path

import pytest
import yaml
from helpers.tasks import Main
from helpers.translation_tasks import tiny

from rmsexp.commands import result
from rmsexp.data.synthetic import phrases
from rmsexp.records import record


@pytest.fixture
def main(main: Main, text_root: Path) -> Main:
    return partial(main, f"data.root={text_root}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data.name=files"], "data.name=files needs data.train, the path of its two files without the language"),
        (["data.tests=[test,test2018]"], "data.tests: phrases has no test2018 (it has test)"),
        (["data.tests=[test,train]"], "data.tests must be test"),
        (["data.tests=[test,valid]"], "data.tests must be test"),  # because valid selects the best model
        (["data.tests=[test,test]"], "data.tests"),
        (["data.vocabulary=20"], "data.vocabulary=20 does not fit"),
        (["data.max_length=2"], "data.max_length=2"),
    ],
    ids=lambda value: None if isinstance(value, str) else " ".join(value),
)
def test_a_value_that_does_not_fit_the_text_ends_the_run(main: Main, words: list[str], message: str) -> None:
    main(*tiny("rnnsearch"), *words).assert_failed(message)


@pytest.fixture
def user_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Write files with 42 training pairs, one with an empty side and one too long; return overrides that use them."""
    corpus = phrases.phrases(40, 6, 6)
    monkeypatch.chdir(tmp_path)
    for split in corpus.splits:
        sources, targets = corpus.text(split)
        if split == "train":
            sources, targets = [*sources, "", " ".join(sources)], [*targets, targets[0], " ".join(targets)]
        (tmp_path / f"{split}.en").write_text("".join(f"{line}\n" for line in sources))
        (tmp_path / f"{split}.de.gz").write_bytes(gzip.compress("".join(f"{line}\n" for line in targets).encode()))
    return ["data.name=files", *(f"data.{split}={split}" for split in corpus.splits), "data.vocabulary=90"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rnnsearch", "42 pairs: 40 kept, 1 with an empty side, 1 longer than 80 subwords"),
        ("transformer", "42 pairs: 41 kept, 1 with an empty side, 1 cut to 256 subwords"),
    ],
)
def test_a_run_on_users_text(main: Main, user_text: list[str], tmp_path: Path, name: str, message: str) -> None:
    words = (*tiny(name), *user_text, f"data.root={tmp_path / 'cache'}", "norm=none")
    done = main(*words)
    assert done.status == 0, done.err
    assert message in done.err
    assert "data train en-de" in done.err.splitlines()[0]
    (folder,) = record.find_runs(tmp_path)
    run = result.read(folder)
    assert run.run["dataset"].items() >= {"name": "train en-de", "builtin": False}.items()
    assert yaml.safe_load((folder / record.CONFIG).read_text())["data"]["train"] == "train"
    assert "valid 6\n" in (folder / "translations.txt").read_text()
    (tmp_path / "valid.en").write_text("another\n" * 6)
    assert main(*words, "max_steps=1").status == 0
    assert len(list(record.find_runs(tmp_path))) == 2  # other text is another setting
