"""CIFAR-10 with ConvPool-CNN-C (the paper's Table 10 and appendix A.4; Salimans & Kingma 2016, section 5.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rmsexp import config
from rmsexp.data import Images, cifar10
from rmsexp.data.sequences import even_parts
from rmsexp.data.synthetic import shapes
from rmsexp.models import init
from rmsexp.models.convpool import ConvPool
from rmsexp.norms import Norm
from rmsexp.rules.quantities import Quantity, error, loss
from rmsexp.system import checks
from rmsexp.task import ALL, WHOLE, Dataset, Extent, MicroBatches, Noise, Objective, Target
from rmsexp.train.distributed.group import means
from rmsexp.train.optim import Adam, AdamConfig
from rmsexp.train.randomness import StreamNoise, permutation, stream
from rmsexp.train.schedule import HoldThenDecay

CALIBRATION_IMAGES = 500  # number of training images from which model.data_init=true sets gains and biases
EVALUATION_BATCH = 500  # number of images per forward pass in evaluation
LARGEST_FACTOR = 10_000  # largest model.width; it gives about a million channels (checks.LARGEST_WIDTH)
MEMORY_FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
SOURCES: dict[str, Callable[[Path], Images]] = {"cifar10": cifar10.load, "shapes": lambda _: shapes.shapes()}

Batch = tuple[Tensor, Tensor]


@dataclass
class ModelConfig:
    """Options of the model.

    ``width``: factor on the paper's numbers of channels. ``noise``: standard deviation of the Gaussian noise on the
    input in training. ``dropout``: rate after each max pooling. ``init``: how weights are drawn, a key of
    ``INITIALISERS``. ``data_init``: whether gains and biases are set from data. ``memory_format``: memory layout of
    images and weights, a key of ``MEMORY_FORMATS``.
    """

    width: float
    noise: float
    dropout: float
    init: str
    data_init: bool
    memory_format: str

    def __post_init__(self) -> None:
        checks.positive("model.width", self.width, LARGEST_FACTOR)
        if round(96 * self.width) < 1:
            raise ValueError(f"model.width={self.width} leaves no channel; it must be more than {0.5 / 96:.4f}")
        checks.at_least("model.noise", self.noise, 0)
        checks.probability("model.dropout", self.dropout)
        checks.choice("model.init", self.init, tuple(init.INITIALISERS))
        checks.choice("model.memory_format", self.memory_format, tuple(MEMORY_FORMATS))


@dataclass
class DataConfig(config.DataConfig):
    """Options of the images.

    ``zca_eps``: number added to the eigenvalues of the covariance matrix in ZCA whitening. ``validation``: number of
    training images, the last ones, that become validation images; None: there are none, and models are selected by
    their test error.
    """

    name: str = "cifar10"
    zca_eps: float = 1e-5
    validation: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.choice("data.name", self.name, tuple(SOURCES))
        checks.positive("data.zca_eps", self.zca_eps)
        if self.validation is not None:
            checks.at_least("data.validation", self.validation, 1)


@dataclass
class Config(config.RunConfig):
    """The schema of ``task=cifar10``."""

    batch_size: int = 100
    model: ModelConfig = field(
        default_factory=lambda: ModelConfig(1.0, 0.15, 0.5, "glorot_uniform", False, "contiguous")
    )
    data: DataConfig = field(default_factory=DataConfig)
    optim: AdamConfig = field(default_factory=lambda: AdamConfig(0.003, 0.999, 1e-8))
    schedule: HoldThenDecay = field(default_factory=lambda: HoldThenDecay(100_000, 500, 0.9, 0.5))

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least("batch_size", self.batch_size, 1)
        if self.evaluation is not None and self.data.validation is None:
            raise ValueError(
                f"evaluation={self.evaluation} needs validation images; set data.validation to their number"
            )


class Task:
    """The task ``cifar10``. :class:`rmsexp.task.Task` describes the attributes and methods.

    A batch is whitened images, ``(batch, 3, 32, 32)``, and labels, ``(batch,)``.
    """

    # selection: if there is no validation split
    target = Target(split="test", metric="error", mode="min", selection="test", chance=0.9)
    predictions = "images"
    quantities: Sequence[Quantity] = (loss("train"), *map(error, ("train", "valid", "test")))
    notes: Mapping[str, str] = {}
    files: Mapping[str, str] = {}

    def __init__(self, config: Config, device: torch.device) -> None:
        self.config, self.device = config, device
        self._root = config.data.root_folder
        self._source = SOURCES[config.data.name](self._root)
        if config.data.validation is not None:
            self._source = self._source.with_validation(config.data.validation)
            self.target = replace(self.target, selection="valid")
        else:
            self.quantities = [quantity for quantity in self.quantities if quantity.split != "valid"]
        self.dataset = Dataset(self._source.name, self._source.digest, self._source.builtin)
        size = len(self._source.train_y)
        if config.batch_size > size:
            raise ValueError(f"batch_size={config.batch_size} is more than the {size} training images")
        self._batches_per_epoch = size // config.batch_size
        self.steps_per_epoch = float(self._batches_per_epoch)
        self._order = lru_cache(maxsize=2)(lambda epoch: permutation(size, config.seed, "order", epoch).numpy())

    def prepare(self, report: Callable[[str], None]) -> None:
        self._images = cifar10.whitened(self._source, self.config.data.zca_eps, self._root, report)

    def build(self, norm: Norm) -> nn.Module:
        options = self.config.model
        model = ConvPool(
            norm, width=options.width, noise=options.noise, dropout=options.dropout, data_init=options.data_init
        )
        return model.to(device=self.device, memory_format=MEMORY_FORMATS[options.memory_format])  # type: ignore[call-overload]

    def initialise(self, model: nn.Module) -> None:
        seed, options = self.config.seed, self.config.model
        init.initialise(model, init.INITIALISERS[options.init], lambda name: stream(seed, "init", name))
        if options.data_init:
            indices = permutation(len(self._images.train_y), seed, "calibration")[:CALIBRATION_IMAGES].numpy()
            images, _ = self._load(self._images.train_x, self._images.train_y, indices)
            init.initialise_from_data(
                model, lambda: model(images, StreamNoise(seed, "calibration noise", device=self.device))
            )

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        options = self.config.optim
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return Adam(trainable, options.lr, self.config.schedule.beta1, options.beta2, options.eps)

    def batches(self, step: int, chosen: slice = ALL) -> MicroBatches:
        epoch, index = divmod(step, self._batches_per_epoch)
        size, images = self.config.batch_size, self._images
        parts = even_parts(self._order(epoch)[index * size : (index + 1) * size], self.config.micro_batches)
        loaded = (self._load(images.train_x, images.train_y, part) for part in parts[chosen])
        return MicroBatches(loaded, [len(part) for part in parts])

    def examples(self, batch: Batch) -> int:
        return len(batch[1])

    def objective(self, model: nn.Module, batch: Batch, noise: Noise) -> Objective:
        images, labels = batch
        sums = _sums(model(images, noise), labels)
        return Objective(sums["loss"] / len(labels), sums, len(labels))

    def evaluate(self, model: nn.Module, extent: Extent = WHOLE) -> dict[str, dict[str, float]]:
        data = self._images
        splits = {}
        if data.valid_x is not None and data.valid_y is not None:
            splits[extent.split] = data.valid_x, data.valid_y[: extent.examples]
        if extent.test:
            splits["test"] = (data.test_x, data.test_y)
        return {name: self._scores(model, *split) for name, split in splits.items()}

    def _scores(self, model: nn.Module, x: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        """Return mean loss and error of as many images, the first ones, as there are labels."""

        def sums(start: int) -> dict[str, float]:
            images, truth = self._load(x, labels, np.arange(start, min(start + EVALUATION_BATCH, len(labels))))
            return {name: value.item() for name, value in _sums(model(images), truth).items()}

        return means(sums, range(0, len(labels), EVALUATION_BATCH), len(labels))

    def _load(self, images: np.ndarray, labels: np.ndarray, indices: np.ndarray) -> Batch:
        """Return the images, in the model's memory format, and labels at ``indices``, both on the device."""
        x = torch.from_numpy(images[indices]).to(self.device, non_blocking=True)
        memory_format = MEMORY_FORMATS[self.config.model.memory_format]
        return x.contiguous(memory_format=memory_format), torch.from_numpy(labels[indices]).to(self.device)


def _sums(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return the cross-entropy in nats, summed over the batch, and the number of wrong predictions.

    Logits with a NaN are no prediction, so they count as wrong.
    """
    logits = logits.float()
    wrong = (logits.argmax(1) != labels) | logits.isnan().any(1)
    return {"loss": F.cross_entropy(logits, labels, reduction="sum"), "error": wrong.sum()}
