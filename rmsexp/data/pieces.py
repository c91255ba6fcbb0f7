"""Learn and load models of sentencepiece's byte-pair encoding."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable
from typing import Any

from rmsexp.system import cores

LONGEST_LINE = 1 << 22  # bytes; sentencepiece ignores longer ones, and by default those of more than 4,192


def learn(lines: Iterable[str], vocabulary: int, name: str, **options: Any) -> bytes:
    """Return a model with ``vocabulary`` pieces, learnt from ``lines``.

    ``name`` is what messages call the data set. ``options`` are further options of sentencepiece.

    Raises: ValueError if ``vocabulary`` is too large or too small for the text, or if sentencepiece cannot learn from
    it.
    """
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocabulary,
            bos_id=-1,
            minloglevel=2,
            max_sentence_length=LONGEST_LINE,
            num_threads=cores.threads_while_others_wait(),
            **{"character_coverage": 1.0} | options,
        )
    except RuntimeError as error:
        problem = str(error).strip().rpartition("] ")[2]  # without the place in sentencepiece's own code
        raise ValueError(
            f"data.vocabulary={vocabulary} does not fit the training text of {name}; sentencepiece says: {problem}"
        ) from None
    return model.getvalue()


def load(model: bytes) -> Any:
    """Return the processor of a model. Raises: ValueError if the model is damaged."""
    from sentencepiece import SentencePieceProcessor

    try:
        return SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise ValueError(f"a damaged model of sentencepiece: {error}") from None


def digest(processor: Any) -> str:
    """Return a digest of the pieces of a model, with their ids and scores.

    The model file also has the number of threads with which it was learnt, which differs between machines.
    """
    content = [(processor.id_to_piece(i), processor.get_score(i)) for i in range(processor.get_piece_size())]
    return hashlib.sha256(repr(content).encode()).hexdigest()[:16]
