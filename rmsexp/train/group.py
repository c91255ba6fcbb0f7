"""One run on several processes, which torchrun has started, and all communication between them.

Process r of W takes the micro-batches r, r + W, …. With ``reduce=ordered`` what they compute is added up in an order
that does not depend on W, so the results equal those of one process with as many micro-batches, to the bit. Process 0
alone has the run's folder, and sends the others what it loaded.
"""

from __future__ import annotations

import hashlib
import platform
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
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

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store  # torch.distributed does not export it to type checkers

T = TypeVar("T")
POLL_SECONDS = 0.2  # between two looks at torchrun's store


class LostError(ReportedError, RuntimeError):
    """Another process of the run has ended, or does not answer within ``distributed.timeout``."""


@contextmanager
def _waiting(
    problem: str = "the run has lost a process", advice: str = "repeat the command to continue"
) -> Iterator[None]:
    """Raise LostError in place of an error of the communication inside the context."""
    try:
        yield
    except RuntimeError as error:
        reason = "no message within distributed.timeout" if "Timed out" in str(error) else str(error).partition("\n")[0]
        raise LostError(f"{problem} ({reason:.120}); {advice}") from error


class Alone:
    """The only process of a run. :class:`Group` has the same members for several.

    ``rank``: the index of this process, from 0, among ``size`` processes. Of several items it takes those in the slice
    ``chosen``. ``facts``: what the record of the run says of the processes. ``stop``: the number of the signal for
    which all stop after the present step, or None. ``is_restarted``: whether torchrun has started one of them again.
    """

    rank, size, chosen = 0, 1, slice(0, None, 1)
    stop: int | None = None

    def __init__(self) -> None:
        self.interrupt = process.Interrupt()
        self.facts: dict[str, Any] = {}
        self.is_restarted = process.is_started_again("TORCHELASTIC")

    def gather(self, value: T) -> list[T]:
        """Return a list of all processes' values, by rank. With several processes, their tensors are on the CPU."""
        return [value]

    def interleaved(self, own: Sequence[T], number: int) -> list[T]:  # noqa: ARG002
        """Return the results of all ``number`` items, in order. ``own``: those of this process's items."""
        return list(own)

    def barrier(self) -> None:
        """Wait until all processes are here."""

    def preparing(self) -> AbstractContextManager[None]:
        """Return the context in which the data are prepared."""
        return nullcontext()


class Group(Alone):
    """The processes of a run that torchrun has started. A signal to one of them stops all (``stop``)."""

    def __init__(self, store: Store, device: torch.device) -> None:
        self.rank, self.size = process.rank_and_size()
        self.chosen = slice(self.rank, None, self.size)
        self.device = device
        self.interrupt = process.Interrupt()
        self._store, self._has_announced = store, False
        hosts = sorted(set(self.gather(platform.node())))
        self.facts = {"world_size": self.size, "backend": str(dist.get_backend()), "hosts": hosts}
        self.is_restarted = any(self.gather(process.is_started_again("TORCHELASTIC")))  # torchrun counts this per host

    def gather(self, value: T) -> list[T]:
        gathered: list[Any] = [None] * self.size
        with _waiting():
            dist.all_gather_object(gathered, tree_map_only(Tensor, Tensor.cpu, value))
        return gathered

    def interleaved(self, own: Sequence[T], number: int) -> list[T]:
        gathered = self.gather(own)
        return [gathered[index % self.size][index // self.size] for index in range(number)]

    def share(self, value: T) -> T:
        """Return the value of process 0."""
        shared = [value]
        with _waiting():
            dist.broadcast_object_list(shared, src=0)
        return shared[0]

    def send(self, tensor: Tensor, rank: int) -> None:
        with _waiting():
            dist.send(tensor, rank)

    def receive(self, tensor: Tensor, rank: int) -> None:
        with _waiting():
            dist.recv(tensor, rank)

    def broadcast(self, tensor: Tensor, rank: int) -> None:
        """Set the tensor to that of process ``rank``."""
        with _waiting():
            dist.broadcast(tensor, rank)

    def sum(self, tensor: Tensor) -> None:
        """Replace the tensor by its sum over all processes, in an order that depends on their number."""
        with _waiting():
            dist.all_reduce(tensor)

    def barrier(self) -> None:
        with _waiting():
            dist.barrier()

    def require_equal(self, facts: Mapping[str, Any]) -> None:
        """Raise ReportedError if one of these facts differs between the processes, with its name."""
        for rank, others in enumerate(self.gather(facts)):
            for name, value in facts.items():
                if others[name] != value:
                    values = f"{value!s:.20} in process {self.rank}, {others[name]!s:.20} in process {rank}"
                    raise ReportedError(f"the processes of the run differ in {name} ({values}); make them equal")

    def announce(self, begins: bool) -> None:
        """As process 0, tell the others, which wait in :meth:`share`, whether the run begins; only once."""
        if not self._has_announced:
            self._has_announced = True
            self.share(begins)

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Return a context in which each process prepares the data; it ends, however late, when all have done so.

        ``distributed.timeout`` begins afterwards. If a process fails here, torchrun ends the others.
        """
        if self.rank == 0:
            self.announce(begins=True)
        yield
        self._store.add("ready", 1)
        with _waiting():
            while self._store.add("ready", 0) < self.size:
                Event().wait(POLL_SECONDS)


_group: Alone = Alone()  # the processes of the present run


@contextmanager
def joined(device: Callable[[], torch.device], timeout: float) -> Iterator[Alone]:
    """Yield the group of the run's processes.

    ``device``: returns this process's device. ``timeout``: seconds after which waiting for a message is an error.
    """
    global _group
    if process.rank_and_size()[1] == 1:
        yield Alone()
        return
    chosen = device()
    shared, rank, size = next(rendezvous("env://", timeout=span(timeout)))
    store = meet(shared, rank, size, timeout)
    backend = "nccl" if chosen.type == "cuda" else "gloo"
    interface = "NCCL_SOCKET_IFNAME" if backend == "nccl" else "GLOO_SOCKET_IFNAME"
    with _waiting("the processes cannot connect", f"set {interface} to the network interface to use"):
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=span(timeout))
    try:
        group = _group = Group(store, chosen)
        yield group
    finally:
        if isinstance(_group, Group) and rank == 0:
            with suppress(LostError):
                _group.announce(begins=False)
        _group = Alone()
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

    Raises: Interrupted if one of several processes has got a signal.
    """
    group, items, results, stop = _group, list(items), list[T](), None
    for item in items[group.chosen]:
        stop = group.interrupt.received
        if stop is not None:
            break
        results.append(function(item))
    for signum in group.gather(stop):
        if signum is not None:
            raise process.Interrupted(signum)
    return group.interleaved(results, len(items))


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
