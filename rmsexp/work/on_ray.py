"""The runs of a campaign as tasks of Ray, on all machines of a cluster that share the folder of results.

This process plans and submits; the tasks train. Each task has the CPUs and the GPU of its run. If its node or its
process dies, Ray does it again, on any node: it continues from the last checkpoint.
"""

from __future__ import annotations

import logging
import os
import platform
import signal
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rmsexp import config
from rmsexp.campaign import registration
from rmsexp.system import lock, machine_lock, process
from rmsexp.system.command_line import ReportedError
from rmsexp.work import runner
from rmsexp.work.worker import POLL_SECONDS, Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

RETRIES = 3  # how often Ray does a task again whose node or process died
LOCKED_SECONDS = 60.0  # how long a task waits until the process that did its run before is gone
SAVING_SECONDS = 120.0  # how long this process waits for its tasks to save their runs, after a signal


@dataclass(frozen=True)
class Done:
    """What a task returns. ``outcome``: None if another process has the run locked. ``node``: the task's machine."""

    outcome: runner.Outcome | None
    node: str


@dataclass
class RayWorker(Worker):
    """Does runs as tasks of Ray. ``address``: of the cluster; None: the one that Ray finds, or a new one here.

    ``n_jobs`` is not used. ``config_dir``: the folder of ``--config-dir``.
    """

    address: str | None = None
    config_dir: str | None = None
    _tasks: dict[Any, Any] = field(default_factory=dict)  # task -> its run
    _signum: int | None = field(default=None, init=False)

    def work(self) -> int | None:
        """Do runs as :meth:`Worker.work`: until all have ended or failed, or a signal comes.

        Raises: ReportedError if Ray is not installed, the cluster cannot be reached, or a run may not begin.
        """
        with self._marked(), _cluster(self.address) as ray, process.handling(self._stop, process.stopping_signals()):
            try:
                while self._signum is None and ((left := self._left()) or self._tasks):  # a task ends after its run
                    self._submit(ray, [job for job in left if job not in self._tasks.values()])
                    done = ray.wait(list(self._tasks), timeout=POLL_SECONDS)[0] if self._tasks else []
                    for task in done:
                        self._take(ray, task)
                    if cause := self._common_cause():
                        self.report(f"stopped, because several runs failed for the same reason: {cause}")
                        break
            finally:
                tasks = list(self._tasks)
                for task in tasks:
                    ray.cancel(task)  # as Ctrl-C: the task saves its run
                if tasks:
                    ray.wait(tasks, num_returns=len(tasks), timeout=SAVING_SECONDS)
        return self._signum

    def _begun(self) -> Collection[Any]:
        return self._tasks.values()

    @property
    def _token(self) -> Path:
        return (self.runs.results / f".ray-{platform.node()}-{os.getpid()}").absolute()

    @contextmanager
    def _marked(self) -> Iterator[None]:
        """Inside the context there is a file by which the nodes recognise the folder of results."""
        self.runs.results.mkdir(parents=True, exist_ok=True)
        self._token.touch()
        try:
            yield
        finally:
            self._token.unlink(missing_ok=True)

    def _stop(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._signum = signum

    def _submit(self, ray: Any, jobs: Sequence[Any]) -> None:
        for job in jobs:
            run = self.runs.begin(job)
            cpus = run.config.threads or 1
            cluster = ray.cluster_resources()
            gpus = int(run.config.device == "cuda" or (run.config.device == "auto" and cluster.get("GPU", 0) >= 1))
            at_once = _at_once(ray.nodes(), cpus, gpus)
            if not at_once:  # the task would wait for ever, and Ray's warning is not shown
                needed = f"{cpus} {'CPU' if cpus == 1 else 'CPUs'}{' and a GPU' if gpus else ''}"
                self._fail(job, f"no node of the cluster has {needed}; add such a node, or set threads or device")
                continue
            options = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": RETRIES}
            code, where = registration.code(), str(Path.cwd())
            arguments = run.overrides, self.config_dir, where, str(self._token), code, at_once
            task = ray.remote(_do).options(**options).remote(*arguments)
            self._tasks[task] = job
            self.report(f"submitted {self.runs.headline(job)}")

    def _take(self, ray: Any, task: Any) -> None:
        """Note the end of a task."""
        job = self._tasks.pop(task)
        try:
            done = ray.get(task)
        except ray.exceptions.RayError as error:
            self._fail(job, str(error).strip().splitlines()[-1])
            return
        if done.outcome is not None:
            self.report(f"{done.outcome.status} on {done.node}: {self.runs.headline(job)}")
            self._note(job, done.outcome)


def _at_once(nodes: Sequence[Mapping[str, Any]], cpus: int, gpus: int) -> int:
    """Return how many runs with so many CPUs and GPUs one of the nodes can do at the same time; the largest number."""
    resources = [node["Resources"] for node in nodes if node["Alive"]]
    counts = [[one.get("CPU", 0) // cpus, *([one.get("GPU", 0) // gpus] if gpus else [])] for one in resources]
    return int(max(map(min, counts), default=0))


def _do(
    overrides: Sequence[str], config_dir: str | None, where: str, token: str, code: dict[str, str], at_once: int
) -> Done:
    """Do a run; in a task of Ray.

    Args:
        where: the folder that relative paths start from, and that modules are imported from.
        token: a file in the folder of results, which all nodes must share.
        code: commit and digest of the code that the process has that submitted the task (:func:`.registration.code`).
        at_once: how many such tasks a node can do at the same time.

    Raises: RuntimeError if this node has other code, or not the folder of results.
    """
    node = platform.node()
    with suppress(OSError):  # a node without this folder can only do runs with absolute paths
        os.chdir(where)
    if where not in sys.path:  # as "python -m" does, for modules of a user's own norms
        sys.path.insert(0, where)
    if registration.code() != code:
        raise RuntimeError(f"{node} has another version of rmsexp; install the same one on all nodes")
    if not Path(token).exists():  # the run would be recorded where nobody looks for it
        raise RuntimeError(f"{node} does not have the folder {Path(token).parent}; all nodes must share it")
    job = config.job(overrides, config_dir)
    with machine_lock.working(print) as pause:
        return Done(_when_unlocked(lambda: runner.execute(job, runner.Around(at_once, pause))), node)


def _when_unlocked(execute: Callable[[], runner.Outcome]) -> runner.Outcome | None:
    """Do a run as soon as no other process has it locked; return None if one has for ``LOCKED_SECONDS``."""
    for _ in range(int(LOCKED_SECONDS)):
        with suppress(lock.RunLockedError):
            return execute()
        threading.Event().wait(1)
    return None


@contextmanager
def _cluster(address: str | None) -> Iterator[Any]:
    """Connect to a cluster, or start one on this machine, and yield the module ``ray``."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    before = signal.getsignal(signal.SIGTERM)  # Ray replaces it
    try:
        import ray
    except ImportError:
        raise ReportedError("--on ray needs Ray: pip install 'rmsexp[ray]'") from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises a plain Exception if a busy machine does not start it within 30 s
        where = "did not start on this machine" if address is None else f"has no cluster at {address}"
        raise ReportedError(f"Ray {where} ({str(error).splitlines()[0]})") from None
    try:
        yield ray
    finally:
        ray.shutdown()
        signal.signal(signal.SIGTERM, before)
