"""The translation tasks: batches, evaluation and decoding by hand, whole runs of every norm, mistakes, own text."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import math
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tensors import digest
from torch import nn
from torch.nn import functional as F

from rmsexp import app, config, record
from rmsexp.data.subwords import EOS, PAD
from rmsexp.data.twins import phrases
from rmsexp.metrics import bleu
from rmsexp.models.translation import Batch
from rmsexp.tasks import translation
from rmsexp.train.randomness import StreamNoise, stream

NORMS = config.options("norm")
TASKS = ("rnnsearch", "transformer")
TRAIN = 310  # pairs, as conftest has it
SIZES = {
    "rnnsearch": ("model.embedding=8", "model.hidden=12", "batch_size=20", "pool=3"),
    "transformer": (
        *("model.width=16", "model.layers=1", "model.inner=16", "model.heads=2"),
        *("tokens=200", "pool=100", "accumulate=2"),
    ),
}
SHORT = ("data.max_length=16", "data.overlong=drop")  # where all of the text takes a recurrence too long
SEARCH = ("decoding.max_length=6", "decoding.beyond_source=2", "decoding.beam=2")


def tiny(task: str) -> list[str]:
    return [f"task={task}", *SIZES[task], *SEARCH]


def make(root: Path, task: str, *overrides: str) -> tuple[Any, Any]:
    """A task with its data, and its model, initialised."""
    job = config.job([*tiny(task), f"data.root={root}", *overrides])
    made = import_module(f"rmsexp.tasks.{task}").Task(job.config, torch.device("cpu"))
    made.prepare(lambda _: None)
    model = made.build(job.norm)
    made.initialise(model)
    return made, model


def steps(task: Any, epoch: int) -> range:
    return range(epoch * int(task.steps_per_epoch), (epoch + 1) * int(task.steps_per_epoch))


def pairs_of(batch: Batch) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The sentence pairs of a batch, without padding."""
    sides = [
        [tuple(row[real].tolist()) for row, real in zip(tokens, mask, strict=True)]
        for tokens, mask in ((batch.source, batch.source_mask), (batch.target, batch.target_mask))
    ]
    return list(zip(*sides, strict=True))


def longer_sides(batch: Batch) -> list[int]:
    return [max(len(source), len(target)) for source, target in pairs_of(batch)]


# Batches


@pytest.mark.parametrize("name", TASKS)
def test_batches_are_a_function_of_seed_and_step(text_root: Path, name: str) -> None:
    epoch = int(make(text_root, name)[0].steps_per_epoch)
    asked = [0, 1, epoch - 1, epoch, epoch + 1, 2 * epoch, 5 * epoch + 2]

    def batches(norm: str, order: list[int], *overrides: str) -> dict[int, str]:
        task, _ = make(text_root, name, f"norm={norm}", *overrides)
        return {step: digest(*(part for batch in task.batches(step) for part in batch)) for step in order}

    expected = batches("rms", asked)
    assert len(set(expected.values())) == len(asked)
    for norm in ("ln", "bn", "none"):
        assert batches(norm, asked[::-1]) == expected
    assert batches("rms", asked[4:5]) == {asked[4]: expected[asked[4]]}
    assert not set(batches("rms", asked, "seed=1").values()) & set(expected.values())


@pytest.mark.parametrize("epoch", [0, 3])
@pytest.mark.parametrize("name", TASKS)
def test_an_epoch_has_every_pair_once(text_root: Path, name: str, epoch: int) -> None:
    task, _ = make(text_root, name)
    train = task.text.train
    expected = Counter((tuple(map(int, train.source[i])), tuple(map(int, train.target[i]))) for i in range(TRAIN))
    assert len(expected) == TRAIN  # they can be told apart
    batches = [batch for step in steps(task, epoch) for batch in task.batches(step)]
    assert Counter(pair for batch in batches for pair in pairs_of(batch)) == expected
    assert [task.examples(batch) for batch in batches] == [len(pairs_of(batch)) for batch in batches]


