"""Translation with the Transformer (the paper's section 6.1, Table 4), trained as in the authors' toolkit.

Deviation: Transformer, beam search
    original: finished hypotheses are kept apart, the beam does not shrink, and search stops by a bound
        (zero:search.py:176-230)
    ours: as in Nematus, a finished hypothesis keeps its place, so the beam shrinks
    why: one search serves both translation tasks
    effect: not measured
Deviation: Transformer, micro-batches with less than half of the tokens
    original: carried over to the next buffer (zero:data.py:101-102)
    ours: trained as they are, with full weight
    why: the plan of an epoch is a function of the seed and the epoch alone
    effect: not measured; at most one micro-batch per pool of 60,000 sentence pairs
Deviation: Transformer, validation metric
    original: BLEU of tokenised text, computed by the toolkit (zero:evalu.py:266)
    ours: sacreBLEU of detokenised text
    why: the same metric as on the test sets, which users can compare with other work
    effect: other numbers, and possibly another best checkpoint
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from rmsexp import checks
from rmsexp.data.batching import by_tokens
from rmsexp.models import init
from rmsexp.models.cross_entropy import token_losses
from rmsexp.models.noise import Noise
from rmsexp.models.transformer import Sizes, Transformer
from rmsexp.models.translation import Batch
from rmsexp.norms import Norm
from rmsexp.tasks import translation
from rmsexp.tasks.translation import TranslationTask, real_targets
from rmsexp.train.randomness import permutation, stream
from rmsexp.train.schedule import WarmUp
from rmsexp.train.task import Objective


@dataclass
class Config(translation.Config):
    """The schema of ``task=transformer``.

    ``tokens``: largest size of a micro-batch, which is its number of pairs times the length of its longest sentence,
    source or target; a longer sentence is a micro-batch by itself. ``accumulate``: number of micro-batches per step.
    ``pool``: number of sentence pairs that are sorted by length together.
    """

    tokens: int = 6250
    accumulate: int = 4
    pool: int = 60_000
    model: Sizes = field(default_factory=Sizes)
    schedule: WarmUp = field(default_factory=lambda: WarmUp(300_000, 4000))

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("tokens", "accumulate", "pool"):
            checks.at_least(key, getattr(self, key), 1)


class Task(TranslationTask):
    """The task ``transformer``. :class:`rmsexp.train.task.Task` describes the attributes and methods."""

    config: Config

    def plan(self, epoch: int) -> list[list[np.ndarray]]:
        """Return the micro-batches of each step of an epoch, as indices of training pairs.

        The pairs are shuffled once per run, divided into pools, and each pool into micro-batches. Each epoch shuffles
        the micro-batches of each pool. The last step of an epoch may have fewer micro-batches.
        """
        pairs, seed, accumulate = self.text.train, self.config.seed, self.config.accumulate
        lengths = np.maximum(pairs.source.lengths, pairs.target.lengths)
        order = permutation(len(lengths), seed, "order").numpy()
        batches: list[np.ndarray] = []
        for index, pool in enumerate(by_tokens(lengths, order, self.config.tokens, self.config.pool)):
            batches += [pool[i] for i in permutation(len(pool), seed, "batches", epoch, index).tolist()]
        return [batches[start : start + accumulate] for start in range(0, len(batches), accumulate)]

    def build(self, norm: Norm) -> nn.Module:
        return Transformer(norm, self.text.source.size, self.text.target.size, self.config.model).to(self.device)

    def initialise(self, model: nn.Module) -> None:
        width = self.config.model.width
        others = {
            "source_embedding": init.normal(width**-0.5),
            "target_embedding": init.normal(width**-0.5),
            "embedding_bias": init.uniform(math.sqrt(3 / width)),
        }
        init.initialise(model, init.glorot_uniform, lambda name: stream(self.config.seed, "init", name), others)

    def objective(self, model: nn.Module, batch: Batch, noise: Noise) -> Objective:
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
