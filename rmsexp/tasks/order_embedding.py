"""Image-caption retrieval with order-embeddings (the paper's section 6.3; Vendrov et al. 2016)."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rmsexp import config
from rmsexp.data import Source
from rmsexp.data.captions import EOS, PER_IMAGE, CaptionedImages, Captions, coco, flickr8k
from rmsexp.data.files import digest_of_words
from rmsexp.data.image_features import KINDS
from rmsexp.data.sequences import cut, even_parts, padded
from rmsexp.data.synthetic import scenes
from rmsexp.metrics.retrieval import CUTOFFS, retrieval
from rmsexp.models import init
from rmsexp.models.order_embedding import PENALTIES, OrderEmbedding, ranking_loss
from rmsexp.norms import Norm
from rmsexp.norms.batch import without_batch_statistics
from rmsexp.records import record
from rmsexp.rules.quantities import Quantity, loss
from rmsexp.system import checks
from rmsexp.task import Noise, Objective, Target
from rmsexp.tasks.base import TaskBase
from rmsexp.train.group import each, means
from rmsexp.train.optim import TensorFlowAdam, TensorFlowAdamConfig
from rmsexp.train.randomness import choices, permutation, stream
from rmsexp.train.schedule import Constant

ENCODED_AT_ONCE = 500  # number of captions or images per forward pass in evaluation
CORRECTIONS = ("published", "standard")  # values of optim.bias_correction


@dataclass
class DataConfig(config.DataConfig):
    """Options of captions and images, which ``configs/task/order_embedding.yaml`` explains."""

    name: str = "coco"
    features: str = "vgg19"
    valid_images: int = 1000
    fold: int | None = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.choice("data.name", self.name, tuple(SOURCES))
        checks.choice("data.features", self.features, tuple(KINDS))
        self.check_options_of("name", ["flickr8k", "coco"], ["features"])
        checks.at_least("data.valid_images", self.valid_images, 2)
        checks.at_least("data.fold", self.fold, 1)


SOURCES: dict[str, Callable[[DataConfig], Source[Captions]]] = {
    "scenes": lambda _: scenes.scenes(),
    "flickr8k": lambda data: flickr8k(data.root_folder, data.features),
    "coco": lambda data: coco(data.root_folder, data.features),
}


@dataclass
class ModelConfig:
    """Sizes: ``embedding`` of word embeddings, ``hidden`` of states and of the vectors of captions and images."""

    embedding: int = 300
    hidden: int = 1024

    def __post_init__(self) -> None:
        checks.at_least("model.embedding", self.embedding, 1, checks.LARGEST_WIDTH)
        checks.at_least("model.hidden", self.hidden, 1, checks.LARGEST_WIDTH)


@dataclass
class OptimConfig(TensorFlowAdamConfig):
    """Options of Adam. ``bias_correction``: "standard", or "published": with 1 - beta for beta, so soon near 1."""

    bias_correction: str = "published"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.choice("optim.bias_correction", self.bias_correction, CORRECTIONS)
        if self.bias_correction == "published":  # which has 1 - beta in place of beta
            checks.positive("optim.beta1", self.beta1)
            checks.positive("optim.beta2", self.beta2)

    def optimizer(self, params: Iterable[Tensor]) -> TensorFlowAdam:
        swapped = self.bias_correction == "published"
        return TensorFlowAdam(params, self.lr, self.beta1, self.beta2, self.eps, swapped=swapped)


@dataclass
class Config(config.RunConfig):
    """The task's schema. ``penalty``: "order", or "cosine", the symmetric baseline. ``margin``: of the ranking loss."""

    batch_size: int = 128
    penalty: str = "order"
    margin: float = 0.05
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=lambda: OptimConfig(1e-3, 0.999, 1e-8, 2.0, "per_tensor"))
    schedule: Constant = field(default_factory=lambda: Constant(88_500))

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least("batch_size", self.batch_size, 2)
        checks.choice("penalty", self.penalty, tuple(PENALTIES))
        checks.positive("margin", self.margin)


class Batch(NamedTuple):
    """Captions with one image each: tokens and mask ``(batch, time)``, image features ``(batch, features)``."""

    tokens: Tensor
    mask: Tensor
    features: Tensor


