"""The check of several processes, ``python scripts/distributed_equality.py``: its runs, kills and limits."""

from __future__ import annotations

import signal
import time
from functools import partial
from pathlib import Path

import distributed_equality
import fast_steps
import forked_run
import pytest
import torch
from helpers.thread_group import ThreadGroup, in_threads
from torch import nn

from rmsexp import config


@pytest.mark.parametrize(
    ("seconds", "starts", "errors"),
    [
        (3.0, [7, 21, 30], []),
        (3.0, [7, 21, 29], []),
        (100.0, [7, 21, 30], ["Kill(rank=0, step=10", "Kill(rank=1, step=20", "Kill(rank=2, step=30"]),
        (3.0, [0, 14, 28], ["continued from another step"] * 3),
        (3.0, [9, 20, 31], ["continued from another step"] * 3),
    ],
)
def test_all_processes_must_end_within_a_minute_and_continue_from_the_step_that_was_saved(
    seconds: float, starts: list[int], errors: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process 0 of two gets SIGKILL, 1 of three SIGTERM, 2 of four SIGKILL. Checkpoints are of steps 7, 14, …."""

    def run(_: object, size: int, log: Path, kill: forked_run.Kill | None = None) -> list[int]:
        if kill is None:
            return [0] * size
        (log.parent / forked_run.KILLED_AT).write_text(str(time.monotonic() - seconds))
        others = 1 if kill.signum == signal.SIGKILL else 128 + signal.SIGTERM
        return [-kill.signum if rank == kill.rank else others for rank in range(size)]

    of_continuations = iter(starts)
    monkeypatch.setattr(distributed_equality, "run", run)
    monkeypatch.setattr(distributed_equality, "from_step", lambda _: next(of_continuations))
    monkeypatch.setattr(distributed_equality, "differences", lambda *_, **__: [])
    found, kills = distributed_equality.killed_run([], 40, [1, 2, 3, 4], tmp_path, tmp_path / "log.txt")
    assert [(kill["rank"], kill["processes"]) for kill in kills] == [(0, 2), (1, 3), (2, 4)]
    assert [kill["signum"] for kill in kills] == [signal.SIGKILL, signal.SIGTERM, signal.SIGKILL]
    assert [kill["from_step"] for kill in kills] == starts
    assert [line[: len(error)] for line, error in zip(found, errors, strict=True)] == errors


@pytest.mark.parametrize("scale", distributed_equality.SCALES)
@pytest.mark.parametrize("task", distributed_equality.TINY)
def test_micro_batches_divide_neither_the_batch_nor_the_processes_and_noise_is_on(task: str, scale: str) -> None:
    cfg = config.job(distributed_equality.words_of(task, "rms", 40, scale)).config
    _, parts = cfg.parts
    assert all(parts % size for size in (2, 3, 4))
    assert task == "transformer" or cfg.batch_size % parts
    noise = {key: value for key, value in vars(cfg.model).items() if key == "noise" or key.endswith("dropout")}
    assert all(noise.values()), noise


def made_differences(words: list[str]) -> list[list[float]]:
    """Return what the steps of reduce=fast differ in, as each of three threads finds it."""
    return in_threads(3, partial(fast_steps.differences, config.job(words)))


@pytest.mark.usefixtures("small_synthetic_data")
def test_a_fast_sum_that_loses_a_gradient_changes_the_next_loss(
    text_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*distributed_equality.words_of("order_embedding", "bn", 3, "tiny"), f"data.root={text_cache}"]
    first, *others = made_differences(words)
    assert len(first) == 3
    assert max(first) < distributed_equality.LARGEST_LOSS_DIFFERENCE
    assert others == [first] * 2

    def lose_the_last_gradients(group: ThreadGroup, tensor: torch.Tensor) -> None:
        gathered = group.gather(tensor.clone())
        tensor.copy_(torch.stack(gathered).sum(0))
        tensor[-100:] = gathered[0][-100:]

    monkeypatch.setattr(ThreadGroup, "sum", lose_the_last_gradients)
    first, *_ = made_differences(words)
    assert min(first) > distributed_equality.LARGEST_LOSS_DIFFERENCE


def test_a_weight_of_each_matrix_changes_by_a_unit_in_its_last_place() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last))
    before = [layer.weight.detach().clone() for layer in model]
    forked_run.change_weights(model)
    for layer, weight in zip(model, before, strict=True):
        changed = (layer.weight != weight).flatten().nonzero().flatten().tolist()
        assert changed == ([int(weight.abs().argmax())] if weight.ndim > 1 else [])
        torch.testing.assert_close(layer.weight, weight, rtol=2e-7, atol=0)
