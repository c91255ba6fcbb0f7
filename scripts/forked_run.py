"""Do a run on several processes, started as torchrun does, but by fork, which saves the imports and the making of data.

A process can be killed at a chosen step, and weights can be changed before the first step.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import as_torchrun
import torch
import torch._dynamo  # which the first optimiser would import, in each process
from torch import nn
from torch.distributed import TCPStore

from rmsexp import config, tasks
from rmsexp.tasks import translation
from rmsexp.train.loop import Trainer
from rmsexp.work import joint_runner

END_SECONDS = 60  # after a failure all processes must end within this time
GRACE_SECONDS = 30  # as torchrun's: between SIGTERM and SIGKILL for the other processes when one has failed
LIMIT_SECONDS = 3600  # for all processes of a run, also on a busy machine
KEPT: dict[str, Any] = {}  # data by name
KILLED_AT = "killed_at"  # a file with the time of the kill
PORT_BYTES = 8


class Kill(NamedTuple):
    """A planned kill: process ``rank`` gets the signal ``signum`` when it begins step ``step``."""

    rank: int
    step: int
    signum: int


def run(words: Sequence[str], size: int, log: Path, kill: Kill | None = None, is_changed: bool = False) -> list[int]:
    """Do a run on ``size`` processes; return their exit statuses, negative for those that a signal ended.

    ``is_changed``: whether a weight of each matrix is changed by a unit in its last place before the first step. When
    ``kill`` is done, the time is written to the file ``KILLED_AT`` beside ``log``.
    """
    job = config.job(words)
    keep_source(job)
    patience = END_SECONDS if kill is not None and kill.signum == signal.SIGKILL else 0
    return in_processes(size, log, lambda rank: take_part(job, rank, log, kill, is_changed), patience)


def in_processes(size: int, log: Path, work: Callable[[int], int], patience: float = 0) -> list[int]:
    """Call ``work(rank)`` in ``size`` forked processes as if torchrun had started them; return their exit statuses.

    ``work`` returns a status. ``log``: a file to which the output is appended. ``patience``: see :func:`wait`.
    """
    ports, port_writer = os.pipe()
    pids = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            be_process(rank, size, ports, log, work)
        pids.append(pid)
    # after the forks: the store's thread may hold a lock of the C library, which a copy of this process would never get
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(port_writer, size * f"{store.port:{PORT_BYTES}}".encode())
    statuses = wait(pids, patience)
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


def be_process(rank: int, size: int, ports: int, log: Path, work: Callable[[int], int]) -> None:
    """End this process with the status that ``work(rank)`` returns, or with 1 after an error.

    ``ports``: a pipe from which each process reads the port of the store once.
    """
    status = 1
    try:
        sys.stdout = sys.stderr = file = log.open("a", buffering=1)
        for number in (1, 2):  # to which libraries write
            os.dup2(file.fileno(), number)
        as_torchrun.become(rank, size, int(os.read(ports, PORT_BYTES)))
        status = work(rank)
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(status)


def take_part(job: config.Job, rank: int, log: Path, kill: Kill | None, is_changed: bool) -> int:
    """Do a run as one of its processes; return its exit status, as torchrun would get it."""
    update, train = Trainer._update, Trainer.run

    def killed(self: Trainer, step: int, batches: Any) -> Any:
        if kill is not None and (rank, step) == (kill.rank, kill.step):
            (log.parent / KILLED_AT).write_text(str(time.monotonic()))
            os.kill(os.getpid(), kill.signum)
        return update(self, step, batches)

    def changed(self: Trainer) -> None:
        change_weights(self.model)
        train(self)

    Trainer._update = killed  # type: ignore[method-assign]
    Trainer.run = changed if is_changed else train  # type: ignore[method-assign]
    outcome = joint_runner.execute(job)
    print(f"process {rank}: {outcome}")
    return 128 + outcome.signum if outcome.signum else int(outcome.status == "failed")


def change_weights(model: nn.Module) -> None:
    """Change the largest weight of each matrix by a unit in its last place; one may be of a word that is not used."""
    for weights in (parameter.detach() for parameter in model.parameters() if parameter.ndim > 1):
        largest = torch.unravel_index(weights.abs().argmax(), weights.shape)
        weights[largest] = torch.nextafter(weights[largest], 2 * weights[largest])


def wait(pids: Sequence[int], patience: float) -> list[int]:
    """Return the exit statuses of child processes.

    If one fails, the others get SIGTERM after ``patience`` seconds, and SIGKILL later.
    """
    statuses: dict[int, int] = {}
    start, failed, told = time.monotonic(), None, False
    while len(statuses) < len(pids):
        for pid in set(pids) - statuses.keys():
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                statuses[pid] = os.waitstatus_to_exitcode(status)
        now, alive = time.monotonic(), set(pids) - statuses.keys()
        if failed is None and (any(statuses.values()) or now - start > LIMIT_SECONDS):
            failed = now
        if failed is not None and now - failed >= patience and not told:
            told = True
            for pid in alive:
                os.kill(pid, signal.SIGTERM)
        if failed is not None and now - failed > patience + GRACE_SECONDS:
            for pid in alive:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return [statuses[pid] for pid in pids]
