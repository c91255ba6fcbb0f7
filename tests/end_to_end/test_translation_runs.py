"""Whole runs of the translation tasks: norms, sweeps, precision, mistakes, users' text."""

from __future__ import annotations

import gzip
import itertools
import math
from functools import partial
from pathlib import Path

import pytest
import yaml
from helpers.cases import some
from helpers.tasks import NORMS, Main
from helpers.translation_tasks import SHORT, TASKS, tiny

from rmsexp.data.synthetic import phrases
from rmsexp.records import record


@pytest.fixture
def main(main: Main, text_root: Path) -> Main:
    return partial(main, f"data.root={text_root}")


@pytest.mark.parametrize(
    ("name", "norm"),
    some(
        itertools.product(TASKS, NORMS),
        [("rnnsearch", "rms"), ("rnnsearch", "bn"), ("transformer", "none"), ("transformer", "wn")],
    ),
)
def test_norms_train(main: Main, tmp_path: Path, name: str, norm: str) -> None:
    done = main(*tiny(name), *SHORT, f"norm={norm}")
    assert done.status == 0, done.err
    (folder,) = record.find_runs(tmp_path)
    run = record.read(folder)
    endings = ("finished", "diverged") if (name, norm) == ("transformer", "none") else ("finished",)
    assert run.status["status"] in endings
    files = {record.CONFIG, record.RUN, record.METRICS, record.STATUS, record.CHECKPOINTS, "translations.txt"} | {
        ".hydra",
        "run.log",
    }
    assert {path.name for path in folder.iterdir()} == files
    if run.status["status"] == "diverged":
        return
    assert {path.name for path in (folder / record.CHECKPOINTS).iterdir()} == {"last.pt", "best.pt"}
    rows = {split: [row for row in run.metrics if row["split"] == split] for split in ("train", "valid", "test")}
    assert [row["step"] for row in rows["train"]] == [1, 2]
    assert all(math.isfinite(row["loss"]) and row["grad_norm"] > 0 for row in rows["train"])
    for split in ("valid", "test"):
        assert [row["step"] for row in rows[split]] == [0, 2]
        assert rows[split][0]["loss"] != rows[split][1]["loss"]
    assert (run.run["norm"], run.run["dataset"]["builtin"]) == (norm, True)
    assert "version:" in run.run["notes"]["bleu"]


@pytest.mark.minutes
def test_a_sweep_draws_the_comparison(main: Main, tmp_path: Path, unwritten_figures: list[str]) -> None:
    done = main("-m", *tiny("transformer"), "norm=ln,rms", curves=True)
    assert done.status == 0, done.err
    (summary,) = tmp_path.rglob("summary.md")
    assert "| test BLEU at step 2 |" in summary.read_text()
    assert all(label in summary.read_text() for label in ("LayerNorm", "RMSNorm", "best on valid"))
    assert "curves" in unwritten_figures


@pytest.mark.parametrize(("name", "norm"), [("rnnsearch", "rms"), ("transformer", "bn")])
def test_training_in_bfloat16_has_similar_losses_to_float32(main: Main, tmp_path: Path, name: str, norm: str) -> None:
    for precision in ("float32", "bfloat16"):
        done = main(*tiny(name), *SHORT, f"norm={norm}", f"precision={precision}")
        assert done.status == 0, done.err
    losses = {
        yaml.safe_load((run.folder / record.CONFIG).read_text())["precision"]: [row["loss"] for row in run.metrics]
        for run in map(record.read, record.find_runs(tmp_path))
    }
    assert losses["bfloat16"] == pytest.approx(losses["float32"], abs=0.05)
    assert losses["bfloat16"] != losses["float32"]


