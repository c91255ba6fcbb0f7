"""Check that a run gives the same bits with any number of processes, also if it is killed and continued with another.

    python scripts/distributed_equality.py [--tasks cifar10,rnnsearch] [--norms rms,bn] [--steps 40] [--data-root DIR]
    python scripts/distributed_equality.py --hang

For each task and norm there are runs of a small model on 1, 2, 3 and 4 processes, and one that is killed at every tenth
step: one of its processes, in turn, gets SIGKILL or SIGTERM, and the run continues with another number of processes.
Parameters, buffers, optimiser and metrics are compared with those of one process. The number of micro-batches divides
neither the batch nor the number of processes; dropout and noise are on. After a SIGKILL the other processes get no
signal for a minute: they must end by themselves, and the seconds are recorded.
A run with reduce=fast is compared by its losses: those of the first three steps must be equal up to rounding. Later
ones drift apart, because Adam divides even gradients that are zero up to rounding by their size. A control shows how
fast: the run on one process, where the largest weight of each matrix is changed by a unit in its last place before the
first step.
With --hang one of two processes is stopped without ending it (SIGSTOP), and the run must end within a minute.
This script starts the processes as torchrun does, but by fork, which saves the imports and the making of the data.
With --results the results are written to a record (check_record.py). The whole check takes hours; the same command goes
on after the last task and norm that was finished.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import chaos
from check_record import Check, Parts, add_option
from forked_run import END_SECONDS, KILLED_AT, Kill, run

from rmsexp import process, record
from rmsexp.train import provenance, quiet

NAME, HANG = "distributed_equality", "distributed_hang"
TASKS = {
    "language_model": [
        *("model.width=16", "model.layers=1", "model.inner=32", "model.heads=2", "model.kv_heads=1", "context=16"),
        *("batch_size=8", "micro_batches=5"),
    ],
    "order_embedding": ["model.embedding=8", "model.hidden=8", "batch_size=8", "micro_batches=5"],
    "cifar10": ["model.width=0.05", "batch_size=8", "micro_batches=5"],
    "transformer": [
        *("model.width=16", "model.layers=1", "model.inner=16", "model.heads=2", "tokens=100", "accumulate=5"),
        *("model.dropout=0.1", "model.attention_dropout=0.1"),
    ],
    "rnnsearch": ["model.embedding=8", "model.hidden=12", "batch_size=16", "micro_batches=5", "model.dropout=0.2"],
    "attentive_reader": ["model.width=8", "batch_size=16", "micro_batches=5"],
}
SEARCH = ["decoding.max_length=6", "decoding.beyond_source=2", "decoding.beam=2", "decoding.valid_beam=1"]
SHORT_SENTENCES = ["data.max_length=16", "data.overlong=drop"]
SIGNALS = (signal.SIGKILL, signal.SIGTERM)  # that the kills use in turn
LARGEST_LOSS_DIFFERENCE = 1e-5  # relative, with reduce=fast


def words_of(task: str, norm: str, steps: int) -> list[str]:
    edges = [f"max_steps={steps}", "log_every=3", "eval_every=40", "checkpoint_every=7", "threads=1"]
    text = [*SEARCH, *SHORT_SENTENCES] if task in ("rnnsearch", "transformer") else []
    return [f"task={task}", f"norm={norm}", *TASKS[task], *text, *edges]


def differences(reference: Path, other: Path, *, was_killed: bool = False) -> list[str]:
    """Return a line for each difference between two finished runs; ``was_killed``: whether the second one was killed.

    A killed run has written one more checkpoint, so its last but one is another.
    """
    contents = [chaos.run_content(results) for results in (reference, other)]
    if was_killed:
        for content in contents:
            content.pop("previous.pt", None)
    return chaos.differences(*contents)


def losses(results: Path) -> list[float]:
    (folder,) = record.find_runs(results)
    return [row["loss"] for row in record.RunFolder(folder).read_metrics()[0] if row["split"] == "train"]


def loss_differences(a: Path, b: Path) -> list[float]:
    """Return the relative difference of the loss of two runs, in each row: the mean of three steps."""
    return [abs(one - other) / abs(one) for one, other in zip(losses(a), losses(b), strict=True)]


def check(task: str, norm: str, steps: int, sizes: Sequence[int], root: Path, data: Sequence[str]) -> dict[str, Any]:
    """Do all runs of a task and a norm; return the errors of each, by its name, and what reduce=fast changed."""
    words, log = [*words_of(task, norm, steps), *data], root / "log.txt"
    errors: dict[str, list[str]] = {}
    for size in sizes:
        statuses = run([*words, f"results={root / str(size)}"], size, log)
        name = f"{size} processes"
        errors[name] = [f"exit statuses {statuses}"] if any(statuses) else differences(root / "1", root / str(size))
    errors["killed"], kills = killed_run(words, steps, sizes, root, log)
    fast = run([*words, "reduce=fast", f"results={root / 'fast'}"], max(sizes), log)
    changed = run([*words, f"results={root / 'changed'}"], 1, log, is_changed=True)
    found = {"model": TASKS[task], "errors": errors, "kills": kills}
    for name, statuses in ("fast", fast), ("changed", changed):
        errors[name] = [f"exit statuses {statuses}"] if any(statuses) else []
        found[f"{name}_loss_differences"] = [] if any(statuses) else loss_differences(root / "1", root / name)
    first = next(iter(found["fast_loss_differences"]), 0.0)
    if first > LARGEST_LOSS_DIFFERENCE:
        errors["fast"].append(f"the loss of the first steps differs by {first:.1e}")
    return found


def killed_run(
    words: Sequence[str], steps: int, sizes: Sequence[int], root: Path, log: Path
) -> tuple[list[str], list[dict[str, Any]]]:
    """Kill a run at every tenth step, each time with another number of processes.

    Return errors and differences; and of each kill the process, the step, the signal, and the seconds after which all
    processes had ended.
    """
    errors, kills, command = [], [], [*words, f"results={root / 'killed'}"]
    order = [*sizes[1:], sizes[0]]
    for number, step in enumerate(range(10, steps, 10)):
        size = order[number % len(order)]
        kill = Kill(number % size, step, SIGNALS[number % len(SIGNALS)])
        (root / KILLED_AT).unlink(missing_ok=True)
        statuses = run(command, size, log, kill)
        seconds = time.monotonic() - float((root / KILLED_AT).read_text())
        kills.append(kill._asdict() | {"processes": size, "seconds": seconds})
        stopped = kill.signum == signal.SIGTERM and statuses == [128 + signal.SIGTERM] * size
        ended = stopped or (statuses[kill.rank] == -kill.signum and all(statuses))
        if not ended or seconds > END_SECONDS:
            errors.append(f"{kill} of {size} processes: exit statuses {statuses} after {seconds:.0f} s")
    statuses = run(command, order[-1], log)
    if any(statuses):
        return [*errors, f"exit statuses {statuses}"], kills
    return errors + differences(root / "1", root / "killed", was_killed=True), kills


def unanswered(root: Path, data: Sequence[str]) -> dict[str, Any]:
    """Stop one of two processes without ending it; return errors, and the seconds after which the run has ended.

    Process 0 saves the last complete step, and the run continues on one process.
    """
    words, log, step = [*words_of("order_embedding", "rms", 12), *data], root / "log.txt", 8
    reference, stopped = ([*words, f"results={root / name}"] for name in ("1", "stopped"))
    run(reference, 1, log)
    statuses = run(stopped, 2, log, Kill(1, step, signal.SIGSTOP))
    seconds = time.monotonic() - float((root / KILLED_AT).read_text())
    errors = [] if f"saved step {step}" in log.read_text() else [f"step {step} was not saved"]
    if statuses != [1, -signal.SIGKILL] or seconds > END_SECONDS:
        errors.append(f"exit statuses {statuses} after {seconds:.0f} s")
    run(stopped, 1, log)
    return {"errors": errors + differences(root / "1", root / "stopped", was_killed=True), "seconds": seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", default=",".join(TASKS), help="tasks, with commas (all)")
    parser.add_argument("--norms", default="rms,bn", help="norms, with commas (rms,bn)")
    parser.add_argument("--steps", type=int, default=40, help="steps of each run (40)")
    parser.add_argument("--sizes", default="1,2,3,4", help="numbers of processes, from 1 on (1,2,3,4)")
    parser.add_argument("--hang", action="store_true", help="only stop a process, which then does not answer")
    parser.add_argument("--data-root", type=Path, help="folder of the data (data.root)")
    add_option(parser, None)
    options = parser.parse_args()
    assert process.rank_and_size() == (0, 1)
    data = [f"data.root={options.data_root}"] if options.data_root else []
    if options.hang:
        found = unanswered(Path(tempfile.mkdtemp(prefix="rmsexp-equality-")), data)
        print(f"a process that does not answer: {'; '.join(found['errors']) or 'equal'} ({found['seconds']:.0f} s)")
        Check(HANG, options.results).write(found)
        return int(bool(found["errors"]))
    sizes = [int(size) for size in options.sizes.split(",")]
    tasks_and_norms = itertools.product(options.tasks.split(","), options.norms.split(","))
    planned = [{"task": task, "norm": norm, "steps": options.steps, "sizes": sizes} for task, norm in tasks_and_norms]
    parts = Parts(NAME, options.results, planned) if options.results else None
    done: list[dict[str, Any]] = [] if parts is None else parts.done
    for part in planned[len(done) :]:
        root, start = Path(tempfile.mkdtemp(prefix="rmsexp-equality-")), time.monotonic()
        found = check(**part, root=root, data=data)
        seconds = time.monotonic() - start
        print(f"{part['task']} {part['norm']}: {describe(found)} ({seconds:.0f} s, {root})", flush=True)
        if parts is None:
            done.append(part | found)
        else:
            provenance.git.cache_clear()  # the tree may have changed since the part before
            parts.add(found | provenance.git() | {"code": provenance.code(), "machine": quiet.machine_id()})
    if parts is not None:
        parts.write({"steps": options.steps, "sizes": sizes, "runs": done})
    return int(any(lines for run in done for lines in run["errors"].values()))


def describe(found: Mapping[str, Any]) -> str:
    """Return what :func:`check` has found, in a line."""
    wrong = [f"{name}: {line}" for name, lines in found["errors"].items() for line in lines]
    fast, changed = (
        " ".join(f"{change:.0e}" for change in found[f"{name}_loss_differences"]) for name in ("fast", "changed")
    )
    return f"{'; '.join(wrong) or 'equal'}; reduce=fast: {fast}; weights changed: {changed}"


if __name__ == "__main__":
    sys.exit(main())
