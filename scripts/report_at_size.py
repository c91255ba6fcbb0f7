"""Make many runs, and measure how long a report of them takes, and how much memory.

    python scripts/report_at_size.py [--runs 1000 [NUMBER ...]] [--rows 2000] [--settings 5]

The runs are copies of the reference runs of six tasks, with other seeds, each row as often as needed, and random
changes of their values, so that curves have the shapes of real ones. They are made in a temporary folder, which is
removed at the end. ``python -m rmsexp.report`` is then measured three times: when it reads all runs for the first time,
again, and after one run has changed. Memory is the proportional set size (PSS), summed over the processes of the
report, and sampled several times a second; so is their processor time, which depends less on what else the machine
does.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from check_record import Check, add_option, run
from data_at_size import watched

from rmsexp import record
from rmsexp.command_line import ReportedError, inform
from rmsexp.machine_lock import measuring
from rmsexp.readers import read_json

REFERENCE = Path(__file__).parents[1] / "results/reference"
TASKS = ("cifar10", "rnnsearch", "transformer", "attentive_reader", "order_embedding", "language_model")
NORMS = ("none", "ln", "rms", "prms", "bn")
NOISE = 0.02  # relative changes of values
VARIANTS = 8  # different contents of metrics per norm


def make(root: Path, runs: int, rows: int, settings: int) -> None:
    """Write ``runs`` runs of ``rows`` rows each below ``root``, in equal shares over settings and norms."""
    tasks = [task for task in TASKS if all(any(REFERENCE.glob(f"*/{task}/small/{norm}/seed0")) for norm in NORMS)]
    seeds = runs // (settings * len(NORMS))
    if seeds * settings * len(NORMS) != runs:
        raise ReportedError(f"--runs {runs} is no multiple of {settings} settings x {len(NORMS)} norms")
    for number in range(settings):
        task = tasks[number % len(tasks)]
        setting = "small" + f"+batch_size={number // len(tasks)}" * (number >= len(tasks))
        for norm in NORMS:
            (template, *_) = sorted(REFERENCE.glob(f"*/{task}/small/{norm}/seed0"))
            contents = [_metrics(template, rows, random.Random(variant)) for variant in range(min(seeds, VARIANTS))]
            for seed in range(seeds):
                _write(root, template, setting, seed, contents[seed % VARIANTS], rows)


def _metrics(template: Path, rows: int, rng: random.Random) -> bytes:
    """Return the content of metrics with this number of rows: those of a run, each repeated, with values changed."""
    stored = record.RunFolder(template).read_metrics()[0]
    stored = [row for row in stored if row["step"]]
    lines = []
    for number in range(rows):
        row = copy.deepcopy(stored[number * len(stored) // rows])
        for key, value in row.items():
            if isinstance(value, float) and key != "epoch":
                row[key] = value * (1 + rng.uniform(-NOISE, NOISE))
        row["step"] = 10 * (number + 1)
        row["seconds"] = dict.fromkeys(record.BUCKETS, 0.05 * (number + 1))
        lines.append(json.dumps(row))
    return ("\n".join(lines) + "\n").encode()


def _write(root: Path, template: Path, setting: str, seed: int, metrics: bytes, rows: int) -> None:
    run: dict[str, Any] = read_json(template / record.RUN) | {"setting": setting, "seed": seed}
    folder = record.RunFolder(root / run["task"] / setting / run["series"] / f"seed{seed}")
    folder.path.mkdir(parents=True)
    shutil.copy(template / record.CONFIG, folder.config_path)
    folder.run_path.write_text(json.dumps(run | {"recipe_steps": 10 * rows}))
    folder.metrics_path.write_bytes(metrics)
    folder.write_status("finished", 10 * rows, metrics=folder.metrics_digest(len(metrics)))


def measure(root: Path, cache: Path) -> dict[str, float]:
    """Do the report once; return its ``seconds``, its processor time (``cpu``), its largest ``memory`` in bytes."""
    command = [sys.executable, "-m", "rmsexp.report", str(root)]
    found = watched("the report", command, stdout=subprocess.DEVNULL, env=os.environ | {"HOME": str(cache)})
    return {"seconds": found["seconds"], "cpu": found["processor"], "memory": found["mebibytes"] * 2**20}


def measure_all(results: Path, cache: Path) -> dict[str, dict[str, float]]:
    """Return what :func:`measure` found for the first report, the second, and the one after a run has changed."""
    found = {}
    for name in ("first", "again", "one run changed"):
        if name == "one run changed":
            folder = record.RunFolder(next(iter(record.find_runs(results))))
            row = folder.read_last_rows(1 << 12)[-1]
            length = folder.append([row | {"step": row["step"] + 10}], folder.metrics_path.stat().st_size)
            folder.write_status("finished", row["step"] + 10, metrics=folder.metrics_digest(length))
        found[name] = measure(results, cache)
        seconds, cpu, memory = found[name].values()
        print(f"{name}: {seconds:.1f} s, CPU time {cpu:.1f} s, {memory / 2**30:.2f} GiB", flush=True)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, nargs="+", default=[1000], help="number of runs, or several (1000)")
    parser.add_argument("--rows", type=int, default=2000, help="number of rows of each run (2000)")
    parser.add_argument("--settings", type=int, default=5, help="number of settings (5)")
    add_option(parser, None)
    options = parser.parse_args(argv)
    check = Check("report_at_size", options.results)
    sizes = []
    for runs in options.runs:
        with tempfile.TemporaryDirectory(prefix="rmsexp-report-") as root:
            results = Path(root, "results")
            make(results, runs, options.rows, options.settings)
            print(f"{runs:,} runs are made", flush=True)
            with measuring(inform):
                sizes.append({"runs": runs, "reports": measure_all(results, Path(root, "cache"))})
    check.write({"rows": options.rows, "settings": options.settings, "sizes": sizes})
    return 0


if __name__ == "__main__":
    run(main)
