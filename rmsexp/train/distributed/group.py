"""The processes of a run, and all communication between them."""

from __future__ import annotations

import hashlib
import os
import platform
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.utils._pytree import tree_map_only

from rmsexp.system import process
from rmsexp.system.clock import Stopwatch, span
from rmsexp.system.command_line import ReportedError
from rmsexp.train.distributed.heartbeat import Heartbeat, try_to_save
from rmsexp.train.interrupt import Interrupt, Interrupted

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store  # torch.distributed does not export it to type checkers

T = TypeVar("T")
END_SECONDS = 20.0  # that process 0 has for saving after a signal; torchrun grants 30
POLL_SECONDS = 0.2  # between two looks at what another process has announced


class LostError(ReportedError, RuntimeError):
    """Another process of the run has ended, or does not answer."""


class Group:
    """The processes of a run. ``rank``: the number of this one; ``size``: their number; ``hosts``: where they run.

    ``is_restarted``: whether torchrun has started one of them before. It counts this per host, so all are asked.
    ``stop``: the number of the signal with which all processes stop after the present step, or None.
    """

    def __init__(self, store: Store, device: torch.device) -> None:
        self.rank, self.size = process.rank_and_size()
        self.device, self.backend = device, str(dist.get_backend())
        self.interrupt = Interrupt(joint=True)
        self.stop: int | None = None
        self._store, self._heartbeat = store, Heartbeat(store.clone(), self.rank, self.size)
        self.pids = self.gather((platform.node(), os.getpid()))
        self.hosts = sorted({host for host, _ in self.pids})
        self.is_restarted = any(self.gather(process.is_restarted()))
        self._heartbeat.start()

    @property
    def facts(self) -> dict[str, Any]:
        """Return what the record of the run says of its processes."""
        return {"world_size": self.size, "backend": self.backend, "hosts": self.hosts}

    @property
    def chosen(self) -> slice:
        """Return which ones of several items this process takes."""
        return slice(self.rank, None, self.size)

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, by rank. Tensors arrive on the CPU."""
        gathered: list[Any] = [None] * self.size
        with self._waiting():
            dist.all_gather_object(gathered, tree_map_only(Tensor, Tensor.cpu, value))
        return gathered

    def interleaved(self, own: Sequence[T], number: int) -> list[T]:
        """Return what belongs to all of ``number`` items, in order, given what belongs to those of this process."""
        gathered = self.gather(own)
        return [gathered[index % self.size][index // self.size] for index in range(number)]

    def share(self, value: T) -> T:
        """Return the value of process 0."""
        shared = [value]
        with self._waiting():
            dist.broadcast_object_list(shared, src=0)
        return shared[0]

    def send(self, tensor: Tensor, rank: int) -> None:
        with self._waiting():
            dist.send(tensor, rank)

    def receive(self, tensor: Tensor, rank: int) -> None:
        with self._waiting():
            dist.recv(tensor, rank)

    def broadcast(self, tensor: Tensor, rank: int) -> None:
        """Set the tensor to that of process ``rank``."""
        with self._waiting():
            dist.broadcast(tensor, rank)

    def sum(self, tensor: Tensor) -> None:
        """Replace the tensor by its sum over all processes, in an order that depends on their number."""
        with self._waiting():
            dist.all_reduce(tensor)

    def barrier(self) -> None:
        """Wait until all processes are here."""
        with self._waiting():
            dist.barrier()

    def require_alive(self) -> None:
        """Raise LostError if another process of the run is known to be lost."""
        with self._waiting():
            pass

    def require_equal(self, facts: Mapping[str, Any]) -> None:
        """Raise ReportedError if one of these facts differs between the processes, with its name."""
        for rank, others in enumerate(self.gather(facts)):
            for name, value in facts.items():
                if others[name] != value:
                    values = f"{value!s:.20} in process {self.rank}, {others[name]!s:.20} in process {rank}"
                    raise ReportedError(f"the processes of the run differ in {name} ({values}); make them equal")

    @contextmanager
    def guarded(self, on_loss: Callable[[], None]) -> Iterator[None]:
        """Call ``on_loss`` before this process ends because another one is lost in the context (:class:`Heartbeat`)."""
        self._heartbeat.on_loss = on_loss
        try:
            yield
        except LostError:
            self._heartbeat.stop()  # which ends a process that does not wait for others for a while
            try_to_save(on_loss)
            raise
        finally:
            self._heartbeat.on_loss = None

    def leave(self) -> None:
        """Tell the others that this process leaves the run, and as process 0 that it has ended; not if one is lost."""
        if self.rank == 0 and self._heartbeat.lost is None:
            with suppress(RuntimeError):  # torchrun, which keeps the store, may have ended
                self.announce(begins=False)
                self._store.set("ended", "True")
        self._heartbeat.stop()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Let process 0 do what is in the context first, then one process of each other host, then the others.

        Data are thus prepared once if the hosts share the folder of the data, and else once on each host. All wait for
        the last one, for as long as it takes: ``distributed.timeout`` begins afterwards.
        """
        hosts, local = int(os.environ.get("GROUP_WORLD_SIZE", "1")), process.local_rank()
        before = 0 if self.rank == 0 else 1 if local == 0 else hosts
        self._poll(lambda: self._store.add("prepared", 0) >= before)
        yield
        if local == 0:
            self._store.add("prepared", 1)
        self._store.add("ready", 1)
        self._poll(lambda: self._store.add("ready", 0) >= self.size)

    def _poll(self, is_done: Callable[[], bool]) -> None:
        """Wait until ``is_done()``. Raises: LostError if a process is lost, or has left the run before."""
        with self._waiting():
            while not is_done():
                if self._heartbeat.left() and not is_done():
                    raise RuntimeError("a process has left the run")
                Event().wait(POLL_SECONDS)

    def announce(self, begins: bool) -> None:
        """As process 0, say whether the run begins. Only the first announcement counts."""
        self._store.compare_set("begins", "", str(begins))

    def begins(self) -> bool:
        """Wait until process 0 has said whether the run begins, and return it."""
        self._poll(lambda: self._store.check(["begins"]))
        return self._store.get("begins") == b"True"

    def wait_for_end(self) -> None:
        """Wait, for a while, until process 0 has ended the run: torchrun ends the others when one of them has ended."""
        watch = Stopwatch()
        while not self._store.check(["ended"]) and watch.seconds < END_SECONDS:
            Event().wait(POLL_SECONDS)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Raise LostError in place of an error of the communication inside the context."""
        try:
            with self._heartbeat.waiting():
                yield
        except RuntimeError as error:
            if self._heartbeat.lost is not None:
                reason = self._heartbeat.lost
            elif "Timed out" in str(error):
                reason = "no message within distributed.timeout"
            else:
                ended = ", ".join(map(str, self._heartbeat.silent() or self._heartbeat.left()))
                reason = f"process {ended} has ended" if ended else "another process has ended"
            raise LostError(f"the run has lost a process ({reason}); repeat the command to continue") from error


_group: Group | None = None  # the processes of the present run


@contextmanager
def joined(device: Callable[[], torch.device], timeout: float) -> Iterator[Group | None]:
    """Yield the group of the run's processes; None if torchrun did not start several.

    ``device``: returns this process's device. ``timeout``: seconds after which waiting for a message is an error.
    """
    global _group
    if process.rank_and_size()[1] == 1:
        yield None
        return
    chosen = device()
    shared, rank, size = next(rendezvous("env://", timeout=span(timeout)))
    store = meet(shared, rank, size, timeout)
    backend = "nccl" if chosen.type == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=span(timeout))
    except RuntimeError as error:
        interface = "NCCL_SOCKET_IFNAME" if backend == "nccl" else "GLOO_SOCKET_IFNAME"
        reason = str(error).partition("\n")[0]
        raise LostError(f"the processes cannot connect ({reason}); {interface} names the network to use") from error
    try:
        _group = Group(store, chosen)
        yield _group
    finally:
        if _group is not None:
            _group.leave()
        _group = None
        dist.destroy_process_group()


def meet(store: Store, rank: int, size: int, timeout: float) -> Store:
    """Wait for all processes of this start of the run; return a part of torchrun's store for them alone.

    torchrun keeps one store when it starts the processes again, with addresses and counts of those that have ended, and
    counts restarts on each host apart. So each process stores a name that is new, and what names it has found, until
    all have found the same ones.

    Raises: LostError if they have not met within ``timeout`` seconds.
    """
    name, keys, watch = uuid4().hex, [f"name{other}" for other in range(size)], Stopwatch()
    store.set(keys[rank], name)
    while watch.seconds < timeout:
        if store.check(keys):
            names = [store.get(key).decode() for key in keys]
            start = hashlib.sha256(" ".join(names).encode()).hexdigest()
            if names[rank] == name:
                store.set(f"{start}/{rank}", name)
            if store.check([f"{start}/{other}" for other in range(size)]):
                return PrefixStore(start, store)
        Event().wait(POLL_SECONDS)
    waited = f"distributed.timeout={timeout:g} seconds"
    raise LostError(f"the {size} processes of the run have not met within {waited}; see torchrun's messages")


def each(function: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
    """Return ``function(item)`` for each item, in order; the processes of a run share the work.

    Tensors in the results of several processes are on the CPU.

    Raises: Interrupted if one of several processes has got a signal; LostError before the next item if one is lost.
    """
    group = _group
    if group is None:
        return [function(item) for item in items]
    items, results, stop = list(items), list[T](), None
    for item in items[group.chosen]:
        stop = group.interrupt.received
        if stop is not None:
            break
        group.require_alive()
        results.append(function(item))
    gathered = group.gather((stop, results))
    for signum, _ in gathered:
        if signum is not None:
            raise Interrupted(signum)
    return [gathered[index % group.size][1][index // group.size] for index in range(len(items))]


def means(sums: Callable[[Any], Mapping[str, float]], items: Iterable[Any], count: int) -> dict[str, float]:
    """Return the totals over all items of the values in ``sums(item)``, by name, divided by ``count``.

    The processes of a run share the work (:func:`each`). Values are added in the order of the items, so the result has
    the same bits with any number of processes.
    """
    totals: dict[str, float] = defaultdict(float)
    for found in each(sums, items):
        for name, value in found.items():
            totals[name] += value
    return {name: total / count for name, total in totals.items()}
