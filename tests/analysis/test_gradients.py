"""``python -m rmsexp.analysis gradients``: gradients equal those from formulas in numpy."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from rmsexp.analysis import gradients
from rmsexp.analysis.site import EXAMPLES, GAINLESS, N_IN, N_OUT, draw, norm, site
from rmsexp.commands.analysis import main

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
    assert {path.name for path in tmp_path.iterdir()} == {"gradients.csv"}


def test_gradients_that_follow_no_power_law_contradict_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an eps as large as the mean square, RMSNorm's gradients follow none."""
    norm = gradients.norm
    large = {"rms": {"eps": 1.0}}
    monkeypatch.setattr(gradients, "norm", lambda series: dataclasses.replace(norm(series), **large.get(series, {})))
    found = gradients.analyse().contradictions
    assert any("is multiplied by no power of delta; in the paper by delta^" in line for line in found)
