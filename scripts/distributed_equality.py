"""Check that a run gives the same bits with any number of processes, also if it is killed and continued with another.

    python scripts/distributed_equality.py [--tasks cifar10,rnnsearch] [--norms rms,bn] [--steps 40] [--scale demo]
    python scripts/distributed_equality.py --hang

For each task and norm there are runs on 1, 2, 3 and 4 processes, and one that is killed at every tenth step: one of its
processes, in turn, gets SIGKILL or SIGTERM, and the run continues with another number of processes. Parameters,
buffers, optimiser and metrics are compared with those of one process. The number of micro-batches divides neither the
batch nor the number of processes; dropout and noise are on. With --scale tiny the models are smaller than those of
scale=demo.

After a SIGKILL the other processes get no signal for a minute: they must end by themselves, and the seconds are
recorded. The run must continue from the last completed step; only if process 0 was killed, from the last checkpoint.

The sum of reduce=fast is compared step by step: each step of the exact run is repeated with it from the same state, and
the loss of the next step must be equal up to rounding (fast_steps.py). A whole run with reduce=fast is recorded beside
this. Its first three losses must be equal up to rounding, and later ones drift apart, because Adam divides even
gradients that are zero up to rounding by their size. A control shows how fast: the run on one process, where the
largest weight of each matrix is changed by a unit in its last place before the first step.

With --hang one of two processes is stopped without ending it (SIGSTOP), and the run must end within a minute.
This script starts the processes as torchrun does, but by fork, which saves the imports and the making of the data.
With --results the results are written to a record (check_record.py). The same command goes on after the last task and
norm that was finished.
"""

from __future__ import annotations

import argparse
import itertools
import math
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import check_record
import disturb
import fast_steps
from check_record import Check, Parts, add_option
from forked_run import END_SECONDS, KILLED_AT, Kill, run

from rmsexp.records import record
from rmsexp.system import process
from rmsexp.train import provenance

NAME, HANG = "distributed_equality", "distributed_hang"
CHECKPOINT_EVERY = 7
SEARCH = ["decoding.max_length=6", "decoding.beyond_source=2", "decoding.beam=2", "decoding.valid_beam=1"]
SHORT_SENTENCES = ["data.max_length=16", "data.overlong=drop"]
# 7 divides none of these batch sizes. In recurrences a batch norm needs at least 8 examples of a micro-batch, so that
# rnnsearch has another batch size than the demo. Seven micro-batches of 115 tokens are as large as the demo's one.
DEMO = {
    "language_model": ["micro_batches=7"],
    "order_embedding": ["micro_batches=7"],
    "cifar10": ["micro_batches=7"],
    "transformer": ["tokens=115", "accumulate=7", "model.attention_dropout=0.1", "model.relu_dropout=0.1", *SEARCH],
    "rnnsearch": ["batch_size=60", "micro_batches=7", "model.dropout=0.2", *SEARCH],
    "attentive_reader": ["micro_batches=7"],
}
TINY = {
    "language_model": [
        *("model.width=16", "model.layers=1", "model.inner=32", "model.heads=2", "model.kv_heads=1", "context=16"),
        *("batch_size=8", "micro_batches=5"),
    ],
    "order_embedding": ["model.embedding=8", "model.hidden=8", "batch_size=16", "micro_batches=5"],
    "cifar10": ["model.width=0.05", "batch_size=8", "micro_batches=5"],
    "transformer": [
        *("model.width=16", "model.layers=1", "model.inner=16", "model.heads=2", "tokens=100", "accumulate=5"),
        *("model.attention_dropout=0.1", "model.relu_dropout=0.1", *SEARCH, *SHORT_SENTENCES),
    ],
    "rnnsearch": [
        *("model.embedding=8", "model.hidden=12", "batch_size=16", "micro_batches=5", "model.dropout=0.2"),
        *(*SEARCH, *SHORT_SENTENCES),
    ],
    "attentive_reader": ["model.width=8", "batch_size=16", "micro_batches=5"],
}
SCALES = {"demo": DEMO, "tiny": TINY}  # the keys that differ from scale=demo, by task
SIGNALS = (signal.SIGKILL, signal.SIGTERM)  # that the kills use in turn
STOPPED = {128 + signal.SIGTERM, -signal.SIGTERM}  # the latter if it comes again, as from torchrun, after the run
LARGEST_LOSS_DIFFERENCE = 1e-5  # relative, with reduce=fast
LOSS_DIFFERS = "the loss differs by"  # begins the message about a larger one


