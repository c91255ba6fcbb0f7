"""The plain language model of scripts/bare_language_model.py is ours, and is trained alike."""

import bare_language_model
import pytest
import torch
from helpers.language_models import make
from helpers.tasks import shake

from rmsexp.train.step import Stepper


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
    stepper = Stepper(task.config, task, model, torch.device("cpu"))
    for step in range(6):
        stepper.take(step, task.batches(step))
    bare_language_model.train(bare, task.config, lambda step: task.batches(step)[0], steps=6, warmup=0)
    for plain, ours in zip(bare.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(plain, ours, rtol=1e-3, atol=1e-4)
