"""``python -m rmsexp.analysis invariance``: its results agree with the paper's Table 1 and with formulas in numpy."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray

from rmsexp import config
from rmsexp.analysis import invariance
from rmsexp.analysis.invariance import EXAMPLES, GAINLESS, N_IN, N_OUT, draw, norm, site
from rmsexp.commands.analysis import main
from rmsexp.models import init
from rmsexp.norms.composed import COMPOSED

Array = NDArray[np.float64]
COLUMNS = ("matrix scaled", "matrix centred", "rows scaled", "data scaled", "data centred", "case scaled")
K = math.ceil(0.0625 * N_OUT)
ERF = np.vectorize(math.erf)
FORMULAS: dict[str, Callable[[Array], Array]] = {
    "dyt": np.tanh,
    "derf": ERF,
    GAINLESS: lambda a: FORMULAS["rms"](a),
    "none": lambda a: a,
    "wn": lambda a: a,
    "bn": lambda a: (a - a.mean(0)) / a.std(0),
    "mean_only_bn": lambda a: a - a.mean(0),
    "ln": lambda a: (a - a.mean(1, keepdims=True)) / a.std(1, keepdims=True),
    "nonparametric_ln": lambda a: FORMULAS["ln"](a),
    "rms": lambda a: a / np.sqrt((a**2).mean(1, keepdims=True)),
    "prms": lambda a: a / np.sqrt((a[:, :K] ** 2).mean(1, keepdims=True)),
    "l2": lambda a: a / np.linalg.norm(a, axis=1, keepdims=True),
}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    torch.set_num_threads(1)
    return invariance.measure()


def test_every_norm_is_measured_and_the_paper_s_rows_come_first(table: pd.DataFrame) -> None:
    rows = list(dict.fromkeys(table["norm"]))
    assert rows[:5] == ["bn", "wn", "ln", "rms", "prms"]
    assert sorted(rows) == sorted([*set(config.options("norm")) - {*COMPOSED}, GAINLESS]) == sorted(FORMULAS)
    assert len(table) == len(rows) * len(COLUMNS)
    assert set(table.dropna(subset="paper")["norm"]) == set(rows[:5])


@pytest.mark.parametrize("name", FORMULAS)
def test_changes_equal_those_of_the_layer_in_numpy(table: pd.DataFrame, name: str) -> None:
    expected = np.zeros(len(COLUMNS))
    for number in range(invariance.DRAWS):
        state = {key: value.numpy() for key, value in site(norm(name), number).state_dict().items()}
        x, c = (draw((size), number, key).numpy() for size, key in (((EXAMPLES, N_IN), "x"), ((N_IN,), "vector")))
        factors = 4 * 2 ** draw((N_OUT,), number, "factors", kind=init.uniform(1.0)).numpy()
        assert factors.min() >= 2
        weight, case = state["weight"], np.concatenate([factors[:1], np.ones(EXAMPLES - 1)])
        before = output(name, state, weight, x)
        cases = [
            (factors[0] * weight, x),
            (weight + np.outer(np.ones(N_OUT), c), x),
            (np.diag(factors) @ weight, x),
            (weight, factors[0] * x),
            (weight, x + np.outer(np.ones(EXAMPLES), c)),
            (weight, np.diag(case) @ x),
        ]
        after = [output(name, state, *changed) for changed in cases]
        expected += [np.linalg.norm(y - before) / np.linalg.norm(before) / invariance.DRAWS for y in after]
    rows = table[table["norm"] == name]
    np.testing.assert_allclose(rows["change"], expected, rtol=1e-9, atol=1e-13)
    assert rows["invariant"].tolist() == (expected < 1e-13).tolist()
    assert all(change < 1e-13 or change > 0.05 for change in expected)


def output(name: str, state: dict[str, Array], weight: Array, x: Array) -> Array:
    if "reparametrisation.gain" in state:
        lengths = np.linalg.norm(weight, axis=1, keepdims=True)
        weight = state["reparametrisation.gain"][:, None] * weight / lengths
    a = x @ weight.T * state.get("norm.alpha", 1.0) + state.get("norm.offset", 0.0)
    y = FORMULAS[name](a) * state.get("norm.weight", 1.0)
    return y + state.get("norm.bias", 0.0) + state.get("bias", 0.0)


def test_the_command_writes_its_files_and_agrees_with_the_paper(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["invariance", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "30 of 30 entries agree with the paper's Table 1" in printed.out
    row = next(line for line in printed.out.splitlines() if line.strip().startswith("RMSNorm"))
    assert "".join(mark for mark in row if mark in "✓✗") == "✓✗✗✓✗✓"
    assert max(map(len, printed.out.splitlines())) < 110
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["invariance.csv"]
    stored = pd.read_csv(tmp_path / "out" / "invariance.csv")
    assert list(stored.columns) == ["norm", "transformation", "change", "invariant", "paper"]
