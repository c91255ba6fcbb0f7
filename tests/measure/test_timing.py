"""The timing by turns: command lines, ratios and intervals, rounds on a clock of the test's own, records, layers."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.reading_and_retrieval import make, tiny
from helpers.sites import close

from rmsexp import config, timing
from rmsexp.compare.plots import timing as timing_plot
from rmsexp.compare.records import timing_records
from rmsexp.compare.records.ratios import paired_ratio
from rmsexp.compare.tables import timing as timing_table
from rmsexp.measure import interleaved, replay, steps
from rmsexp.measure.interleaved import InterleavedTimer
from rmsexp.measure.options import TimingConfig

CPU = torch.device("cpu")


# Command lines


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["norm=ln"], "norm= names a single norm; list all norms to compare: norms=[ln,rms]"),
        (["norms=[ln,ln]"], "norms and impl name ln twice"),
        (["norms=[none,rms]"], "timing.reference=ln is not one of none, rms"),
        (["norms=[ln,rmss]"], "norm=rmss is not known"),
        (["norms=[ln,rms+p=0.5]"], "norm.p is no option of norm=rms"),
        (["impl=[quick]"], "norm.impl=quick is not known"),
        (["timing.layer=true"], "timing.layer is not known; did you mean timing.layers?"),
        (["timing.budget=0"], "timing.budget must be greater than 0, got 0.0"),
        (["timing.target_width=-1"], "timing.target_width must be greater than 0"),
        (["task=cifar"], "task=cifar is not known"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistake_is_named_in_a_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert timing.main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("rmsexp: ")
    assert message in said
    assert said.count("\n") == 1


def test_series_are_those_of_runs_and_all_of_one_setting() -> None:
    _, jobs = timing.parse(["norms=[ln,prms,prms+p=0.5]", "task=rnnsearch", "scale=small", "optim.lr=0.1"])
    assert list(jobs) == ["ln", "prms", "prms+p=0.5"]
    assert {job.setting for job in jobs.values()} == {"small+optim.lr=0.1"}
    assert [getattr(job.norm, "p", None) for job in jobs.values()] == [None, 0.0625, 0.5]


def test_implementations_share_an_axis_only_where_each_is_labelled() -> None:
    eager = SimpleNamespace(series="ln", norm=SimpleNamespace(impl="eager"))
    fused = SimpleNamespace(series="rms+impl=fused", norm=SimpleNamespace(impl="fused"))
    jobs: list[Any] = [eager, fused]
    with pytest.raises(config.ConfigError, match=r"write impl=\[eager,fused\]"):
        timing._check(timing.Options(), jobs)
    timing._check(timing.Options(impl=["eager", "fused"]), jobs)
    names = timing_records.labels(
        pd.DataFrame({"series": ["ln", "rms+impl=fused", "prms+p=0.5"], "impl": ["eager", "fused", "eager"]})
    )
    assert names == ["LayerNorm (eager)", "RMSNorm (fused)", "pRMSNorm p=0.5 (eager)"]
    assert timing_records.labels(pd.DataFrame({"series": ["ln", "rms"], "impl": ["eager"] * 2})) == [
        "LayerNorm",
        "RMSNorm",
    ]


# Ratios


def test_a_ratio_is_paired_by_round() -> None:
    pace = np.array([1.0, 5.0, 2.0, 9.0, 3.0, 4.0])  # of the machine, which changes from round to round
    assert paired_ratio(0.9 * pace, pace) == pytest.approx((0.9, 0.9, 0.9))
    assert paired_ratio(pace, pace) == (1, 1, 1)
    disturbed = 0.9 * pace
    disturbed[1] *= 30
    assert paired_ratio(disturbed, pace).ratio == pytest.approx(0.9)
    assert paired_ratio([1, 2, 3, 4], [1, 1, 1, 1]).ratio == pytest.approx(6**0.5)  # the outer two fall out


def test_an_interval_is_that_of_rounds_drawn_again() -> None:
    rng = np.random.default_rng(3)
    own, reference = rng.normal(1.05, 0.02, 40), rng.normal(1, 0.02, 40)
    found, ratios = paired_ratio(own, reference), own / reference
    drawn = np.sort(rng.choice(np.log(ratios), (20_000, 40)))
    assert found.ratio == pytest.approx(np.exp(np.sort(np.log(ratios))[10:30].mean()))
    percentiles = np.quantile(drawn[:, 10:30].mean(1), [0.025, 0.975]) - np.log(found.ratio)
    expected = found.ratio * np.exp(percentiles * 2.0930 / 1.9600)  # t with 19 degrees of freedom over the normal
    assert (found.low, found.high) == pytest.approx(expected, abs=1e-3)
    assert found.width == found.high - found.low
    assert paired_ratio(own, reference) == found  # the same seconds give the same interval


def test_an_interval_of_equals_holds_one_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    intervals = [paired_ratio(*rng.normal(1, 0.03, (2, 30))) for _ in range(200)]
    assert 182 <= sum(one.low <= 1 <= one.high for one in intervals) < 200


# Rounds


class Machine:
    """A clock that moves only where a contestant works."""

    def __init__(self) -> None:
        self.now = 0.0

    def stopwatch(self) -> Any:
        start = self.now
        return type("Watch", (), {"seconds": property(lambda _: self.now - start)})()


class Worker:
    def __init__(self, machine: Machine, seconds: Iterator[float], log: list[tuple[str, int, Any]], name: str) -> None:
        self.machine, self.seconds, self.log, self.name = machine, seconds, log, name

    def take(self, step: int, batches: Any, part: Any = nullcontext) -> None:
        self.log.append((self.name, step, batches))
        spent = next(self.seconds)
        with part("forward"):
            self.machine.now += spent / 4
        with part("backward"):
            self.machine.now += spent / 2
        with part("backward"):
            self.machine.now += spent / 4


Log = list[tuple[str, int, Any]]


def turns_of(
    monkeypatch: pytest.MonkeyPatch, seconds: Sequence[Iterator[float]], data: float = 0.0
) -> tuple[InterleavedTimer, Log]:
    machine, log = Machine(), list[tuple[str, int, Any]]()
    monkeypatch.setattr(interleaved, "Stopwatch", machine.stopwatch)
    monkeypatch.setattr(steps, "Stopwatch", machine.stopwatch)

    def batches(step: int) -> list[str]:
        machine.now += data
        return [f"batch {step}"]

    workers = [Worker(machine, of, log, name) for of, name in zip(seconds, "abc", strict=False)]
    return InterleavedTimer(workers, batches, CPU, seed=0), log


def test_in_a_round_each_takes_the_same_steps_in_an_order_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, log = turns_of(monkeypatch, [itertools.repeat(value) for value in (0.02, 0.03, 0.04)], data=0.001)
    turns.warm_up()
    assert turns.steps_per_block == 3  # of the slowest, in a tenth of a second
    assert [(name, step) for name, step, _ in log] == [(name, step) for name in "abc" for step in range(3)]
    log.clear()
    found = list(itertools.islice(turns.rounds(), 12))
    for one in found:
        assert one.seconds == pytest.approx([0.02, 0.03, 0.04])
        assert one.data_seconds == pytest.approx(0.001)
    orders = set()
    for number in range(12):
        block = log[9 * number : 9 * number + 9]
        steps = [3 + 3 * number + i for i in range(3)]
        orders.add("".join(name for name, _, _ in block[::3]))
        assert sorted(name for name, _, _ in block) == sorted("abc" * 3)
        assert [(step, batch) for _, step, batch in block] == [(step, [f"batch {step}"]) for step in steps] * 3
    assert len(orders) > 3
    assert {"".join(sorted(order)) for order in orders} == {"abc"}


def test_parts_of_a_step_are_added_up_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, _ = turns_of(monkeypatch, [itertools.cycle([0.1, 0.2, 0.6]), itertools.repeat(0.4)])
    found = turns.parts(3)  # the median of 0.1, 0.2 and 0.6
    assert [list(one) for one in found] == [["forward", "backward"]] * 2
    assert [one["forward"] for one in found] == pytest.approx([0.05, 0.1])
    assert [one["backward"] for one in found] == pytest.approx([0.15, 0.3])


def noisy(seconds: float, share: float, seed: int) -> Iterator[float]:
    rng = np.random.default_rng(seed)
    return (seconds * float(1 + share * rng.standard_normal()) for _ in itertools.count())


def report(message: str) -> None:
    print(message, file=sys.stderr)


def measured(turns: InterleavedTimer, **options: float) -> steps.Measurement:
    turns.warm_up()
    return steps.measure_ratios(turns, ["a", "b"], TimingConfig(reference="a", **options), report)


def test_a_planted_slowdown_is_found_and_equals_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    for pace, trials in ((1.0, 100), (1.05, 20)):
        found = []
        for seed in range(trials):
            turns, _ = turns_of(monkeypatch, [noisy(0.1, 0.02, 2 * seed), noisy(0.1 * pace, 0.02, 2 * seed + 1)])
            ended = measured(turns, target_width=0.03)
            assert ended.stopped == "narrow enough"
            assert ended.ratios["a"] == (1, 1, 1)
            found.append(ended.ratios["b"])
        assert max(one.width for one in found) <= 0.03
        assert sum(one.low < pace < one.high for one in found) >= 0.9 * trials
        assert all(one.low > 1 for one in found) == (pace > 1)


def test_it_stops_where_the_budget_is_spent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    turns, _ = turns_of(monkeypatch, [noisy(0.1, 0.3, 0), noisy(0.1, 0.3, 1)])
    found = measured(turns, target_width=0.001, budget=10)
    assert found.stopped == "budget spent"
    assert 40 <= len(found.rounds) <= 60
    assert "of 10 s: a 1.000, b " in capsys.readouterr().err
    slow, _ = turns_of(monkeypatch, [noisy(100, 0.3, 0), noisy(100, 0.3, 1)])
    assert len(measured(slow, budget=10).rounds) == 2  # of one there is no interval


# Records


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two records of a tiny order-embedding, of steps and of layers."""
    root = tmp_path_factory.mktemp("timing")
    words = [*tiny("order_embedding"), f"results={root}", f"data.root={root}", "timing.budget=0.2", "threads=1"]
    assert timing.main([*words, "norms=[none,ln,rms,prms]"]) == 0
    assert timing.main([*words, "norms=[none,ln,bn,wn]", "timing.layers=true", "device=cpu"]) == 0
    (folder,) = (root / "order_embedding").iterdir()
    return folder


