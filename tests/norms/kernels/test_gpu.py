"""On a GPU, fused norms, recurrences and runs equal eager ones, and a continued run ends bit-identical."""

from pathlib import Path

import pytest
import torch
from helpers.fused_pairs import NORMS, close, gradients, pair
from helpers.interpreter import only_on_gpu
from helpers.norm_layers import FORMATS, LAYERS
from helpers.norm_layers import pair as layer_pair
from helpers.sites import draw, fill, mask_of
from helpers.stopping import assert_same
from helpers.tasks import Main
from torch import Tensor

from rmsexp import config, norms
from rmsexp.commands import result
from rmsexp.models.recurrent import GRU, LSTM
from rmsexp.records import record

pytestmark = [pytest.mark.slow, only_on_gpu, pytest.mark.usefixtures("fused_kernels")]

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
STEPS = ("device=cuda", "max_steps=4", "eval_every=2", "checkpoint_every=2")


def on_gpu(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to("cuda", dtype).requires_grad_()


@DTYPES
@pytest.mark.parametrize("name", [*LAYERS, "dyt", "derf"])
def test_layers(name: str, dtype: torch.dtype) -> None:
    """Norms of rows and of maps in both memory formats, alone and after an addition, equal eager norms."""
    inputs = [draw(600, 1000), *(draw(5, 17, 6, 7).contiguous(memory_format=form) for form in FORMATS.values())]
    for x in inputs:
        maps, results = x.ndim == 4, []
        if name in LAYERS:
            layers = layer_pair(name, x.shape[1], dtype=dtype, **({"axes": (2, 3)} if maps else {}))
        else:
            family = {"dyt": norms.DynamicTanh, "derf": norms.DynamicErf}[name]
            layers = tuple(fill(family(x.shape[1], impl=impl, maps=maps)).to(dtype) for impl in ("eager", "fused"))
        for layer in layers:
            layer.cuda()
            leaf, addend = on_gpu(x, dtype), on_gpu(draw(*x.shape, seed=3), dtype)
            outputs = [layer(leaf)]
            if x.ndim == 2:
                outputs.append(sum(layer.add(leaf, addend)))  # of the sum and its norm
            leaves = [leaf, *layer.parameters()]
            results.append([*outputs, *(gradient for y in outputs for gradient in gradients(y, leaves))])
        close(results[1], results[0])


@DTYPES
@pytest.mark.parametrize("unit", [GRU, LSTM])
@pytest.mark.parametrize("name", NORMS)
def test_recurrences(name: str, unit: type[GRU], dtype: torch.dtype) -> None:
    modules = [module.cuda() for module in pair(lambda norm: unit(norm, "unit", 70, 190), name, dtype)]
    for seed, time in enumerate((5, 17, 12, 33, 5)):  # shapes that come again are recorded as graphs
        lengths = torch.tensor([time, 1, 3, time, 2, 4])
        for reverse in (False, True):
            mask, results = mask_of(lengths, time).cuda(), []
            for module in modules:
                x = on_gpu(draw(6, time, 70, seed=seed), dtype)
                states = module(x, mask, reverse=reverse) * mask.unsqueeze(-1)
                results.append([states, *gradients(states, [x, *module.parameters()])])
            close(results[1], results[0])


def losses(run: result.Result) -> list[tuple[str, int, float]]:
    """Return split, step and loss of each row of a run's metrics."""
    return [(row["split"], row["step"], row["loss"]) for row in run.metrics]


@pytest.mark.parametrize("norm", ["none", "ln", "rms", "prms", "bn", "wn"])
@pytest.mark.parametrize("task", config.options("task"))
def test_a_fused_run_has_the_losses_of_an_eager_run(main: Main, tmp_path: Path, words: list[str], norm: str) -> None:
    """The losses of four training steps, and of the evaluations before and after them, are equal up to rounding."""
    for impl in ("eager", *(["fused"] if norm != "bn" else [])):
        options = ["norm.p=0.5"] if norm == "prms" else []
        done = main(*words, *STEPS, f"norm={norm}", f"norm.impl={impl}", *options)
        assert done.status == 0, done.err
    runs = {run.run["impl"]: run for run in map(result.read, record.find_runs(tmp_path))}
    assert len(runs) == (1 if norm == "bn" else 2)
    assert {run.run["sessions"][0]["device_type"] for run in runs.values()} == {"cuda"}
    expected = losses(runs["eager"])
    assert len(expected) >= 5
    for impl in runs.keys() - {"eager"}:
        for fused, eager in zip(losses(runs[impl]), expected, strict=True):
            assert fused == (*eager[:2], pytest.approx(eager[2], rel=1e-4))


@pytest.mark.parametrize("impl", ["eager", "fused"])
@pytest.mark.parametrize("task", config.options("task"))
def test_a_continued_run_ends_bit_identical(main: Main, tmp_path: Path, words: list[str], impl: str) -> None:
    parts = {"whole": [[]], "parts": [["max_steps=2"], []]}
    for name, sessions in parts.items():
        for session in sessions:
            done = main(*words, *STEPS, "norm=rms", f"norm.impl={impl}", f"results={tmp_path / name}", *session)
            assert done.status == 0, done.err
    (continued,) = map(result.read, record.find_runs(tmp_path / "parts"))
    assert len(continued.run["sessions"]) == 2
    assert (continued.run["impl"] == "eager") == (impl == "eager")
    assert_same(*(tmp_path / name for name in parts))
