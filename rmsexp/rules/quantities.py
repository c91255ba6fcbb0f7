"""Metrics on splits that a task names for reports, which draw and tabulate them against steps and time.

This module imports only the standard library, because both the trainer and the comparisons import it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Quantity:
    """A metric on a split.

    Attributes:
        split: the split: "train" for the rows of training, or the name of a held-out split.
        metric: the name of the metric in the rows of the record.
        label: the name of the metric for people.
        unit: the unit in which it is shown; "" for none. With "%" the record has fractions.
        log: whether an axis is logarithmic if the values differ by orders of magnitude.
    """

    split: str
    metric: str
    label: str
    unit: str = ""
    log: bool = False

    @property
    def name(self) -> str:
        """The name of the quantity in tables and of its files, such as "valid_bleu"."""
        return f"{self.split}_{self.metric}"

    @property
    def factor(self) -> float:
        """The shown value divided by the recorded value: 100 for the unit "%", else 1."""
        return 100.0 if self.unit == "%" else 1.0


def loss(split: str, unit: str = "nats") -> Quantity:
    """Return the :class:`Quantity` of the loss on a split."""
    return Quantity(split, "loss", "loss", unit, log=True)


def error(split: str) -> Quantity:
    """Return the :class:`Quantity` of the error, the fraction of wrong predictions, on a split."""
    return Quantity(split, "error", "error", "%")
