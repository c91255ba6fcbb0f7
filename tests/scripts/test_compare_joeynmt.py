"""The comparison with JoeyNMT: what is left to do, the texts, the configs, and the count of JoeyNMT's steps."""

from __future__ import annotations

import argparse
import gzip
import json
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import check_record
import compare_joeynmt
import pytest
import yaml

from rmsexp import config
from rmsexp.command_line import ReportedError
from rmsexp.train import provenance, quiet

SCRIPTS = Path(__file__).parents[2] / "scripts"

WORKER = runpy.run_path(str(SCRIPTS / "joeynmt/worker.py"))


def options(**changes: Any) -> argparse.Namespace:
    given = {"threads": 2, "steps": 40, "minutes": 20.0, "rounds": 2, "overrides": []} | changes
    return argparse.Namespace(**given)


@pytest.mark.parametrize(
    ("name", "identity", "others"),
    [
        ("joeynmt_speed", compare_joeynmt.speed_identity, {"threads": 1, "steps": 10}),
        ("joeynmt_bleu", compare_joeynmt.translation_identity, {"threads": 1, "minutes": 5.0}),
    ],
)
def test_a_measurement_is_done_once(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    identity: Callable[[str, argparse.Namespace], dict[str, Any]],
    others: dict[str, Any],
) -> None:
    """One of another model, with other options, by other code or on another machine is another measurement."""
    mine = identity("gru256", options())
    assert not check_record.is_done(tmp_path, name, mine)
    path = tmp_path / f"checks/{name}0/check.json"
    path.parent.mkdir(parents=True)
    here = {"code": provenance.code(), "machine": {"id": quiet.machine_id()}}

    def store(session: dict[str, Any]) -> None:
        path.write_text(json.dumps({"results": {"rmsexp": 1} | mine, "session": session}))

    for elsewhere in ({"code": "other"}, {"machine": {"id": "other"}}):
        store(here | elsewhere)
        assert not check_record.is_done(tmp_path, name, mine)
    store(here)
    assert capsys.readouterr().out == ""
    assert check_record.is_done(tmp_path, name, mine)
    assert capsys.readouterr().out == f"already there: {path}\n"
    for other in (identity("gru1024", options()), *(identity("gru256", options(**{k: v})) for k, v in others.items())):
        assert not check_record.is_done(tmp_path, name, other)
    assert not check_record.is_done(tmp_path, "joeynmt_other", mine)


def session(**changes: Any) -> dict[str, Any]:
    contention = {"state": "clear", "waited": 0.0, "steal": 0.0, "probes": None, "based_on": ["waiting"]}
    return {"code": provenance.code(), "git": {"dirty": False}, "contention": contention} | changes


def test_a_speed_counts_as_changed_code_if_that_of_any_round_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = [session(), session(git={"dirty": True})]
    monkeypatch.setattr(
        compare_joeynmt, "our_speed", lambda *_: (sessions.pop(0), {"tokens": [100, 100], "seconds": [1.0, 1.0]})
    )
    monkeypatch.setattr(provenance, "git", lambda: {"commit": "a", "dirty": False})
    joeynmt = SimpleNamespace(run=lambda *_: {"tokens": [50], "seconds": [1.0], "versions": {"joeynmt": "2.3.0"}})
    compare_joeynmt.compare_speed("gru256", joeynmt, options(results=tmp_path))
    content = json.loads((tmp_path / "checks/joeynmt_speed0/check.json").read_text())
    assert content["session"]["git"]["dirty"]
    assert (content["results"]["rmsexp"], content["results"]["joeynmt"]) == ([100.0] * 2, [50.0] * 2)
    assert content["results"].items() >= compare_joeynmt.speed_identity("gru256", options()).items()


def test_a_comparison_stops_if_the_code_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        compare_joeynmt, "our_speed", lambda *_: (session(code="other"), {"tokens": [1], "seconds": [1.0]})
    )
    joeynmt = SimpleNamespace(run=lambda *_: {"tokens": [50], "seconds": [1.0], "versions": {}})
    for compare in (compare_joeynmt.compare_speed, compare_joeynmt.compare_translations):
        with pytest.raises(SystemExit, match="the code of rmsexp changed during the check"):
            compare("gru256", joeynmt, options(results=tmp_path))
    assert not list(tmp_path.glob("checks/*/check.json"))


def test_our_translations_are_shown_before_those_of_joeynmt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"bleu": 33.2, "minutes": 20.0, "time_state": "clear", "steps": 600}
    monkeypatch.setattr(compare_joeynmt, "our_speed", lambda *_: (session(), {"tokens": [1], "seconds": [2.0]}))
    steps: list[int] = []

    def translate(_: str, number: int, __: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        steps.append(number)
        return [session(), session(git={"dirty": True})], found

    def run(*_: str) -> dict[str, Any]:
        assert "gru256: BLEU 33.2 after 20.0 minutes; JoeyNMT trains now\n" in capsys.readouterr().out
        if len(steps) == 1:
            raise KeyboardInterrupt
        return {"bleu": 27.6, "minutes": 20.1}

    monkeypatch.setattr(compare_joeynmt, "our_translations", translate)
    given = options(results=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        compare_joeynmt.compare_translations("gru256", SimpleNamespace(run=run), given)
    assert "JoeyNMT did not end, so there is no record" in capsys.readouterr().err
    assert not list(tmp_path.glob("checks/*/check.json"))
    compare_joeynmt.compare_translations("gru256", SimpleNamespace(run=run), given)
    content = json.loads((tmp_path / "checks/joeynmt_bleu0/check.json").read_text())
    assert (content["session"]["git"]["dirty"], steps) == (True, [600, 600])
    assert (content["results"]["rmsexp"], content["results"]["minutes"]) == (found, 20.0)


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
    with pytest.raises(ReportedError, match="status 1: ValueError: x"):
        compare_joeynmt.last_line([sys.executable, "-c", "raise ValueError('x')"])


def test_validation_does_not_count_and_training_ends() -> None:
    steps = WORKER["Steps"](3, 1000.0)
    step = steps.around(lambda *_: time.sleep(0.01))
    validate = steps.outside(lambda *_: time.sleep(0.2))
    for tokens in (5, 6, 7):
        step(None, SimpleNamespace(ntokens=tokens))
        validate(None)
    with pytest.raises(KeyboardInterrupt):
        step(None, SimpleNamespace(ntokens=8))
    assert steps.tokens == [5, 6, 7]
    assert len(steps.seconds) == 3
    assert all(0.01 <= seconds < 0.15 for seconds in steps.seconds)
    limited = WORKER["Steps"](None, 0.005)
    step = limited.around(lambda *_: time.sleep(0.01))
    step(None, SimpleNamespace(ntokens=1))
    with pytest.raises(KeyboardInterrupt):
        step(None, SimpleNamespace(ntokens=1))
