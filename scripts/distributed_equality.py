"""Check that a run gives the same bits with any number of processes, also if it is killed and continued with another.

    python scripts/distributed_equality.py [--tasks cifar10,rnnsearch] [--norms rms,bn] [--steps 40] [--data-root DIR]
    python scripts/distributed_equality.py --hang

For each task and norm there are runs on 1, 2, 3 and 4 processes, and one that is killed at every tenth step: one of its
processes gets SIGKILL or SIGTERM, and the run continues with another number of processes. Parameters, buffers,
optimiser and metrics are compared with those of one process. The number of micro-batches divides neither the batch nor
the number of processes; dropout and noise are on.
A run with reduce=fast is compared by its losses: those of the first three steps must be equal up to rounding. Later
ones drift apart, because Adam divides even gradients that are zero up to rounding by their size.
This script starts the processes as torchrun does, but by fork, which saves the imports and the making of the data.
With --results the results are written to a record (check_record.py). The whole check takes hours; the same command goes
on after the last task and norm that was finished.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import as_torchrun
import chaos
import torch
import torch._dynamo  # which the first optimiser would import, in each process
from check_record import Check, Parts, add_option
from torch.distributed import TCPStore

from rmsexp import config, joint_runner, process, record, tasks
from rmsexp.tasks import translation
from rmsexp.train import provenance, quiet
from rmsexp.train.loop import Trainer

NAME = "distributed_equality"
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
GRACE_SECONDS = 30  # as torchrun's: between SIGTERM and SIGKILL for the other processes when one has failed
SIGNALS = (signal.SIGKILL, signal.SIGTERM)  # that the kills use in turn
LIMIT_SECONDS = 3600  # for all processes of a run, also on a busy machine
KEPT: dict[str, Any] = {}  # data by name
PORT_BYTES = 8
LARGEST_LOSS_DIFFERENCE = 1e-5  # relative, with reduce=fast


class Kill(NamedTuple):
    """A planned kill: process ``rank`` gets the signal ``signum`` when it begins step ``step``."""

    rank: int
    step: int
    signum: int


def words_of(task: str, norm: str, steps: int) -> list[str]:
    edges = [f"max_steps={steps}", "log_every=3", "eval_every=40", "checkpoint_every=7", "threads=1"]
    text = [*SEARCH, *SHORT_SENTENCES] if task in ("rnnsearch", "transformer") else []
    return [f"task={task}", f"norm={norm}", *TASKS[task], *text, *edges]


def run(words: Sequence[str], size: int, log: Path, kill: Kill | None = None) -> list[int]:
    """Do a run on ``size`` processes; return their exit statuses, negative for those that a signal ended."""
    job = config.job(words)
    keep_source(job)
    ports, port_writer = os.pipe()
    pids = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            be_process(job, rank, size, ports, log, kill)
        pids.append(pid)
    # after the forks: the store's thread may hold a lock of the C library, which a copy of this process would never get
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(port_writer, size * f"{store.port:{PORT_BYTES}}".encode())
    statuses = wait(pids)
    del store
    os.close(ports)
    os.close(port_writer)
    return statuses


def keep_source(job: config.Job) -> None:
    """Make the built-in data of a job's task once for all processes that are forked later."""
    module, name = sys.modules[tasks.task_class(job.config.task).__module__], job.config.data.name
    sources = getattr(module, "SOURCES", translation.SOURCES)
    if name not in KEPT:
        make = sources[name]
        sources[name] = lambda *words: KEPT.setdefault(name, make(*words)) if name not in KEPT else KEPT[name]
        tasks.make(job, torch.device("cpu"))


def be_process(job: config.Job, rank: int, size: int, ports: int, log: Path, kill: Kill | None) -> None:
    """Take part in the run in this process, as if torchrun had started it, and end the process.

    ``ports``: a pipe from which each process reads the port of the store once.
    """
    with log.open("a") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    as_torchrun.become(rank, size, int(os.read(ports, PORT_BYTES)))
    update = Trainer._update

    def killed(self: Trainer, step: int, batches: Any) -> Any:
        if kill is not None and (rank, step) == (kill.rank, kill.step):
            os.kill(os.getpid(), kill.signum)
        return update(self, step, batches)

    Trainer._update = killed  # type: ignore[method-assign]
    status = 1
    try:
        outcome = joint_runner.execute(job)
        status = 128 + outcome.signum if outcome.signum else int(outcome.status == "failed")
        print(f"process {rank} of {size}: {outcome}")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def wait(pids: Sequence[int]) -> list[int]:
    """Return the exit statuses of child processes. If one fails, the others get SIGTERM, and SIGKILL later."""
    statuses: dict[int, int] = {}
    start, failed = time.monotonic(), None
    while len(statuses) < len(pids):
        for pid in set(pids) - statuses.keys():
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                statuses[pid] = os.waitstatus_to_exitcode(status)
        now, alive = time.monotonic(), set(pids) - statuses.keys()
        if failed is None and (any(statuses.values()) or now - start > LIMIT_SECONDS):
            failed = now
            for pid in alive:
                os.kill(pid, signal.SIGTERM)
        elif failed is not None and now - failed > GRACE_SECONDS:
            for pid in alive:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return [statuses[pid] for pid in pids]


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


