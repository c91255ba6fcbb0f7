"""The content of ``run.json`` and ``status.json``, as :mod:`rmsexp.system.typed` reads it.

A continued run needs the keys that are required. Of the others, those that are there must have the right type; older
records lack some.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from rmsexp.system.checks import MOST
from rmsexp.system.typed import LARGEST, Between, Count

Status = Literal["running", "finished", "diverged", "failed", "interrupted"]
Steps = Annotated[int, Between(0, MOST)]
Seconds = Annotated[float, Between(0, 1e9)]


class MetricsContent(TypedDict):
    """A metrics file: its length, and the SHA-256 of its content."""

    bytes: Count
    digest: str


class StatusContent(TypedDict):
    """The content of ``status.json`` (see :meth:`rmsexp.records.record.RunFolder.write_status`)."""

    status: Status
    step: Count
    error: NotRequired[str | None]
    process: NotRequired[Count]
    run: NotRequired[str | None]
    checkpoint: NotRequired[Count | None]
    metrics: NotRequired[MetricsContent | None]
    digest: NotRequired[str]


class Parts(TypedDict):
    """The seconds of the two parts of a probe."""

    arithmetic: Seconds
    memory: Seconds


class Probes(TypedDict):
    """The probes of a process. ``median``: over ``number`` probes. ``reference``: of the machine while it is quiet."""

    number: Count
    median: Parts
    reference: Parts | None


class ContentionContent(TypedDict):
    """What disturbed a process (see :meth:`rmsexp.train.contention.Contention.report`).

    ``probes``: of timings (:mod:`rmsexp.measure.probes`) and of older runs.
    """

    state: NotRequired[Literal["clear", "contended", "unknown"]]
    waited: NotRequired[float | None]
    steal: NotRequired[float | None]
    shared: NotRequired[bool]
    based_on: NotRequired[list[str]]
    probes: NotRequired[Probes | None]


class MachineContent(TypedDict):
    """What identifies a machine (see :func:`rmsexp.system.machine.identity`)."""

    id: str
    name: NotRequired[str]


class Git(TypedDict):
    """The commit that a process ran, and whether there were uncommitted changes; None if that is not known."""

    commit: NotRequired[str | None]
    dirty: NotRequired[bool | None]


class Session(TypedDict):
    """One process that worked on a run, or measured."""

    from_step: NotRequired[Count]
    started: NotRequired[str]
    git: NotRequired[Git]
    code: NotRequired[str | None]
    versions: NotRequired[dict[str, str]]
    device: NotRequired[str]
    device_type: NotRequired[str]
    threads: NotRequired[Count]
    machine: NotRequired[MachineContent]
    contention: NotRequired[ContentionContent | None]
    comparable: NotRequired[bool]
    trained: NotRequired[bool]
    own_code: NotRequired[str]
    slurm_job: NotRequired[str | None]
    world_size: NotRequired[Count]


class DatasetContent(TypedDict):
    """The data of a run. ``builtin``: whether they are synthetic."""

    digest: str
    name: NotRequired[str]
    builtin: NotRequired[bool]


class TargetContent(TypedDict):
    """The metric by which runs are compared (see :class:`rmsexp.task.Target`)."""

    split: NotRequired[str]
    metric: NotRequired[str]
    mode: NotRequired[Literal["min", "max"]]
    selection: NotRequired[str]
    loss_unit: NotRequired[str]
    chance: NotRequired[float | None]


class Parameters(TypedDict):
    """The number of parameters of a model; None: unknown."""

    total: Count | None


class RunContent(TypedDict):
    """The content of ``run.json``."""

    dataset: DatasetContent
    sessions: list[Session]
    task: NotRequired[str]
    norm: NotRequired[str]
    scale: NotRequired[str]
    seed: NotRequired[Annotated[int, Between(-LARGEST, LARGEST)]]
    setting: NotRequired[str]
    series: NotRequired[str]
    impl: NotRequired[str]
    recipe_steps: NotRequired[Steps]
    target: NotRequired[TargetContent]
    parameters: NotRequired[Parameters]
    precision: NotRequired[str | None]
    evaluation: NotRequired[Literal["scored", "validation"] | None]
    predictions: NotRequired[str | None]
    quantities: NotRequired[list[dict[str, Any]]]
    notes: NotRequired[dict[str, str] | None]
