"""Which processes are killed, and when all must have ended: ``python scripts/distributed_equality.py``."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.append(str(SCRIPTS))
import distributed_equality  # noqa: E402
import forked_run  # noqa: E402


@pytest.mark.parametrize("seconds", [3.0, 100.0])
def test_each_kill_is_of_another_process_and_all_end_within_a_minute(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: object, size: int, log: Path, kill: forked_run.Kill | None = None) -> list[int]:
        if kill is None:
            return [0] * size
        (log.parent / forked_run.KILLED_AT).write_text(str(time.monotonic() - seconds))
        return [-kill.signum if rank == kill.rank else 1 for rank in range(size)]

    monkeypatch.setattr(distributed_equality, "run", run)
    monkeypatch.setattr(distributed_equality, "differences", lambda *_, **__: [])
    errors, kills = distributed_equality.killed_run([], 40, [1, 2, 3, 4], tmp_path, tmp_path / "log.txt")
    assert [(kill["rank"], kill["processes"]) for kill in kills] == [(0, 2), (1, 3), (2, 4)]
    assert kills[0]["signum"] == signal.SIGKILL
    assert len(errors) == (3 if seconds > 60 else 0)


def test_a_weight_of_each_matrix_changes_by_a_unit_in_its_last_place() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last))
    before = [layer.weight.detach().clone() for layer in model]
    forked_run.change_weights(model)
    for layer, weight in zip(model, before, strict=True):
        changed = (layer.weight != weight).flatten().nonzero().flatten().tolist()
        assert changed == ([int(weight.abs().argmax())] if weight.ndim > 1 else [])
        torch.testing.assert_close(layer.weight, weight, rtol=2e-7, atol=0)
