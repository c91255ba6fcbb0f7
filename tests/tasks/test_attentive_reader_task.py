"""The attentive reader's task: batches and entities, objective, evaluation by hand, chance, the paper's setting."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cases import some
from helpers.reading_and_retrieval import make
from helpers.tasks import shake, steps_of, train
from torch import Tensor, nn
from torch.nn import functional as F

from rmsexp.data import Source
from rmsexp.data.cloze import NIL, RESERVED, UNK, Cloze, Examples
from rmsexp.data.files import digest_of_words
from rmsexp.data.sequences import Sequences, cycled
from rmsexp.models.attentive_reader import Batch
from rmsexp.records import record
from rmsexp.tasks import attentive_reader
from rmsexp.train.randomness import StreamNoise

pytestmark = pytest.mark.usefixtures("small_synthetic_data")

TRAIN, VALID = 74, 13
FIRST = len(RESERVED)
WORDS = [*RESERVED, *(f"name{i}" for i in range(TRAIN))]
for i in range(8):  # entities and other words in turn
    WORDS += [f"@entity{i}", f"word{i}"]
ENTITIES = np.arange(FIRST + TRAIN, len(WORDS), 2)


def examples(rows: list[tuple[list[int], list[int], int]]) -> Examples:
    passages, questions, answers = zip(*rows, strict=True)
    return Examples(Sequences.from_lists(passages), Sequences.from_lists(questions), np.array(answers, dtype=np.int32))


def source(**splits: Examples) -> Callable[..., Source[Cloze]]:
    cloze = Cloze(WORDS, splits)
    return lambda *_: Source("by hand", "0", False, lambda _: cloze)


@pytest.fixture
def numbered(monkeypatch: pytest.MonkeyPatch) -> Examples:
    """Replace the data by TRAIN questions, and return these; train and valid are the same.

    Passage and question both begin with the word for the question's number.
    """
    rng = np.random.default_rng(0)
    rows = []
    for i in range(TRAIN):
        texts = [
            [FIRST + i, *rng.integers(FIRST + TRAIN, len(WORDS), rng.integers(*lengths)).tolist()]
            for lengths in ((3, 12), (1, 6))
        ]
        rows.append((*texts, int(rng.choice(ENTITIES))))
    split = examples(rows)
    monkeypatch.setitem(attentive_reader.SOURCES, "stories", source(train=split, valid=split))
    return split


def numbers(batch: Batch) -> list[int]:
    """Return the numbers of the questions of a batch of ``numbered`` data."""
    assert torch.equal(batch.passage[:, 0], batch.question[:, 0])
    return (batch.passage[:, 0] - FIRST).tolist()


def order(task: Any, epoch: int) -> list[int]:
    """Return the numbers of the questions of an epoch of ``numbered`` data, in the order in which they are read."""
    return [i for step in steps_of(task, epoch) for batch in task.batches(step) for i in numbers(batch)]


def alone(split: Examples, i: int) -> Batch:
    """Return one example as a batch without padding."""
    texts = (split.passages, split.questions)
    passage, question = (torch.from_numpy(sequences[i].astype("int64"))[None] for sequences in texts)
    masks = [torch.ones_like(words).bool() for words in (passage, question)]
    return Batch(passage, masks[0], question, masks[1], torch.tensor([int(split.answers[i])]))


@pytest.mark.usefixtures("numbered")
@pytest.mark.parametrize(("size", "steps"), [(10, 7), (37, 2), (74, 1)])
def test_an_epoch_has_each_question_once_except_an_incomplete_last_batch(size: int, steps: int) -> None:
    task, _ = make("attentive_reader", f"batch_size={size}")
    assert task.steps_per_epoch == steps
    assert task.notes[record.WORDS] == digest_of_words(WORDS)
    orders = [order(task, epoch) for epoch in (0, 3)]
    for questions in orders:
        assert len(set(questions)) == len(questions) == size * steps
        assert questions != sorted(questions)
    assert orders[0] != orders[1]
    assert [task.examples(batch) for step in steps_of(task, 0) for batch in task.batches(step)] == [size] * steps


def test_a_batch_permutes_entities_and_keeps_other_words(numbered: Examples) -> None:
    task, _ = make("attentive_reader", "batch_size=37")
    tables = []
    for step in range(4):
        (batch,) = task.batches(step)
        table: dict[int, int] = {}
        for row, i in enumerate(numbers(batch)):
            sides = (
                (batch.passage[row][batch.passage_mask[row]], numbered.passages[i]),
                (batch.question[row][batch.question_mask[row]], numbered.questions[i]),
                (batch.answer[row : row + 1], numbered.answers[i : i + 1]),
            )
            for read, stored in sides:
                for new, old in zip(read.tolist(), stored.tolist(), strict=True):
                    assert table.setdefault(old, new) == new
        assert sorted(table[entity] for entity in ENTITIES) == ENTITIES.tolist()
        assert {old for old, new in table.items() if old != new} <= set(ENTITIES.tolist())
        tables.append(tuple(table[entity] for entity in ENTITIES))
    assert len({*tables, tuple(ENTITIES.tolist())}) == 5  # five permutations: of four steps, and the identity


def test_padding_repeats_the_sequence() -> None:
    task, _ = make("attentive_reader")
    (batch,) = task.batches(0)
    for words, mask in ((batch.passage, batch.passage_mask), (batch.question, batch.question_mask)):
        sequences = [row[real].numpy() for row, real in zip(words, mask, strict=True)]
        assert torch.equal(words, torch.from_numpy(cycled(sequences, NIL)[0]))


@pytest.mark.usefixtures("numbered")
@pytest.mark.parametrize("pool", [1, 3])
def test_without_shuffling_only_the_order_within_a_pool_changes(pool: int) -> None:
    task, _ = make("attentive_reader", "shuffle=false", f"pool={pool}")
    first = order(task, 0)
    assert order(task, 1) == first
    for start in range(0, 70, 10 * pool):
        assert sorted(first[start : start + 10 * pool]) == list(range(start, min(start + 10 * pool, 70)))


def test_a_pool_is_sorted_by_length_longest_first(numbered: Examples) -> None:
    task, _ = make("attentive_reader", "pool=3")
    lengths = [len(numbered.passages[i]) + len(numbered.questions[i]) for i in order(task, 1)]
    for start in range(0, 70, 30):
        assert lengths[start : start + 30] == sorted(lengths[start : start + 30], reverse=True)
    assert lengths != sorted(lengths, reverse=True)


def test_the_objective_is_the_mean_of_its_plain_formula_and_the_loss_is_in_nats() -> None:
    """The probabilities of the answers go from 1 down to one that is 0 in float32."""
    task, _ = make("attentive_reader")
    (batch,) = task.batches(0)
    logits = torch.zeros(10, 50)
    logits[torch.arange(10), batch.answer % 50] = torch.tensor([30.0, 8, 2, 0.1, -4, -14, -18, -22, -90, -300])
    logits.requires_grad_()
    batch = Batch(*batch[:4], batch.answer % 50)
    objective = task.objective(lambda *_: logits, batch, StreamNoise(0))
    exact = logits.detach().double().requires_grad_()
    losses = -torch.log_softmax(exact, 1)[torch.arange(10), batch.answer]
    expected = -torch.log(torch.exp(-losses) + 1e-8).mean()
    assert objective.loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert objective.sums["loss"].item() == pytest.approx(losses.sum().item(), rel=1e-6)
    assert objective.sums["error"] == 6
    assert objective.count == 10
    (gradient,), (by_formula,) = torch.autograd.grad(objective.loss, logits), torch.autograd.grad(expected, exact)
    torch.testing.assert_close(gradient.double(), by_formula, rtol=1e-4, atol=1e-8)


def test_the_answer_unknown_word_is_an_error() -> None:
    task, _ = make("attentive_reader")
    (batch,) = task.batches(0)
    answers = torch.tensor([UNK, 5, 5, UNK, 6, 7, 8, 9, 10, 11])
    logits = 20 * F.one_hot(torch.tensor([UNK, 5, UNK, 5, 6, 7, 8, 9, 10, 10]), 50).float()
    objective = task.objective(lambda *_: logits, Batch(*batch[:4], answers), StreamNoise(0))
    assert objective.sums["error"] == 4
    assert objective.sums["loss"].item() == pytest.approx(60, abs=1e-4)  # three wrong predictions, a loss of 20 each


class Recorder(nn.Module):
    """A model that records its batches and answers with the first word of the passage."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Batch] = []

    def forward(self, batch: Batch, noise: object = None) -> Tensor:  # noqa: ARG002
        self.batches.append(batch)
        return F.one_hot(batch.passage[:, 0], len(WORDS)).float()


