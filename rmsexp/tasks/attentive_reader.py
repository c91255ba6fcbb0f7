"""Reading comprehension with the attentive reader (the paper's section 6.2; Cooijmans et al. 2017, section 5.4).

Deviation: attentive reader, order of the training examples
    original: the order of the data in every epoch (attentive-reader:codes/att_reader/pkl_data_iterator.py:105)
    ours: a new random order in every epoch; shuffle=false restores the order of the data
    why: stochastic gradient methods assume batches that are random samples of the data
    effect: not measured
Deviation: attentive reader, incomplete last validation batch
    original: left out (attentive-reader:codes/att_reader/pkl_data_iterator.py:244-247)
    ours: evaluated
    why: the error should be that of the whole split
    effect: at most 63 validation questions more; with BatchNorm and norm.eval=batch, the default at scale=paper, they
        have their own statistics, or in the LSTMs running ones if they are fewer than 8
Deviation: attentive reader, best model
    original: the last evaluation with the lowest validation error
        (attentive-reader:codes/att_reader/attentive_reader.py:536)
    ours: the first one
    why: in all tasks, a later model must be better to replace the best one
    effect: on best.pt and, with data.validation, on the error that is reported
Deviation: attentive reader, questions whose answer is the unknown word
    original: the unknown word is an answer like any other (attentive-reader:codes/att_reader/model.py:538)
    ours: always counted as errors
    why: an answer that is not in the vocabulary cannot be given
    effect: not measured; there are no such answers if all entities are in the vocabulary
Deviation: attentive reader, initial matrices of equal shape
    original: have identical values, since each is drawn from seed 123 (attentive-reader:codes/att_reader/utils.py:126)
    ours: are drawn separately; model.shared_init=true restores identical values
    why: the paper names the distributions only, and identical matrices look unintended
    effect: not measured
Deviation: attentive reader, reported loss
    original: a small constant is added to p in -log p, which bounds it (attentive-reader:codes/core/costs.py:192)
    ours: -log p; the objective of training is the original's
    why: it is the cross-entropy of the model
    effect: the loss is higher where an answer has a probability near zero; the error is the same
Deviation: attentive reader, words that count as entities
    original: all that contain @entity (attentive-reader:codes/att_reader/utils.py:61-63)
    ours: @entityN only
    why: entities are exchanged in training, and another word is no entity
    effect: none if the vocabulary has no such words, as @entity1-based; not checked in the published questions
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from rmsexp import config
from rmsexp.data import Source, cloze
from rmsexp.data.cloze import NIL, UNK, Cloze, Examples
from rmsexp.data.files import digest_of_words
from rmsexp.data.sequences import by_sentences, cut, cycled
from rmsexp.data.synthetic import stories
from rmsexp.models import init
from rmsexp.models.attentive_reader import AttentiveReader, Batch
from rmsexp.norms import Norm
from rmsexp.records import record
from rmsexp.rules.quantities import Quantity, error, loss
from rmsexp.system import checks
from rmsexp.task import Noise, Objective, Target
from rmsexp.tasks.base import TaskBase
from rmsexp.train.optim import TensorFlowAdamConfig
from rmsexp.train.randomness import permutation, stream
from rmsexp.train.schedule import Constant

# None: as in the published code
INITIALISERS = {
    None: init.square_or_not(partial(init.orthogonal, gain=0.05), partial(init.glorot_uniform, extra=1)),
    "orthogonal": init.square_or_not(init.orthogonal, init.glorot_uniform),
}
LEAST_PROBABILITY = 1e-8  # added to the probability of the answer before the logarithm of the objective


@dataclass
class DataConfig(config.DataConfig):
    """Options of the questions, which ``configs/task/attentive_reader.yaml`` explains."""

    name: str = "cnn"
    sentences: int | None = 4
    damaged: str = "refuse"
    vocabulary: int = 1000
    entities: int = 12
    validation: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.choice("data.name", self.name, tuple(SOURCES))
        checks.choice("data.damaged", self.damaged, ("refuse", "skip"))
        for key in ("vocabulary", "entities", "validation", "sentences"):
            checks.at_least(f"data.{key}", getattr(self, key), 1)
        self.check_options_of("name", ["cnn"], ["sentences", "damaged"])
        self.check_options_of("name", ["lambada"], ["vocabulary", "entities", "validation"])


SOURCES: dict[str, Callable[[DataConfig], Source[Cloze]]] = {
    "stories": lambda _: stories.stories(),
    "lambada": lambda data: cloze.lambada(data.root_folder, data.vocabulary, data.entities, data.validation),
    "cnn": lambda data: cloze.cnn(data.root_folder, data.sentences, data.damaged),
}


@dataclass
class ModelConfig:
    """Options of the model, which ``configs/task/attentive_reader.yaml`` explains."""

    width: int = 240
    dropout: float = 0.5
    shared_init: bool = False
    init: str | None = None

    def __post_init__(self) -> None:
        checks.at_least("model.width", self.width, 2, checks.LARGEST_WIDTH)
        checks.probability("model.dropout", self.dropout)
        checks.choice("model.init", self.init, tuple(INITIALISERS))


@dataclass
class Config(config.RunConfig):
    """The schema of ``task=attentive_reader``."""

    batch_size: int = 64
    shuffle: bool = True
    pool: int = 1
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: TensorFlowAdamConfig = field(
        default_factory=lambda: TensorFlowAdamConfig(8e-5, 0.999, 1e-8, 10.0, "by_root")
    )
    schedule: Constant = field(default_factory=lambda: Constant(300_000))

    @property
    def test_splits(self) -> Sequence[str]:
        return ("test",) if self.data.name == "cnn" or self.data.validation is not None else ()

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least("pool", self.pool, 1)


class Task(TaskBase):
    """The task ``attentive_reader``. :class:`rmsexp.task.Task` describes the attributes and methods."""

    target = Target(split="valid", metric="error", mode="min", selection="valid")  # as in the paper
    predictions = "questions"
    quantities: Sequence[Quantity] = (loss("train"), loss("valid"), error("valid"), error("test"))

    def __init__(self, config: Config, device: torch.device) -> None:
        super().__init__(config, device, SOURCES[config.data.name](config.data))
        if config.data.validation is not None:
            self.target = replace(self.target, split="test")
        self.notes = {"batch norm": "error and loss use the statistics that norm.eval selects"}

    def prepare(self, report: Callable[[str], None]) -> None:
        self._cloze: Cloze = self.source.load(report)
        self.held_out = self._cloze.splits
        if "test" not in self.held_out:
            self.quantities = [quantity for quantity in self.quantities if quantity.split != "test"]
        size = len(self._cloze.splits["train"])
        if self.config.batch_size > size:
            raise ValueError(f"batch_size={self.config.batch_size} is more than the {size} training examples")
        self.notes[record.WORDS] = digest_of_words(self._cloze.words)
        self.target = replace(self.target, chance=self._chance(self._cloze.splits[self.target.split]))

    def build(self, norm: Norm) -> nn.Module:
        options = self.config.model
        model = AttentiveReader(norm, len(self._cloze.words), width=options.width, dropout=options.dropout)
        return model.to(self.device)

    def initialise(self, model: nn.Module) -> None:
        seed, width = self.config.seed, self.config.model.width
        stream_name = (lambda _: "shared") if self.config.model.shared_init else str
        others = {"score.weight": init.uniform(width**-0.5)}
        init.initialise(
            model, INITIALISERS[self.config.model.init], lambda name: stream(seed, "init", stream_name(name)), others
        )

    def plan(self, epoch: int) -> list[np.ndarray]:
        """Return the batches of an epoch, without the examples at the end of its order that do not fill a batch."""
        train, options = self._cloze.splits["train"], self.config
        size = len(train)
        order = permutation(size, options.seed, "order", epoch).numpy() if options.shuffle else np.arange(size)
        lengths = train.passages.lengths + train.questions.lengths
        return by_sentences(lengths, order[: size - size % options.batch_size], options.batch_size, options.pool)

    def load(self, indices: np.ndarray, step: int) -> Batch:
        """Return training examples. The step permutes the entities, so that a name means nothing across steps."""
        words, entities = np.arange(len(self._cloze.words)), self._cloze.entities
        words[entities] = entities[permutation(len(entities), self.config.seed, "entities", step).numpy()]
        return self._load(self._cloze.splits["train"], indices, words)

    def objective(self, model: nn.Module, batch: Batch, noise: Noise | None) -> Objective:
        """Return the mean of ``-log(p + LEAST_PROBABILITY)``, where p is the probability of the answer.

        The loss is ``-log(p)``. If the answer is the unknown word, any prediction is an error.
        """
        logits, answers = model(batch, noise).float(), batch.answer
        losses = F.cross_entropy(logits, answers, reduction="none")
        objective = -torch.log(torch.exp(-losses) + LEAST_PROBABILITY)
        wrong = (logits.argmax(1) != answers) | (answers == UNK)
        return Objective(objective.sum() / len(answers), {"loss": losses.sum(), "error": wrong.sum()}, len(answers))

    def scores(self, model: nn.Module, split: str, examples: int | None) -> dict[str, float]:
        """Return mean loss in nats and error (a fraction) of a split. Unlike in training, ids are not permuted."""
        held_out, words = self._cloze.splits[split].first(examples), np.arange(len(self._cloze.words))
        parts = cut(np.arange(len(held_out)), self.config.batch_size)
        return self.mean_metrics(model, lambda part: self._load(held_out, part, words), parts, len(held_out))

    def _chance(self, split: Examples) -> float:
        """Return the expected error of answering with an entity of the passage, drawn uniformly."""
        correct = 0.0
        for i, answer in enumerate(split.answers):
            entities = np.intersect1d(split.passages[i], self._cloze.entities)
            correct += (answer in entities) / max(1, len(entities))
        return 1 - correct / len(split)

    def _load(self, split: Examples, indices: np.ndarray, words: np.ndarray) -> Batch:
        """Return examples on the device, with word id ``words[i]`` in place of i. Padding repeats the sequence."""
        arrays = []
        for sequences in (split.passages, split.questions):
            tokens, mask = cycled([sequences[i] for i in indices], NIL)
            arrays += [words[tokens], mask]
        return Batch(*self.on_device([*arrays, words[split.answers[indices]]]))
