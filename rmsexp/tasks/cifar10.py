"""CIFAR-10 with ConvPool-CNN-C (the paper's Table 10 and appendix A.4; Salimans & Kingma 2016, section 5.1)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rmsexp import config
from rmsexp.data import Images, cifar10
from rmsexp.data.sequences import cut
from rmsexp.data.synthetic import shapes
from rmsexp.models import init
from rmsexp.models.convpool import ConvPool
from rmsexp.norms import LayerNorm, Norm
from rmsexp.rules.quantities import Quantity, error, loss
from rmsexp.system import checks
from rmsexp.task import Noise, Objective, Target
from rmsexp.tasks.base import TaskBase
from rmsexp.train.optim import Adam, AdamConfig
from rmsexp.train.randomness import StreamNoise, permutation, stream
from rmsexp.train.schedule import HoldThenDecay

CALIBRATION_IMAGES = 500  # number of training images from which model.data_init=true sets gains and biases
EVALUATION_BATCH = 500  # number of images per forward pass in evaluation
LARGEST_FACTOR = 10_000  # largest model.width; it gives about a million channels (checks.LARGEST_WIDTH)
MEMORY_FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
FOLDER = "folder"  # the name of the user's own images

Batch = tuple[Tensor, Tensor]


@dataclass
class ModelConfig:
    """Options of the model, which ``configs/task/cifar10.yaml`` explains."""

    width: float = 1.0
    noise: float = 0.15
    dropout: float = 0.5
    init: str = "glorot_uniform"
    data_init: bool = False
    memory_format: str = "contiguous"

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
    """Options of the images, which ``configs/task/cifar10.yaml`` explains."""

    name: str = "cifar10"
    folder: str | None = None
    zca_eps: float = 1e-5
    validation: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.choice("data.name", self.name, tuple(SOURCES))
        if (self.name == FOLDER) != (self.folder is not None):
            raise ValueError(f"data.name={FOLDER} and data.folder, the path of your images, need each other")
        checks.positive("data.zca_eps", self.zca_eps)
        checks.at_least("data.validation", self.validation, 1)

    def digest_of_own_files(self) -> str:
        return "" if self.folder is None else cifar10.digest_of_folder(config.expanded(self.folder))


SOURCES: dict[str, Callable[[DataConfig], Images]] = {
    "cifar10": lambda data: cifar10.load(data.root_folder),
    "shapes": lambda _: shapes.shapes(),
    FOLDER: lambda data: cifar10.from_folder(config.expanded(str(data.folder)), data.root_folder),
}


@dataclass
class Config(config.RunConfig):
    """The schema of ``task=cifar10``."""

    batch_size: int = 100
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: AdamConfig = field(default_factory=lambda: AdamConfig(0.003, 0.999, 1e-8))
    schedule: HoldThenDecay = field(default_factory=lambda: HoldThenDecay(100_000, 500, 0.9, 0.5))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.evaluation is not None and self.data.validation is None:
            raise ValueError(
                f"evaluation={self.evaluation} needs validation images; set data.validation to their number"
            )


class Task(TaskBase):
    """The task ``cifar10``. :class:`rmsexp.task.Task` describes the attributes and methods.

    A batch is whitened images, ``(batch, 3, 32, 32)``, and labels, ``(batch,)``.
    """

    # selection: if there is no validation split
    target = Target(split="test", metric="error", mode="min", selection="test", chance=0.9)
    predictions = "images"
    quantities: Sequence[Quantity] = (loss("train"), *map(error, ("train", "valid", "test")))

    def __init__(self, config: Config, device: torch.device) -> None:
        images = SOURCES[config.data.name](config.data)
        self.classes = int(images.y["train"].max()) + 1
        self.target = replace(self.target, chance=1 - 1 / self.classes)
        if config.data.validation is not None:
            images = images.with_validation(config.data.validation)
            self.target = replace(self.target, selection="valid")
        else:
            self.held_out = ("test",)
            self.quantities = [quantity for quantity in self.quantities if quantity.split != "valid"]
        super().__init__(config, device, images)
        size = len(images.y["train"])
        if config.batch_size > size:
            raise ValueError(f"batch_size={config.batch_size} is more than the {size} training images")

    def prepare(self, report: Callable[[str], None]) -> None:
        data = self.config.data
        self._images = cifar10.whitened(self.source, data.zca_eps, data.root_folder, report)

    def build(self, norm: Norm) -> nn.Module:
        options = self.config.model
        values = {key: getattr(options, key) for key in ("width", "noise", "dropout", "data_init")}
        model = ConvPool(norm, classes=self.classes, **values)
        if self.classes == 2 and isinstance(model.dense.norm, LayerNorm):
            other = f"norm=by_role norm.default={norm.name} 'norm.roles={{output: none}}'"
            raise ValueError(f"LayerNorm makes two logits -1 and 1, so nothing is learnt: use more classes, or {other}")
        return model.to(device=self.device, memory_format=MEMORY_FORMATS[options.memory_format])  # type: ignore[call-overload]

    def initialise(self, model: nn.Module) -> None:
        seed, options = self.config.seed, self.config.model
        init.initialise(model, init.INITIALISERS[options.init], partial(stream, seed, "init"))
        if options.data_init:
            indices = permutation(len(self._images.y["train"]), seed, "calibration")[:CALIBRATION_IMAGES].numpy()
            images, _ = self.load(indices)
            init.initialise_from_data(
                model, lambda: model(images, StreamNoise(seed, "calibration noise", device=self.device))
            )

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        options = self.config.optim
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return Adam(trainable, options.lr, self.config.schedule.beta1, options.beta2, options.eps)

    def plan(self, epoch: int) -> np.ndarray:
        """Return the batches of an epoch, ``(step, batch)``, without the images that do not fill a batch."""
        size, batch_size = len(self.source.y["train"]), self.config.batch_size
        order = permutation(size, self.config.seed, "order", epoch).numpy()
        return order[: size - size % batch_size].reshape(-1, batch_size)

    def load(self, indices: np.ndarray, step: int = 0, split: str = "train") -> Batch:  # noqa: ARG002
        """Return images, in the model's memory format, and labels of a split."""
        arrays = (part[split][indices] for part in (self._images.x, self._images.y))
        images, labels = self.on_device(arrays)
        return images.contiguous(memory_format=MEMORY_FORMATS[self.config.model.memory_format]), labels

    def objective(self, model: nn.Module, batch: Batch, noise: Noise | None) -> Objective:
        """Return the mean cross-entropy. Logits with a NaN are no prediction, so they count as wrong."""
        images, labels = batch
        logits = model(images, noise).float()
        wrong = (logits.argmax(1) != labels) | logits.isnan().any(1)
        loss = F.cross_entropy(logits, labels, reduction="sum")
        return Objective(loss / len(labels), {"loss": loss, "error": wrong.sum()}, len(labels))

    def scores(self, model: nn.Module, split: str, examples: int | None) -> dict[str, float]:
        indices = np.arange(len(self._images.y[split]))[:examples]
        parts = cut(indices, EVALUATION_BATCH)
        return self.mean_metrics(model, partial(self.load, split=split), parts, len(indices))
