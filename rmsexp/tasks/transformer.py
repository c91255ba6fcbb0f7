"""Translation with the Transformer (the paper's section 6.1, Table 4), trained as in the authors' toolkit.

Deviation: Transformer, end of the search in a batch
    original: a sentence is searched until its whole batch is done (zero:search.py:106-113); past its maximum length
        every continuation counts as finished (zero:search.py:192-197)
    ours: with decoding.search=toolkit, the default at scale=paper, each sentence ends as if it were alone
    why: a translation should not depend on the other sentences of its batch
    effect: none for sentences that are done before their maximum length
Deviation: Transformer, order of the micro-batches
    original: the same in every epoch, since a new process shuffles them from the same state (zero:data.py:79,
        zero:utils/queuer.py:94-100)
    ours: each epoch shuffles the micro-batches of each pool, of pairs sorted by length together, anew
    why: the toolkit's order looks unintended
    effect: not measured
Deviation: Transformer, end of a sentence that is cut
    original: a sentence with at least 256 subwords loses EOS (zero:data.py:53-64)
    ours: 256 subwords are kept, and EOS follows
    why: every target needs its end
    effect: not measured; few sentences of WMT14 are as long
Deviation: Transformer, validation metric
    original: BLEU of tokenised text, computed by the toolkit (zero:evalu.py:266)
    ours: sacreBLEU of detokenised text
    why: the same metric as on the test sets, which users can compare with other work
    effect: other numbers, and possibly another best checkpoint
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import nn

from rmsexp.data.sequences import by_tokens, by_tokens_carried
from rmsexp.models import init
from rmsexp.models.transformer import Sizes, Transformer
from rmsexp.models.translation import Batch, token_losses
from rmsexp.norms import Norm
from rmsexp.norms.batch import without_batch_statistics
from rmsexp.system import checks
from rmsexp.task import Noise, Objective
from rmsexp.tasks import translation
from rmsexp.tasks.translation import TranslationTask, real_targets
from rmsexp.train.randomness import permutation, stream
from rmsexp.train.schedule import WarmUp


@dataclass
class Config(translation.Config):
    """The schema of ``task=transformer``. On ``batching`` see :func:`rmsexp.data.sequences.by_tokens_carried`."""

    tokens: int = 6250
    accumulate: int = 4
    pool: int = 60_000
    batching: str | None = None
    model: Sizes = field(default_factory=Sizes)
    schedule: WarmUp = field(default_factory=lambda: WarmUp(300_000, 4000))

    @property
    def parts(self) -> tuple[str, int]:
        return "accumulate", self.accumulate

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("tokens", "accumulate", "pool"):
            checks.at_least(key, getattr(self, key), 1)
        if self.micro_batches != 1:
            raise ValueError("task=transformer needs micro_batches=1; accumulate is its number of micro-batches")
        checks.choice("batching", self.batching, (None, "toolkit"))


class Task(TranslationTask):
    """The task ``transformer``. :class:`rmsexp.task.Task` describes the attributes and methods."""

    config: Config

    @property
    def steps_per_epoch(self) -> float:  # type: ignore[override]
        steps = len(self.epoch(0)) / self.config.accumulate
        return steps if self.config.batching == "toolkit" else float(math.ceil(steps))

    def prepare(self, report: Callable[[str], None]) -> None:
        super().prepare(report)
        if not self.epoch(0):
            raise ValueError(f"tokens={self.config.tokens} is too large: no micro-batch is half full; lower it")

    def plan(self, epoch: int) -> list[np.ndarray]:
        """Return the micro-batches of an epoch, which shuffles those of each pool; pairs are shuffled once per run."""
        options, train = self.config, self.text.train
        sources, targets = train.source.lengths, train.target.lengths
        order = permutation(len(sources), options.seed, "order").numpy()
        if options.batching == "toolkit":
            pools = by_tokens_carried(sources, targets, order, options.tokens, options.pool)
        else:
            pools = by_tokens(np.maximum(sources, targets), order, options.tokens, options.pool)
        batches: list[np.ndarray] = []
        for index, pool in enumerate(pools):
            batches += [pool[i] for i in permutation(len(pool), options.seed, "batches", epoch, index).tolist()]
        return batches

    def parts(self, step: int) -> list[np.ndarray]:
        """Return the micro-batches of a step. The last step of an epoch may have fewer than ``accumulate``.

        With ``batching=toolkit`` the next epoch's first ones complete it, as in zero (main.py:217-308).
        """
        size, count = len(self.epoch(0)), self.config.accumulate
        if self.config.batching == "toolkit":
            places = [divmod(number, size) for number in range(step * count, (step + 1) * count)]
            return [self.epoch(epoch)[index] for epoch, index in places]
        epoch, index = divmod(step, int(self.steps_per_epoch))
        return self.epoch(epoch)[index * count : (index + 1) * count]

    def weight(self, indices: np.ndarray) -> int:  # noqa: ARG002
        return 1  # as in the toolkit, whatever their number of pairs

    def build(self, norm: Norm) -> nn.Module:
        model = Transformer(norm, self.text.source.size, self.text.target.size, self.config.model)
        return without_batch_statistics(model).to(self.device)

    def initialise(self, model: nn.Module) -> None:
        width = self.config.model.width
        others = {
            "source_embedding": init.normal(width**-0.5),
            "target_embedding": init.normal(width**-0.5),
            "embedding_bias": init.uniform(math.sqrt(3 / width)),
        }
        init.initialise(model, init.glorot_uniform, partial(stream, self.config.seed, "init"), others)

    def objective(self, model: nn.Module, batch: Batch, noise: Noise | None) -> Objective:
        """Return the smoothed cross-entropy, averaged over each sentence's tokens and then over the sentences.

        The smoothed target has probability e / (V - 1) for each wrong word and 1 - e for the true word, for smoothing e
        and a vocabulary of V words. The target's entropy is subtracted, so the smallest possible value is 0.
        """
        logits, smoothing = model(batch, noise), self.config.label_smoothing
        others = smoothing / (logits.shape[1] - 1)
        plain, smoothed = token_losses(logits, real_targets(batch), smoothing, others)
        if smoothing:
            smoothed = smoothed + (1 - smoothing) * math.log(1 - smoothing) + smoothing * math.log(others)
        lengths = batch.target_mask.sum(1, keepdim=True)
        shares = (1 / lengths / len(lengths)).expand(batch.target.shape).flatten().index_select(0, batch.real)
        return Objective(torch.dot(smoothed, shares), {"loss": plain.sum()}, len(plain))
