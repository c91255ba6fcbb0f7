"""Items of the paper: which runs and timings they need, what is done, and one item from its first run to its table."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import yaml
from helpers.campaigns import RUNS

from rmsexp import config
from rmsexp.campaign import asked as asked_module
from rmsexp.campaign import items
from rmsexp.campaign.items import Items, Run
from rmsexp.commands import summary
from rmsexp.commands.campaign import main
from rmsexp.config import identity
from rmsexp.records import record
from rmsexp.report.tables import formats
from rmsexp.system import clock

SMALL = [f"{key}={value}" for key, value in RUNS.items() if key not in ("task", "scale")]


def ask(root: Path, name: str, *words: str, config_dir: str | None = None) -> Items:
    return items.read(name, [f"results={root}", *words], config_dir)


@pytest.fixture
def quick_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the folders of runs by their words, without composing their configs, which takes a tenth of a second."""

    def job(words: tuple[str, ...], config_dir: str | None) -> Any:  # noqa: ARG001
        typed = {"task": "cifar10", "norm": "rms", "scale": "demo", "seed": "0", "results": "results"}
        typed |= dict(word.split("=", 1) for word in words)
        results, task, norm, scale, seed = (typed.pop(key) for key in ("results", "task", "norm", "scale", "seed"))
        options = [f"+{key[5:]}={value}" for key, value in typed.items() if key.startswith("norm.")]
        own = {key: value for key, value in typed.items() if not key.startswith("norm.")}
        changes = [f"+{key}={value}" for key, value in own.items() if key not in identity.NOT_IDENTITY]
        series, setting = norm + "".join(options), Path(results, task, scale + "".join(changes))
        steps = {key: int(typed.get(key, 1_500_000)) for key in ("max_steps", "log_every")}
        cfg = SimpleNamespace(results=results, task=task, scale=scale, seed=seed, **steps)
        return SimpleNamespace(
            series=series,
            setting=setting.name,
            setting_folder=setting,
            folder=setting / series / f"seed{seed}",
            config=cfg,
            impl="eager",
            resolved={},
        )

    monkeypatch.setattr(asked_module, "_composed", job)


def end(asked: Items, run: Run, status: str = "finished", step: int | None = None) -> None:
    """Write the record of a run that has ended after an hour, by default at its last step."""
    folder = record.RunFolder(asked.results / run.folder)
    folder.path.mkdir(parents=True)
    last = asked.composed(run.words).config.max_steps if step is None else step
    folder.status_path.write_text(json.dumps({"status": status, "step": last, "error": None}))
    seconds = dict.fromkeys(clock.BUCKETS, 0.0) | {"train": 3600.0}
    folder.metrics_path.write_text(json.dumps({"split": "train", "step": last, "seconds": seconds}))
    folder.run_path.write_text(json.dumps({"dataset": {"digest": ""}, "sessions": []}))
    folder.config_path.write_text("{}")


@pytest.mark.usefixtures("quick_jobs")
def test_items_share_runs(tmp_path: Path) -> None:
    """The plots printed as Table 9 and Table 10 have the same ones. Words change all runs, and the folder's name.

    All items are 44 runs and 6 timings. A table of times needs no runs.
    """
    asked, other = (ask(tmp_path, name, "optim.lr=0.1") for name in ("table10", "table9"))
    assert {run.folder for run in asked.plan().left} == {run.folder for run in other.plan().left}
    assert asked.plan().left[0].folder == "cifar10/demo+optim.lr=0.1/none/seed0"
    assert asked.folder == other.folder == tmp_path / "paper/demo+optim.lr=0.1"
    assert len(ask(tmp_path, "table10", "seeds=[0,1]").plan().left) == 12
    whole = ask(tmp_path, "paper", "timing.processes=2")
    assert len(whole.plan().left) == len({run.folder for run in whole.plan().left}) == 44
    timings = whole.timings()
    assert [len(timing.jobs) for timing in timings] == [5, 4, 4, 6, 4, 6]
    assert {(timing.options.reference, timing.options.processes) for timing in timings} == {("ln", 2)}
    times = ask(tmp_path, "table8")
    assert (times.plan().left, [list(timing.jobs) for timing in times.timings()]) == (
        [],
        [["none", "ln", "rms", "prms"]],
    )


@pytest.mark.usefixtures("quick_jobs")
def test_one_run_serves_figure_1_and_then_table_2_at_the_papers_scale(tmp_path: Path) -> None:
    """Figure 1 needs its first 10,000 steps only."""
    figure, table = (ask(tmp_path, name, "scale=paper") for name in ("figure1", "table2"))
    first, *_ = figure.plan().left
    (same,) = [run for run in table.plan().left if run.folder == first.folder]
    assert (figure.composed(first.words).config.max_steps, figure.composed(first.words).config.log_every) == (
        10_000,
        100,
    )
    end(figure, first, step=10_000)
    assert first not in figure.plan().left
    assert (table.state(same), same in table.plan().left) == ("interrupted", True)


@pytest.mark.parametrize(
    ("word", "key"),
    [
        *((word, word) for word in ("norm=ln", "seed=1", "model.variant=nematus_tf", "model.widht=3", "seeds=[1,1]")),
        ("timing.processes=0", "timing.processes"),
        ("timing.proceses=2", "proceses"),
    ],
)
def test_mistakes_are_named(word: str, key: str, tmp_path: Path) -> None:
    with pytest.raises(config.ConfigError, match=re.escape(key.partition("=")[0])):
        ask(tmp_path, "table3", word)


