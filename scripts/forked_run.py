"""Do a run on several processes, started as torchrun does, but by fork, which saves the imports and the making of data.

A process can be killed at a chosen step.
"""

import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch._dynamo  # which the first optimiser would import, in each process
from torch.distributed import TCPStore

from rmsexp import config, tasks
from rmsexp.tasks import translation
from rmsexp.train.loop import Trainer
from rmsexp.work import runner

END_SECONDS = 60  # after a SIGKILL the other processes must end by themselves within this time
GRACE_SECONDS = 30  # as torchrun's: between SIGTERM and SIGKILL for the other processes when one has failed
LIMIT_SECONDS = 3600  # for all processes of a run, also on a busy machine
KEPT: dict[str, Any] = {}  # data by name
PORT_BYTES = 8


class Kill(NamedTuple):
    """A planned kill: process ``rank`` gets the signal ``signum`` when it begins step ``step``."""

    rank: int
    step: int
    signum: int


def run(words: Sequence[str], size: int, log: Path, kill: Kill | None = None) -> list[int]:
    """Do a run on ``size`` processes; return their exit statuses, negative for those that a signal ended.

    ``log``: a file to which the output is appended.
    """
    job = config.job(words)
    keep_source(job)
    ports, port_writer = os.pipe()
    pids = []
    for rank in range(size):
        pids.append(os.fork())
        if pids[-1] == 0:
            be_process(job, rank, size, ports, log, kill)
    # after the forks: the store's thread may hold a lock of the C library, which a copy of this process would never get
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(port_writer, size * f"{store.port:{PORT_BYTES}}".encode())
    statuses = wait(pids, END_SECONDS if kill and kill.signum == signal.SIGKILL else 0)
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
    """Take part in a run, and end this process with the status that torchrun would get, or with 1 after an error.

    ``ports``: a pipe from which each process reads the port of the store once.
    """
    status, update = 1, Trainer._update

    def killed(self: Trainer, step: int, batches: Any) -> Any:
        if kill is not None and (rank, step) == (kill.rank, kill.step):
            os.kill(os.getpid(), kill.signum)
        return update(self, step, batches)

    try:
        sys.stdout = sys.stderr = file = log.open("a", buffering=1)
        for number in (1, 2):  # to which libraries write
            os.dup2(file.fileno(), number)
        port = int(os.read(ports, PORT_BYTES))
        if size > 1:
            become(rank, size, port)
        Trainer._update = killed  # type: ignore[method-assign]
        outcome = runner.execute_jointly(job)
        print(f"process {rank}: {outcome}")
        status = 128 + outcome.signum if outcome.signum else int(outcome.status == "failed")
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(status)


def become(rank: int, size: int, port: int) -> None:
    """Set the environment that torchrun would. ``port``: that of a store on this machine."""
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": True}
    attempt = {"TORCHELASTIC_RUN_ID": "local", "TORCHELASTIC_RESTART_COUNT": 0}
    os.environ.update({key: str(value) for key, value in (ranks | address | attempt).items()})


def wait(pids: Sequence[int], patience: float) -> list[int]:
    """Return the exit statuses of child processes, negative for those that a signal ended.

    If one fails, or after ``LIMIT_SECONDS``, the others get SIGTERM ``patience`` seconds later, and then SIGKILL.
    """
    statuses: dict[int, int] = {}
    start, failed, signals = time.monotonic(), None, [(patience, signal.SIGTERM)]
    signals.append((patience + GRACE_SECONDS, signal.SIGKILL))
    while alive := set(pids) - statuses.keys():
        for pid in alive:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                statuses[pid] = os.waitstatus_to_exitcode(status)
        now = time.monotonic()
        if failed is None and (any(statuses.values()) or now - start > LIMIT_SECONDS):
            failed = now
        if failed is not None and signals and now - failed >= signals[0][0]:
            for pid in alive - statuses.keys():
                os.kill(pid, signals[0][1])
            del signals[0]
        time.sleep(0.02)
    return [statuses[pid] for pid in pids]