@torch.enable_grad()
def trained_model(*overrides: str) -> tuple[Any, Any]:
    """Return task and model, in float64 and evaluation mode.

    After two training steps from large weights, the output layer is changed so that answers are entities.
    """
    task, model = make("attentive_reader", *overrides)
    shake(model)
    train(task, model, 2)
    with torch.no_grad():
        model.output *= 5
        model.output_bias[task._cloze.entities] += 30
    return task, model.eval().double()


def by_hand(model: Any, batches: list[Batch]) -> dict[str, float]:
    """Return mean loss and error over the examples of the batches."""
    logits, answers = torch.cat([model(batch) for batch in batches]), torch.cat([batch.answer for batch in batches])
    losses, wrong = F.cross_entropy(logits, answers, reduction="none"), logits.argmax(1) != answers
    assert losses.std() > 0.1
    return {"loss": losses.mean().item(), "error": wrong.double().mean().item()}


@torch.no_grad()
@pytest.mark.parametrize("norm", ["rms", "none"])
def test_evaluation_is_the_mean_over_questions_evaluated_alone(norm: str) -> None:
    task, model = trained_model(f"norm={norm}")
    valid = task._cloze.splits["valid"]
    results = task.evaluate(model)
    assert list(results) == ["valid"]
    assert results["valid"] == pytest.approx(by_hand(model, [alone(valid, i) for i in range(VALID)]), rel=1e-5)


