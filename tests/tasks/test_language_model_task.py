"""The task language_model: sequences, objective, metrics, generated text, settings."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.language_models import make
from helpers.tasks import shake, steps_of, train
from torch import Tensor, nn
from torch.nn import functional as F

from rmsexp.config.score import SAMPLE
from rmsexp.task import SAMPLE as SAMPLE_EXTENT
from rmsexp.task import Extent
from rmsexp.tasks import language_model
from rmsexp.train.randomness import StreamNoise

pytestmark = pytest.mark.usefixtures("small_synthetic_data")


def split_of(task: Any, name: str) -> np.ndarray:
    return task._tokens.splits[name]


# --- sequences


def test_an_epoch_has_each_token_at_most_once_as_a_target() -> None:
    task, _ = make("context=8", "batch_size=3")
    task._tokens.splits["train"], task._windows = np.arange(100), (100 - 8) // 8  # the tokens are their places
    task.epoch.cache_clear()
    assert task.steps_per_epoch == 3  # 11 sequences, of which 9 are used
    firsts = set()
    for epoch in range(6):
        rows = torch.cat([batch for step in steps_of(task, epoch) for batch in task.batches(step)])
        assert rows.shape == (9, 9)
        assert torch.equal(rows[:, 1:] - rows[:, :-1], torch.ones(9, 8, dtype=torch.int64))
        targets = rows[:, 1:].flatten().tolist()
        assert len(set(targets)) == len(targets) == 72
        assert len({start % 8 for start in rows[:, 0].tolist()}) == 1
        firsts.add(rows[0, 0].item() % 8)
        assert rows[:, 0].tolist() != sorted(rows[:, 0].tolist())
    assert len(firsts) > 1


@pytest.mark.parametrize(("context", "size"), [(16, 95), (94, 187)])
def test_too_little_text_is_refused(context: int, size: int, tmp_path: Path) -> None:
    paths = {name: tmp_path / name for name in ("train", "valid", "test")}
    for path in paths.values():
        path.write_bytes(b"x" * size)
    files = [f"data.{name}={path}" for name, path in paths.items()]
    words = ["data.name=files", *files, f"context={context}", f"batch_size={(size + 1) // context - 1}"]
    with pytest.raises(ValueError, match=f"{size} tokens"):
        make(*words)
    paths["train"].write_bytes(b"x" * (size + 1))
    task, _ = make(*words)
    assert task.steps_per_epoch == 1


# --- objective and metrics


def test_the_objective_is_the_mean_cross_entropy_per_token() -> None:
    task, model = make()
    (batch,) = task.batches(0)
    objective = task.objective(model, batch, StreamNoise(0))
    logits = model(batch[:, :-1])
    losses = [
        -torch.log_softmax(logits[row, i], 0)[batch[row, i + 1]] for row in range(5) for i in range(batch.shape[1] - 1)
    ]
    torch.testing.assert_close(objective.loss, torch.stack(losses).mean())
    torch.testing.assert_close(objective.sums["loss"], torch.stack(losses).sum())
    assert objective.count == 80


class Counts(nn.Module):
    """A model that records its tokens, and predicts every next token with the probabilities of ``logits``."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits, self.tokens = logits, list[Tensor]()

    def forward(self, tokens: Tensor) -> Tensor:
        self.tokens += list(tokens)
        return self.logits.expand(*tokens.shape, len(self.logits))


