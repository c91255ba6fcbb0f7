"""The comparison with JoeyNMT: what is left to do, the texts, the configs, and the count of JoeyNMT's steps."""

from __future__ import annotations

import gzip
import json
import runpy
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from rmsexp import config

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.append(str(SCRIPTS))
import compare_joeynmt  # noqa: E402

WORKER = runpy.run_path(str(SCRIPTS / "joeynmt/worker.py"))


def test_a_measurement_is_done_once(tmp_path: Path) -> None:
    assert not compare_joeynmt.done(tmp_path, "joeynmt_speed", "gru256")
    path = tmp_path / "checks/joeynmt_speed0/check.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"results": {"model": "gru256"}}))
    assert compare_joeynmt.done(tmp_path, "joeynmt_speed", "gru256")
    assert not compare_joeynmt.done(tmp_path, "joeynmt_speed", "gru1024")
    assert not compare_joeynmt.done(tmp_path, "joeynmt_bleu", "gru256")


def test_the_texts_are_unpacked(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"train\.en\.gz is missing; python -m rmsexp\.prepare"):
        compare_joeynmt.write_texts(tmp_path, tmp_path)
    raw = tmp_path / "multi30k/task1/raw"
    raw.mkdir(parents=True)
    for name in compare_joeynmt.FILES.values():
        for language in ("en", "de"):
            (raw / f"{name}.{language}.gz").write_bytes(gzip.compress(f"{name} {language}\n".encode()))
    compare_joeynmt.write_texts(tmp_path, tmp_path)
    assert (tmp_path / "valid.de").read_text() == "val de\n"


@pytest.mark.parametrize("model", compare_joeynmt.MODELS)
def test_both_models_have_the_same_sizes(model: str) -> None:
    ours = config.job([*compare_joeynmt.COMMON, *compare_joeynmt.MODELS[model]]).config
    theirs = yaml.safe_load((SCRIPTS / f"joeynmt/{model}.yaml").read_text())
    training, encoder = theirs["training"], theirs["model"]["encoder"]
    assert theirs["name"] == model
    assert (ours.label_smoothing, ours.optim.lr) == (training["label_smoothing"], training["learning_rate"])
    if model.startswith("gru"):
        sizes = ours.model.embedding, ours.model.hidden, ours.batch_size, ours.model.dropout
    else:
        sizes = ours.model.width, ours.model.width, ours.tokens, ours.model.dropout
        assert (ours.model.layers, ours.model.inner) == (encoder["num_layers"], encoder["ff_size"])
    embeddings = encoder["embeddings"]["embedding_dim"]
    assert sizes == (embeddings, encoder["hidden_size"], training["batch_size"], encoder["dropout"])


def test_a_command_that_fails_is_named() -> None:
    assert compare_joeynmt.last_line([sys.executable, "-c", "print(1); print(2)"]) == "2"
    with pytest.raises(RuntimeError, match="status 1: ValueError: x"):
        compare_joeynmt.last_line([sys.executable, "-c", "raise ValueError('x')"])


def test_validation_does_not_count_and_training_ends() -> None:
    steps = WORKER["Steps"](3, 1000.0)
    step = steps.around(lambda *_: time.sleep(0.01))
    validate = steps.outside(lambda *_: time.sleep(0.5))
    for tokens in (5, 6, 7):
        step(None, SimpleNamespace(ntokens=tokens))
        validate(None)
    with pytest.raises(KeyboardInterrupt):
        step(None, SimpleNamespace(ntokens=8))
    assert steps.tokens == [5, 6, 7]
    assert len(steps.seconds) == 3
    assert all(0.01 <= seconds < 0.4 for seconds in steps.seconds)
    limited = WORKER["Steps"](None, 0.005)
    step = limited.around(lambda *_: time.sleep(0.01))
    step(None, SimpleNamespace(ntokens=1))
    with pytest.raises(KeyboardInterrupt):
        step(None, SimpleNamespace(ntokens=1))
