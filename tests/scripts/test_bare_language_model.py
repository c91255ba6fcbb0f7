"""The plain language model of scripts/bare_language_model.py is ours, and is trained alike."""

from __future__ import annotations

import time
from pathlib import Path

import bare_language_model
import pytest
import torch
import trainer_overhead
from helpers.language_models import TINY, make
from helpers.tasks import shake

from rmsexp import config
from rmsexp.train import checkpoint
from rmsexp.train.step import Settings, Stepper


@pytest.mark.usefixtures("small_synthetic_data")
def test_logits_and_trained_weights_are_ours() -> None:
    task, model = make("norm=rms", "schedule.steps=6", "schedule.warmup=2", "optim.clip=0.1", "optim.lr=0.01")
    shake(model, 0.1)
    bare = bare_language_model.Model(task.config.model, task.vocabulary, task.config.context)
    with torch.no_grad():
        for plain, ours in zip(bare.parameters(), model.parameters(), strict=True):
            plain.copy_(ours)
    tokens = task.batches(0)[0][:, :-1]
    torch.testing.assert_close(bare(tokens), model(tokens), rtol=1e-5, atol=1e-5)
    optimizer = task.optimizer(model)
    stepper = Stepper(task, model, optimizer, task.config.schedule, Settings.of(task.config, torch.device("cpu")))
    for step in range(6):
        stepper.take(step, task.batches(step))
    bare_language_model.train(bare, task.config, lambda step: task.batches(step)[0], steps=6, warmup=0)
    for plain, ours in zip(bare.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(plain, ours, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("small_synthetic_data", "fused_kernels")
def test_fused_eager_and_plain_loop_are_timed_without_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    task, _ = make("norm=rms")
    job, save, saved = config.job([*TINY, "norm=rms"]), checkpoint.save, list[Path]()

    def save_slowly(folder: Path, payload: checkpoint.Payload) -> None:
        saved.append(folder)
        time.sleep(1.5)
        save(folder, payload)

    monkeypatch.setattr(checkpoint, "save", save_slowly)
    timed = trainer_overhead.loops(task, job, 2)
    assert list(timed) == ["trainer, eager", "trainer, fused", "plain loop"]
    assert timed["trainer, fused"]() < 1.5  # the save is not counted
    assert len(saved) == 1
    assert timed["plain loop"]() > 0


@pytest.mark.parametrize(
    "word",
    [
        *("norm=ln", "norm.gain=false", "norm.eps=1e-6", "model.placement=post", "model.activation=gelu"),
        *("model.tied=false", "model.qk_norm=true", "precision=bfloat16", "micro_batches=2", "scale=large"),
    ],
)
def test_another_model_than_the_plain_one_is_refused(word: str) -> None:
    trainer_overhead.check_model(config.job(["task=language_model", "norm=rms", "norm.impl=fused"]))
    trainer_overhead.check_model(config.job(["task=cifar10", "norm=ln"]))
    key = {"norm": "norm.name", "scale": "precision"}.get(word.partition("=")[0], word.partition("=")[0])
    with pytest.raises(ValueError, match=f"^{key} is .*, but the plain language model has "):
        trainer_overhead.check_model(config.job(["task=language_model", word]))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["task=cifar10", "micro_batches=2"], "micro_batches is 2, but the plain loop has 1; leave micro_batches out"),
        (["task=cifar10", "precision=bfloat16"], "precision is bfloat16, but the plain loop has float32; leave"),
        (["task=rnnsearch"], "task=rnnsearch has no plain loop to compare with; use one of cifar10, language_model"),
    ],
)
def test_steps_that_the_plain_loop_does_not_do_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        trainer_overhead.check_model(config.job(words))
