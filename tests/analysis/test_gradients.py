"""``python -m rmsexp.analysis gradients``: gradients and SGD steps equal those from formulas in numpy."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from rmsexp.analysis import gradients
from rmsexp.analysis.site import EXAMPLES, GAINLESS, N_IN, N_OUT, NORMS, SPREAD, draw, norm, site
from rmsexp.commands.analysis import main

SCALE_INVARIANT = [name for name in NORMS if name != "none"]
# exponents of dL/dW, dL/dx, dL/dg, dL/db with W scaled, then with x scaled; without a norm there is no g
THEORY = {
    "none": [0, 1, None, 0, 1, 0, None, 0],
    "wn": [-1, 0, 0, 0, 1, 0, 1, 0],
    **{name: [-1, 0, 0, 0, 0, -1, 0, 0] for name in ("ln", "rms", "prms", "bn")},
    GAINLESS: [-1, 0, None, 0, 0, -1, None, 0],
    # dL/db is the sum of D; the others shrink where the function saturates, and grow where it is linear
    **{name: [None, None, None, 0] * 2 for name in ("dyt", "derf")},
}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    torch.set_num_threads(1)
    return gradients.measure()


def test_gradients_of_rmsnorm_equal_the_formulas_of_section_4_2() -> None:
    layer = site(norm("rms"))
    x, upstream = draw((EXAMPLES, N_IN), "test", "x"), draw((EXAMPLES, N_OUT), "test", "upstream")
    state = {name: value.numpy() for name, value in layer.state_dict().items()}
    weight, gain = state["weight"], state["norm.weight"]
    shapes = {"W": (N_OUT, N_IN), "x": (EXAMPLES, N_IN), "g": N_OUT, "b": N_OUT}
    expected = {name: np.zeros(shape) for name, shape in shapes.items()}
    for number, (row, d) in enumerate(zip(x.numpy(), upstream.numpy(), strict=True)):
        a = weight @ row
        rms = np.sqrt((a**2).mean())
        matrix = (np.eye(N_OUT) - np.outer(a, a) / (N_OUT * rms**2)) / rms
        expected["W"] += np.outer(matrix @ (gain * d), row)
        expected["x"][number] = weight.T @ matrix @ (gain * d)
        expected["g"] += d * a / rms
        expected["b"] += d
    sizes = gradients.sizes(layer, layer.weight, x, upstream)
    assert sizes == pytest.approx({name: np.linalg.norm(value) for name, value in expected.items()}, rel=1e-12)


@pytest.mark.parametrize("name", THEORY)
def test_exponents_equal_the_theoretical_ones(table: pd.DataFrame, name: str) -> None:
    fitted = gradients.exponents(table)
    exponents = fitted[fitted["norm"] == name].set_index(["changed", "of"])["exponent"].dropna()
    keys = [(changed, variable) for changed in "Wx" for variable in "Wxgb"]
    expected = {key: power for key, power in zip(keys, THEORY[name], strict=True) if power is not None}
    assert exponents.to_dict() == pytest.approx(expected, abs=1e-9)


def test_the_exponent_of_a_power_law_is_fitted() -> None:
    deltas = np.logspace(-1, 1, 5)
    noise = np.array([1.1, 1 / 1.1, 1, 1 / 1.1, 1.1])  # even in log(delta), so it does not change the slope
    table = pd.DataFrame({"norm": "rms", "changed": "W", "delta": deltas, "of": "x", "size": 3 * deltas**-0.5 * noise})
    (row, other) = gradients.exponents(pd.concat([table, table.assign(norm="ln")])).to_dict("records")
    assert row["exponent"] == pytest.approx(-0.5)
    assert row["paper"] == 0
    assert np.isnan(other["paper"])


def test_sgd_without_a_norm_equals_linear_regression_in_numpy() -> None:
    steps, rate = 4, gradients.LEARNING_RATE
    state = {name: value.numpy().copy() for name, value in site(norm("none"), "student").state_dict().items()}
    weight, teacher = state["weight"], SPREAD * draw((N_OUT, N_IN), "teacher").numpy()
    expected = []
    for step in range(steps):
        x, noise = draw((EXAMPLES, N_IN), "batch", step).numpy(), draw((EXAMPLES, N_OUT), "noise", step).numpy()
        residual = x @ weight.T + state["bias"] - np.tanh(x @ teacher.T) - noise
        gradient = 2 * residual.T @ x / residual.size
        lengths = np.linalg.norm(weight), np.linalg.norm(gradient)
        expected.append(
            (step, lengths[0], rate * lengths[1] / lengths[0], (gradient * weight).sum() / np.prod(lengths))
        )
        weight = weight - rate * gradient
    run = gradients.train(norm("none"), steps)
    assert list(run.columns) == ["step", "weight", "relative_step", "cosine"]
    np.testing.assert_allclose(run.to_numpy(), expected, rtol=1e-9)


@pytest.mark.parametrize("name", SCALE_INVARIANT)
def test_steps_orthogonal_to_the_weights_increase_their_norm_by_pythagoras(name: str) -> None:
    run = gradients.train(norm(name), 12)
    assert run["cosine"].abs().max() < 1e-14
    growth = (run["weight"].shift(-1) / run["weight"])[:-1]
    np.testing.assert_allclose(growth, np.sqrt(1 + run["relative_step"][:-1] ** 2), rtol=1e-12)


def test_summary_of_a_run() -> None:
    run = pd.DataFrame({"step": range(4), "weight": [2.0, 3, 2.5, 5], "relative_step": [0.4, 0.2, 0.2, 0.1]})
    (row,) = gradients.summary({"rms": run.assign(cosine=[0.1, -0.3, 0, 0])}).to_dict("records")
    assert row == {
        "norm": "rms",
        "weight_growth": 2.5,
        "growing": pytest.approx(2 / 3),
        "largest_cosine": 0.3,
        "relative_step_first": pytest.approx(0.225),  # the mean of all steps, because there are fewer than SMOOTHED
        "relative_step_last": pytest.approx(0.225),
    }


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "STEPS", 60)


@pytest.mark.slow
@pytest.mark.usefixtures("few_steps")
def test_the_command_writes_its_files_and_agrees_with_the_paper(
    tmp_path: Path, table: pd.DataFrame, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gradients, "measure", lambda: table)
    assert main(["gradients", "--out", str(tmp_path)]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    lines = [line.split() for line in output.out.splitlines()]
    assert ["W", "dL/dW", "0", *["-1"] * 6, "varies", "varies", "-1"] in lines
    assert ["x", "dL/dg", "0", "0", "0", "0", "1", "varies", "varies", "0"] in lines  # two norms have no gain
    assert max(map(len, output.out.splitlines())) < 110
    assert {path.name for path in tmp_path.iterdir()} == {"gradients.csv", "adaptation.csv"}
    trained = pd.read_csv(tmp_path / "adaptation.csv").set_index("norm")
    assert list(trained.index) == list(NORMS)
    assert (trained.loc[SCALE_INVARIANT, "growing"] == 1).all()
    assert trained.loc["none", "growing"] < 0.9


@pytest.mark.usefixtures("few_steps")
def test_gradients_that_follow_no_power_law_contradict_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an eps as large as the mean square, RMSNorm's gradients follow none."""
    norm = gradients.norm
    large = {"rms": {"eps": 1.0}}
    monkeypatch.setattr(gradients, "norm", lambda series: dataclasses.replace(norm(series), **large.get(series, {})))
    found = gradients.analyse().contradictions
    assert any("is multiplied by no power of delta; in the paper by delta^" in line for line in found)
