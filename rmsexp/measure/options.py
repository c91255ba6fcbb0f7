"""Options of the measuring commands, without importing torch, so that mistakes in them are reported at once."""

from __future__ import annotations

from dataclasses import dataclass

from rmsexp import checks

BOTH, FORWARD = "forward + backward", "forward"  # the passes that a case of a benchmark times
FEWEST_BENCH_ROUNDS = 6  # least number of rounds of a benchmark; intervals from fewer rounds are meaningless
LARGE = 2**20  # smallest number of input elements for which memory traffic takes longer than the overhead of a call
SIZE = "[1-9][0-9]{0,8}"  # regular expression of a dimension; larger numbers fit in no memory


@dataclass
class TimingConfig:
    """The keys below ``timing.`` of ``python -m rmsexp.timing``, which its --help explains."""

    layers: bool = False
    reference: str = "ln"
    target_width: float = 0.02
    budget: float = 120.0

    def __post_init__(self) -> None:
        checks.positive("timing.target_width", self.target_width)
        checks.positive("timing.budget", self.budget)


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
