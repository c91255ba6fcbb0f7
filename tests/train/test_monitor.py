"""``monitor=true``: what norms see is computed right, changes no bit of the training, and is drawn."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from helpers.stopping import assert_same
from torch import nn

import rmsexp
from rmsexp import norms
from rmsexp.commands.analysis import main
from rmsexp.models.recurrent import GRU, LSTM
from rmsexp.train import monitor
from rmsexp.train.monitor import FILE, QUANTITIES, Monitor

SMALL = {
    "language_model": {"model.width": 32, "model.layers": 2, "model.inner": 48, "model.heads": 2, "model.kv_heads": 2},
    "order_embedding": {"model.embedding": 32, "batch_size": 16},
    "attentive_reader": {"batch_size": 8},
}
OPTIONS = {"max_steps": 4, "eval_every": 2, "checkpoint_every": 2, "log_every": 2, "device": "cpu", "threads": 1}


def drawn(layer: nn.Module) -> None:
    torch.manual_seed(0)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, 0.3, 0.5)


def test_quantities_are_those_of_the_formulas(tmp_path: Path) -> None:
    layer = norms.DyT(name="dyt").linear("a", 6, 8)
    drawn(layer)
    x = torch.randn(3, 5, 6)
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[1, 2:] = False

    def objective() -> torch.Tensor:
        return (layer(x, mask=mask) * torch.arange(8.0))[mask].square().sum()

    (found,) = Monitor(layer, tmp_path, -1).observe(objective).values()
    inputs = layer.map(x, layer.weight).detach().requires_grad_()
    squashed = torch.tanh(layer.norm.alpha * inputs)
    (gradient,) = torch.autograd.grad((layer.norm(inputs) * torch.arange(8.0))[mask].square().sum(), inputs)
    real = inputs.detach()[mask]
    mean, std = real.mean(-1), real.std(-1, correction=0)
    expected = {
        "rms": real.square().mean().sqrt(),
        "mean_over_spread": (mean.square().mean() / std.square().mean()).sqrt(),
        "cosine": torch.cosine_similarity(real, torch.ones_like(real), dim=-1).abs().mean(),
        "saturated": (1 - squashed.square() < 0.1).float().mean(),  # padding included
        "gradient": gradient.norm(),
        "gain_spread": layer.norm.weight.std(correction=0),
    }
    assert list(expected) == list(QUANTITIES)
    assert found == pytest.approx({name: float(value.detach()) for name, value in expected.items()}, rel=1e-5)
    assert all(parameter.grad is None for parameter in layer.parameters())


def test_of_feature_maps_a_vector_is_a_channel(tmp_path: Path) -> None:
    layer = norms.BN(name="bn").linear("a", 2, 3, kernel_size=3, padding=1, bias=False)
    drawn(layer)
    x = torch.randn(4, 2, 5, 5)
    (found,) = Monitor(layer, tmp_path, -1).observe(lambda: layer(x).square().mean()).values()
    maps = layer.map(x, layer.weight).detach().flatten(2)
    spread = maps.var(-1, correction=0).mean()
    assert found["mean_over_spread"] == pytest.approx(float((maps.mean(-1).square().mean() / spread).sqrt()), rel=1e-5)
    assert found["saturated"] is None


@pytest.mark.parametrize("call", [lambda norm, x, mask: norm(x, mask), lambda norm, x, mask: norm(x=x, mask=mask)])
def test_arguments_may_be_given_by_position_or_name(call: Any, tmp_path: Path) -> None:
    norm, x = norms.RMS(name="rms").value("a", 4), torch.randn(2, 3, 4, requires_grad=True)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    (found,) = Monitor(norm, tmp_path, -1).observe(lambda: call(norm, x, mask).sum()).values()
    (apart,) = Monitor(norm, tmp_path, -1).observe(lambda: call(norm, x.detach(), mask).sum()).values()
    assert apart == found | {"gradient": None}  # the input needs none
    assert found["rms"] == pytest.approx(float(x.detach()[mask].square().mean().sqrt()))


@pytest.mark.parametrize("kind", [GRU, LSTM])
def test_layers_of_fused_recurrences_are_seen_as_those_of_eager_ones(kind: type, tmp_path: Path) -> None:
    x, found = torch.randn(3, 4, 5), []
    for impl in ("eager", "fused"):
        model = kind(norms.RMS(name="rms", impl=impl), "a", 5, 6)
        drawn(model)
        fused = model.fused
        found.append(Monitor(model, tmp_path, -1).observe(lambda model=model: model(x).square().sum()))
        assert model.fused == fused
    assert found[0] == found[1]
    assert all(values["saturated"] is not None for name, values in found[0].items() if name in ("candidate_h", "cell"))
    assert len(found[0]) == (4 if kind is GRU else 3)


def test_there_is_at_most_one_row_in_two_hundred_steps(tmp_path: Path) -> None:
    layer = norms.RMS(name="rms").value("a", 4)
    for steps, expected in (([0, 100, 200, 300, 600], ["0", "200", "600"]), ([680, 810], ["0", "200", "600", "810"])):
        watch = Monitor(layer, tmp_path, 0 if steps[0] == 0 else 600)
        for step in steps:
            text = watch.text(step, lambda: layer(torch.randn(3, 4, requires_grad=True)).sum())
            (tmp_path / FILE).write_text(text)
        assert [line.partition(",")[0] for line in text.splitlines()[1:]] == expected


def test_only_layers_that_a_norm_may_normalise_are_listed(tmp_path: Path) -> None:
    norm = norms.WN(name="wn")
    model = nn.Sequential(norm.linear("a", 4, 4), norm.plain("b", 4, 4))
    drawn(model)
    assert [*Monitor(model, tmp_path, -1).observe(lambda: model(torch.ones(2, 4)).sum())] == ["0.norm"]


@pytest.mark.usefixtures("small_synthetic_data")
@pytest.mark.parametrize(
    ("task", "norm"),
    [
        *(("language_model", "dyt"), ("order_embedding", "bn"), ("attentive_reader", "bn")),
        ("language_model", norms.ModuleNorm(name="module", module="torch.nn.BatchNorm1d")),  # it counts batches
    ],
)
def test_no_bit_of_the_training_changes_and_a_continued_run_has_the_same_rows(
    task: str, norm: str | norms.Norm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "PERIOD", 2)

    def run(name: str, **options: Any) -> tuple[list[str], str | None]:
        values = {**SMALL[task], **OPTIONS, **options, "results": tmp_path / name}
        found = rmsexp.run(task, norm, quiet=True, **values)
        path = found.folder / FILE
        rows = [json.dumps({**row, "seconds": 0}) for row in found.metrics]
        return rows, path.read_text() if path.exists() else None

    plain, nothing = run("plain")
    watched, layers = run("watched", monitor=True)
    run("cut", monitor=True, max_steps=2)
    assert run("cut", monitor=True) == (watched, layers)
    assert (watched, nothing) == (plain, None)
    assert_same(tmp_path / "plain", tmp_path / "watched", besides=[FILE])


def test_the_command_draws_and_tabulates_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = []
    for seed, (norm, factor) in enumerate([("ln", 1.0), ("rms", 2.0), ("rms", 4.0)]):
        # the last one is of another folder of results, and has fewer steps
        folders.append(tmp_path / ("other" if seed == 2 else "") / "cifar10" / "demo" / norm / f"seed{seed}")
        folders[-1].mkdir(parents=True)
        values = {"mean_over_spread": "0.1", "cosine": "0.2", "saturated": "", "gradient": "1", "gain_spread": "0"}
        rows = [
            {"step": step, "layer": layer, "rms": factor * (place + 1), **values}
            for step in (0, 5 if seed == 2 else 10)
            for place, layer in enumerate(("a", "b"))
        ]
        pd.DataFrame(rows).to_csv(folders[-1] / FILE, index=False)
    assert main(["layers", *map(str, folders), "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out/cifar10-demo.png").stat().st_size > 10_000
    table = pd.read_csv(tmp_path / "out/cifar10-demo.csv").set_index("series")
    assert table["rms"].to_dict() == {"ln": 1.5, "rms": 4.5}
    assert table["saturated"].isna().all()
    capsys.readouterr()
    assert main(["layers", str(tmp_path / "nothing")]) == 1
    assert "monitor=true" in capsys.readouterr().err
