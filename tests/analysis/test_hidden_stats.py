"""``python -m rmsexp.analysis hidden_stats``: statistics of the decoder's hidden-to-hidden map by target position."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.tasks import shake, train
from helpers.translation_tasks import make, tiny

from rmsexp import config
from rmsexp.analysis import hidden_stats, item_drawing
from rmsexp.campaign import item_file
from rmsexp.campaign.item_file import Found, Part
from rmsexp.commands.analysis import main
from rmsexp.compare import load
from rmsexp.models.translation import FIRST, Batch
from rmsexp.tasks.translation import TranslationTask
from rmsexp.work import runner, trained

pytestmark = pytest.mark.slow

COLUMNS = ["mapping", "position", "vectors", "mean", "std"]
POSITIONS = ["1", "2", "3", "4", "all"]
EDGES = ("max_steps=3", "log_every=1", "eval_every=3", "checkpoint_every=3", "threads=1", "device=cpu")


@torch.no_grad()
def expected_statistics(model: Any, batches: list[Batch]) -> pd.DataFrame:
    """Compute the table of ``hidden_stats`` sentence by sentence and step by step, as in decoding."""
    outputs: dict[tuple[str, str], list[np.ndarray]] = defaultdict(list)
    gru, weights = model.first_gru, model.first_gru.weights()
    for batch in batches:
        for row in range(len(batch.source)):
            source = batch.source[row, batch.source_mask[row]][None]
            state = model.encode(source, torch.ones_like(source).bool())
            previous = torch.tensor([FIRST])
            for step, token in enumerate(batch.target[row, batch.target_mask[row]]):
                (h,) = state.history
                gates = gru.gates_h.norm(h @ weights["gates_h"].T, steps=step)[0]
                candidate = gru.candidate_h.norm(h @ weights["candidate_h"].T, steps=step)[0]
                both = torch.cat([gates, candidate])
                for mapping, values in (("gates", gates), ("candidate", candidate), ("both", both)):
                    for position in (str(step + 1), "all"):
                        outputs[mapping, position].append(values.double().numpy())
                _, state = model.step(previous, state)
                previous = token[None]
    rows = [
        (mapping, position, len(vectors), np.mean([v.mean() for v in vectors]), np.mean([v.std() for v in vectors]))
        for mapping in ("gates", "candidate", "both")
        for position in POSITIONS
        for vectors in [outputs[mapping, position]]
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def assert_close(actual: pd.DataFrame, expected: pd.DataFrame, tolerance: float) -> None:
    keys = ["mapping", "position"]
    left, right = (table.astype({"position": str}).set_index(keys).sort_index() for table in (actual, expected))
    pd.testing.assert_frame_equal(left, right, rtol=tolerance, atol=tolerance, check_dtype=False)


@pytest.mark.parametrize(
    ("norm", "impl"),
    [
        *((norm, "eager") for norm in ("rms", "bn")),
        *((norm, "fused") for norm in ("none", "rms", "wn")),
        *(pytest.param(norm, "eager", marks=pytest.mark.minutes) for norm in ("none", "ln", "wn")),
    ],
)
def test_statistics_equal_those_of_stepwise_decoding(text_root: Path, norm: str, impl: str) -> None:
    task, model = make(text_root, "rnnsearch", f"norm={norm}", f"norm.impl={impl}", "decoding.batch_size=6")
    shake(model)
    train(task, model, 2)
    model.eval().double()  # in float64, because without a norm the recurrence amplifies rounding errors
    batches = list(task.held_out_batches(task.text.held_out["valid"]))
    assert [len(batch.source) for batch in batches] == [6, 6, 4]
    batches = batches[1:]  # without the longest sentences
    table = hidden_stats.hidden_stats(model, batches)
    assert list(table.columns) == COLUMNS
    assert_close(table, expected_statistics(model, batches), 1e-9)
    assert not any(module._forward_hooks for module in model.modules())


def test_the_command_writes_a_table(text_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = config.job([*tiny("rnnsearch"), *EDGES, f"data.root={text_root}", f"results={tmp_path}", "norm=rms"])
    assert runner.execute(job).status == "finished"
    capsys.readouterr()
    assert main(["hidden_stats", str(job.folder)]) == 0
    assert f"written {job.folder / 'hidden_stats.csv'}" in capsys.readouterr().out
    table = pd.read_csv(job.folder / "hidden_stats.csv")
    assert table["position"].tolist() == POSITIONS[:-1] * 3 + ["all"] * 3
    task, model, _ = trained.load(job.folder, TranslationTask, torch.device("cpu"), lambda _: None)
    batches = list(task.held_out_batches(task.text.held_out["valid"]))
    assert table["vectors"].to_list() == [16] * 12 + [sum(len(batch.real) for batch in batches)] * 3
    assert_close(table, hidden_stats.hidden_stats(model, batches), 1e-6)


def test_the_item_has_the_numbers_of_table_5(tmp_path: Path) -> None:
    item = item_file.read("table5")
    (group,) = item.groups
    found = Found("rnnsearch/small", group.norms, load(tmp_path), [], None)
    table, _ = item_drawing._hidden_stats(item, Part(group, found))
    cells = table.readable
    assert [*cells["1, paper"][:2], *cells["ALL, paper"][-2:]] == ["-2.60", "7.35", "-0.73", "1.50"]  # none and rms
    assert cells.shape == (2 * 3, 2 + 2 * 5)