def test_an_unknown_name_lists_campaigns_and_items(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tabel2"]) == 2
    shown = capsys.readouterr().err
    assert "did you mean table2?" in shown
    assert all(name in shown for name in ("cifar10_long", "table10", "paper"))


@pytest.mark.usefixtures("quick_jobs")
def test_a_plan_has_states_and_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs of other norms of the setting stand for a norm without finished runs."""
    asked = ask(tmp_path, "table4", "timing.budget=30")
    end(asked, asked.plan().left[0])
    summary.print_plan(asked)
    out = capsys.readouterr().out.splitlines()
    assert out[1:3] == [
        "  table4 finished     transformer/demo/none/seed0",
        "  table4 not started  transformer/demo/ln/seed0",
    ]
    assert out[6].split() == ["table4", "1", "3", "0", "1:00:00", "3:00:00"]
    assert out[7:] == [
        "  timing left, about 30 s: none, ln, rms, prms in transformer/demo",
        f"next    python -m rmsexp.campaign table4 results={tmp_path} timing.budget=30",
    ]


@pytest.mark.usefixtures("quick_jobs")
def test_a_plan_of_all_items_has_a_line_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is one trial for each setting. If one fails, the cost is unknown."""
    tried: list[str] = []

    def trial(asked: Items, run: Run) -> float | None:  # noqa: ARG001
        tried.append(run.norm)
        if run.folder.startswith("transformer"):
            return None
        return 1800.0

    monkeypatch.setattr(summary, "trial", trial)
    summary.print_plan(ask(tmp_path, "paper"))
    out = capsys.readouterr().out.splitlines()
    assert len(tried) == len(set(tried)) == 8
    assert ["table2", "5", "0", "0:00", "2:30:00"] in [line.split() for line in out]
    assert ["table4", "4", "0", "0:00", "unknown"] in [line.split() for line in out]
    assert "  44 runs in all, since items share runs" in out


@pytest.mark.usefixtures("small_synthetic_data")
def test_an_item_from_its_first_run_to_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second time, the command does no run; the plan before estimates the cost from a trial, which it removes.

    Nothing is computed from a run whose metrics were edited.
    """
    content: dict[str, Any] = {"title": "Table 7", "caption": "Recalls."}
    norms = {"OE + LayerNorm": "ln", "OE + RMSNorm": "rms"}
    content["groups"] = [{"runs": {"task": "order_embedding"}, "framework": "Theano", "norms": norms}]
    content["columns"] = [{"heading": "R@1", "quantity": "test image_r1"}]
    (tmp_path / "my/item").mkdir(parents=True)
    (tmp_path / "my/item/mine.yaml").write_text(yaml.safe_dump(content))
    setting = config.job(["task=order_embedding", *SMALL]).setting
    words = ["mine", "--config-dir", str(tmp_path / "my"), f"results={tmp_path / 'results'}", "eval_every=10", *SMALL]
    assert main([*words, "--plan"]) == 0
    assert "mine   2            0       0:00  0:0" in capsys.readouterr().out
    assert list(record.find_runs(tmp_path / "results")) == []
    assert main(words) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line for line in out if line.startswith("mine run ")] == [
        f"mine run {number} of 2: order_embedding/{setting}/{norm}/seed0" for number, norm in ((1, "ln"), (2, "rms"))
    ]
    (page,) = (tmp_path / "results/paper").glob("*/mine.md")
    assert f"Table 7       {page}" in out
    lines = page.read_text().splitlines()
    assert lines[4] == "| Model | R@1, here | R@1, paper |"
    assert lines[6].startswith("| OE + LayerNorm | ")
    assert lines[6].endswith(" | 38.4 |")
    assert "- Here: scale=demo, built-in synthetic data scenes, seed 0, " in page.read_text()
    assert pd.read_csv(page.with_suffix(".csv"))["here"].between(0, 1).all()
    metrics = tmp_path / f"results/order_embedding/{setting}/rms/seed0/metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"image_r1": 0', '"image_r1": 1'))
    assert main(words) == 1
    assert page.read_text().splitlines()[7].startswith(f"| OE + RMSNorm | {formats.NO_VALUE} | ")
    assert f"order_embedding/{setting}/rms/seed0" in page.read_text()


@pytest.mark.usefixtures("quick_jobs")
def test_items_without_runs_are_drawn_with_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tables then have the paper's numbers; figures have no picture. One page shows all items."""
    monkeypatch.setattr(items.item_file, "options", lambda _: ["table1", "table5", "table10", "figure2", "figure3"])
    asked = ask(tmp_path, "paper")
    summary.draw(asked)
    out = capsys.readouterr().out.splitlines()
    assert out[2] == f"{'Table 10':14}{asked.folder / 'table10.md'} (6 runs missing)"
    assert out[-2] == f"{'all':14}{asked.folder / 'README.md'}"
    text = (asked.folder / "README.md").read_text()
    assert "\n## Table 1\n" in text
    assert "| RMSNorm | M | " in text
    names = ", ".join(f"cifar10/demo/{norm}/seed0" for norm in ("none", "bn", "wn"))
    assert f"- not done yet: {names} and 3 more\n" in text
    assert not list(asked.folder.glob("*.png"))
