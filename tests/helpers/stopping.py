"""Stop runs at a chosen call of a method, and compare their results with those of undisturbed runs."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import disturb
import pytest

from rmsexp import config
from rmsexp.records import record
from rmsexp.tasks import cifar10
from rmsexp.train.loop import Trainer
from rmsexp.work import runner

# Logs, evaluations and checkpoints coincide at some steps and not at others.
EDGES = ("threads=1", "log_every=2", "eval_every=4", "checkpoint_every=3")
SHORT_RUN = ("model.width=0.05", "batch_size=8", "schedule.steps=8", "schedule.period=1", *EDGES)  # task=cifar10
WARMUP = 3  # number of calls of Trainer._update in the warm-up, which each process does first


def stop(patch: pytest.MonkeyPatch, method: str, nth: int, how: Callable[[], object], owner: object = Trainer) -> None:
    """Patch a method of ``owner`` so that its nth call from now on begins with a call of ``how``."""
    original, calls = getattr(owner, method), 0

    def patched(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth:
            how()
        return original(*arguments)

    patch.setattr(owner, method, patched)


def evaluate_few_images(patch: pytest.MonkeyPatch) -> None:
    """Patch task=cifar10, whose runs in this process are then evaluated on only 20 images, to save time."""
    prepare = cifar10.Task.prepare

    def prepare_few_images(self: cifar10.Task, report: Callable[[str], None]) -> None:
        prepare(self, report)
        images = self._images
        x, y = ({**own, "test": own["test"][:20]} for own in (images.x, images.y))
        self._images = replace(images, x=x, y=y)

    patch.setattr(cifar10.Task, "prepare", prepare_few_images)


def execute_on_few_images(words: Sequence[str]) -> runner.Outcome:
    """Do a run of task=cifar10 with :func:`evaluate_few_images`."""
    with pytest.MonkeyPatch.context() as patch:
        evaluate_few_images(patch)
        return runner.execute(config.job(list(words)))


def crash() -> None:
    raise RuntimeError("planned")


def terminate() -> None:
    signal.raise_signal(signal.SIGTERM)


def send(number: signal.Signals, results: Path, step: int, ended: Callable[[], object]) -> None:
    """Send a signal to the process that trains the only run in ``results`` once it has reached a step.

    ``ended``: whether to give up.
    """
    while not ended():
        for folder in map(record.RunFolder, record.find_runs(results)):
            rows = folder.read_metrics()[0] if folder.metrics_path.exists() else []
            if rows and rows[-1]["step"] >= step and (status := folder.read_status())["status"] == "running":
                os.kill(status["process"], number)
                return
        time.sleep(0.02)


def assert_same(a: Path, b: Path, besides: Sequence[str] = ()) -> None:
    """Check that the results folders of two single runs have the same content, except times.

    The last checkpoint but one, ``previous.pt``, may differ, because an interrupted run writes one more checkpoint. A
    run that crashed may have a traceback, too. ``besides``: files that one of them may lack.
    """
    content_a, content_b = disturb.run_content(a), disturb.run_content(b)
    for content in content_a, content_b:
        del content["previous.pt"]
        content["files"] = [name for name in content["files"] if name not in ("traceback.txt", *besides)]
    assert disturb.differences(content_a, content_b) == []
