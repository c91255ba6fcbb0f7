"""Synthetic run folders, for tests of code that reads records."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rmsexp import atomic, record


def make_row(step: int, loss: float | None, split: str = "train") -> record.Row:
    """Return a row of metrics. Each bucket of the clock has ``step`` seconds."""
    return {"step": step, "split": split, "loss": loss, "seconds": dict.fromkeys(record.BUCKETS, 1.0 * step)}


def write_run(
    root: Path,
    series: str = "rms",
    seed: int = 0,
    *,
    steps: int = 400,
    every: int = 4,
    seconds_per_step: float = 0.1,
    status: str = "finished",
    contention: str = "clear",
    **run: Any,
) -> Path:
    """Write a run and return its folder, ``<root>/cifar10/<setting>/<series>/seed<seed>``, without a config.

    ``run`` replaces values of ``run.json``. There is a training row every ``every`` steps, and an evaluation on the
    test split at step 0 and then every ``10 * every`` steps.
    """
    setting = run.get("setting", "demo")
    folder = root / "cifar10" / setting / series / f"seed{seed}"
    folder.mkdir(parents=True)
    norm = series.split("+")[0]
    session = {
        "started": "2026-11-21T03:00:00+00:00",
        "from_step": 0,
        "git": {"commit": "abc", "dirty": False},
        "code": "sha",
        "versions": {"python": "3.11.7", "torch": "2.15.0"},
        "device": "AMD EPYC",
        "threads": 2,
        "comparable": True,
        "contention": {"state": contention, "waited": 0.004, "steal": 0.0},
    }
    identity = {"format": 1, "task": "cifar10", "norm": norm, "scale": "demo", "seed": seed, "setting": setting}
    description = {
        "series": series,
        "impl": "fused" if "impl=fused" in series else "eager",
        "recipe_steps": 400,
        "target": {"split": "test", "metric": "error", "mode": "min", "selection": "test"},
        "dataset": {"name": "shapes twin", "digest": "0", "builtin": True},
        "parameters": {"total": 1, "modules": {}},
        "sessions": [session],
    }
    atomic.write_json(folder / record.RUN, identity | description | run)
    error = "the loss is not finite" if status == "diverged" else None
    atomic.write_json(folder / record.STATUS, {"status": status, "step": steps, "error": error})
    pace = 1 + sum(map(ord, series)) % 11 / 8 + seed / 3
    rows = [row for step in range(0, steps + 1, every) for row in _rows(step, every, seconds_per_step, pace)]
    record.RunFolder(folder).append(rows)
    return folder


def _rows(step: int, every: int, seconds_per_step: float, pace: float) -> list[record.Row]:
    total = step * seconds_per_step
    seconds = {"warmup": 1, "data": total / 4, "train": total * 3 / 4, "eval": total / 9, "checkpoint": 0.1, "log": 0.2}
    shared = {"step": step, "epoch": step / 100, "examples": step * 32, "seconds": seconds}
    loss = 0.2 + pace / 20 + 2.1 * math.exp(-step / 90 * pace)
    noise = 0.04 * math.sin(step * 1.7 + pace * 40)
    training = {"split": "train", "loss": loss + noise, "objective": loss, "error": loss / 3, "lr": 0.1, "grad_norm": 1}
    evaluation = {"split": "test", "loss": loss + 0.1, "error": 0.1 + loss / 3}
    return [shared | training] * (step > 0) + [shared | evaluation] * (step % (every * 10) == 0)
