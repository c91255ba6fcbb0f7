"""What measuring processes do in tests, in place of ``rmsexp.measure.steps.measure``: they take no steps."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmsexp.config import Job
    from rmsexp.config.timing import TimingConfig
    from rmsexp.measure.interleaved import Budget

SESSION = {
    "started": "2026-11-22T10:00:00",
    "device": "cpu",
    "device_type": "cpu",
    "threads": 1,
    "code": "0123",
    "git": {"commit": "abcd", "dirty": False},
    "versions": {"torch": "2.15.0"},
    "contention": {"state": "undisturbed"},
}


def measured(
    jobs: Mapping[str, Job],
    options: TimingConfig,
    number: int,
    order_seed: int,  # noqa: ARG001
    budget: Budget,  # noqa: ARG001
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Return an answer in which the reference takes 0.1 s per step, and each next series 0.01 s or a little less."""
    report(f"process id {os.getpid()}")
    others = [name for name in jobs if name != options.reference]
    seconds = {options.reference: [0.1] * 4} | {
        name: [0.1 - 0.01 * place - 0.001 * number] * 4 for place, name in enumerate(others, 1)
    }
    return {
        "dataset": {"digest": "0", "builtin": True},
        "process": {
            "session": SESSION,
            "stopped": "narrow enough",
            "seconds_before_rounds": 0.5,
            "steps_per_block": 3,
            "data_seconds": 0.001,
            "series": list(jobs),
            "seconds": seconds,
        },
        "series": []
        if number
        else [{"series": name, "impl": "eager", "parts": {"forward": 0.05}, "peak_bytes": None} for name in jobs],
    }


def killed(*arguments: Any) -> dict[str, Any]:
    """Measure, but let the second process end as if there were too little memory."""
    if arguments[2] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return measured(*arguments)


def refused(*_: Any) -> dict[str, Any]:
    raise ValueError("device=cuda, but there is none")


def crashed(*_: Any) -> dict[str, Any]:
    raise ZeroDivisionError


def endless(*arguments: Any) -> dict[str, Any]:
    arguments[-1](f"process id {os.getpid()}")
    threading.Event().wait()
    raise AssertionError


def own_id(report: Callable[[str], None]) -> dict[str, Any]:  # noqa: ARG001
    return {"id": os.getpid()}
