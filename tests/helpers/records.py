"""Synthetic run folders and timing records, for tests of code that reads records."""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rmsexp.records import record
from rmsexp.records.frames import timing_records
from rmsexp.system import atomic, clock

DATASET = {"name": "shapes", "digest": "0", "builtin": True}


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    content = json.loads(path.read_text())
    change(content)
    atomic.write_json(path, content)


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
    contention: str = "undisturbed",
    **run: Any,
) -> Path:
    """Write a run and return its folder, ``<root>/cifar10/<setting>/<series>/seed<seed>``, without a config.

    ``run`` replaces values of ``run.json``. There is a training row every ``every`` steps, and an evaluation on the
    test split at step 0 and then every ``10 * every`` steps.
    """
    setting = run.get("setting", "demo")
    folder = root / "cifar10" / setting / series / f"seed{seed}"
    folder.mkdir(parents=True)
    identity = {"task": "cifar10", "norm": series.split("+")[0], "scale": "demo", "seed": seed, "setting": setting}
    description = {
        "series": series,
        "impl": _impl(series),
        "recipe_steps": 400,
        "target": {"split": "test", "metric": "error", "mode": "min", "selection": "test"},
        "dataset": DATASET,
        "parameters": {"total": 1, "modules": {}},
        "sessions": [_session("2026-11-21T03:00:00+00:00", contention, 0.004, threads=2) | {"from_step": 0}],
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
    state: str = "undisturbed",
    kind: str = "steps",
    session: Mapping[str, object] = {},
    sessions: Sequence[Mapping[str, object]] = (),
    **record: Any,
) -> Path:
    """Write a timing record and return its folder, ``…/timing/<kind><number>``.

    Args:
        root: the results folder.
        ratios: by series, the ratio of its time to that of the reference, which takes 0.05 s; one per process or, if it
            is the same in all, a number. The reference is the first series.
        number: the number of the record.
        rounds: the number of rounds in each process. Ratios differ a little between them.
        groups: the series of each process; by default, all series are in all processes.
        state: whether other work disturbed the processes.
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
    described = {**_session(f"2026-11-2{number}T03:00:00+00:00", state, 0.0, threads=1), **session}
    noise, taken, processes = 0.002 * np.sin(2.4 * np.arange(rounds)), Counter[str](), []
    for place, group in enumerate(groups):
        seconds = {}
        for name in group:
            ratio = lists[name][min(taken[name], len(lists[name]) - 1)]
            seconds[name] = (0.05 * (ratio + (name != reference) * noise)).tolist()
        taken.update(group)
        of_process = described | dict(sessions[place] if sessions else {})
        processes.append({"session": of_process, "steps_per_block": 3, "data_seconds": 0.001, "seconds": seconds})
    series = [{"series": name, "impl": _impl(name), "parts": {}, "peak_bytes": None} for name in ratios]
    content = {"task": task, "scale": setting.split("+")[0], "setting": setting, "kind": kind, "reference": reference}
    content |= {"stopped": "narrow enough", "dataset": DATASET, "processes": processes, "series": series}
    atomic.write_json(folder / timing_records.FILE, content | record)
    return folder


def load_timings(root: Path) -> pd.DataFrame:
    """Return the rows of all timing records below a folder, each of which must be readable."""
    problems: list[str] = []
    rows = timing_records.load(root, problems=problems)
    assert not problems
    return rows


def _impl(series: str) -> str:
    return "fused" if "impl=fused" in series else "eager"


def _session(started: str, state: str, waited: float, threads: int) -> dict[str, Any]:
    """Return the session of a process. If that is unknown, so is how long its threads waited."""
    known = state != "unknown"
    return {
        "started": started,
        "git": {"commit": "abc", "dirty": False},
        "code": "sha",
        "versions": {"torch": "2.15.0"},
        "device": "AMD EPYC",
        "threads": threads,
        "contention": {"state": state, "waited": waited if known else None, "steal": 0.0 if known else None},
    }
