"""Whole runs of the language model: your own files, and generated text."""

from pathlib import Path

import pytest
from helpers.language_models import TINY
from helpers.tasks import Main

from rmsexp.commands import generate, result
from rmsexp.records import record
from rmsexp.system import atomic, readers

pytestmark = pytest.mark.usefixtures("small_synthetic_data")


def test_a_run_on_files_generates_text(main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "a small text, again and again\n" * 40
    for name in ("train", "valid", "test"):
        (tmp_path / f"{name}.txt").write_text(text)
    files = [f"data.{name}={tmp_path}/{name}.txt" for name in ("train", "valid", "test")]
    learn = ["max_steps=60", "schedule.steps=60", "optim.lr=0.02", "log_every=60", "eval_every=60"]
    done = main(*TINY, "data.name=files", *files, *learn)
    assert done.status == 0, done.err
    (folder,) = record.find_runs(tmp_path)
    run = result.read(folder)
    entropy = float(run.run["notes"]["unigram entropy"].partition("test ")[2])
    losses = [row["loss"] for row in run.metrics if row["split"] == "test"]
    assert losses[0] > entropy > 4 * losses[-1] > 0, (losses, entropy)  # the model uses the context

    def generated(*words: str) -> str:
        assert generate.main([str(folder), *words]) == 0
        return capsys.readouterr().out

    assert generated("--prompt", "a small t", "--tokens", "20", "--temperature", "0") == text[:29] + "\n"
    first = generated("--tokens", "30", "--temperature", "5")
    assert first == generated("--tokens", "30", "--temperature", "5", "--seed", "0")
    assert first != generated("--tokens", "30", "--temperature", "5", "--seed", "1")
    (tmp_path / "train.txt").write_text(text * 2)
    assert generate.main([str(folder)]) == 1
    assert "was trained on other data" in capsys.readouterr().err


def test_other_subwords_are_refused(main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As if a newer package had learnt other subwords from the same text: their ids would mean something else."""
    words = [*TINY, "data.tokens=sentencepiece", "data.vocabulary=330", f"data.root={tmp_path}/data"]
    assert main(*words).status == 0
    (folder,) = record.find_runs(tmp_path)
    run = readers.read_json(folder / record.RUN)
    assert len(run["notes"]["subwords"]) == 16
    run["notes"]["subwords"] = "other"
    atomic.write_json(folder / record.RUN, run)
    done = main(*words, "max_steps=4")
    done.assert_failed("/seed0 was trained with other subwords than those that are now in data.root")
    assert generate.main([str(folder)]) == 1
    assert "/seed0 was trained with other subwords" in capsys.readouterr().err