@pytest.mark.parametrize("kind", ["bytes", "sentencepiece"])
def test_metrics_are_those_of_every_token_of_the_split(kind: str, tmp_path: Path) -> None:
    """A model without context has the loss of its probabilities; its best loss is the entropy of single tokens."""
    words = [f"data.tokens={kind}", f"data.root={tmp_path}", *(["data.vocabulary=330"] if kind != "bytes" else [])]
    task, _ = make(*words)
    valid = split_of(task, "valid")
    counts = torch.from_numpy(np.bincount(valid, minlength=task._tokens.tokeniser.size)).float()
    model = Counts(counts.clamp(min=1e-9).log())
    metrics = task.evaluate(model, Extent(test=False))["valid"]
    shares = counts[counts > 0].double() / counts.sum()
    entropy = -(shares * shares.log()).sum().item()
    assert metrics["loss"] == pytest.approx(entropy, rel=1e-5)
    assert f"valid {entropy:.4f}; test" in task.notes["unigram entropy"]
    size = len(task.source.load(lambda _: None)["valid"])
    assert metrics["bits_per_byte"] == pytest.approx(entropy * len(valid) / math.log(2) / size, rel=1e-5)
    assert metrics["perplexity"] == pytest.approx(math.exp(entropy), rel=1e-5)
    read = torch.cat(model.tokens).tolist()
    assert read == [task._tokens.tokeniser.line_end, *valid[:-1].tolist()]
    assert [len(tokens) for tokens in model.tokens[:-1]] == [16] * (len(valid) // 16)


def test_an_evaluation_covers_what_its_extent_says() -> None:
    task, model = make()
    model.eval()
    assert list(task.evaluate(model)) == ["valid", "test"]
    assert list(task.evaluate(model, SAMPLE_EXTENT)) == [SAMPLE]
    recorder = Counts(torch.zeros(256))
    task.evaluate(recorder, Extent(3, test=False))
    assert torch.cat(recorder.tokens).tolist() == [10, *split_of(task, "valid")[:47].tolist()]


def test_an_evaluation_is_that_of_each_sequence_alone() -> None:
    task, model = make()
    shake(model, 0.3)
    model.eval()
    text = [10, *split_of(task, "test").tolist()]
    total = 0.0
    for start in range(0, len(text) - 1, 16):
        row = torch.tensor(text[start : start + 17])
        total += F.cross_entropy(model(row[None, :-1])[0], row[1:], reduction="sum").item()
    assert task.evaluate(model)["test"]["loss"] == pytest.approx(total / (len(text) - 1), rel=1e-5)


def test_with_a_large_vocabulary_an_evaluation_takes_fewer_sequences_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    task, model = make()
    shake(model, 0.3)
    before = task.evaluate(model)
    monkeypatch.setattr(language_model, "EVALUATED_LOGITS", 40 * task.vocabulary)  # two sequences of 16 tokens
    assert [len(starts) for starts, _ in task._sequences(5 * 16 + 3)] == [2, 2, 1, 1]
    for split, metrics in task.evaluate(model).items():
        assert metrics == pytest.approx(before[split], rel=1e-5)


# --- generated text


@pytest.fixture(scope="module")
def trained(small_synthetic_data: None) -> tuple[Any, Any]:  # noqa: ARG001
    task, model = make("optim.lr=0.01", "model.width=32")
    train(task, model, 30)
    return task, model.eval()


def test_generated_text_follows_from_the_seed(trained: tuple[Any, Any]) -> None:
    task, model = trained
    texts = [task.generate(model, "The", 30, 1.0, seed) for seed in (0, 1, 0)]
    assert texts[0] == texts[2] != texts[1]
    assert task.generate(model, "The", 10, 1.0, 0) == texts[0][:10]


def test_without_temperature_each_token_is_the_most_probable_one_after_the_last_ones(trained: tuple[Any, Any]) -> None:
    """The text becomes longer than the context, of which the model sees the last 16 tokens."""
    task, model = trained
    greedy = task.generate(model, "The old", 30, 0, 0)
    text = [10, *b"The old"]
    with torch.no_grad():
        for _ in range(30):
            text.append(int(model(torch.tensor(text[-16:])[None])[0, -1].argmax()))
    assert greedy.encode() == bytes(text[8:])
    assert task.generate(model, "The old", 30, 1e-9, 5) == greedy
    assert len(task.generate(model, "A horse sees the old dog and", 50, 0, 0)) == 50


def test_generated_subwords_are_text(tmp_path: Path) -> None:
    """Sentencepiece's spaces are in the subwords: the text follows the prompt without a gap or a doubled space."""
    task, model = make("data.tokens=sentencepiece", "data.vocabulary=330", f"data.root={tmp_path}", "context=64")
    tokeniser, text = task._tokens.tokeniser, "The old horse sees a small dog"
    tokens = tokeniser.encode(text.encode()).tolist()
    prompt, rest = tokeniser.decode(tokens[:5]), tokens[5:]
    read = 1 + len(tokeniser.encode(prompt.encode()))  # a line feed and the prompt

    def forward(seen: Tensor) -> Tensor:
        """Return logits that predict the rest of the text, token by token."""
        return F.one_hot(torch.tensor(rest[seen.shape[1] - read]), task.vocabulary).float().expand(1, 1, -1)

    model.forward = forward
    assert prompt + task.generate(model, prompt, len(rest), 0, 0) == text


def test_logits_that_are_not_finite_give_no_text() -> None:
    task, model = make()
    model.embedding.data.fill_(math.nan)
    with pytest.raises(ValueError, match="not finite"):
        task.generate(model, "The", 3, 0, 0)


# --- settings


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("model.qk_norm", ["norm=none", "model.qk_norm=true"]),
        ("model.qk_norm", ["norm=wn", "model.qk_norm=true"]),
        ("model.qk_norm", ["norm=by_role", "norm.roles={query: none, key: none}", "model.qk_norm=true"]),
        ("model.v_norm", ["norm=none", "model.v_norm=true"]),
        ("model.embedding_norm", ["norm=by_role", "norm.roles={embedding: none}", "model.embedding_norm=true"]),
        ("norm.eval", ["norm=bn", "norm.eval=batch"]),
        ("norm.eval", ["norm=mean_only_bn", "norm.eval=batch"]),
    ],
)
def test_what_has_no_effect_or_no_meaning_is_refused(key: str, words: list[str]) -> None:
    with pytest.raises(ValueError, match=f"^{key}"):
        make(*words)


@pytest.mark.parametrize("chosen", ["norm.roles={query: ln, key: ln}", "norm.depths={0: ln}"])
def test_queries_and_keys_may_be_all_that_is_normalised(chosen: str) -> None:
    _, model = make("norm=by_role", "norm.default=none", chosen, "model.qk_norm=true", "model.placement=none")
    assert any(type(layer).__name__ == "LayerNorm" for layer in model.modules())


@pytest.mark.parametrize("norm", ["wn", "mean_only_bn"])
def test_weight_norm_starts_from_the_weights_as_they_are_drawn(norm: str) -> None:
    models = [make(f"norm={norm}")[1] for norm in (norm, "none")]
    for ours, plain in zip(*(model.layers for model in models), strict=True):
        torch.testing.assert_close(ours.feed_forward.down.effective_weight(), plain.feed_forward.down.weight)