def test_a_record_is_read_as_it_was_measured(setting: Path) -> None:
    found = timing_records.load(setting.parent.parent)
    assert list(found.columns) == list(timing_records.COLUMNS)
    steps = found[found["kind"] == "steps"].set_index("series")
    stored = json.loads((setting / "timing" / "steps0" / timing_records.FILE).read_text())
    assert list(steps.index) == ["none", "ln", "rms", "prms"]
    seconds = {one["series"]: np.array(one["seconds"]) for one in stored["series"]}
    for series, own in seconds.items():
        row = steps.loc[series]
        assert row["median_seconds_per_1k_steps"] == pytest.approx(1000 * np.median(own))
        assert row["ratio"] == paired_ratio(own, seconds["ln"]).ratio
        assert row["rounds"] == len(own) >= 2
        assert min(row["forward"], row["backward"], row["update"], row["peak_bytes"]) > 0
    assert stored["session"]["versions"]["torch"] == torch.__version__.split("+")[0]
    assert set(steps["builtin"]) == {True}
    assert stored["data_seconds"] > 0


def test_a_repetition_is_another_record_and_the_newest_counts(setting: Path) -> None:
    assert timing_records.new_folder(setting / "timing", "steps") == setting / "timing" / "steps1"
    rows = timing_records.load(setting)
    older = rows.assign(started="2020-01-01T00:00:00+00:00", ratio=9.0)
    newest = timing_records.newest(pd.concat([older, rows]))
    assert list(newest["series"]) == ["none", "ln", "rms", "prms"]
    assert 9.0 not in set(newest["ratio"])


