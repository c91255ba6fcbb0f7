"""Compare single steps of reduce=fast with the steps of a run whose sum is exact (reduce=ordered).

The losses of two runs drift apart, because training amplifies rounding. So each step of the exact run is repeated with
reduce=fast from the same parameters, buffers, optimiser and noise, and only the loss of the step after it is compared.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path

from forked_run import in_processes, keep_source

from rmsexp import config
from rmsexp.measure.steps import make_stepper
from rmsexp.train.device import set_up_device
from rmsexp.train.distributed.group import Group, joined
from rmsexp.train.distributed.sums import KINDS
from rmsexp.train.step import Stepper


def measure(words: Sequence[str], size: int, root: Path, log: Path) -> tuple[list[int], list[float]]:
    """Compare the steps of a run on ``size`` processes.

    Return the exit statuses of the processes, and the differences if all are 0.
    """
    job, path = config.job(words), root / "fast_steps.json"
    keep_source(job)

    def work(_: int) -> int:
        with joined(lambda: set_up_device(job.config), job.config.distributed.timeout) as group:
            assert group is not None
            found = differences(job, group)
            if group.rank == 0:
                path.write_text(json.dumps(found))
        return 0

    statuses = in_processes(size, log, work)
    return statuses, [] if any(statuses) else json.loads(path.read_text())


def differences(job: config.Job, group: Group) -> list[float]:
    """Return, for each step of a run, the relative difference of the next step's loss that its fast sum makes."""
    exact = make_stepper(job, group.device, lambda _: None, group)
    parts = (exact.task, exact.model, exact.optimizer, exact.schedule, exact.settings)
    fast = Stepper(*parts, KINDS["fast"](group, exact.model))

    def loss(stepper: Stepper, step: int) -> float:
        return stepper.take(step, exact.task.batches(step, group.chosen)).values[0].item()

    changed, losses = [], []
    for step in range(job.config.max_steps):
        before = copy.deepcopy([part.state_dict() for part in (exact.model, exact.optimizer)])
        loss(fast, step)
        changed.append(loss(fast, step + 1))
        for part, state in zip((exact.model, exact.optimizer), before, strict=True):
            part.load_state_dict(state)
        losses.append(loss(exact, step))
    losses.append(loss(exact, job.config.max_steps))
    return [abs(one - other) / abs(one) for one, other in zip(losses[1:], changed, strict=True)]
