"""What both translation tasks share: text, optimiser, evaluation and decoding. Model, batches and objective differ."""

import gzip
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rmsexp import config
from rmsexp.config.score import SAMPLE
from rmsexp.data import parallel, translation
from rmsexp.data.files import digest_of_contents
from rmsexp.data.sequences import cut, padded
from rmsexp.data.subwords import EOS, PAD, TextOptions
from rmsexp.data.synthetic import phrases
from rmsexp.metrics import bleu
from rmsexp.metrics.beam_search import SearchOptions, beam_search
from rmsexp.models.translation import FIRST, Batch
from rmsexp.records import record
from rmsexp.rules.quantities import Quantity, loss
from rmsexp.system import checks
from rmsexp.system.languages import language
from rmsexp.task import WHOLE, Extent, Target
from rmsexp.tasks.base import TaskBase
from rmsexp.train.group import each
from rmsexp.train.optim import TensorFlowAdamConfig

SAMPLES = 10  # largest number of translations per split in a run's translations.txt
TRANSLATIONS = "translations.json.gz"  # the name of the file of Translations in a run's folder


class Translations(NamedTuple):
    """Translations of whole test sets into the language ``target``. ``tests``: [references, translations] by set."""

    target: str
    tests: dict[str, list[list[str]]]


@dataclass
class DataConfig(config.DataConfig):
    """Options of the parallel text, which the tasks' configs explain, and of its tokens (:class:`.TextOptions`)."""

    name: str = "multi30k"
    source: str = "en"
    target: str = "de"
    train: str = ""
    valid: str = ""
    test: str = ""
    tests: list[str] = field(default_factory=lambda: ["test"])
    subwords: str = "sentencepiece"
    vocabulary: int = 8000
    threshold: int = 0
    max_length: int = 80
    overlong: str = "drop"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.choice("data.name", self.name, tuple(SOURCES))
        self.text_options()  # checks the options of the tokenisation
        languages = language(self.source, "data.source"), language(self.target, "data.target")
        repeated = len(set(self.tests)) < len(self.tests)
        if self.tests[:1] != ["test"] or repeated or not all(name.startswith("test") for name in self.tests):
            raise ValueError("data.tests must be test, then names like test2017, each once, as in [test,test2017]")
        directions = [("en", "de"), ("de", "en")][: 1 if self.name == "phrases" else 2]
        if self.name != "files" and languages not in directions:
            chosen, *needed = (f"data.source={a} data.target={b}" for a, b in [(self.source, self.target), *directions])
            raise ValueError(f"{chosen}: data.name={self.name} needs {' or '.join(needed)}")
        names = f"text/a for text/a.{self.source} and text/a.{self.target}"
        self.check_own_files(f"the path of its two files without the language: {names}")

    def digest_of_own_files(self) -> str:
        if self.name != "files":
            return ""
        prefixes = {split: Path(path) for split, path in self.own_files.items()}
        pairs = parallel.pairs_of_files(prefixes, self.source, self.target)
        return digest_of_contents(itertools.chain(*pairs.values()))

    def text_options(self) -> TextOptions:
        return TextOptions(self.subwords, self.vocabulary, self.threshold, self.max_length, self.overlong)


SOURCES: dict[str, Callable[[DataConfig], parallel.Corpus]] = {
    "phrases": lambda _: phrases.phrases(),
    "multi30k": lambda data: parallel.multi30k(data.root_folder, data.source, data.target),
    "wmt14": lambda data: parallel.wmt14(data.root_folder, data.source, data.target),
    "files": lambda data: parallel.files(data.own_files, data.source, data.target),
}
LONGEST_TRANSLATION = 10_000  # tokens; the search keeps memory for as many
LONGEST_LINE = 2_000  # tokens of a line to translate; the memory of attention grows with its square


