"""Options of interleaved timings and benchmarks, without importing torch, so that mistakes are reported at once."""

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


# --- benchmarks of layers

# The passes that a case of a benchmark times. ADDITION: x + f and the norm of this sum, forward and backward of both.
BOTH, FORWARD, ADDITION = "forward + backward", "forward", "addition + norm"
# The arrays, each as large as the input, that a norm must read and write at least. Forward: it reads x and writes y.
# Backward: it reads x and the gradient of y, and writes that of x. An addition also reads f, writes the sum, and reads
# the sum's gradient.
MOVED = {BOTH: 5, FORWARD: 2, ADDITION: 8}
TRIAD, TRIAD_MOVED = "triad", 3  # the yardstick, a = b + 3 c into an array that exists already, and the arrays it moves
FEWEST_BENCH_ROUNDS = 6  # least number of rounds of a benchmark; intervals from fewer rounds are meaningless
SIZE = "[1-9][0-9]{0,8}"  # regular expression of a dimension; larger numbers fit in no memory


@dataclass(frozen=True)
class Shapes:
    """How shapes are written, in help texts (``form``) and as a regular expression (``pattern``), and the default."""

    form: str
    pattern: str
    default: tuple[str, ...]


SHAPES = {
    "norms": Shapes(
        "ROWSxFEATURES",
        f"{SIZE}x{SIZE}",
        ("64x240", "64x960", "80x1024", "3200x512", "4000x1024", "16384x1024"),
    ),
    "recurrences": Shapes(
        "CELL-TIMExBATCHxINxHIDDEN",
        f"(gru|lstm)-{SIZE}x{SIZE}x{SIZE}x{SIZE}",
        ("gru-50x80x512x1024", "gru-30x32x128x256", "lstm-60x64x240x240"),
    ),
}