# Mistakes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["task=transformer", "model.heads=3"], "model.heads=3 does not divide model.width=64"),
        (["task=transformer", "model.width=15", "model.heads=5"], "model.width=15: encodings of positions need"),
        (["task=transformer", "tokens=0"], "tokens must be at least 1, got 0"),
        (["task=transformer", "model.dropout=1"], "model.dropout must lie in [0, 1), got 1.0"),
        (["task=rnnsearch", "model.hidden=0"], "model.hidden must be at least 1, got 0"),
        (["task=rnnsearch", "batch_size=0"], "batch_size must be at least 1, got 0"),
        (["task=rnnsearch", "label_smoothing=1"], "label_smoothing must lie in [0, 1), got 1.0"),
        (["task=rnnsearch", "decoding.beam=0"], "decoding.beam must be at least 1, got 0"),
        (["task=rnnsearch", "decoding.valid_beam=0"], "decoding.valid_beam must be at least 1, got 0"),
        (["task=rnnsearch", "decoding.max_length=null"], "decoding.max_length or decoding.beyond_source"),
        (["task=rnnsearch", "decoding.max_length=0"], "decoding.max_length must be at least 1, got 0"),
        (["task=rnnsearch", "decoding.max_length=20000"], "decoding.max_length must be at most 10000, got 20000"),
        (["task=transformer", "decoding.alpha=1000"], "decoding.alpha must be at most 10, got 1000.0"),
        (["task=rnnsearch", "decoding.normalisation=lenght"], "did you mean length? (one of length, gnmt)"),
        (["task=rnnsearch", "data.name=multi30"], "data.name=multi30 is not known; did you mean multi30k?"),
        (["task=rnnsearch", "data.tests=test"], "data.tests must be a list, in brackets: data.tests=[test]"),
        (["task=rnnsearch", "data.subwords=foo"], "data.subwords=foo is not known (one of sentencepiece, moses_bpe)"),
        (["task=rnnsearch", "data.threshold=5"], "data.threshold must be 0 with data.subwords=sentencepiece, got 5"),
        (["task=rnnsearch", "data.overlong=keep"], "data.overlong=keep is not known"),
        (["task=rnnsearch", "data.tests=[test2017]"], "data.tests must begin with test"),
        (["task=rnnsearch", "norm=ln", "norm.p=0.5"], "norm.p is not known with norm=ln (norms that have it: prms)"),
        (["task=rnnsearch", "tokens=100"], "tokens is not known"),
        (["task=transformer", "model.hidden=8"], "model.hidden is not known"),
    ],
    ids=lambda value: None if isinstance(value, str) else " ".join(value),
)
def test_a_mistake_is_reported_in_one_line(main: Main, tmp_path: Path, words: list[str], message: str) -> None:
    main(*words).assert_refused(message)
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data.name=files"], "data.name=files needs data.train, the path of its two files without the language"),
        (["data.name=files", "data.train=a", "data.valid=b"], "data.name=files needs data.test"),
        (["data.tests=[test,test2018]"], "data.tests: phrases has no test2018 (it has test)"),
        (["data.tests=[test,train]"], "data.tests must begin with test"),
        (["data.tests=[test,valid]"], "data.tests must begin with test"),  # because valid selects the best model
        (["data.tests=[test,test]"], "data.tests"),
        (["data.name=multi30k", "data.source=fr"], "data.source=fr data.target=de: Multi30k needs en for one"),
        (["data.source=de", "data.target=en"], "data.source"),  # the synthetic text is from English to German
        (["data.vocabulary=100000"], "data.vocabulary=100000 does not fit"),
        (["data.vocabulary=20"], "data.vocabulary=20 does not fit"),
        (["data.max_length=2"], "data.max_length=2"),
    ],
    ids=lambda value: None if isinstance(value, str) else " ".join(value),
)
def test_a_value_that_does_not_fit_the_text_ends_the_run(main: Main, words: list[str], message: str) -> None:
    main(*tiny("rnnsearch"), *words).assert_failed(message)


# Users' text


def write(prefix: Path, sources: list[str], targets: list[str]) -> None:
    prefix.with_suffix(".en").write_text("".join(f"{line}\n" for line in sources), encoding="utf-8")
    content = "".join(f"{line}\n" for line in targets).encode()
    prefix.with_suffix(".de.gz").write_bytes(gzip.compress(content))


@pytest.fixture
def user_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Write files with 42 training pairs, one with an empty side and one too long; return overrides that use them."""
    corpus = phrases.phrases(40, 6, 6)
    monkeypatch.chdir(tmp_path)
    for split in corpus.splits:
        sources, targets = corpus.text(split)
        if split == "train":
            sources, targets = [*sources, "", " ".join(sources)], [*targets, targets[0], " ".join(targets)]
        write(tmp_path / split, sources, targets)
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
    run = record.read(folder)
    assert run.run["dataset"].items() >= {"name": "train en-de", "builtin": False}.items()
    assert yaml.safe_load((folder / record.CONFIG).read_text())["data"]["train"] == "train"
    assert "valid 6\n" in (folder / "translations.txt").read_text()
    (tmp_path / "valid.en").write_text("another\n" * 6)
    assert main(*words, "max_steps=1").status == 0
    assert len(list(record.find_runs(tmp_path))) == 2  # other text is another setting


def test_users_text_may_have_absolute_paths(main: Main, user_text: list[str], tmp_path: Path) -> None:
    paths = [word.replace("=", f"={tmp_path}/") for word in user_text[1:4]]
    sizes = ("model.width=16", "model.heads=2", "decoding.beyond_source=1", "data.vocabulary=90")
    done = main("task=transformer", user_text[0], *paths, *sizes, f"data.root={tmp_path / 'cache'}")
    assert done.status == 0, done.err


def test_files_of_different_lengths_are_refused(main: Main, user_text: list[str], tmp_path: Path) -> None:
    lines = (tmp_path / "train.en").read_text().splitlines(keepends=True)
    (tmp_path / "train.en").write_text("".join(lines[:-3]))
    done = main(*tiny("rnnsearch"), *user_text, f"data.root={tmp_path / 'cache'}")
    assert done.status == 1
    assert "train.en has 39 lines and train.de.gz has more." in done.err
    assert "Traceback" not in done.err
