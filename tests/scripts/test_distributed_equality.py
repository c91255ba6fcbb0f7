"""The check of several processes, ``python scripts/distributed_equality.py``: its runs and its kills."""

from __future__ import annotations

import signal
from pathlib import Path

import distributed_equality
import forked_run
import pytest

from rmsexp import config


@pytest.mark.parametrize("scale", distributed_equality.SCALES)
@pytest.mark.parametrize("task", distributed_equality.TINY)
def test_micro_batches_divide_neither_the_batch_nor_the_processes_and_noise_is_on(task: str, scale: str) -> None:
    cfg = config.job(distributed_equality.words_of(task, "rms", 40, scale)).config
    _, parts = cfg.parts
    assert all(parts % size for size in (2, 3, 4))
    assert task == "transformer" or cfg.batch_size % parts
    noise = {key: value for key, value in vars(cfg.model).items() if key == "noise" or key.endswith("dropout")}
    assert all(noise.values()), noise


@pytest.mark.parametrize(("others", "errors"), [(1, 0), (-signal.SIGKILL, 2)])
def test_processes_must_end_by_themselves_after_a_sigkill(
    others: int, errors: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = []

    def run(_: object, size: int, log: Path, kill: forked_run.Kill | None = None) -> list[int]:
        del log
        if kill is None:
            return [0] * size
        kills.append(kill)
        rest = others if kill.signum == signal.SIGKILL else 128 + signal.SIGTERM
        return [-kill.signum if rank == kill.rank else rest for rank in range(size)]

    monkeypatch.setattr(distributed_equality, "run", run)
    monkeypatch.setattr(distributed_equality.disturb, "contents", lambda _: {})
    assert len(distributed_equality.check([], 40, [1, 2, 3, 4], tmp_path)) == errors
    assert [kill.signum for kill in kills] == [signal.SIGKILL, signal.SIGTERM, signal.SIGKILL]
