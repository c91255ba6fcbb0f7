"""Options of interleaved timings, without importing torch, so that mistakes in them are reported at once."""

from dataclasses import dataclass

from rmsexp.system import checks

PROCESS_SECONDS = 50.0  # budget of a process, unless timing.budget is set
MOST_PROCESSES = 100  # largest value of timing.processes


@dataclass
class ProcessOptions:
    """The keys ``timing.processes`` and ``timing.budget``, which ``python -m rmsexp.timing --help`` explains."""

    processes: int = 6
    budget: float | None = None

    def __post_init__(self) -> None:
        checks.at_least("timing.processes", self.processes, 1, MOST_PROCESSES)
        checks.positive("timing.budget", self.budget)


@dataclass
class TimingConfig(ProcessOptions):
    """The keys below ``timing.`` of ``python -m rmsexp.timing``."""

    reference: str = "ln"
    target_width: float = 0.02

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive("timing.target_width", self.target_width)

    def seconds(self, groups: int) -> float:
        """Return the seconds for all processes together, if this many groups of norms are timed separately."""
        return PROCESS_SECONDS * self.processes * groups if self.budget is None else self.budget
