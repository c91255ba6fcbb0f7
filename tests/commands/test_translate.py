"""``python -m rmsexp.translate``: translations of trained runs, and messages about mistakes."""

import io
import itertools
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers.tasks import Ended
from helpers.translation_tasks import tiny

from rmsexp import config
from rmsexp.commands import result, translate
from rmsexp.data.synthetic import phrases
from rmsexp.metrics import bleu
from rmsexp.records import record
from rmsexp.train import checkpoint
from rmsexp.work import runner

Translate = Callable[..., Ended]
EDGES = ("log_every=20", "eval_every=40", "checkpoint_every=40", "threads=1", "device=cpu")
LEARNT = (  # options with which a run learns a little in seconds
    *("max_steps=80", "optim.lr=0.02", "schedule.warmup=20", "model.width=32", "tokens=1000", "accumulate=1"),
    *("decoding.max_length=25", "decoding.valid_beam=3"),
)


@pytest.fixture(scope="module")
def run(text_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a trained run."""
    places = [f"data.root={text_root}", f"results={tmp_path_factory.mktemp('results')}"]
    job = config.job([*tiny("transformer"), *LEARNT, *places, *EDGES])
    assert runner.execute(job).status == "finished"
    return job.folder


@pytest.fixture
def translated(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Translate:
    """Return a function that runs a command line in this process, with text or bytes as its input."""

    def call(text: str | bytes, *words: str | Path) -> Ended:
        content = text.encode() if isinstance(text, str) else text
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))
        monkeypatch.setattr(sys, "argv", ["translate", *map(str, words)])
        try:
            status = translate.main()
        except SystemExit as end:
            status = int(end.code or 0)
        return Ended(status, *capsys.readouterr())

    return call


def held_out(split: str) -> tuple[list[str], list[str]]:
    sources, references = zip(*phrases.phrases(310, 16, 16).splits[split](), strict=True)
    return list(sources), list(references)


def test_scores_equal_those_of_the_run_s_evaluation(run: Path, translated: Translate) -> None:
    best = checkpoint.read(run / record.CHECKPOINTS / "best.pt")
    assert best["step"] > 0
    sources, references = held_out("valid")
    done = translated("\n".join(sources) + "\n", run, "--beam", "3")
    assert done.status == 0
    assert f"translating 16 lines with the model of step {best['step']}" in done.err
    scores = bleu.score(done.out.splitlines(), references)
    rows = [row for row in result.read(run).metrics if row["split"] == "valid"]
    (row,) = [row for row in rows if row["step"] == best["step"]]
    assert (scores["bleu"], scores["chrf"]) == (row["bleu"], row["chrf"])
    assert 0 < scores["bleu"] == best["bleu"] == max(row["bleu"] for row in rows)


def test_beam_size_defaults_to_the_config_s(run: Path, translated: Translate) -> None:
    text = "\n".join(held_out("test")[0])
    two, greedy, wide = (translated(text, run, "--beam", beam).out for beam in "215")
    assert translated(text, run).out == two  # the config's beam size for test sets is 2
    assert len({two, greedy, wide}) > 1


def test_every_input_line_gives_one_output_line(run: Path, translated: Translate) -> None:
    sources, _ = held_out("test")
    alone = translated("\n".join(sources[:3]), run).out.splitlines()
    assert len(alone) == 3
    text = f"\n{sources[0]}\n\n  \n{sources[1]}\n\u2028a\x0bb\u0085\n{sources[2]}\r\n\n"
    done = translated(text, run)
    lines = done.out.split("\n")
    assert lines.pop() == ""
    assert len(lines) == 8
    assert "8 lines" in done.err
    assert (lines[1], lines[4], lines[6]) == tuple(alone)
    assert translated("\ufeff" + "\n".join(sources[:3]), run).out.splitlines() == alone  # a byte order mark


def test_a_line_of_too_many_tokens_is_refused_before_it_takes_the_memory(run: Path, translated: Translate) -> None:
    done = translated(f"a man\n{'a man ' * 1500}\n", run)
    done.assert_failed("line 2 has 6,000 tokens, and the limit is 2,000; write one sentence per line")


def test_a_foreign_or_damaged_checkpoint_and_input_that_is_not_utf8_are_refused(
    run: Path, translated: Translate, tmp_path: Path
) -> None:
    translated(b"A dog.\nA \xff cat.\n", run).assert_failed("'utf-8' codec can't decode byte 0xff")
    copy = with_config(run, tmp_path / "run", precision="bfloat16")
    best = copy / record.CHECKPOINTS / "best.pt"
    translated("a\n", copy).assert_failed(f"{best} is of another run (its config is ")
    best.write_bytes(best.read_bytes()[:-99])
    translated("a\n", copy).assert_failed("checkpoints/best.pt is damaged")
    best.unlink()
    translated("a\n", copy).assert_failed("checkpoints/best.pt is missing")


def with_config(run: Path, to: Path, **changes: Any) -> Path:
    """Copy a run with another config in its folder than that of its checkpoints, and return the copy's folder."""
    shutil.copytree(run, to)
    (to / record.CONFIG).write_text(yaml.safe_dump(yaml.safe_load((run / record.CONFIG).read_text()) | changes))
    return to


@pytest.mark.parametrize("payload", [{"step": 3}, {"step": 3, "model": {}}, {"step": 3, "model": {"x": torch.ones(9)}}])
def test_a_checkpoint_of_another_model_is_refused(
    payload: dict[str, Any], run: Path, translated: Translate, tmp_path: Path
) -> None:
    shutil.copytree(run, tmp_path / "run")
    path = tmp_path / "run" / record.CHECKPOINTS / "best.pt"
    checkpoint.save(path.parent, {"identity": checkpoint.read(path)["identity"]} | payload, checkpoint.BEST)
    done = translated("a\n", tmp_path / "run")
    assert (done.status, done.out) == (1, "")
    *_, line = done.err.splitlines()
    assert line.startswith(f"rmsexp: {path} does not fit the run's config.yaml (")
    assert "Traceback" not in done.err


def test_a_norm_that_the_user_names_is_imported(
    run: Path, translated: Translate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with a norm from outside the package is refused, unless its class is named on the command line."""
    lines = ("from dataclasses import dataclass", "from rmsexp.norms import RMS", "@dataclass(frozen=True)")
    (tmp_path / "norm_of_the_user.py").write_text("\n".join([*lines, "class Own(RMS): pass\n"]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])  # as the console script has it
    norm = yaml.safe_load((run / record.CONFIG).read_text())["norm"] | {"_target_": "norm_of_the_user.Own"}
    own = with_config(run, tmp_path / "run", norm=norm)
    payload = checkpoint.read(own / record.CHECKPOINTS / checkpoint.BEST)
    payload["identity"]["config"] = config.digest(yaml.safe_load((own / record.CONFIG).read_text()))
    checkpoint.save(own / record.CHECKPOINTS, payload, checkpoint.BEST)
    refused = translated("a\n", own)
    assert refused.status == 1
    assert "if you trust it, use --config-dir" in refused.err
    accepted = translated("a\n", own, "--norm-class", "norm_of_the_user.Own")
    assert (accepted.status, accepted.out) == (0, translated("a\n", run).out)


@pytest.mark.slow
def test_input_and_output_are_utf8_in_any_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command reads and writes UTF-8 although Python's streams are set to Latin-1."""
    monkeypatch.chdir(tmp_path)
    lines = [" ".join(letters) for letters in itertools.product("äöü", repeat=3)]
    for split in ("train", "valid", "test"):
        for language in ("en", "de"):
            Path(f"{split}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    data = ["data.name=files", *(f"data.{split}={split}" for split in ("train", "valid", "test")), "data.vocabulary=9"]
    sizes = ("model.width=16", "model.heads=2", "tokens=1000", "decoding.max_length=9", "max_steps=1")
    job = config.job(["task=transformer", *data, *sizes, "threads=1", "device=cpu", "data.root=cache"])
    assert runner.execute(job).status == "finished"
    read, written, told = io.BytesIO("\n".join(lines[:4]).encode()), io.BytesIO(), io.BytesIO()
    for name, stream in (("stdin", read), ("stdout", written), ("stderr", told)):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(stream, encoding="latin-1"))
    assert translate.main([str(job.folder)]) == 0
    sys.stderr.flush()
    assert "4 lines with the model of step" in told.getvalue().decode("latin-1")
    assert all(set(line) & set("äöü") for line in written.getvalue().decode("utf-8").splitlines())
    assert written.getvalue().count(b"\n") == 4