@dataclass
class DecodingConfig(SearchOptions):
    """Options of decoding, besides those of the search on test sets and in :mod:`rmsexp.translate`.

    The tasks' configs explain them. Lengths include EOS; if both limits are set, the smaller one applies. A batch of
    the held-out loss has ``batch_size`` pairs, too.
    """

    valid_beam: int = 5
    max_length: int | None = 200
    beyond_source: int | None = None
    batch_size: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least("decoding.valid_beam", self.valid_beam, 1, checks.LARGEST_BEAM)
        checks.at_least("decoding.batch_size", self.batch_size, 1)
        if self.max_length is None and self.beyond_source is None:
            raise ValueError("decoding needs a limit: set decoding.max_length or decoding.beyond_source")
        for key in ("max_length", "beyond_source"):
            checks.at_least(f"decoding.{key}", getattr(self, key), 1, LONGEST_TRANSLATION)

    def options(self, beam: int) -> SearchOptions:
        """Return the options of a search with this beam. A beam of 1 is greedy search, whatever ``search`` is."""
        return replace(self, beam=beam, search=self.search if beam > 1 else None)

    def limits(self, lengths: Tensor) -> Tensor:
        """Return the largest number of target tokens for each source length; all lengths include EOS."""
        limits = lengths + self.beyond_source if self.beyond_source is not None else torch.full_like(lengths, 1 << 30)
        return limits if self.max_length is None else limits.clamp(max=self.max_length)