def words_of(task: str, norm: str, steps: int, scale: str) -> list[str]:
    edges = [f"max_steps={steps}", "log_every=3", "eval_every=40", f"checkpoint_every={CHECKPOINT_EVERY}", "threads=1"]
    # the tiny micro-batches have at least three examples
    few = ["norm.min_examples=2"] if scale == "tiny" and norm in ("bn", "mean_only_bn") else []
    return [f"task={task}", f"norm={norm}", *few, *SCALES[scale][task], *edges]


def differences(reference: Path, other: Path, *, was_killed: bool = False) -> list[str]:
    """Return a line for each difference between two finished runs; ``was_killed``: whether the second one was killed.

    A killed run has written one more checkpoint, so its last but one is another.
    """
    contents = [disturb.run_content(results) for results in (reference, other)]
    if was_killed:
        for content in contents:
            content.pop("previous.pt", None)
    return disturb.differences(*contents)


def losses(results: Path) -> list[float]:
    (folder,) = record.find_runs(results)
    return [row["loss"] for row in record.RunFolder(folder).read_metrics()[0] if row["split"] == "train"]


def loss_differences(a: Path, b: Path) -> list[float]:
    """Return the relative difference of the loss of two runs, in each row: the mean of three steps."""
    return [abs(one - other) / abs(one) for one, other in zip(losses(a), losses(b), strict=True)]


def check(
    task: str, norm: str, steps: int, sizes: Sequence[int], scale: str, root: Path, data: Sequence[str]
) -> dict[str, Any]:
    """Do all runs of a task and a norm; return the errors of each, by its name, and what reduce=fast changed."""
    words, log = [*words_of(task, norm, steps, scale), *data], root / "log.txt"
    errors: dict[str, list[str]] = {}
    for size in sizes:
        statuses = run([*words, f"results={root / str(size)}"], size, log)
        name = f"{size} processes"
        errors[name] = failed(statuses) or differences(root / "1", root / str(size))
    errors["killed"], kills = killed_run(words, steps, sizes, root, log)
    found = {"model": SCALES[scale][task], "errors": errors, "kills": kills}
    statuses, found["fast_step_loss_differences"] = fast_steps.measure(words, max(sizes), root, log)
    errors["fast steps"] = failed(statuses)
    fast = run([*words, "reduce=fast", f"results={root / 'fast'}"], max(sizes), log)
    changed = run([*words, f"results={root / 'changed'}"], 1, log, is_changed=True)
    for name, statuses in ("fast", fast), ("changed", changed):
        errors[name] = failed(statuses)
        found[f"{name}_loss_differences"] = [] if any(statuses) else loss_differences(root / "1", root / name)
    for name, part in ("fast steps", found["fast_step_loss_differences"]), ("fast", found["fast_loss_differences"][:1]):
        if larger := [change for change in part if not change <= LARGEST_LOSS_DIFFERENCE]:  # NaN counts as larger
            errors[name].append(f"{LOSS_DIFFERS} {max(larger):.1e}")
    return found


def failed(statuses: Sequence[int]) -> list[str]:
    """Return a line if one of these exit statuses is not 0."""
    return [f"exit statuses {statuses}"] if any(statuses) else []


def since_the_kill(root: Path) -> float:
    """Return the seconds since the kill; infinity if the run failed before."""
    killed = root / KILLED_AT
    return time.monotonic() - float(killed.read_text()) if killed.exists() else math.inf