@pytest.mark.parametrize("name", TASKS)
def test_what_a_batch_is_made_of(text_root: Path, name: str) -> None:
    task, _ = make(text_root, name)
    batches = [*task.batches(0), *task.batches(5), *task.held_out_batches("valid")]
    for batch in batches:
        for tokens, mask in ((batch.source, batch.source_mask), (batch.target, batch.target_mask)):
            lengths = mask.sum(1)
            assert tokens.dtype == torch.int64
            assert tokens.shape[1] == lengths.max()  # no more padding than is needed
            assert torch.equal(mask, torch.arange(tokens.shape[1]) < lengths[:, None])
            assert (tokens[~mask] == PAD).all()
            assert torch.equal((tokens == EOS).nonzero(), torch.stack([torch.arange(len(tokens)), lengths - 1], 1))
        assert torch.equal(batch.real, batch.target_mask.flatten().nonzero().squeeze(1))
        assert len(set(longer_sides(batch))) > 1 or len(batch.source) == 1
    held_out = [pair for batch in task.held_out_batches("valid") for pair in pairs_of(batch)]
    assert len(held_out) == 16
    assert [len(target) for _, target in held_out] == sorted((len(target) for _, target in held_out), reverse=True)


def test_rnnsearch_reads_pools_and_takes_the_longest_first(text_root: Path) -> None:
    task, _ = make(text_root, "rnnsearch")
    batches = [task.batches(step) for step in steps(task, 0)]
    assert all(len(micro) == 1 for micro in batches)
    assert [len(batch.source) for (batch,) in batches] == [20] * 15 + [10]
    assert task.steps_per_epoch == 16
    lengths = [length for (batch,) in batches for length in longer_sides(batch)]
    pools = [lengths[start : start + 60] for start in range(0, TRAIN, 60)]
    assert all(pool == sorted(pool, reverse=True) for pool in pools)
    assert lengths != sorted(lengths, reverse=True)


