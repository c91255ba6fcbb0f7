"""``python -m rmsexp.swap``: what another norm would change in a model of one's own."""

import pickle
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import rmsexp
from rmsexp import compare
from rmsexp.commands import swap
from rmsexp.measure import processes
from rmsexp.records.frames import timing_records

OWN = "helpers.own_steps:"
WORDS = [OWN + "make_model", "--batch", OWN + "make_batch"]


def test_the_page_says_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    forms = [("rms+eps=1e-6", "fused"), ("nn.RMSNorm", "eager")]  # few, since each process has at most four
    monkeypatch.setattr(swap.UserModel, "can_be", lambda _, norm, impl: (norm, impl) in forms)

    def in_new_process(_: str, work: Any, arguments: tuple[Any, ...], report: Any) -> Any:
        return work(*pickle.loads(pickle.dumps(arguments)), report)  # a new one would import torch for seconds

    monkeypatch.setattr(processes, "in_new_process", in_new_process)
    # the first two are drawn as what is compared, or of another rate: they are moved aside; the third is the user's own
    for series, seed, rate in (("as is", 7, 3e-4), ("ln", 0, 1.0), ("mine", 0, None)):
        config = {} if rate is None else {"swap.lr": rate, "swap.steps": 10}
        with rmsexp.Recorder("tiny", series, seed, results=tmp_path, config=config) as recorder:
            recorder.log(10, loss=1.0)
    monkeypatch.setattr(swap, "expanded", {Path("~"): tmp_path}.__getitem__)
    place = ["--results", "~", "--name", "tiny"]
    quick = ["--steps", "10", "--seeds", "2", "--processes", "1", "--budget", "0.3"]
    assert swap.main([*WORDS, "--loss", OWN + "mean_square", *place, *quick, "--norm", "rms+eps=1e-6"]) == 0
    out, err = capsys.readouterr()
    assert "replaced 1 layers\nnow without bias: 1 (LayerNorm)" in err
    page = (tmp_path / "tiny/own/swap.html").read_text()
    assert (tmp_path / "tiny/own/comparison/curves.svg").exists()
    for text in (
        "rms+eps=1e-6 in place of 1 normalisation layers changes",
        "This cannot say",
        "Parameters: 97 before, 89 after",
        "nn.RMSNorm",
    ):
        assert text in page
    assert f"page    {tmp_path}/tiny/own/swap.html" in out
    runs = compare.load(tmp_path).runs
    assert sorted(zip(runs["series"], runs["seed"], strict=True)) == [
        *(("as is", seed) for seed in range(2)),
        ("mine", 0),
        *(("rms+eps=1e-6", seed) for seed in range(2)),
    ]
    assert set(runs["step"]) == {10}
    assert set(timing_records.load(tmp_path)["impl"]) == {"own"}  # not "own, same process"


def found(new: list[list[float]], ratio: tuple[float, float, float]) -> swap.Swap:
    rows = pd.DataFrame([{"series": "rms fused", **dict(zip(("ratio", "low", "high"), ratio, strict=True))}])
    times: Any = SimpleNamespace(rows=rows)
    conversion: Any = SimpleNamespace(replaced=(None,) * 3)
    losses = {"as is": np.array([[9.0, 9, 9, 9, 1.0]] * len(new)), "rms": np.array(new)}
    return swap.Swap("rms", "fused", conversion, (1, 1), times, losses, Path("swap.html"))


def test_the_sentences() -> None:
    """With differences 1, 2, 3 the mean is 2 and the interval 2 ± 4.303 / sqrt(3)."""
    higher = found([[0, 0, 0, 0, loss] for loss in (2.0, 3.0, 4.0)], (0.9, 0.8, 1.1))
    assert higher.difference == pytest.approx((2, 2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5, 3), abs=1e-3)
    assert "of a training step by -10.0 % (-20.0 to +10.0 %, fused), not distinguishable from 0, and" in higher.says
    assert "the last 1 of 5 steps, by +2 (-0.484 to +4.48, seeds: 3), not distinguishable from 0." in higher.says
    assert "by less than 2.5," in higher.cannot_say
    seen = found([[0, 0, 0, 0, loss] for loss in (2.0, 2.1, 2.2)], (0.9, 0.85, 0.95))
    assert "distinguishable" not in seen.says
    assert "rounding" in found([[0, 0, 0, 0, 1 + 1e-8], [0, 0, 0, 0, 1.0]], (1, 1, 1)).says
    assert "diverged" in replace(higher, losses=higher.losses | {"rms": np.full((3, 5), np.nan)}).says
    assert "one seed" in found([[0, 0, 0, 0, 2.0]], (1, 1, 1)).says


def test_every_step_is_in_the_mean_of_a_row() -> None:
    logged = list[tuple[int, float]]()
    own: Any = SimpleNamespace(on_device=lambda step: step)
    recorder: Any = SimpleNamespace(log=lambda step, loss: logged.append((step, loss)))
    swap._train(own, torch.tensor, recorder, 0, 205)
    assert logged[-2:] == [(204, 202.5), (205, 204.0)]


def test_a_loss_gets_the_batch_with_its_names() -> None:
    pair = namedtuple("pair", ("x", "label"))
    assert swap._moved(pair(torch.ones(2), [3]), "cpu").label == [3]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([OWN + "nothing", *WORDS[1:]], "own_steps.nothing"),
        (["no_such_module:f", *WORDS[1:]], "no_such_module"),
        (["helpers", *WORDS[1:]], "MODULE:FUNCTION"),
        (WORDS, "--loss"),
        ([OWN + "MODEL", *WORDS[1:]], "new nn.Module"),
        ([OWN + "same_model", *WORDS[1:]], "new nn.Module"),
        ([OWN + "make_step", *WORDS[1:]], "new nn.Module"),
        ([WORDS[0], "--batch", WORDS[0]], "batch must be"),
        ([*WORDS, "--device", "cuda"], "the device cpu"),
        ([*WORDS, "--norm", "rsm"], "rsm"),
        ([*WORDS, "--where", "nowhere"], "no layer"),
        ([*WORDS, "--steps", "1"], "steps"),
    ],
)
def test_mistakes_are_named_in_one_line(
    words: list[str],
    named: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert swap.main([*words, "--results", str(tmp_path)]) in (1, 2)
    message = capsys.readouterr().err
    assert named in message
    assert "Traceback" not in message
    assert not any(tmp_path.iterdir())
