"""Translation with RNNSearch (the paper's section 6.1): a bidirectional GRU encoder and a conditional GRU decoder.

Deviation: RNNSearch, end of training
    original: after ten validations without a better cross-entropy (nematus:nematus/config.py:726)
    ours: after a number of steps, 1,500,000 at scale=paper
    why: all norms should be trained for equally many steps, and the paper's curves end at about this step
    effect: none if the original's rule ended no run before this step, as the curves suggest
Deviation: RNNSearch in Theano, unknown word in decoding
    original: left out of the search (wmt17-scripts:training/scripts/validate.sh:33)
    ours: a word like any other, as in the TensorFlow scripts
    why: the paper does not say, and one search serves both variants
    effect: not measured; the unknown word is rare in text of subwords
"""

from dataclasses import dataclass, field
from functools import partial

import numpy as np
from torch import nn

from rmsexp.data.sequences import by_sentences
from rmsexp.models import init
from rmsexp.models.rnnsearch import RNNSearch
from rmsexp.models.translation import Batch, token_losses
from rmsexp.norms import Norm
from rmsexp.norms.batch import without_batch_statistics
from rmsexp.system import checks
from rmsexp.task import Noise, Objective
from rmsexp.tasks import translation
from rmsexp.tasks.translation import TranslationTask, real_targets
from rmsexp.train.randomness import permutation, stream
from rmsexp.train.schedule import Constant

VARIANTS = ("nematus_tf", "nematus_theano")
# How weights are drawn that are not square; square ones are orthogonal. None: as in Nematus, whose standard deviation
# suits embeddings of 512 and states of 1024; "lecun_normal" suits any width.
INITIALISERS = {None: init.normal(0.01), "lecun_normal": init.lecun_normal}
READOUT = ("of_previous.weight", "of_state.weight", "of_context.weight")


@dataclass
class ModelConfig:
    """Options of the model, which ``configs/task/rnnsearch.yaml`` explains.

    With ``variant=nematus_theano``, square weights of the readout are drawn like others instead of as orthogonal
    matrices, and the attention score has a bias. The configs then also set ``label_smoothing``, ``norm.inverse_gain``
    and, at scale=paper, ``decoding.valid_beam`` as in that code.
    """

    embedding: int = 512
    hidden: int = 1024
    dropout: float = 0.0
    init: str | None = None
    init_center: float = 0.0
    variant: str = "nematus_tf"
    tied: bool = True

    def __post_init__(self) -> None:
        checks.choice("model.variant", self.variant, VARIANTS)
        checks.at_least("model.embedding", self.embedding, 1, checks.LARGEST_WIDTH)
        checks.at_least("model.hidden", self.hidden, 1, checks.LARGEST_WIDTH)
        checks.probability("model.dropout", self.dropout)
        checks.choice("model.init", self.init, tuple(INITIALISERS))
        checks.finite("model.init_center", self.init_center)


@dataclass
class Config(translation.Config):
    """The schema of ``task=rnnsearch``. ``pool``: number of batches whose sentences are sorted by length together."""

    batch_size: int = 80
    pool: int = 20
    model: ModelConfig = field(default_factory=ModelConfig)
    schedule: Constant = field(default_factory=lambda: Constant(1_500_000))

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least("pool", self.pool, 1)


class Task(TranslationTask):
    """The task ``rnnsearch``. :class:`rmsexp.task.Task` describes the attributes and methods."""

    config: Config

    def plan(self, epoch: int) -> list[np.ndarray]:
        pairs = self.text.train
        lengths = np.maximum(pairs.source.lengths, pairs.target.lengths)
        order = permutation(len(lengths), self.config.seed, "order", epoch).numpy()
        return by_sentences(lengths, order, self.config.batch_size, self.config.pool)

    def build(self, norm: Norm) -> nn.Module:
        options = self.config.model
        model = RNNSearch(
            norm,
            self.text.source.size,
            self.text.target.size,
            embedding=options.embedding,
            hidden=options.hidden,
            dropout=options.dropout,
            tied=options.tied,
            score_bias=options.variant == "nematus_theano",
        )
        return without_batch_statistics(model).to(self.device)

    def initialise(self, model: nn.Module) -> None:
        options = self.config.model
        plain = INITIALISERS[options.init]
        orthogonal = init.square_or_not(init.orthogonal, plain)
        draw, readout = (init.centred(initialiser, options.init_center) for initialiser in (orthogonal, plain))
        others = dict.fromkeys(READOUT, readout) if options.variant == "nematus_theano" else {}
        init.initialise(model, draw, partial(stream, self.config.seed, "init"), others)

    def objective(self, model: nn.Module, batch: Batch, noise: Noise | None) -> Objective:
        """Return the smoothed cross-entropy, summed over the tokens and averaged over the sentences, as in Nematus.

        The smoothed target has probability e / V for each wrong word and 1 - e + e / V for the true word, for smoothing
        e and a vocabulary of V words.
        """
        logits, smoothing = model(batch, noise), self.config.label_smoothing
        others = smoothing / logits.shape[1]
        plain, smoothed = token_losses(logits, real_targets(batch), smoothing - others, others)
        return Objective(smoothed.sum() / len(batch.source), {"loss": plain.sum()}, len(plain))