@pytest.mark.parametrize("norm", some(["bn", "mean_only_bn"], ["bn"]))
def test_batch_norm_evaluates_with_the_statistics_that_are_chosen(norm: str) -> None:
    task, model = trained_model(f"norm={norm}", "norm.min_examples=2")
    with torch.no_grad():
        valid = task._cloze.splits["valid"]
        running = by_hand(model, [alone(valid, i) for i in range(VALID)])
        published, other = make("attentive_reader", f"norm={norm}", "norm.min_examples=2", "norm.eval=batch")
        other.eval().double().load_state_dict(model.state_dict())
        recorder = Recorder()
        published.evaluate(recorder)
        batch = by_hand(other, recorder.batches)
        assert abs(batch["loss"] - running["loss"]) > 0.01
        assert task.evaluate(model)["valid"] == pytest.approx(running, rel=1e-5)
        assert published.evaluate(other)["valid"] == pytest.approx(batch, rel=1e-5)
    assert task.notes["batch norm"].startswith("error and loss use the statistics that norm.eval selects")


def test_chance_with_answers_outside_the_passage_and_with_a_test_split(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c, word = *map(int, ENTITIES[:3]), FIRST
    rows = [
        ([a, b, a, a], [word], a),  # one of two entities, however often each occurs
        ([a, b, c], [word], b),
        ([b, word], [c], c),  # the answer is not in the passage
        ([word, word], [a], a),  # no entity to name
    ]
    splits = {"train": examples(rows), "valid": examples(rows), "test": examples(rows[:1])}
    monkeypatch.setitem(attentive_reader.SOURCES, "stories", source(**splits))
    task, model = make("attentive_reader", "batch_size=4")
    assert task.target.chance == pytest.approx(1 - (1 / 2 + 1 / 3) / 4)
    results = task.evaluate(model.eval())
    assert list(results) == ["valid", "test"]
    assert all(math.isfinite(metrics["loss"]) for metrics in results.values())