@dataclass
class Config(config.RunConfig):
    """The part of the config schema that both translation tasks share. ``label_smoothing``: see their objectives."""

    label_smoothing: float = 0.1
    data: DataConfig = field(default_factory=DataConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    optim: TensorFlowAdamConfig = field(default_factory=lambda: TensorFlowAdamConfig(1e-4, 0.999, 1e-8, 1.0))

    @property
    def test_splits(self) -> Sequence[str]:
        return self.data.tests

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.probability("label_smoothing", self.label_smoothing)


class TranslationTask(TaskBase):
    """Base class of both translation tasks. :class:`rmsexp.task.Task` describes the attributes and methods.

    A model takes a :class:`Batch` and :class:`rmsexp.task.Noise` in training. In decoding, ``encode`` takes source
    tokens and their mask and returns a state; ``step`` takes tokens and a state and returns logits and the next state.
    """

    target = Target(split="test", metric="bleu", mode="max", selection="valid", chance=0.0)
    predictions = "target tokens"
    quantities = (loss("train"), loss("valid"), Quantity("valid", "bleu", "BLEU"))

    def __init__(self, config: Any, device: torch.device) -> None:
        data: DataConfig = config.data
        corpus = SOURCES[data.name](data)
        super().__init__(config, device, corpus)
        for name in data.tests:
            if name not in corpus.splits:
                test_sets = ", ".join(name for name in corpus.splits if name.startswith("test"))
                raise ValueError(f"data.tests: {corpus.name} has no {name} (it has {test_sets})")
        self.notes = {
            **bleu.signatures(corpus.source, corpus.target),
            "decoding": f"beam {config.decoding.beam} on test sets, {config.decoding.valid_beam} on the validation set",
            "batch norm": "in training, statistics include later target tokens, which are not known in decoding",
        }

    def prepare(self, report: Callable[[str], None]) -> None:
        root = self.config.data.root_folder
        self.text = translation.prepare(self.source, self.config.data.text_options(), root, report)
        self.notes[record.SUBWORDS] = self.text.subwords
        for name, split in self.text.held_out.items():
            limits = self.config.decoding.limits(torch.from_numpy(split.pairs.source.lengths)).numpy()
            if over := np.count_nonzero(split.pairs.target.lengths > limits):
                allowed = "decoding.max_length and beyond_source allow for translations"
                report(f"{name}: {over:,} of {len(limits):,} references are longer than {allowed}")

    def load(self, indices: np.ndarray, step: int) -> Batch:  # noqa: ARG002
        return self._load(self.text.train, indices)

    def evaluate(self, model: Any, extent: Extent = WHOLE) -> dict[str, dict[str, float]]:
        decoding = self.config.decoding
        held_out = {extent.split: self.text.held_out["valid"].first(extent.examples)}
        beams = {"valid": decoding.valid_beam, SAMPLE: 1}
        if extent.test:
            held_out |= {name: self.text.held_out[name] for name in self.config.data.tests}
        results, samples, tests = {}, [], dict[str, list[list[str]]]()
        for name, split in held_out.items():
            sources = [split.pairs.source[i] for i in range(len(split.references))]
            hypotheses = self._search(model, sources, beams.get(name, decoding.beam))
            loss = self._cross_entropy(model, split)
            perplexity = math.inf if loss >= 700 else math.exp(loss)
            scores = bleu.score(hypotheses, split.references, self.source.target)
            results[name] = {"loss": loss, "perplexity": perplexity, **scores}
            samples += _samples(name, split.sources, split.references, hypotheses)
            if name in self.config.data.tests:
                tests[name] = [list(split.references), hypotheses]
        self.files = {"translations.txt": "\n".join(samples)}
        if tests:
            content = json.dumps(Translations(self.source.target, tests)._asdict(), ensure_ascii=False)
            self.files[TRANSLATIONS] = gzip.compress(content.encode(), mtime=0)
        return results

    def translate(self, model: Any, lines: Sequence[str], beam: int) -> list[str]:
        """Return detokenised translations of the lines. The model must be in evaluation mode.

        Raises: ValueError for a line of more than ``LONGEST_LINE`` tokens.
        """
        sources = [np.array([*ids, EOS]) for ids in self.text.source.encode(lines)]
        for number, source in enumerate(sources, 1):
            if len(source) > LONGEST_LINE + 1:
                raise ValueError(
                    f"line {number} has {len(source) - 1:,} tokens, and the limit is {LONGEST_LINE:,}; "
                    "write one sentence per line"
                )
        return self._search(model, sources, beam)

    def held_out_batches(self, held_out: translation.HeldOut) -> Iterator[Batch]:
        """Yield batches of those pairs of a held-out split that have a loss."""
        for indices in self._held_out_indices(held_out):
            yield self._load(held_out.pairs, indices)

    def _held_out_indices(self, held_out: translation.HeldOut) -> list[np.ndarray]:
        """Return batches of the scored pairs, as arrays of indices, in descending order of target length."""
        order = held_out.scored[np.argsort(-held_out.pairs.target.lengths[held_out.scored], kind="stable")]
        return cut(order, self.config.decoding.batch_size)

    @torch.no_grad()
    def _search(self, model: Any, sources: Sequence[np.ndarray], beam: int) -> list[str]:
        """Return the detokenised translations of tokenised sources; that of EOS alone is empty.

        Sources of similar length are decoded in one batch.
        """
        decoding = self.config.decoding

        def found(indices: np.ndarray) -> list[list[int]]:
            tokens, mask = self._pad([sources[i] for i in indices])
            limits = decoding.limits(mask.sum(1))
            return beam_search(model.step, model.encode(tokens, mask), limits, FIRST, decoding.options(beam), EOS)

        order = sorted((i for i in range(len(sources)) if len(sources[i]) > 1), key=lambda i: -len(sources[i]))
        batches = each(found, cut(np.array(order, dtype=np.int64), decoding.batch_size))
        translations = dict(zip(order, itertools.chain.from_iterable(batches), strict=True))
        return self.text.target.decode([translations.get(i, []) for i in range(len(sources))])

    def _cross_entropy(self, model: Any, held_out: translation.HeldOut) -> float:
        """Return the cross-entropy on the scored pairs of a split, without label smoothing, in nats per target token.

        It is NaN if no pair is scored, as may happen on the validation sample.
        """
        tokens = int(held_out.pairs.target.lengths[held_out.scored].sum())
        if not tokens:
            return math.nan
        indices = self._held_out_indices(held_out)
        return self.mean_metrics(model, partial(self._load, held_out.pairs), indices, tokens)["loss"]

    def _load(self, pairs: translation.Encoded, indices: np.ndarray) -> Batch:
        source, source_mask = self._pad([pairs.source[i] for i in indices])
        target, mask = padded([pairs.target[i] for i in indices], PAD)
        return Batch(source, source_mask, *self.on_device([target, mask, np.flatnonzero(mask)]))

    def _pad(self, sequences: Sequence[np.ndarray]) -> list[Tensor]:
        return self.on_device(padded(sequences, PAD))


def real_targets(batch: Batch) -> Tensor:
    """Return the target tokens that are not padding, sentence after sentence, ``(tokens,)``."""
    return batch.target.flatten().index_select(0, batch.real)


def _samples(split: str, sources: Sequence[str], references: Sequence[str], hypotheses: Sequence[str]) -> list[str]:
    """Return a block of text for each of at most ``SAMPLES`` sentences, evenly spaced over a split."""
    indices = np.linspace(0, len(sources) - 1, min(SAMPLES, len(sources))).astype(int)
    lines_by_kind = {"source": sources, "reference": references, "translation": hypotheses}
    return [
        "\n".join([f"{split} {i + 1}", *(f"  {kind:12}{lines[i]}" for kind, lines in lines_by_kind.items()), ""])
        for i in indices
    ]