def test_a_transformers_batches(text_root: Path) -> None:
    task, _ = make(text_root, "transformer")
    epochs = []
    for epoch in range(2):
        batches = [task.batches(step) for step in steps(task, epoch)]
        assert {len(micro) for micro in batches[:-1]} == {2}
        assert len(batches[-1]) in (1, 2)
        epochs.append([batch for micro in batches for batch in micro])
    for batch in epochs[0]:
        assert len(batch.source) * max(longer_sides(batch)) <= 200
    pools: list[list[set[frozenset[Any]]]] = []
    for batches in epochs:
        pools.append([set() for _ in range(math.ceil(TRAIN / 100))])
        read = 0
        for batch in batches:
            pools[-1][read // 100].add(frozenset(pairs_of(batch)))
            read += len(batch.source)
    assert pools[0] == pools[1]  # no batch has moved to another pool or changed
    assert all(sum(map(len, pool)) == 100 for pool in pools[0][:3])
    assert [pairs_of(batch) for batch in epochs[0]] != [pairs_of(batch) for batch in epochs[1]]


def test_a_sentence_longer_than_the_limit_is_a_batch_of_its_own(text_root: Path) -> None:
    task, _ = make(text_root, "transformer", "tokens=20")
    batches = [batch for step in steps(task, 0) for batch in task.batches(step)]
    beyond = [batch for batch in batches if max(longer_sides(batch)) > 20]
    assert beyond
    assert {len(batch.source) for batch in beyond} == {1}


# Initial weights


@pytest.mark.parametrize("name", TASKS)
def test_norms_start_from_the_same_weights(text_root: Path, name: str) -> None:
    def drawn(norm: str, *overrides: str) -> dict[str, str]:
        parameters = make(text_root, name, f"norm={norm}", *overrides)[1].named_parameters()
        return {key: digest(value) for key, value in parameters if not value.isnan().any()}

    first, *rest = (drawn(norm) for norm in NORMS)
    for other in rest:
        shared = first.keys() & other.keys()
        assert {key: first[key] for key in shared} == {key: other[key] for key in shared}
        assert len([key for key in shared if key.endswith("weight")]) > 10
    random = {key for key, value in drawn(NORMS[0], "seed=1").items() if value != first[key]}
    model = make(text_root, name)[1]
    constant = {key for key, value in model.named_parameters() if (value == value.flatten()[0]).all()}
    assert random == {key for key, _ in model.named_parameters()} & first.keys() - constant


# Evaluation


def shake(model: nn.Module) -> None:
    """Weights with which translations differ from each other."""
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            parameter.add_(torch.empty(parameter.shape).normal_(0, 1, generator=stream(0, "shake", name)))


def train(task: Any, model: nn.Module, number: int) -> None:
    optimizer = task.optimizer(model)
    for step in range(number):
        for micro, batch in enumerate(task.batches(step)):
            task.objective(model, batch, StreamNoise(0, "noise", step, micro)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def blocks(text: str) -> dict[str, dict[str, str]]:
    """``translations.txt`` by heading, such as "valid 1"."""
    found = {}
    for block in text.split("\n\n"):
        heading, *lines = block.rstrip("\n").split("\n")
        found[heading] = {line.split()[0]: line[14:] for line in lines}
    return found


@pytest.mark.parametrize("name", TASKS)
def test_evaluation_by_hand(text_root: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    corpus = phrases.phrases(TRAIN, 16, 16)
    more = dataclasses.replace(corpus, splits={**corpus.splits, "test2017": corpus.splits["valid"]})
    monkeypatch.setitem(translation.SOURCES, "phrases", lambda _: more)
    task, model = make(text_root, name, "norm=ln", "data.tests=[test,test2017]", "decoding.valid_beam=1")
    shake(model)
    model.eval()
    results = task.evaluate(model)
    assert list(results) == ["valid", "test", "test2017"]
    assert results["test2017"]["loss"] == results["valid"]["loss"]
    assert results["test"]["loss"] != results["valid"]["loss"]
    for split, beam in (("valid", 1), ("test", 2)):
        assert results[split].keys() == {"loss", "perplexity", "bleu", "chrf"}
        total, tokens, held_out = 0.0, 0, task.text.held_out[split]
        for i in range(len(held_out.references)):
            source, target = (
                torch.from_numpy(side[i].astype("int64"))[None]
                for side in (held_out.pairs.source, held_out.pairs.target)
            )
            real = torch.arange(target.shape[1])
            logits = model(Batch(source, torch.ones_like(source).bool(), target, torch.ones_like(target).bool(), real))
            total += F.cross_entropy(logits.double(), target[0], reduction="sum").item()
            tokens += len(real)
        assert results[split]["loss"] == pytest.approx(total / tokens, rel=1e-5)
        assert results[split]["perplexity"] == pytest.approx(math.exp(total / tokens), rel=1e-4)
        hypotheses = task.translate(model, held_out.sources, beam)
        scores = bleu.score(hypotheses, held_out.references)
        assert (results[split]["bleu"], results[split]["chrf"]) == (scores.bleu, scores.chrf)
        assert len(set(hypotheses)) > 5
        shown = {key: value for key, value in blocks(task.files["translations.txt"]).items() if key.split()[0] == split}
        assert len(shown) == 10
        for heading, lines in shown.items():
            i = int(heading.split()[1]) - 1
            expected = {"source": held_out.sources, "reference": held_out.references, "translation": hypotheses}
            assert lines == {kind: of[i] for kind, of in expected.items()}


@pytest.mark.parametrize("name", TASKS)
def test_notes_tell_how_bleu_was_computed(text_root: Path, name: str) -> None:
    task, _ = make(text_root, name, "decoding.valid_beam=3")
    assert "lang:en-de|case:mixed|eff:no|tok:13a|smooth:exp|version:" in task.notes["bleu"]
    assert task.notes["decoding"] == "beam 2 on test sets, 3 on the validation set"


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", TASKS)
def test_results_do_not_depend_on_batch_and_padding(text_root: Path, name: str, norm: str) -> None:
    task, model = make(text_root, name, f"norm={norm}", *SHORT, "decoding.beam=3")
    shake(model)
    train(task, model, 2)
    model.eval().double()  # with such weights a recurrence makes much of the last bits
    found = []
    for size in (1, 32):
        task.config.decoding.batch_size = size
        found.append((task.evaluate(model), blocks(task.files["translations.txt"])))
    (alone, shown_alone), (together, shown_together) = found
    for split in ("valid", "test"):
        assert alone[split]["loss"] == pytest.approx(together[split]["loss"], rel=1e-6)
        assert alone[split]["chrf"] == together[split]["chrf"]
    assert shown_alone == shown_together
    assert len({lines["translation"] for lines in shown_alone.values()}) > 3


# Whole runs


@dataclass(frozen=True)
class Ended:
    """What a command left: exit status, everything printed."""

    status: int
    out: str
    err: str


Main = Callable[..., Ended]


@pytest.fixture
def main(text_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Main:
    """Runs command lines in this process, with their results in ``results`` of the test's folder."""
    monkeypatch.setattr(sys, "argv", ["rmsexp"])  # Hydra's main reads it, and the app sets it
    edges = ("max_steps=2", "log_every=1", "eval_every=2", "checkpoint_every=2", "threads=1", "device=cpu")

    def run(*words: str, curves: bool = False) -> Ended:
        with contextlib.ExitStack() as stack:
            if not curves:
                stack.enter_context(monkeypatch.context()).setattr(app, "draw", lambda _: None)
            status = app.main([f"results={tmp_path / 'results'}", f"data.root={text_root}", *edges, *words])
        return Ended(status, *capsys.readouterr())

    return run


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", TASKS)
def test_every_norm_trains(main: Main, tmp_path: Path, name: str, norm: str) -> None:
    done = main(*tiny(name), *SHORT, f"norm={norm}")
    assert done.status == 0, done.err
    (folder,) = record.find_runs(tmp_path)
    run = record.read(folder)
    endings = ("finished", "diverged") if (name, norm) == ("transformer", "none") else ("finished",)
    assert run.status["status"] in endings
    files = {record.CONFIG, record.RUN, record.METRICS, record.STATUS, record.CHECKPOINTS, "translations.txt"}
    assert {path.name for path in folder.iterdir()} == files
    if run.status["status"] == "diverged":
        return
    assert {path.name for path in (folder / record.CHECKPOINTS).iterdir()} == {"last.pt", "best.pt"}
    of_split = {split: [row for row in run.metrics if row["split"] == split] for split in ("train", "valid", "test")}
    assert [row["step"] for row in of_split["train"]] == [1, 2]
    assert all(math.isfinite(row["loss"]) and row["grad_norm"] > 0 for row in of_split["train"])
    for split in ("valid", "test"):
        assert [row["step"] for row in of_split[split]] == [0, 2]
        assert of_split[split][0]["loss"] != of_split[split][1]["loss"]
    assert (run.run["norm"], run.run["dataset"]["builtin"]) == (norm, True)
    assert "version:" in run.run["notes"]["bleu"]


def test_a_sweep_draws_the_comparison(main: Main, tmp_path: Path) -> None:
    done = main("-m", *tiny("transformer"), "norm=ln,rms", curves=True)
    assert done.status == 0, done.err
    (summary,) = tmp_path.rglob("summary.md")
    assert "| test BLEU at step 2 |" in summary.read_text()
    assert all(label in summary.read_text() for label in ("LayerNorm", "RMSNorm", "best on valid"))
    assert (summary.parent / "test_bleu.png").exists()


@pytest.mark.parametrize(("name", "norm"), [("rnnsearch", "rms"), ("transformer", "bn")])
def test_bfloat16_trains_near_float32(main: Main, tmp_path: Path, name: str, norm: str) -> None:
    for precision in ("float32", "bfloat16"):
        done = main(*tiny(name), *SHORT, f"norm={norm}", f"precision={precision}")
        assert done.status == 0, done.err
    losses = {
        "precision" in run.run["setting"]: [row["loss"] for row in run.metrics]
        for run in map(record.read, record.find_runs(tmp_path))
    }
    assert losses["bfloat16"] == pytest.approx(losses["float32"], abs=0.05)
    assert losses[True] != losses[False]


# The paper's setting


def test_the_papers_rnnsearch() -> None:
    cfg = config.job(["task=rnnsearch", "scale=paper", "norm=rms"]).config
    assert (cfg.model.embedding, cfg.model.hidden, cfg.batch_size, cfg.pool) == (512, 1024, 80, 20)
    assert (cfg.label_smoothing, cfg.model.init_center, cfg.model.dropout) == (0.1, 0.0, 0.0)
    optim = cfg.optim
    assert (optim.lr, optim.beta1, optim.beta2, optim.eps, optim.clip) == (1e-4, 0.9, 0.999, 1e-8, 1.0)
    assert [cfg.schedule.at(step)["lr"] for step in (0, 10**6)] == [1, 1]
    assert (cfg.decoding.beam, cfg.decoding.normalisation, cfg.decoding.max_length) == (12, "length", 200)
    assert (cfg.data.max_length, cfg.data.overlong) == (80, "drop")
    assert_paper_data(cfg)


def test_the_papers_transformer() -> None:
    job = config.job(["task=transformer", "scale=paper", "norm=rms"])
    cfg, model = job.config, job.config.model
    assert (model.width, model.heads, model.layers, model.inner, model.pre_norm) == (512, 8, 6, 2048, False)
    assert (model.dropout, model.attention_dropout, model.relu_dropout, cfg.label_smoothing) == (0.1,) * 4
    assert (cfg.tokens, cfg.accumulate, cfg.pool, job.norm.eps) == (6250, 4, 60_000, 1e-8)
    assert (cfg.optim.beta1, cfg.optim.beta2, cfg.optim.eps, cfg.optim.clip) == (0.9, 0.98, 1e-8, None)
    for step in (1, 2000, 4000, 300_000):
        expected = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert cfg.optim.lr * cfg.schedule.at(step - 1)["lr"] == pytest.approx(expected)
    decoding = cfg.decoding
    assert (decoding.beam, decoding.normalisation, decoding.alpha, decoding.beyond_source) == (4, "gnmt", 0.6, 50)
    assert decoding.forbid_empty
    assert (cfg.data.max_length, cfg.data.overlong, cfg.schedule.steps) == (256, "cut", 300_000)
    assert_paper_data(cfg)


def assert_paper_data(cfg: Any) -> None:
    data = cfg.data
    assert (data.name, data.source, data.target, data.tests) == ("wmt14", "en", "de", ["test", "test2017"])
    assert (data.subwords, data.vocabulary, data.threshold) == ("moses_bpe", 32_000, 50)


# Mistakes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["task=transformer", "model.heads=3"], "model.heads=3 does not divide model.width=64"),
        (["task=transformer", "model.width=15", "model.heads=5"], "model.width=15: positions need an even number"),
        (["task=transformer", "tokens=0"], "tokens must be at least 1, got 0"),
        (["task=transformer", "model.dropout=1"], "model.dropout must lie in [0, 1), got 1.0"),
        (["task=rnnsearch", "model.hidden=0"], "model.hidden must be at least 1, got 0"),
        (["task=rnnsearch", "batch_size=0"], "batch_size must be at least 1, got 0"),
        (["task=rnnsearch", "label_smoothing=1"], "label_smoothing must lie in [0, 1), got 1.0"),
        (["task=rnnsearch", "decoding.beam=0"], "decoding.beam must be at least 1, got 0"),
        (["task=rnnsearch", "decoding.valid_beam=0"], "decoding.valid_beam must be at least 1, got 0"),
        (["task=rnnsearch", "decoding.max_length=null"], "decoding.max_length or decoding.beyond_source"),
        (["task=rnnsearch", "decoding.max_length=0"], "decoding.max_length must be at least 1, got 0"),
        (["task=rnnsearch", "decoding.normalisation=lenght"], "did you mean length? (one of length, gnmt)"),
        (["task=rnnsearch", "data.name=multi30"], "data.name=multi30 is not known; did you mean multi30k?"),
        (["task=rnnsearch", "data.subwords=foo"], "data.subwords=foo is not known (one of sentencepiece, moses_bpe)"),
        (["task=rnnsearch", "data.threshold=5"], "data.threshold must be 0 with data.subwords=sentencepiece, got 5"),
        (["task=rnnsearch", "data.overlong=keep"], "data.overlong=keep is not known"),
        (["task=rnnsearch", "data.tests=[test2017]"], "data.tests must begin with test"),
        (["task=rnnsearch", "norm=ln", "norm.p=0.5"], "norm.p is no option of norm=ln (norms that have it: prms)"),
        (["task=rnnsearch", "tokens=100"], "tokens is not known"),
        (["task=transformer", "model.hidden=8"], "model.hidden is not known"),
    ],
    ids=lambda value: None if isinstance(value, str) else " ".join(value),
)
def test_mistake_is_named_in_a_line(main: Main, tmp_path: Path, words: list[str], message: str) -> None:
    done = main(*words)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("rmsexp: ")
    assert message in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data.name=files"], "data.name=files needs data.train, what the paths of its two files begin with"),
        (["data.name=files", "data.train=a", "data.valid=b"], "data.name=files needs data.test"),
        (["data.tests=[test,test2018]"], "data.tests: phrases twin has no test2018 (it has test)"),
        (["data.tests=[test,train]"], "data.tests: phrases twin has no train"),
        (["data.tests=[test,valid]"], "data.tests: phrases twin has no valid"),  # else the model is chosen on it
        (["data.tests=[test,test]"], "data.tests"),
        (["data.name=multi30k", "data.source=fr"], "data.source=fr data.target=de: Multi30k is in en and de"),
        (["data.source=de", "data.target=en"], "data.source"),  # the twin is from English to German
        (["data.vocabulary=100000"], "data.vocabulary=100000 is more than the"),
        (["data.vocabulary=20"], "data.vocabulary=20 is less than the"),
        (["data.max_length=2"], "data.max_length=2"),
    ],
    ids=lambda value: None if isinstance(value, str) else " ".join(value),
)
def test_what_does_not_fit_the_text_ends_the_run(main: Main, words: list[str], message: str) -> None:
    done = main(*tiny("rnnsearch"), *words)
    assert done.status in (1, 2), done.out
    said = done.err[done.err.rindex("rmsexp: ") :]
    assert message in said
    assert said.count("\n") <= 2
    assert "Traceback" not in done.err
    assert "traceback" not in said


