"""Language modelling with a decoder like LLaMA's: predict each token of a text from those before it."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rmsexp import config
from rmsexp.data import text
from rmsexp.data.files import digest_of_contents
from rmsexp.data.sequences import cut
from rmsexp.models import init
from rmsexp.models.language_model import LanguageModel, Sizes
from rmsexp.norms import Norm
from rmsexp.norms.base import Identity
from rmsexp.norms.batch import without_batch_statistics
from rmsexp.records import record
from rmsexp.rules.quantities import Quantity, loss
from rmsexp.system import checks
from rmsexp.task import Noise, Objective, Target
from rmsexp.tasks.base import TaskBase
from rmsexp.train.optim import AdamWConfig
from rmsexp.train.randomness import drawn_index, permutation, seed_of, stream
from rmsexp.train.schedule import Cosine

EVALUATED_TOKENS, EVALUATED_LOGITS = 16_384, 2**27  # at most, in a forward pass of an evaluation (512 MiB of logits)


@dataclass
class DataConfig(config.DataConfig):
    """Options of the text, which ``configs/task/language_model.yaml`` explains."""

    name: str = "wikitext103"
    train: str = ""
    valid: str = ""
    test: str = ""
    held_out: int = 300
    tokens: str = "sentencepiece"
    vocabulary: int = 50_000

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.choice("data.name", self.name, tuple(SOURCES))
        checks.choice("data.tokens", self.tokens, text.KINDS)
        checks.at_least("data.held_out", self.held_out, 1)
        checks.at_least("data.vocabulary", self.vocabulary, 2, checks.LARGEST_WIDTH)
        self.check_own_files("the path of a text file")
        self.check_options_of("name", ["lambada", "lambada_all"], ["held_out"])
        self.check_options_of("tokens", ["sentencepiece"], ["vocabulary"])

    def digest_of_own_files(self) -> str:
        return digest_of_contents(map(Path, self.own_files.values())) if self.name == "files" else ""


SOURCES: dict[str, Callable[[DataConfig], text.Text]] = {
    "sentences": lambda _: text.sentences(),
    "lambada": lambda data: text.lambada(data.root_folder, data.held_out, rest=False),
    "lambada_all": lambda data: text.lambada(data.root_folder, data.held_out, rest=True),
    "wikitext103": lambda data: text.wikitext103(data.root_folder),
    "files": lambda data: text.files(**data.own_files),
}


@dataclass
class Config(config.RunConfig):
    """The task's schema. ``batch_size``: sequences per step. ``context``: tokens per sequence."""

    batch_size: int = 128
    context: int = 1024
    model: Sizes = field(default_factory=Sizes)
    data: DataConfig = field(default_factory=DataConfig)
    optim: AdamWConfig = field(default_factory=lambda: AdamWConfig(6e-4, 0.95, 1e-8, 1.0))
    schedule: Cosine = field(default_factory=lambda: Cosine(5000, 250))

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least("context", self.context, 2)


