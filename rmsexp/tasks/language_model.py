"""Language modelling with a decoder like LLaMA's: predict each token of a text from those before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rmsexp import config
from rmsexp.data import text
from rmsexp.data.files import digest_of_contents
from rmsexp.data.sequences import even_parts
from rmsexp.models import init
from rmsexp.models.language_model import Cache, LanguageModel, Sizes
from rmsexp.norms import Norm, Site
from rmsexp.norms.base import Identity
from rmsexp.norms.batch import refuse_batch_statistics
from rmsexp.records import record
from rmsexp.rules.quantities import Quantity, loss
from rmsexp.system import checks
from rmsexp.task import ALL, WHOLE, Dataset, Extent, MicroBatches, Noise, Objective, Target
from rmsexp.train.distributed.group import each
from rmsexp.train.optim import AdamWConfig
from rmsexp.train.randomness import drawn_index, permutation, seed_of, stream
from rmsexp.train.schedule import Cosine

EVALUATED_TOKENS, EVALUATED_LOGITS = 16_384, 2**27  # at most, in a forward pass of an evaluation (512 MiB of logits)


@dataclass
class DataConfig(config.DataConfig):
    """Options of the text and of its tokens.

    ``train``, ``valid`` and ``test``: for ``name=files``, the paths of the text files. ``held_out``: for
    ``name=lambada``, the number of passages of the validation text, and of the test text; ``name=lambada_all`` also
    trains on the test passages that are not held out. ``tokens``: "bytes", or
    "sentencepiece" for ``vocabulary`` pieces that are learnt on the training text.
    """

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


SOURCES: dict[str, Callable[[DataConfig, Path], text.Text]] = {
    "sentences": lambda data, root: text.sentences(),  # noqa: ARG005
    "lambada": lambda data, root: text.lambada(root, data.held_out, rest=False),
    "lambada_all": lambda data, root: text.lambada(root, data.held_out, rest=True),
    "wikitext103": lambda data, root: text.wikitext103(root),  # noqa: ARG005
    "files": lambda data, root: text.files(**data.own_files),  # noqa: ARG005
}


@dataclass
class Config(config.RunConfig):
    """The schema of ``task=language_model``.

    ``batch_size``: number of sequences per step. ``context``: number of tokens per sequence.
    """

    batch_size: int = 128
    context: int = 1024
    model: Sizes = field(default_factory=Sizes)
    data: DataConfig = field(default_factory=DataConfig)
    optim: AdamWConfig = field(default_factory=lambda: AdamWConfig(6e-4, 0.95, 1e-8, 1.0))
    schedule: Cosine = field(default_factory=lambda: Cosine(5000, 250))

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least("batch_size", self.batch_size, 1)
        checks.at_least("context", self.context, 2)


class Task:
    """The task ``language_model``. :class:`rmsexp.task.Task` describes the attributes and methods.

    A micro-batch is token ids, ``(batch, context + 1)``; all but the first of a row are predicted. An example is a row.
    """

    target = Target(split="test", metric="bits_per_byte", mode="min", selection="valid")
    predictions = "tokens"
    quantities = (loss("train"), loss("valid"), Quantity("valid", "bits_per_byte", "bits per byte"))
    files: Mapping[str, str] = {}

    def __init__(self, config: Config, device: torch.device) -> None:
        self.config, self.device = config, device
        self._text = SOURCES[config.data.name](config.data, config.data.root_folder)
        self.dataset = Dataset(self._text.name, self._text.digest, self._text.builtin)
        self.notes = {
            "tokens": f"{config.batch_size * config.context:,} per step, in sequences of {config.context:,}",
            "batch norm": "in training, statistics include later tokens; evaluation uses the running statistics",
        }

    @property
    def steps_per_epoch(self) -> float:
        return float(self._windows // self.config.batch_size)

    def prepare(self, report: Callable[[str], None]) -> None:
        options = self.config.data
        self._tokens = text.prepare(self._text, options.tokens, options.vocabulary, options.root_folder, report)
        self.notes[record.SUBWORDS] = self._tokens.tokeniser.digest
        size, context = len(self._tokens.splits["train"]), self.config.context
        # An epoch begins at one of the first `context` tokens, so that sequences begin elsewhere in every epoch.
        self._windows = (size - context) // context
        if self._windows < self.config.batch_size:
            raise ValueError(
                f"the training text has {size:,} tokens, too few for a step: {self.config.batch_size} sequences of "
                f"{context} tokens; lower batch_size or context"
            )
        self._epoch = lru_cache(maxsize=2)(self._starts)
        held_out = self._tokens.splits[self.target.split]
        bytes_per_token = self._tokens.tokeniser.lengths[held_out].mean()
        self.target = replace(self.target, chance=math.log2(self.vocabulary) / float(bytes_per_token))
        self.notes["unigram entropy"] = self._unigram_entropy()
        report(self.notes["unigram entropy"])

    @property
    def vocabulary(self) -> int:
        """The number of different tokens."""
        return self._tokens.tokeniser.size

    def build(self, norm: Norm) -> nn.Module:
        refuse_batch_statistics(norm)
        size = self.config.model
        if size.qk_norm and isinstance(norm.normaliser(Site("attention.query", size.head_width)), Identity):
            raise ValueError(f"model.qk_norm=true has no effect: norm={norm.name} does not act on activations")
        return LanguageModel(norm, self.vocabulary, size).to(self.device)

    def initialise(self, model: nn.Module) -> None:
        assert isinstance(model, LanguageModel)
        seed = self.config.seed
        init.initialise(model, init.lecun_normal, lambda name: stream(seed, "init", name), model.initialisers())

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return self.config.optim.optimizer(model.parameters())

    def batches(self, step: int, chosen: slice = ALL) -> MicroBatches:
        epoch, index = divmod(step, int(self.steps_per_epoch))
        size, train = self.config.batch_size, self._tokens.splits["train"]
        parts = even_parts(self._epoch(epoch)[index * size : (index + 1) * size], self.config.micro_batches)
        loaded = (self._load(train, starts, self.config.context + 1) for starts in parts[chosen])
        return MicroBatches(loaded, [len(starts) for starts in parts])  # every sequence has as many tokens

    def examples(self, batch: Tensor) -> int:
        return len(batch)

    def objective(self, model: nn.Module, batch: Tensor, noise: Noise) -> Objective:  # noqa: ARG002
        nats, count = _nats(model, batch)
        return Objective(nats / count, {"loss": nats}, count)

    def evaluate(self, model: nn.Module, extent: Extent = WHOLE) -> dict[str, dict[str, float]]:
        """Return the loss in nats per token, the bits per byte, and the perplexity of the held-out splits.

        A split is read in sequences of ``context`` tokens, each without what is before it; ``extent`` counts these.
        """
        names = {extent.split: "valid"} | ({"test": "test"} if extent.test else {})
        return {name: self._scores(model, self._tokens.splits[split], extent.examples) for name, split in names.items()}

    def generate(self, model: nn.Module, prompt: str, count: int, temperature: float, seed: int) -> str:
        """Return ``count`` tokens after the prompt, as text. The model must be in evaluation mode.

        Each token is drawn from the probabilities of ``logits / temperature``, or with temperature 0 is the most
        probable one. The model sees the last ``context`` tokens at most.

        Raises: ValueError if the model's logits are not finite.
        """
        context, tokeniser = self.config.context, self._tokens.tokeniser
        tokens = [tokeniser.line_end, *map(int, tokeniser.encode(prompt.encode()))]
        start, cache, generator = len(tokens), Cache(), stream(seed, "generate")
        for _ in range(count):
            if len(tokens) > context:  # cached keys and values depend on all tokens so far, too many
                cache = Cache()
            new = torch.tensor(tokens[-context:][cache.tokens :], device=self.device)
            with torch.no_grad():
                logits = model(new[None], cache)[0, -1].float().cpu()
            if not logits.isfinite().all():
                raise ValueError(
                    "the model's logits are not finite, so it cannot write text; choose another run or checkpoint"
                )
            tokens.append(int(drawn_index(logits, temperature, generator)))
        return tokeniser.decode(tokens[start:])

    def _starts(self, epoch: int) -> np.ndarray:
        """Return where the sequences of an epoch start in the training text, in random order."""
        context, seed = self.config.context, self.config.seed
        first = seed_of(seed, "first", epoch) % context
        return first + context * permutation(self._windows, seed, "order", epoch).numpy()

    def _scores(self, model: nn.Module, split: np.ndarray, sequences: int | None) -> dict[str, float]:
        """Return the metrics of a split, or of its first ``sequences`` sequences. The first follows a line feed."""
        context, lengths = self.config.context, self._tokens.tokeniser.lengths
        split = split if sequences is None else split[: sequences * context]
        shifted = np.concatenate([split[:1], split])
        shifted[0] = self._tokens.tokeniser.line_end

        def sum_of(batch: tuple[np.ndarray, int]) -> float:
            return _nats(model, self._load(shifted, *batch))[0].item()

        nats = sum(each(sum_of, self._held_out(len(split))))
        mean = nats / len(split)
        return {
            "loss": mean,
            "bits_per_byte": nats / math.log(2) / int(lengths[split].sum()),
            "perplexity": math.exp(mean) if mean < 700 else math.inf,
        }

    def _held_out(self, tokens: int) -> Iterator[tuple[np.ndarray, int]]:
        """Yield batches of the successive sequences of ``tokens`` tokens, as their starts and their common length.

        Each sequence has one token before those that are predicted. The last batch has what remains.
        """
        context = self.config.context
        at_once = min(EVALUATED_TOKENS, EVALUATED_LOGITS // self.vocabulary)
        whole, size = tokens // context, max(1, at_once // context)
        starts = np.arange(whole) * context
        for at in range(0, whole, size):
            yield starts[at : at + size], context + 1
        if rest := tokens - whole * context:
            yield np.array([whole * context]), rest + 1

    def _load(self, array: np.ndarray, starts: np.ndarray, length: int) -> Tensor:
        """Return rows of ``length`` tokens from ``starts`` on, on the device, ``(row, length)``."""
        rows = np.stack([array[start : start + length] for start in starts]).astype(np.int64)
        return torch.from_numpy(rows).to(self.device, non_blocking=True)

    def _unigram_entropy(self) -> str:
        """Return the lowest loss that a model without context can have on each held-out split, as text."""
        entropies = []
        for name in ("valid", "test"):
            counts = np.bincount(self._tokens.splits[name])
            shares = counts[counts > 0] / counts.sum()
            entropies.append(f"{name} {-(shares * np.log(shares)).sum():.4f}")
        return f"entropy of single tokens, in nats: {'; '.join(entropies)}"


def _nats(model: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
    """Return the cross-entropy of all predicted tokens, in nats, and the number of these tokens."""
    targets = batch[:, 1:].flatten()
    logits = model(batch[:, :-1]).flatten(0, 1).float()
    return F.cross_entropy(logits, targets, reduction="sum"), len(targets)