class Task(TaskBase):
    """The task ``order_embedding``. :class:`rmsexp.task.Task` describes the attributes and methods."""

    # image_recall is the mean of R@1, R@5 and R@10 of images, which the paper's Figure 6 shows
    target = Target(split="test", metric="image_recall", mode="max", selection="valid")
    predictions = "pairs"
    quantities = (
        loss("train", "per pair"),
        loss("valid", "per pair"),
        *(Quantity("valid", f"image_r{k}", f"image recall@{k}", "%") for k in CUTOFFS),
    )

    def __init__(self, config: Config, device: torch.device) -> None:
        super().__init__(config, device, SOURCES[config.data.name](config.data))
        self._penalty = PENALTIES[config.penalty]

    def prepare(self, report: Callable[[str], None]) -> None:
        captions, data = self.source.load(report), self.config.data
        self.words, self._splits = captions.words, dict(captions.splits)
        self._splits["valid"] = self._splits["valid"].first(data.valid_images)
        size = len(self._splits["train"])
        if self.config.batch_size >= size:
            raise ValueError(f"batch_size={self.config.batch_size} must be less than the {size} training images")
        images = len(self._splits["test"])
        ranked = min(data.fold or images, images)
        self.notes = {
            record.WORDS: digest_of_words(self.words),
            "loss": "the sum of the hinge terms of a batch, divided by the number of its matching pairs",
        }
        self.target = replace(self.target, chance=sum(min(1, k / ranked) for k in CUTOFFS) / len(CUTOFFS))
        if left_out := images % ranked:
            report(f"the last {left_out:,} test images do not fill a fold of {ranked:,} and are not ranked")

    def build(self, norm: Norm) -> nn.Module:
        options, features = self.config.model, self._splits["train"].features.shape[1]
        absolute = self.config.penalty == "order"
        sizes = {"embedding": options.embedding, "hidden": options.hidden}
        model = OrderEmbedding(norm, len(self.words), features, **sizes, absolute=absolute)
        return without_batch_statistics(model).to(self.device)

    def initialise(self, model: nn.Module) -> None:
        recurrent = dict.fromkeys(("gru.gates_h.weight", "gru.candidate_h.weight"), init.orthogonal)
        others = recurrent | {"image.weight": init.glorot_uniform}
        init.initialise(model, init.uniform(0.1), partial(stream, self.config.seed, "init"), others)

    def plan(self, epoch: int) -> np.ndarray:
        """Return batches of images, ``(step, batch)``; the last, even if full, is dropped, as in the published code."""
        size, batch_size = len(self._splits["train"]), self.config.batch_size
        order = permutation(size, self.config.seed, "order", epoch).numpy()
        return order[: (size - 1) // batch_size * batch_size].reshape(-1, batch_size)

    def parts(self, step: int) -> list[np.ndarray]:
        """Return indices of each micro-batch's images and of one random caption of each, ``(image, 2)``."""
        images = self.batch(step)
        captions = PER_IMAGE * images + choices(len(images), PER_IMAGE, self.config.seed, "captions", step).numpy()
        return even_parts(np.stack([images, captions], 1), self.config.micro_batches)

    def load(self, indices: np.ndarray, step: int) -> Batch:  # noqa: ARG002
        train, (images, captions) = self._splits["train"], indices.T
        return Batch._make([*self._tokens(train, captions), self._features(train, images)])

    def objective(self, model: nn.Module, batch: Batch, noise: Noise | None) -> Objective:  # noqa: ARG002
        return self.coupled(*self.embed(model, batch))

    def embed(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        return model(*batch)

    def coupled(self, *rows: Tensor) -> Objective:
        penalties = self._penalty(*rows)
        loss = ranking_loss(penalties.float(), self.config.margin)
        return Objective(loss, {"loss": loss}, len(penalties))

    def scores(self, model: OrderEmbedding, split: str, examples: int | None) -> dict[str, float]:
        """Return the mean loss per matching pair, and the measures of :func:`rmsexp.metrics.retrieval.retrieval`."""
        captions, images = self._embed(model, self._splits[split].first(examples))
        fold = self.config.data.fold if split == "test" else None
        return {"loss": self._loss(captions, images), **retrieval(captions, images, self._penalty, fold, each)}

    def _embed(self, model: OrderEmbedding, split: CaptionedImages) -> tuple[Tensor, Tensor]:
        """Return the vectors of all captions and of all images of a split, in its order, as float32 tensors.

        Captions of similar length are encoded in one forward pass.
        """
        order = np.argsort(split.captions.lengths, kind="stable")
        parts = cut(order, ENCODED_AT_ONCE)
        ordered = torch.cat(each(lambda part: model.captions(*self._tokens(split, part)), parts)).to(self.device)
        captions = torch.empty_like(ordered)
        captions[torch.from_numpy(order)] = ordered
        parts = cut(np.arange(len(split)), ENCODED_AT_ONCE)
        images = torch.cat(each(lambda part: model.images(self._features(split, part)), parts)).to(self.device)
        return captions.float(), images.float()

    def _loss(self, captions: Tensor, images: Tensor) -> float:
        """Return the ranking loss of a held-out split per matching pair.

        Batches, about equally large, have at most ``batch_size`` images and the n-th caption of each, for each n.
        """

        def loss(part: tuple[Tensor, int]) -> dict[str, float]:
            rows, i = part
            penalties = self._penalty(captions[PER_IMAGE * rows + i], images[rows])
            return {"loss": ranking_loss(penalties, self.config.margin).item()}

        batches = torch.arange(len(images)).tensor_split(math.ceil(len(images) / self.config.batch_size))
        parts = [(rows, i) for rows in batches for i in range(PER_IMAGE)]
        return means(loss, parts, len(captions))["loss"]

    def _tokens(self, split: CaptionedImages, indices: np.ndarray) -> list[Tensor]:
        return self.on_device(padded([split.captions[i] for i in indices], EOS))

    def _features(self, split: CaptionedImages, indices: np.ndarray) -> Tensor:
        return self.on_device([np.asarray(split.features[indices])])[0]