class Task(TaskBase):
    """The task ``language_model``. :class:`rmsexp.task.Task` describes the attributes and methods.

    A micro-batch is token ids, ``(batch, context + 1)``; all but the first of a row are predicted. An example is a row.
    """

    target = Target(split="test", metric="bits_per_byte", mode="min", selection="valid")
    predictions = "tokens"
    quantities = (loss("train"), loss("valid"), Quantity("valid", "bits_per_byte", "bits per byte"))

    def __init__(self, config: Config, device: torch.device) -> None:
        super().__init__(config, device, SOURCES[config.data.name](config.data))
        self.notes = {
            "tokens": f"{config.batch_size * config.context:,} per step, in sequences of {config.context:,}",
            "batch norm": "in training, statistics include later tokens; evaluation uses the running statistics",
        }

    def prepare(self, report: Callable[[str], None]) -> None:
        options = self.config.data
        self._tokens = text.prepare(self.source, options.tokens, options.vocabulary, options.root_folder, report)
        self.notes[record.SUBWORDS] = self._tokens.tokeniser.digest
        size, context = len(self._tokens.splits["train"]), self.config.context
        # An epoch begins at one of the first `context` tokens, so that sequences begin elsewhere in every epoch.
        self._windows = (size - context) // context
        if self._windows < self.config.batch_size:
            needed = (self.config.batch_size + 1) * context
            raise ValueError(
                f"the training text has {size:,} tokens, but a step needs {needed:,}; lower batch_size or context"
            )
        held_out = self._tokens.splits[self.target.split]
        bytes_per_token = self._tokens.tokeniser.lengths[held_out].mean()
        self.target = replace(self.target, chance=math.log2(self.vocabulary) / float(bytes_per_token))
        self.notes["unigram entropy"] = self._unigram_entropy()
        report(self.notes["unigram entropy"])

    @property
    def vocabulary(self) -> int:
        return self._tokens.tokeniser.size

    def build(self, norm: Norm) -> nn.Module:
        size = self.config.model
        model = LanguageModel(norm, self.vocabulary, size)
        for key, sites in {"qk_norm": ("query", "key"), "v_norm": ("value",), "embedding_norm": ("start",)}.items():
            layers = [layer for name, layer in model.named_modules() if name.rpartition(".")[2] in sites]
            if getattr(size, key) and all(isinstance(layer, Identity) for layer in layers):
                raise ValueError(f"model.{key}=true has no effect: norm={norm.name} changes nothing there")
        return without_batch_statistics(model).to(self.device)

    def initialise(self, model: nn.Module) -> None:
        assert isinstance(model, LanguageModel)
        init.initialise(model, init.lecun_normal, partial(stream, self.config.seed, "init"), model.initialisers())

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        assert isinstance(model, LanguageModel)
        return self.config.optim.optimizer(model.parameters(), inside=model.layers.parameters())

    def plan(self, epoch: int) -> np.ndarray:
        """Return where an epoch's sequences start in the training tokens, (step, batch), in random order."""
        context, seed, batch_size = self.config.context, self.config.seed, self.config.batch_size
        first = seed_of(seed, "first", epoch) % context
        starts = first + context * permutation(self._windows, seed, "order", epoch).numpy()
        return starts[: self._windows - self._windows % batch_size].reshape(-1, batch_size)

    def load(self, indices: np.ndarray, step: int) -> Tensor:  # noqa: ARG002
        return self._load(self._tokens.splits["train"], indices, self.config.context + 1)

    def examples(self, batch: Tensor) -> int:
        return len(batch)

    def objective(self, model: nn.Module, batch: Tensor, noise: Noise | None) -> Objective:  # noqa: ARG002
        """Return the mean cross-entropy of the predicted tokens."""
        targets = batch[:, 1:].flatten()
        logits = model(batch[:, :-1]).flatten(0, 1).float()
        nats = F.cross_entropy(logits, targets, reduction="sum")
        return Objective(nats / len(targets), {"loss": nats}, len(targets))

    def scores(self, model: nn.Module, split: str, examples: int | None) -> dict[str, float]:
        """Return the loss in nats per token, the bits per byte and the perplexity of a split.

        The split, or its first ``examples`` sequences, is read in sequences of ``context`` tokens. The model sees one
        token before each sequence: for the first a line feed.
        """
        tokeniser, tokens = self._tokens.tokeniser, self._tokens.splits[split]
        tokens = tokens if examples is None else tokens[: examples * self.config.context]
        shifted = np.concatenate([tokens[:1], tokens])
        shifted[0] = tokeniser.line_end
        parts = self._sequences(len(tokens))
        nats = self.mean_metrics(model, lambda part: self._load(shifted, *part), parts, 1)["loss"]
        mean = nats / len(tokens)
        return {
            "loss": mean,
            "bits_per_byte": nats / math.log(2) / int(tokeniser.lengths[tokens].sum()),
            "perplexity": math.inf if mean >= 700 else math.exp(mean),
        }

    def generate(self, model: nn.Module, prompt: str, count: int, temperature: float, seed: int) -> str:
        """Return ``count`` tokens after the prompt, as text. The model must be in evaluation mode.

        Each token is drawn from the probabilities of ``logits / temperature``, or with temperature 0 is the most
        probable one. The model sees the last ``context`` tokens at most.

        Raises: ValueError if the model's logits are not finite.
        """
        context, tokeniser = self.config.context, self._tokens.tokeniser
        tokens = [tokeniser.line_end, *map(int, tokeniser.encode(prompt.encode()))]
        start, generator = len(tokens), stream(seed, "generate")
        for _ in range(count):
            seen = torch.tensor([tokens[-context:]], device=self.device)
            with torch.no_grad():
                logits = model(seen)[0, -1].float().cpu()
            if not logits.isfinite().all():
                raise ValueError(
                    "the model's logits are not finite, so it cannot write text; choose another run or checkpoint"
                )
            tokens.append(int(drawn_index(logits, temperature, generator)))
        return tokeniser.decode(tokens[start:])

    def _sequences(self, tokens: int) -> Iterator[tuple[np.ndarray, int]]:
        """Yield (starts, length) of batches of sequences of ``context`` tokens, each with the one token before it.

        The sequences follow one another in a text of ``tokens`` tokens. The last batch has what remains.
        """
        context = self.config.context
        at_once = min(EVALUATED_TOKENS, EVALUATED_LOGITS // self.vocabulary)
        whole = tokens // context
        for starts in cut(np.arange(whole) * context, max(1, at_once // context)):
            yield starts, context + 1
        if rest := tokens - whole * context:
            yield np.array([whole * context]), rest + 1

    def _load(self, array: np.ndarray, starts: np.ndarray, length: int) -> Tensor:
        rows = np.stack([array[start : start + length] for start in starts]).astype(np.int64)
        return self.on_device([rows])[0]

    def _unigram_entropy(self) -> str:
        """Return the lowest loss that a model without context can have on each held-out split, as text."""
        entropies = []
        for name in ("valid", "test"):
            counts = np.bincount(self._tokens.splits[name])
            shares = counts[counts > 0] / counts.sum()
            entropies.append(f"{name} {-(shares * np.log(shares)).sum():.4f}")
        return f"entropy of single tokens, in nats: {'; '.join(entropies)}"