def test_a_damaged_record_is_left_out_and_named(setting: Path, tmp_path: Path) -> None:
    good = (setting / "timing" / "steps0" / timing_records.FILE).read_text()
    for number, content in enumerate(("{", "[]", good.replace('"session"', '"sesion"'), good)):
        folder = tmp_path / "order_embedding" / "demo" / "timing" / f"steps{number}"
        folder.mkdir(parents=True)
        (folder / timing_records.FILE).write_text(content)
    problems: list[str] = []
    found = timing_records.load(tmp_path, problems)
    assert {Path(folder).name for folder in found["folder"]} == {"steps3"}
    assert [f"steps{number}/{timing_records.FILE}" in problem for number, problem in enumerate(problems)] == [True] * 3


def test_the_table_and_the_figure_say_what_was_measured(setting: Path) -> None:
    rows = timing_records.load(setting)
    steps, layers = (
        rows[rows["kind"] == "steps"].reset_index(drop=True),
        rows[rows["kind"] == "layers"].reset_index(drop=True),
    )
    table = timing_table.readable(steps).set_index("norm")
    saved = "saving vs LayerNorm (95 % interval)"
    assert table.loc["LayerNorm", saved] == "reference"
    assert table.loc["RMSNorm", saved].startswith(f"{100 * (1 - steps['ratio'][2]):.1f} % (")
    assert dict(table["paper"]) == {"no norm": "", "LayerNorm": "", "RMSNorm": "40.8 %", "pRMSNorm": "63.9 %"}
    assert set(timing_table.readable(layers)["paper"]) == {""}  # the paper's are of whole steps
    times, savings = timing_plot.draw(steps).axes
    assert times.get_xlabel() == "ms per step, median and quartiles"
    assert savings.get_xlabel() == "time saved vs LayerNorm (%), 95 % interval"
    assert [text.get_text() for text in times.texts] == ["no norm", "LayerNorm", "RMSNorm", "pRMSNorm"]
    (paper,) = [line for line in savings.lines if str(line.get_label()).startswith("paper, ")]
    assert list(paper.get_xdata()) == pytest.approx([40.8, 63.9])
    for name in ("timing.csv", "timing.png", "timing.svg"):
        assert (setting / "timing" / "layers0" / name).stat().st_size > 500


