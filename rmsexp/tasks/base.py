"""What the tasks of this package share: the data set, the optimiser, the batches of an epoch, and evaluation."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rmsexp.data.sequences import even_parts
from rmsexp.task import ALL, WHOLE, Dataset, Extent, MicroBatches, Noise, Objective, Task
from rmsexp.train.group import means


class TaskBase(Task):
    """Base class of the tasks of this package. :class:`rmsexp.task.Task` describes the attributes and methods.

    ``source``: the data set, with its name, its digest and whether it is built in. ``held_out``: the splits that
    :meth:`evaluate` may evaluate. ``epoch(number)``: the result of :meth:`plan`, cached.
    """

    held_out: Collection[str] = ("valid", "test")

    def __init__(self, config: Any, device: torch.device, source: Any) -> None:
        self.config, self.device, self.source = config, device, source
        self.dataset = Dataset(source.name, source.digest, source.builtin)
        self.notes: dict[str, str] = {}
        self.epoch = lru_cache(maxsize=3)(self.plan)  # epoch 0, for its size, and the one or two of a step

    @abstractmethod
    def plan(self, epoch: int) -> Any:
        """Return the batches of an epoch, each an array of indices of training examples."""

    @abstractmethod
    def load(self, indices: np.ndarray, step: int) -> Any:
        """Return a micro-batch of training examples on the device."""

    @abstractmethod
    def objective(self, model: nn.Module, batch: Any, noise: Noise | None) -> Objective:
        """Return the objective of a micro-batch, in training with ``noise``, in evaluation without."""

    def scores(self, model: Any, split: str, examples: int | None) -> dict[str, float]:
        """Return the metrics of a split, or of its first ``examples`` examples, for :meth:`evaluate`."""
        raise NotImplementedError

    @property
    def steps_per_epoch(self) -> float:  # type: ignore[override]
        return float(len(self.epoch(0)))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return self.config.optim.optimizer(model.parameters())

    def batch(self, step: int) -> np.ndarray:
        """Return the batch of a step, as indices of training examples."""
        epoch, index = divmod(step, int(self.steps_per_epoch))
        return self.epoch(epoch)[index]

    def parts(self, step: int) -> list[np.ndarray]:
        """Return the micro-batches of a step, as indices of training examples."""
        return even_parts(self.batch(step), self.config.micro_batches)

    def weight(self, indices: np.ndarray) -> int:
        """Return the weight of a micro-batch (see :class:`rmsexp.task.MicroBatches`)."""
        return len(indices)

    def batches(self, step: int, chosen: slice = ALL) -> MicroBatches:
        parts = self.parts(step)
        loaded = (self.load(indices, step) for indices in parts[chosen])
        return MicroBatches(loaded, [self.weight(indices) for indices in parts])

    def examples(self, batch: Any) -> int:
        return len(batch[0])

    def evaluate(self, model: nn.Module, extent: Extent = WHOLE) -> dict[str, dict[str, float]]:
        counts = {"valid": extent.examples} | ({"test": None} if extent.test else {})
        return {
            extent.split if split == "valid" else split: self.scores(model, split, examples)
            for split, examples in counts.items()
            if split in self.held_out
        }

    def mean_metrics(
        self, model: nn.Module, load: Callable[[Any], Any], parts: Iterable[Any], count: int
    ) -> dict[str, float]:
        """Return the metrics of the batches ``load(part)``, summed over all parts and divided by ``count``."""

        def sums(part: Any) -> dict[str, float]:
            return {name: value.item() for name, value in self.objective(model, load(part), None).sums.items()}

        return means(sums, parts, count)

    def on_device(self, arrays: Iterable[np.ndarray]) -> list[Tensor]:
        """Return the arrays as tensors on the device."""
        return [torch.from_numpy(array).to(self.device, non_blocking=True) for array in arrays]