# One's own text


def write(prefix: Path, sources: list[str], targets: list[str]) -> None:
    prefix.with_suffix(".en").write_text("".join(f"{line}\n" for line in sources), encoding="utf-8")
    content = "".join(f"{line}\n" for line in targets).encode()
    prefix.with_suffix(".de.gz").write_bytes(gzip.compress(content))


@pytest.fixture
def own_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files of 42 training pairs, one of them empty on a side and one too long; what names them."""
    corpus = phrases.phrases(40, 6, 6)
    monkeypatch.chdir(tmp_path)
    for split, read in corpus.splits.items():
        sources, targets = read()
        if split == "train":
            sources, targets = [*sources, "", " ".join(sources)], [*targets, targets[0], " ".join(targets)]
        write(tmp_path / split, sources, targets)
    return ["data.name=files", *(f"data.{split}={split}" for split in corpus.splits), "data.vocabulary=90"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rnnsearch", "42 pairs: 40 kept, 1 empty, 1 longer than 80 subwords; unknown subwords: 0 in en, 0 in de"),
        ("transformer", "42 pairs: 41 kept, 1 empty, 1 cut to 256 subwords; unknown subwords: 0 in en, 0 in de"),
    ],
)
def test_a_run_on_ones_own_text(main: Main, own_text: list[str], tmp_path: Path, name: str, said: str) -> None:
    words = (*tiny(name), *own_text, f"data.root={tmp_path / 'cache'}")
    done = main(*words)
    assert done.status == 0, done.err
    assert said in done.err
    assert "data train en-de" in done.err.splitlines()[0]
    (folder,) = record.find_runs(tmp_path)
    run = record.read(folder)
    assert run.run["dataset"].items() >= {"name": "train en-de", "builtin": False}.items()
    assert yaml.safe_load((folder / record.CONFIG).read_text())["data"]["train"] == "train"
    assert "valid 6\n" in (folder / "translations.txt").read_text()
    (tmp_path / "valid.en").write_text("another\n" * 6)
    again = main(*words, "max_steps=3")
    assert again.status == 1
    assert "was trained on other data" in again.err


def test_own_text_may_lie_anywhere(main: Main, own_text: list[str], tmp_path: Path) -> None:
    paths = [word.replace("=", f"={tmp_path}/") for word in own_text[1:4]]
    sizes = ("model.width=16", "model.heads=2", "decoding.beyond_source=1", "data.vocabulary=90")
    done = main("task=transformer", own_text[0], *paths, *sizes, f"data.root={tmp_path / 'cache'}")
    assert done.status == 0, done.err


def test_files_that_do_not_belong_together(main: Main, own_text: list[str], tmp_path: Path) -> None:
    lines = (tmp_path / "train.en").read_text().splitlines(keepends=True)
    (tmp_path / "train.en").write_text("".join(lines[:-3]))
    done = main(*tiny("rnnsearch"), *own_text, f"data.root={tmp_path / 'cache'}")
    assert done.status == 1
    assert "train.en has 39 lines and train.de.gz has 42." in done.err
    assert "Traceback" not in done.err