# Layers


@pytest.mark.usefixtures("small_synthetic_data")
def test_the_calls_of_a_step_are_those_of_its_norms() -> None:
    """Two maps of the input, once; two of the state, at each time step."""
    task, model = make("order_embedding", "norm=rms")
    batch = task.batches(0)[0]
    with replay.record_calls(model) as found:
        task.objective(model, batch, interleaved_noise())
    time = batch.tokens.shape[1] if hasattr(batch, "tokens") else batch[0].shape[1]
    shapes = [tuple(call.shape) for call in found]
    assert shapes == [(9, time, 12), (9, time, 6), *[(9, 12), (9, 6)] * time]
    with replay.record_calls(make("order_embedding", "norm=none")[1]) as none:
        task.objective(model, batch, interleaved_noise())
    assert none == []


def interleaved_noise() -> Any:
    from rmsexp.train.randomness import StreamNoise

    return StreamNoise(0, "noise")


def test_layers_alone_compute_what_they_compute_in_the_model() -> None:
    norm = torch.nn.Sequential(config.job(["norm=ln"]).norm.value("a", 4), config.job(["norm=rms"]).norm.value("b", 4))
    x = torch.arange(12.0).reshape(3, 4)
    with replay.record_calls(norm) as found:
        norm(x)
    seen: list[torch.Tensor] = []
    handles = [layer.register_forward_hook(lambda _layer, _inputs, output: seen.append(output)) for layer in norm]
    repeated = replay.Replay([found, found[:1]], lambda shape, dtype: x.to(dtype).reshape(shape))
    repeated.take(4, None)
    close(torch.stack(seen), torch.stack([layer(x) for layer in norm]))
    seen.clear()
    repeated.take(5, None)  # the second of the steps that are repeated in turn
    assert len(seen) == 1
    assert all(parameter.grad is None for parameter in norm.parameters())
    for handle in handles:
        handle.remove()


def test_a_norm_without_layers_is_left_out_and_cannot_be_the_reference(
    setting: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = timing_records.load(setting)
    assert list(rows[rows["kind"] == "layers"]["series"]) == ["ln", "bn", "wn"]
    words = [*tiny("order_embedding"), f"data.root={tmp_path}", f"results={tmp_path}", "timing.layers=true"]
    assert timing.main([*words, "norms=[none,ln]", "timing.reference=none", "threads=1"]) == 1
    assert "timing.reference=none has no norm layers to compare with" in capsys.readouterr().err