def check(task: str, norm: str, steps: int, sizes: Sequence[int], root: Path, data: Sequence[str]) -> dict[str, Any]:
    """Do all runs of a task and a norm; return the errors of each, by its name, and what reduce=fast changed."""
    words, log = [*words_of(task, norm, steps), *data], root / "log.txt"
    errors: dict[str, list[str]] = {}
    for size in sizes:
        statuses = run([*words, f"results={root / str(size)}"], size, log)
        name = f"{size} processes"
        errors[name] = [f"exit statuses {statuses}"] if any(statuses) else differences(root / "1", root / str(size))
    errors["killed"] = killed_run(words, steps, sizes, root, log)
    fast = run([*words, "reduce=fast", f"results={root / 'fast'}"], max(sizes), log)
    errors["fast"] = [f"exit statuses {fast}"] if any(fast) else []
    pairs = [] if any(fast) else zip(losses(root / "1"), losses(root / "fast"), strict=True)
    changes = [abs(a - b) / abs(a) for a, b in pairs]
    if changes and changes[0] > LARGEST_LOSS_DIFFERENCE:
        errors["fast"].append(f"the loss of the first steps differs by {changes[0]:.1e}")
    return {"errors": errors, "fast_loss_differences": changes}


def killed_run(words: Sequence[str], steps: int, sizes: Sequence[int], root: Path, log: Path) -> list[str]:
    """Kill a run at every tenth step, each time with another number of processes; return errors and differences."""
    errors, command = [], [*words, f"results={root / 'killed'}"]
    order = [*sizes[1:], sizes[0]]
    for number, step in enumerate(range(10, steps, 10)):
        size = order[number % len(order)]
        kill = Kill((size - 1 - number) % size, step, SIGNALS[number % len(SIGNALS)])
        statuses = run(command, size, log, kill)
        stopped = kill.signum == signal.SIGTERM and statuses == [128 + signal.SIGTERM] * size
        if not stopped and (statuses[kill.rank] != -kill.signum or not all(statuses)):
            errors.append(f"{kill} of {size} processes: exit statuses {statuses}")
    statuses = run(command, order[-1], log)
    return (
        [*errors, f"exit statuses {statuses}"]
        if any(statuses)
        else errors + differences(root / "1", root / "killed", was_killed=True)
    )


def unanswered(root: Path, data: Sequence[str]) -> tuple[list[str], float]:
    """Stop one of two processes without ending it; return errors, and the seconds after which the run has ended.

    Process 0 saves the last complete step, and the run continues on one process.
    """
    words, log, step = [*words_of("order_embedding", "rms", 12), *data], root / "log.txt", 8
    reference, stopped = ([*words, f"results={root / name}"] for name in ("1", "stopped"))
    run(reference, 1, log)
    start = time.monotonic()
    statuses = run(stopped, 2, log, Kill(1, step, signal.SIGSTOP))
    seconds = time.monotonic() - start
    errors = [] if f"saved step {step}" in log.read_text() else [f"step {step} was not saved"]
    if statuses != [1, -signal.SIGKILL] or seconds > 60:
        errors.append(f"exit statuses {statuses} after {seconds:.0f} s")
    run(stopped, 1, log)
    return errors + differences(root / "1", root / "stopped", was_killed=True), seconds


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
        errors, seconds = unanswered(Path(tempfile.mkdtemp(prefix="rmsexp-equality-")), data)
        print(f"a process that does not answer: {'; '.join(errors) or 'equal'} ({seconds:.0f} s)")
        Check(NAME, options.results).write({"hang_errors": errors, "hang_seconds": seconds})
        return int(bool(errors))
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
            parts.add(found | {"code": provenance.code(), "machine": quiet.machine_id()})
    Check(NAME, options.results).write({"steps": options.steps, "sizes": sizes, "runs": done})
    if parts is not None:
        parts.remove()
    return int(any(lines for run in done for lines in run["errors"].values()))


def describe(found: Mapping[str, Any]) -> str:
    """Return what :func:`check` has found, in a line."""
    wrong = [f"{name}: {line}" for name, lines in found["errors"].items() for line in lines]
    fast = " ".join(f"{change:.0e}" for change in found["fast_loss_differences"])
    return f"{'; '.join(wrong) or 'equal'}; reduce=fast: {fast}"


if __name__ == "__main__":
    sys.exit(main())
