"""Interleaved timing of a user's own training steps, for :func:`rmsexp.compare_steps`."""

import hashlib
import pickle
import pickletools
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from rmsexp.config.timing import TimingConfig
from rmsexp.measure.interleaved import Budget, Contestant, InterleavedTimer
from rmsexp.measure.layers import NO_BATCHES
from rmsexp.measure.steps import Contestants, in_order, take_times
from rmsexp.system.machine_lock import Report
from rmsexp.task import Dataset
from rmsexp.train.device import keep_freed
from rmsexp.train.randomness import seed_of

Maker = Callable[[], Callable[[], object]]
HERE = "own, same process"  # ``impl`` of steps that are timed in the caller's process, without a fresh one


@dataclass(frozen=True)
class OwnSteps:
    """Training steps of a user, with those attributes of a job and of its config that go into the record.

    ``impl``: "own" or ``HERE``. ``scale``: the setting.
    """

    make: Maker
    task: str
    scale: str
    threads: int
    device: str
    impl: str
    setting_folder: Path
    seed: int = 0
    precision: str = "float32"

    @property
    def config(self) -> Self:
        return self

    @property
    def setting(self) -> str:
        return self.scale

    def workload(self) -> str:
        """Return a digest of the maker and of all modules that it names; a random one if ``impl`` is ``HERE``."""
        if self.impl == HERE:
            return secrets.token_hex(8)
        pickled = pickle.dumps(self.make)
        names = {text for _, text, _ in pickletools.genops(pickled) if isinstance(text, str) and text in sys.modules}
        files = sorted(file for name in names if (file := getattr(sys.modules[name], "__file__", None)))
        contents = b"".join(Path(file).read_bytes() for file in files)
        return hashlib.sha256(pickled + contents).hexdigest()[:16]


def measure(
    own: Mapping[str, OwnSteps], options: TimingConfig, number: int, order_seed: int, budget: Budget, report: Report
) -> dict[str, Any]:
    """Time a user's steps in this process; see :func:`rmsexp.measure.steps.measure`."""
    first = next(iter(own.values()))
    if first.impl != HERE:
        keep_freed()
        torch.set_num_threads(first.threads)
    contestants: list[Contestant] = []
    ordered = in_order(own, number, order_seed)
    for each in ordered.values():
        torch.manual_seed(0)
        step = each.make()
        contestants.append(lambda *_, step=step: step())
    device = torch.device(first.device)
    timer = InterleavedTimer(contestants, lambda _: NO_BATCHES, device, seed_of(order_seed, number))
    impls, workloads = dict.fromkeys(ordered, first.impl), {name: each.workload() for name, each in own.items()}
    made = Contestants(timer, impls, Dataset("own", "", builtin=False), workloads)
    return take_times(made, options, number, budget, report)