def killed_run(
    words: Sequence[str], steps: int, sizes: Sequence[int], root: Path, log: Path
) -> tuple[list[str], list[dict[str, Any]]]:
    """Kill a run at every tenth step, each time with another number of processes.

    Return errors and differences; and of each kill the process, the step, the signal, the number of processes, the
    seconds after which all of them had ended, and the step from which the run continued.
    """
    errors, found, results = list[str](), list[dict[str, Any]](), root / "killed"
    command, order = [*words, f"results={results}"], [*sizes[1:], sizes[0]]
    for number, step in enumerate(range(10, steps, 10)):
        size = order[number % len(order)]
        kill = Kill(number % size, step, SIGNALS[number % len(SIGNALS)])
        (root / KILLED_AT).unlink(missing_ok=True)
        statuses = run(command, size, log, kill)
        seconds = since_the_kill(root)
        stopped = kill.signum == signal.SIGTERM and set(statuses) <= STOPPED
        ended = stopped or (statuses[kill.rank] == -kill.signum and all(statuses))
        if not ended or seconds > END_SECONDS:
            errors.append(f"{kill} of {size} processes: exit statuses {statuses} after {seconds:.0f} s")
        if found:
            found[-1]["from_step"] = from_step(results)
        found.append(kill._asdict() | {"processes": size, "seconds": seconds})
    statuses = run(command, order[-1], log)
    if any(statuses):
        return [*errors, *failed(statuses)], found
    if found:
        found[-1]["from_step"] = from_step(results)
    errors += [f"continued from another step: {kill}" for kill in found if not continued_well(kill)]
    return errors + differences(root / "1", results, was_killed=True), found


def from_step(results: Path) -> int:
    """Return the step from which the last session of the only run in a folder continued."""
    (folder,) = record.find_runs(results)
    return int(record.RunFolder(folder).read_run()["sessions"][-1]["from_step"])


def continued_well(kill: Mapping[str, Any]) -> bool:
    """Return whether the run continued from the step that process 0 must have saved.

    After SIGTERM all processes complete the step. If process 0 is killed, the last checkpoint remains. If another one
    is killed, process 0 saves the last step that it has completed; that may be one less than the killed process had.
    """
    step = kill["step"]
    if kill["signum"] == signal.SIGTERM:
        return kill["from_step"] == step + 1
    if kill["rank"] == 0:
        return kill["from_step"] == step - step % CHECKPOINT_EVERY
    return kill["from_step"] in (step - 1, step)


def unanswered(root: Path, data: Sequence[str]) -> dict[str, Any]:
    """Stop one of two processes without ending it; return errors, and the seconds after which the run has ended.

    Process 0 saves the last complete step, and the run continues on one process.
    """
    words, log, step = [*words_of("order_embedding", "rms", 12, "tiny"), *data], root / "log.txt", 8
    reference, stopped = ([*words, f"results={root / name}"] for name in ("1", "stopped"))
    run(reference, 1, log)
    statuses = run(stopped, 2, log, Kill(1, step, signal.SIGSTOP))
    seconds = since_the_kill(root)
    errors = [] if f"saved step {step}" in log.read_text() else [f"step {step} was not saved"]
    if statuses != [1, -signal.SIGKILL] or seconds > END_SECONDS:
        errors.append(f"exit statuses {statuses} after {seconds:.0f} s")
    run(stopped, 1, log)
    return {"errors": errors + differences(root / "1", root / "stopped", was_killed=True), "seconds": seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", default=",".join(TINY), help="tasks, with commas (all)")
    parser.add_argument("--norms", default="rms,bn", help="norms, with commas (rms,bn)")
    parser.add_argument("--steps", type=int, default=40, help="steps of each run (40)")
    parser.add_argument("--sizes", default="1,2,3,4", help="numbers of processes, from 1 on (1,2,3,4)")
    parser.add_argument("--scale", choices=SCALES, default="demo", help="size of the models (demo)")
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
    runs = {"steps": options.steps, "sizes": sizes, "scale": options.scale}
    planned = [{"task": task, "norm": norm} | runs for task, norm in tasks_and_norms]
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
            parts.add(found | provenance.git() | {"code": provenance.code(), "machine": provenance.machine_id()})
    if parts is not None:
        parts.write(runs | {"runs": done})
    return int(any(lines for run in done for lines in run["errors"].values()))


def describe(found: Mapping[str, Any]) -> str:
    """Return what :func:`check` has found, in a line."""
    wrong = [f"{name}: {line}" for name, lines in found["errors"].items() for line in lines]
    fast, changed = (
        " ".join(f"{change:.0e}" for change in found[f"{name}_loss_differences"]) for name in ("fast", "changed")
    )
    steps = f"after one step with reduce=fast at most {max(found['fast_step_loss_differences'], default=math.nan):.0e}"
    return f"{'; '.join(wrong) or 'equal'}; {steps}; reduce=fast: {fast}; weights changed: {changed}"


if __name__ == "__main__":
    check_record.run(main)
