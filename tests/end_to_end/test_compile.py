"""Training with ``compile=true`` equals eager training up to rounding; the run has another setting."""

from functools import partialmethod
from pathlib import Path

import pytest
import torch
from helpers.language_models import TINY
from helpers.translation_tasks import SEARCH, SIZES
from torch import nn

import rmsexp
from rmsexp.commands.result import Result
from rmsexp.records.record import CHECKPOINTS

IMAGES = ("model.width=0.03", "batch_size=8")
TEXT = (*SIZES["transformer"], *SEARCH)
EDGES = ("max_steps=4", "log_every=1", "eval_every=4", "checkpoint_every=4", "threads=1", "device=cpu")


@pytest.fixture
def aot_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make torch.compile trace and differentiate graphs as usual, but run eager operators instead of compiling code."""
    torch.compiler.reset()
    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend="aot_eager"))


@pytest.mark.minutes
@pytest.mark.usefixtures("aot_eager", "small_synthetic_data")
@pytest.mark.parametrize(
    ("task", "norm", "words"),
    [
        ("cifar10", "rms", IMAGES),
        ("cifar10", "bn", IMAGES),
        ("transformer", "ln", TEXT),  # batches of different lengths
        ("language_model", "rms", TINY[1:]),
    ],
)
def test_compiled_training_equals_eager_training(
    task: str, norm: str, words: tuple[str, ...], data_root: Path, text_root: Path, tmp_path: Path
) -> None:
    root = {"cifar10": data_root, "transformer": text_root}.get(task, tmp_path / "data")

    def execute(*more: str) -> Result:
        return rmsexp.run(task, norm, [*words, *EDGES, f"data.root={root}", f"results={tmp_path}", *more])

    eager, compiled = execute(), execute("compile=true")
    assert "+compile=True" in compiled.run["setting"]
    assert eager.run["parameters"] == compiled.run["parameters"]
    assert [(row["step"], row["split"]) for row in eager.metrics] == [
        (row["step"], row["split"]) for row in compiled.metrics
    ]
    for key in ("loss", "objective", "grad_norm"):
        values = [[row[key] for row in run.metrics if key in row] for run in (eager, compiled)]
        assert values[1] == pytest.approx(values[0], rel=1e-3)
    assert compiled.metrics[0]["loss"] == pytest.approx(eager.metrics[0]["loss"], rel=1e-6)
    states = [torch.load(run.folder / CHECKPOINTS / "last.pt", weights_only=True)["model"] for run in (eager, compiled)]
    assert states[0].keys() == states[1].keys()
    seconds = compiled.metrics[-1]["seconds"]
    assert seconds["warmup"] > seconds["train"]
