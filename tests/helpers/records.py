"""Synthetic run folders, for tests of code that reads records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rmsexp.records import record
from rmsexp.records.frames import timing_records
from rmsexp.system import atomic, clock


def make_row(step: int, loss: float | None, split: str = "train") -> record.Row:
    """Return a row of metrics. Each bucket of the clock has ``step`` seconds."""
    return {"step": step, "split": split, "loss": loss, "seconds": dict.fromkeys(clock.BUCKETS, 1.0 * step)}


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
        "contention": _contention(contention, 0.004),
    }
    identity = {"format": 1, "task": "cifar10", "norm": norm, "scale": "demo", "seed": seed, "setting": setting}
    description = {
        "series": series,
        "impl": "fused" if "impl=fused" in series else "eager",
        "recipe_steps": 400,
        "target": {"split": "test", "metric": "error", "mode": "min", "selection": "test"},
        "dataset": {"name": "shapes", "digest": "0", "builtin": True},
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


def write_timing(
    root: Path,
    ratios: Mapping[str, float | Sequence[float]],
    *,
    task: str = "cifar10",
    setting: str = "demo",
    number: int = 0,
    rounds: int = 30,
    groups: Sequence[Sequence[str]] = (),
    state: str = "clear",
    kind: str = "steps",
    session: Mapping[str, object] = {},
    sessions: Sequence[Mapping[str, object]] = (),
    **record: Any,
) -> Path:
    """Write a timing record (``timing.json``, format 2) and return its folder, ``…/timing/<kind><number>``.

    Args:
        root: the results folder.
        ratios: by series, the ratio of its time to that of the reference, which takes 0.05 s; one per process or, if it
            is the same in all, a number. The reference is the first series.
        number: the number of the record.
        rounds: the number of rounds in each process. Ratios differ a little between them.
        groups: the series of each process; by default, all series are in all processes.
        state: the time state of the processes.
        kind: what was timed, a key of ``timing_records.KINDS``.
        session: replaces values of ``session``.
        sessions: replaces values of ``session`` in each process.
        record: replaces values of ``timing.json``.
    """
    folder = root / task / setting / "timing" / f"{kind}{number}"
    folder.mkdir(parents=True)
    reference = next(iter(ratios))
    lists = {name: [value] if isinstance(value, int | float) else list(value) for name, value in ratios.items()}
    groups = groups or [list(ratios)] * max(map(len, lists.values()))
    described = {
        "started": f"2026-11-2{number}T03:00:00+00:00",
        "git": {"commit": "abcdef0123", "dirty": False},
        "code": "sha",
        "versions": {"torch": "2.15.0"},
        "device": "AMD EPYC",
        "threads": 1,
        "contention": _contention(state, 0.0),
        **session,
    }
    noise = 0.002 * np.sin(2.4 * np.arange(rounds))
    processes = []
    for place, group in enumerate(groups):
        earlier = [sum(name in other for other in groups[:place]) for name in group]
        of_process = {name: lists[name][min(k, len(lists[name]) - 1)] for name, k in zip(group, earlier, strict=True)}
        seconds = {name: (0.05 * (ratio + (name != reference) * noise)).tolist() for name, ratio in of_process.items()}
        processes.append(
            {
                "session": {**described, **(sessions[place] if sessions else {})},
                "steps_per_block": 3,
                "data_seconds": 0.001,
                "series": list(group),
            }
            | {"seconds": seconds}
        )
    content: dict[str, Any] = {"task": task, "scale": setting.split("+")[0], "setting": setting, "seed": 0}
    content |= {"kind": kind, "reference": reference, "options": {}, "stopped": "narrow enough"}
    content |= {
        "format": 2,
        "dataset": {"name": "shapes", "digest": "0", "builtin": True},
        "processes": processes,
        "series": [
            {"series": name, "impl": "fused" if "impl=fused" in name else "eager", "parts": {}, "peak_bytes": None}
            for name in ratios
        ],
    }
    atomic.write_json(folder / timing_records.FILE, content | record)
    return folder


def load_timings(root: Path) -> pd.DataFrame:
    """Return the rows of all timing records below a folder, each of which must be readable."""
    problems: list[str] = []
    rows = timing_records.load(root, problems)
    assert not problems
    return rows


def _contention(state: str, waited: float) -> dict[str, Any]:
    """Return the entry ``contention`` of a session. If the state is unknown, so are the others."""
    known = state != "unknown"
    return {"state": state, "waited": waited if known else None, "steal": 0.0 if known else None}
