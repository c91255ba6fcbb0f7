"""The trainer's parts: clock, contention, randomness, schedule, optimiser, loggers, progress, provenance."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from rmsexp import config, record, runner
from rmsexp.train import clock, contention, loggers, progress, provenance
from rmsexp.train.clock import Clock
from rmsexp.train.contention import Contention
from rmsexp.train.optim import Adam, AdamConfig
from rmsexp.train.randomness import StreamNoise, permutation, stream
from rmsexp.train.schedule import HoldThenDecay

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def digest(*tensors: Tensor) -> str:
    return hashlib.sha256(b"".join(tensor.detach().contiguous().numpy().tobytes() for tensor in tensors)).hexdigest()


# Clock


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock's readings, one after the other."""
    readings: list[float] = []
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: readings.pop(0)))
    return readings


def test_buckets_add_up(ticking: list[float]) -> None:
    watch = Clock()
    assert watch.seconds == dict.fromkeys(record.BUCKETS, 0.0)
    stretches = {"warmup": 64, "data": 1, "train": 2, "eval": 4, "checkpoint": 8, "log": 16}
    for repeat in (1, 2):
        for name, length in stretches.items():
            ticking += [100.0, 100.0 + length]
            with watch.bucket(name):
                pass
        assert watch.seconds == {name: repeat * length for name, length in stretches.items()}
        assert watch.time == repeat * 3  # data and train


def test_a_bucket_counts_whatever_way_it_is_left(ticking: list[float]) -> None:
    watch = Clock()
    ticking += [1.0, 1.5]
    with pytest.raises(KeyboardInterrupt), watch.bucket("train"):
        raise KeyboardInterrupt
    assert watch.seconds["train"] == 0.5


def test_a_bucket_inside_another(ticking: list[float]) -> None:
    watch = Clock()
    ticking += [0.0, 1.0, 3.0, 7.0]
    with watch.bucket("eval"), watch.bucket("checkpoint"):
        pass
    assert (watch.seconds["checkpoint"], watch.seconds["eval"]) == (2.0, 7.0)


def test_a_loaded_clock_goes_on(ticking: list[float]) -> None:
    before, after = Clock(), Clock()
    ticking += [10.0, 13.0, 5.0, 6.0]  # the second process has another zero
    with before.bucket("train"):
        pass
    saved = json.loads(json.dumps(before.seconds))
    after.load(saved)
    with after.bucket("train"):
        pass
    assert after.time == 4.0
    assert before.time == 3.0


def test_the_real_clock_runs_forward() -> None:
    watch = Clock()
    with watch.bucket("data"):
        sum(range(1000))
    assert watch.time == watch.seconds["data"] > 0


def test_now_is_utc_to_the_second() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", clock.now())


# Contention

readable = pytest.mark.skipif(not contention._schedstat(), reason="this kernel does not say how long threads waited")

BUSY = """
import json, os, subprocess, sys, time
import numpy, torch
from rmsexp.train.contention import Contention
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
torch.set_num_threads(1)
rival = subprocess.Popen([sys.executable, "-c", "while True: pass"])
try:
    contention = Contention(torch.device("cpu"))
    end = time.monotonic() + 1
    with contention.watch():
        x = numpy.ones((100, 100))
        while time.monotonic() < end:
            x = x @ x / 100
    print(json.dumps(contention.report()))
finally:
    rival.kill()
"""


@readable
def test_a_rival_on_the_same_processor_is_seen() -> None:
    done = subprocess.run([sys.executable, "-c", BUSY], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert report["state"] == "contended"
    assert report["waited"] > contention.WAITED_LIMIT


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ``/proc`` of our own, filled by :func:`write_proc`."""
    monkeypatch.setattr(contention, "Path", lambda path: tmp_path / str(path).lstrip("/"))
    return tmp_path / "proc"


def write_proc(proc: Path, threads: dict[str, tuple[int, int]], stolen: int = 0, ticks: int = 0) -> None:
    for thread, (ran, waited) in threads.items():
        (proc / "self/task" / thread).mkdir(parents=True, exist_ok=True)
        (proc / "self/task" / thread / "schedstat").write_text(f"{ran} {waited} 17\n")
    """What threads ran and waited, and the machine's ticks (a guest's time is counted twice there)."""
    idle = ticks - stolen
    (proc / "stat").write_text(f"cpu  0 0 0 {idle} 0 0 0 {stolen} {ticks} 0\ncpu0 7 7 7 7 7 7 7 7 7 7\nintr 1\n")


@pytest.mark.parametrize(
    ("waited", "stolen", "state"),
    [(0, 0, "clear"), (50, 0, "clear"), (51, 0, "contended"), (0, 20, "clear"), (0, 21, "contended")],
)
def test_limits_are_5_percent_waiting_and_2_percent_stolen(proc: Path, waited: int, stolen: int, state: str) -> None:
    watch = Contention(CPU)
    write_proc(proc, {"1": (400, 9000)}, stolen=500, ticks=7000)
    with watch.watch():
        write_proc(proc, {"1": (1400, 9000 + waited)}, stolen=500 + stolen, ticks=8000)
    assert watch.report() == {"state": state, "waited": waited / 1000, "steal": stolen / 1000}


@pytest.mark.parametrize(("shared", "state"), [(True, "contended"), (False, "clear")])
def test_runs_that_a_launcher_put_side_by_side_are_contended(proc: Path, shared: bool, state: str) -> None:
    watch = Contention(CPU)
    watch.shared = shared
    write_proc(proc, {"1": (0, 0)})
    with watch.watch():
        write_proc(proc, {"1": (1000, 0)})
    assert watch.report() == {"state": state, "waited": 0.0, "steal": 0.0}


def test_only_watched_stretches_count_and_they_add_up(proc: Path) -> None:
    watch = Contention(CPU)
    for start in (0, 10_000):
        write_proc(proc, {"1": (start, start)})  # what happened between stretches
        with watch.watch():
            write_proc(proc, {"1": (start + 1000, start + 30)})
    assert watch.report() == {"state": "clear", "waited": 0.03, "steal": 0.0}


def test_threads_come_and_go(proc: Path) -> None:
    watch = Contention(CPU)
    write_proc(proc, {"1": (100, 100), "2": (5000, 5000)})
    with watch.watch():
        (proc / "self/task/2/schedstat").unlink()
        write_proc(proc, {"1": (600, 110), "3": (500, 30)})
    assert watch.report()["waited"] == 0.04


@pytest.mark.parametrize("missing", ["stat", "schedstat", "all", "damaged", "disabled"])
def test_what_cannot_be_read_is_unknown(proc: Path, missing: str) -> None:
    write_proc(proc, {"1": (100, 100)})
    if missing in ("stat", "all"):
        (proc / "stat").unlink()
    if missing in ("schedstat", "all"):
        (proc / "self/task/1/schedstat").unlink()
    if missing == "damaged":
        (proc / "stat").write_text("nothing\n")
    watch, entered = Contention(CPU), False
    with watch.watch():
        entered = True
    assert entered
    assert watch.report() == {"state": "unknown", "waited": None, "steal": None}


def test_before_anything_ran_nothing_is_known() -> None:
    assert Contention(CPU).report()["state"] == "unknown"


@pytest.mark.parametrize("known", [True, False])
def test_an_exception_passes_through(proc: Path, known: bool) -> None:
    if known:
        write_proc(proc, {"1": (100, 100)})
    with pytest.raises(ZeroDivisionError), Contention(CPU).watch():
        raise ZeroDivisionError


@readable
def test_this_machine_can_be_read() -> None:
    watch = Contention(CPU)
    with watch.watch():
        torch.ones(300, 300) @ torch.ones(300, 300)
        for _ in range(100_000):
            pass
    report = watch.report()
    assert report["state"] in ("clear", "contended")
    assert report["waited"] >= 0
    assert 0 <= report["steal"] <= 1
    assert str(os.getpid()) in contention._schedstat()


@pytest.mark.parametrize(
    ("listed", "shared"),
    [
        ("{own}", False),
        ("{own}\n{own}", False),  # on two GPUs
        ("{own}\n1", True),
        ("1\n2\n{own}", True),
        ("", None),
        ("1", None),  # ids of another namespace: this process, which does compute there, is not among them
        ("[N/A]", None),
        ("No running processes found", None),
    ],
)
def test_gpu_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: str, shared: bool | None) -> None:
    fake_nvidia_smi(tmp_path, f"cat <<'END'\n{listed.format(own=os.getpid())}\nEND")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert contention._gpu_shared() is shared


@pytest.mark.parametrize("script", ["exit 9", "echo $$; exit 1", None])
def test_no_word_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None) -> None:
    if script is not None:
        fake_nvidia_smi(tmp_path, script)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert contention._gpu_shared() is None


def fake_nvidia_smi(folder: Path, script: str) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("answers", "state"),
    [
        ([False, False], "clear"),
        ([True, False], "contended"),
        ([False, True], "contended"),
        ([True, None], "contended"),
        ([None, False], "clear"),
        ([False, None], "unknown"),
        ([None, None], "unknown"),
    ],
)
def test_another_process_on_the_gpu(
    proc: Path, monkeypatch: pytest.MonkeyPatch, answers: list[bool | None], state: str
) -> None:
    asked = iter(answers)
    monkeypatch.setattr(contention, "_gpu_shared", lambda: next(asked))
    watch = Contention(CUDA)
    write_proc(proc, {"1": (0, 0)})
    with watch.watch():
        write_proc(proc, {"1": (1000, 1)})
    watch.report()
    assert watch.report()["state"] == state


def test_the_gpu_is_not_asked_on_a_cpu(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "_gpu_shared", lambda: 1 / 0)
    watch = Contention(CPU)
    write_proc(proc, {"1": (0, 0)})
    with watch.watch():
        write_proc(proc, {"1": (1000, 1)})
    assert watch.report()["state"] == "clear"


# Randomness

STREAM_SEEDS = (7157283324590418078, 4823566900274488176)
FIRST_ORDER = [1, 6, 0, 8, 7, 9, 5, 3, 2, 4]
UNIFORM_DIGEST = "cb6640b24aa3ea1238062be8dd3b9c0c03bc891bbb87f0588daba0f1186c00dd"


def test_a_stream_is_known_for_all_time() -> None:
    assert stream(0, "init", "conv1.weight").initial_seed() == STREAM_SEEDS[0]
    assert stream(7, "noise", 3, 0).initial_seed() == STREAM_SEEDS[1]
    assert permutation(10, 0, "order", 0).tolist() == FIRST_ORDER
    assert digest(torch.empty(1000).uniform_(generator=stream(0, "x"))) == UNIFORM_DIGEST


def test_streams_differ_by_every_part_of_their_name() -> None:
    names = [(0, "noise", 1, 0), (0, "noise", 0, 1), (1, "noise", 1, 0), (0, "init", 1, 0), (0, "noise", 1), (0,)]
    names += [(0, "noise", 11, 0), (0, "noise", 1, 10), (10, "noise", 1, 0)]
    assert len({stream(*name).initial_seed() for name in names}) == len(names)


def test_a_stream_has_no_history() -> None:
    def draw() -> str:
        return digest(StreamNoise(3, "noise", 5, 0).dropout(torch.ones(4, 5), 0.5), permutation(50, 3, "order", 1))

    first = draw()
    torch.manual_seed(17)
    StreamNoise(3, "noise", 4, 0).gaussian(torch.ones(7), 1.0)
    torch.rand(3)
    state = torch.get_rng_state()
    assert draw() == first
    assert torch.equal(torch.get_rng_state(), state)  # and it leaves none


def test_a_permutation_is_one() -> None:
    order = permutation(1000, 0, "order", 0)
    assert order.sort().values.tolist() == list(range(1000))
    assert order.tolist() != list(range(1000))
    assert order.tolist() != permutation(1000, 0, "order", 1).tolist()


@pytest.mark.parametrize("shape", [(4, 6, 8, 8), (2, 3, 5, 7), (5, 7), (2, 5, 3)])
@pytest.mark.parametrize("kind", ["gaussian", "dropout"])
def test_noise_is_the_same_in_every_layout_and_keeps_it(kind: str, shape: tuple[int, ...]) -> None:
    x = torch.rand(shape, generator=stream(0, "x")) + 0.5
    results = []
    for layout in LAYOUTS.values() if len(shape) == 4 else [torch.contiguous_format]:
        placed = x.contiguous(memory_format=layout)
        noise = StreamNoise(0, "noise", 3, 0)
        result = [getattr(noise, kind)(placed, 0.3) for _ in range(2)]
        assert all(part.is_contiguous(memory_format=layout) for part in result)
        assert not torch.equal(*result)  # one after the other from one stream
        results.append(digest(*result))
    assert len(set(results)) == 1
    assert digest(x) not in results


def test_gaussian_noise_has_its_deviation() -> None:
    noise = StreamNoise(0, "noise").gaussian(torch.full((100, 100), 3.0), 0.15) - 3
    assert noise.mean().item() == pytest.approx(0, abs=0.005)
    assert noise.std().item() == pytest.approx(0.15, rel=0.02)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9])
def test_dropout_drops_its_share_and_scales_the_rest(p: float) -> None:
    x = torch.rand(200, 200, generator=stream(0, "x")) + 0.5
    dropped = StreamNoise(0, "noise").dropout(x, p)
    kept = dropped != 0
    assert 1 - kept.double().mean().item() == pytest.approx(p, abs=0.01)
    torch.testing.assert_close(dropped[kept], x[kept] / (1 - p))
    assert x.min() >= 0.5  # the input is left alone


def test_noise_in_bfloat16_is_that_of_float32() -> None:
    x = torch.ones(50, 50)
    wide, narrow = (StreamNoise(0, "noise").dropout(x.to(dtype), 0.5) for dtype in (torch.float32, torch.bfloat16))
    assert narrow.dtype == torch.bfloat16
    assert torch.equal(narrow.float(), wide)
    wide, narrow = (StreamNoise(0, "noise").gaussian(x.to(dtype), 0.1) for dtype in (torch.float32, torch.bfloat16))
    assert narrow.dtype == torch.bfloat16
    torch.testing.assert_close(narrow.float(), wide, atol=0.01, rtol=0.01)


def test_gradients_of_dropout_pass_where_it_kept() -> None:
    x = torch.rand(30, 30, generator=stream(0, "x")).requires_grad_()
    dropped = StreamNoise(0, "noise").dropout(x, 0.5)
    dropped.sum().backward()
    assert torch.equal(x.grad, 2 * (dropped != 0).float())


# Schedule


@pytest.mark.parametrize("within", [0, 1, 499])
def test_the_paper_s_schedule(within: int) -> None:
    schedule = config.job(["scale=paper"]).config.schedule
    for epoch in range(200):
        values = schedule.at(500 * epoch + within)
        expected = 1.0 if epoch <= 100 else (200 - epoch) / 100
        assert values == {"lr": pytest.approx(expected, abs=1e-12), "beta1": 0.9 if epoch < 100 else 0.5}
    for epoch, factor in ((100, 1.0), (101, 0.99), (199, 0.01)):
        assert schedule.at(500 * epoch + within)["lr"] == pytest.approx(factor, abs=1e-12)


@pytest.mark.parametrize("after", [0, 1, 500, 10**6])
def test_after_the_recipe_s_end_its_last_values_stay(after: int) -> None:
    schedule = HoldThenDecay(100_000, 500, 0.9, 0.5)
    assert schedule.at(100_000 + after) == schedule.at(99_999) == {"lr": pytest.approx(0.01), "beta1": 0.5}


@pytest.mark.parametrize(("steps", "period"), [(600, 10), (1800, 18), (7, 1), (10, 4), (1, 1), (1, 5)])
def test_shorter_schedules_hold_fall_and_never_stand_still(steps: int, period: int) -> None:
    values = [HoldThenDecay(steps, period, 0.9, 0.5).at(step) for step in range(2 * steps)]
    factors = [value["lr"] for value in values]
    assert factors[0] == 1
    assert min(factors) > 0
    assert all(later <= earlier for earlier, later in itertools.pairwise(factors))
    assert [value["beta1"] for value in values] == sorted((value["beta1"] for value in values), reverse=True)


@pytest.mark.parametrize(
    ("key", "value"), [("steps", 0), ("period", 0), ("beta1", 1.0), ("beta1", -0.1), ("late_beta1", 1.0)]
)
def test_schedules_that_cannot_be(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"schedule.{key} must"):
        HoldThenDecay(**({"steps": 10, "period": 1, "beta1": 0.9, "late_beta1": 0.5} | {key: value}))


# Adam


def gradients(steps: int, dtype: torch.dtype) -> Tensor:
    """``(steps, 3, 4)``, of very different sizes."""
    scale = torch.tensor([1e-5, 1e-3, 1.0, 100.0], dtype=torch.float64)
    return (torch.randn(steps, 3, 4, generator=stream(0, "gradients"), dtype=torch.float64) * scale).to(dtype)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_adam_is_the_plain_formula_with_eps_inside_the_root(dtype: torch.dtype, rtol: float) -> None:
    parameter = nn.Parameter(torch.zeros(3, 4, dtype=dtype))
    optimizer = Adam([parameter], lr=1.0, beta1=0.9, beta2=0.999, eps=1e-8)
    p = m = v = torch.zeros(3, 4, dtype=torch.float64)
    for t, g in enumerate(gradients(50, dtype), 1):
        lr, beta1 = (0.003, 0.9) if t <= 25 else (0.002, 0.5)
        optimizer.param_groups[0].update(lr=lr, beta1=beta1)
        parameter.grad = g.clone()
        optimizer.step()
        g = g.double()
        m, v = beta1 * m + (1 - beta1) * g, 0.999 * v + (1 - 0.999) * g * g
        p = p - lr * (m / (1 - beta1**t)) / torch.sqrt(v / (1 - 0.999**t) + 1e-8)
        torch.testing.assert_close(parameter.detach().double(), p, rtol=rtol, atol=rtol * 0.1)


@pytest.mark.parametrize(("eps", "equal"), [(1e-30, True), (1e-8, False)])
def test_adam_beside_torch_s(eps: float, equal: bool) -> None:
    ours, theirs = (nn.Parameter(torch.zeros(3, 4, dtype=torch.float64)) for _ in range(2))
    optimizers = (
        Adam([ours], lr=0.01, beta1=0.9, beta2=0.999, eps=eps),
        torch.optim.Adam([theirs], lr=0.01, betas=(0.9, 0.999), eps=eps),
    )
    for g in gradients(20, torch.float64):
        for parameter, optimizer in zip((ours, theirs), optimizers, strict=True):
            parameter.grad = g.clone()
            optimizer.step()
    assert torch.allclose(ours, theirs, rtol=1e-9) == equal
    assert torch.allclose(ours[:, 3], theirs[:, 3], rtol=1e-6)  # large gradients do not see eps


def test_adam_goes_on_from_its_state(tmp_path: Path) -> None:
    first, second = (nn.Parameter(torch.ones(3, 4)) for _ in range(2))
    one = Adam([first], lr=0.1, beta1=0.9, beta2=0.99, eps=1e-8)
    all_gradients = gradients(8, torch.float32)
    for g in all_gradients[:4]:
        first.grad = g.clone()
        one.step()
    torch.save({"optimizer": one.state_dict(), "p": first.detach()}, tmp_path / "x.pt")
    saved = torch.load(tmp_path / "x.pt", weights_only=True)
    two = Adam([second], lr=5.0, beta1=0.1, beta2=0.5, eps=1.0)
    two.load_state_dict(saved["optimizer"])
    second.data.copy_(saved["p"])
    for g in all_gradients[4:]:
        for parameter, optimizer in ((first, one), (second, two)):
            parameter.grad = g.clone()
            optimizer.step()
        assert torch.equal(first, second)
    assert two.state[second]["step"] == 8


def test_adam_skips_what_has_no_gradient_and_counts_each_parameter_s_own_steps() -> None:
    """A parameter whose first gradient comes late moves as one of a new optimiser, and the others as before."""
    together = [nn.Parameter(torch.ones(3, 4, dtype=torch.float64)) for _ in range(2)]
    apart = [nn.Parameter(torch.ones(3, 4, dtype=torch.float64)) for _ in range(2)]
    options = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8}
    shared, own = Adam(together, **options), [Adam([parameter], **options) for parameter in apart]
    for step, g in enumerate(gradients(6, torch.float64)):
        for index in (0, 1):
            absent = index == 0 and step in (0, 1, 4)
            together[index].grad, apart[index].grad = (None, None) if absent else (g.clone(), g.clone())
            if not absent:
                own[index].step()
        shared.step()
        if step == 1:
            assert (together[0] == 1).all()
            assert not shared.state[together[0]]
        for a, b in zip(together, apart, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-14, atol=0)


def test_adam_with_no_gradient_at_all_does_nothing() -> None:
    parameter = nn.Parameter(torch.ones(3))
    Adam([parameter], lr=0.1, beta1=0.9, beta2=0.99, eps=1e-8).step()
    assert (parameter == 1).all()


@pytest.mark.parametrize(("key", "value"), [("lr", 0), ("lr", math.nan), ("beta2", 1.0), ("eps", 0)])
def test_rates_that_cannot_be(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"optim.{key} must"):
        AdamConfig(**({"lr": 0.1, "beta2": 0.9, "eps": 1e-8} | {key: value}))


# Loggers


@pytest.fixture(autouse=True)
def wandb_at_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path_factory.getbasetemp() / "wandb-home"))


@pytest.fixture(scope="module")
def runs(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of one tiny run under each choice of loggers."""
    folders = {}
    threads = torch.get_num_threads()
    for choice in ("none", "tensorboard", "[wandb,tensorboard]"):
        options = [f"logger={choice}"] if choice != "none" else []
        job = tiny(data_root, tmp_path_factory.mktemp("results"), *options)
        outcome = runner.execute(job)
        assert (outcome.status, outcome.error) == ("finished", None)
        folders[choice] = job.folder
    torch.set_num_threads(threads)
    return folders


def tiny(data_root: Path, results: Path, *overrides: str) -> config.Job:
    options = [f"data.root={data_root}", f"results={results}", "threads=1", "device=cpu", "model.width=0.05"]
    intervals = ["max_steps=4", "log_every=1", "eval_every=2", "checkpoint_every=2"]
    return config.job([*options, "batch_size=8", *intervals, *overrides])


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """TensorBoard's own reading of a run: for each name its steps and values."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    accumulator.Reload()
    names = accumulator.Tags()["scalars"]
    return {name: [(event.step, event.value) for event in accumulator.Scalars(name)] for name in names}


def expected_events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    expected: dict[str, list[tuple[int, float]]] = {}
    for row in record.read_metrics(folder / record.METRICS)[0]:
        values = {key: row[key] for key in row if key not in ("step", "split", "seconds")}
        for key, value in (values | {"time": row["seconds"]["data"] + row["seconds"]["train"]}).items():
            expected.setdefault(f"{row['split']}/{key}", []).append((row["step"], pytest.approx(value, rel=1e-6)))
    return expected


@pytest.mark.parametrize("choice", ["tensorboard", "[wandb,tensorboard]"])
def test_tensorboard_shows_the_record(runs: dict[str, Path], choice: str) -> None:
    shown, expected = events(runs[choice]), expected_events(runs[choice])
    assert {"train/loss", "train/lr", "train/grad_norm", "test/error", "test/time"} <= expected.keys()
    assert shown == expected
    assert [step for step, _ in shown["test/error"]] == [0, 2, 4]


def wandb_records(folder: Path) -> Iterator[object]:
    """The records of an offline run: LevelDB's log format, blocks of 32 kB after a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    (path,) = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    content, position, parts = path.read_bytes(), 7, b""
    assert content.startswith(b":W&B")
    while position + 7 <= len(content):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        length, kind = int.from_bytes(content[position + 4 : position + 6], "little"), content[position + 6]
        parts += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            found = wandb_internal_pb2.Record()
            found.ParseFromString(parts)
            yield found
            parts = b""


def test_wandb_shows_the_record_offline(runs: dict[str, Path]) -> None:
    folder, history, summary, shown_config, exits = runs["[wandb,tensorboard]"], [], {}, {}, []
    for found in wandb_records(folder):
        if found.HasField("history"):
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in found.history.item}
            shown = {key: value for key, value in items.items() if not key.startswith("_")}
            history.append((found.history.step.num, shown))
        elif found.HasField("summary"):
            summary |= {item.key: json.loads(item.value_json) for item in found.summary.update}
        elif found.HasField("run"):
            shown_config |= {item.key: json.loads(item.value_json) for item in found.run.config.update}
            identity = (found.run.run_id, found.run.project)
        elif found.HasField("exit"):
            exits.append(found.exit.exit_code)
    rows = record.read_metrics(folder / record.METRICS)[0]
    by_step: dict[int, dict[str, float]] = {}
    for row in rows:  # rows of one step are one row there
        by_step[row["step"]] = by_step.get(row["step"], {}) | loggers.scalars(row)
    assert history == list(by_step.items())
    assert sum("test/error" in shown for _, shown in history) == 3
    assert sum("train/loss" in shown for _, shown in history) == 4
    assert summary["status"] == "finished"
    assert exits == [0]
    assert identity == ("cifar10-demo-batch_size-8-model.width-0.05-rms-seed0", "rmsexp")
    assert (shown_config["task"], shown_config["batch_size"]) == ("cifar10", 8)


@pytest.mark.parametrize("choice", ["tensorboard", "[wandb,tensorboard]"])
def test_loggers_change_no_result(runs: dict[str, Path], choice: str) -> None:
    def results(folder: Path) -> tuple[str, list[record.Row]]:
        saved = torch.load(folder / record.CHECKPOINTS / "last.pt", weights_only=True)
        states = [saved["optimizer"]["state"][k][part] for k in saved["optimizer"]["state"] for part in ("m", "v")]
        rows = record.read_metrics(folder / record.METRICS)[0]
        return digest(*saved["model"].values(), *states), [row | {"seconds": None} for row in rows]

    assert results(runs[choice]) == results(runs["none"])
    assert not any((runs["none"] / name).exists() for name in ("wandb", "tensorboard"))
    assert runs[choice].parts[-4:] == runs["none"].parts[-4:]  # no part of a run's identity


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+logger.tensorboard.colour=blue", "logger.tensorboard.colour is not known"),
        ("+logger.wandb.projekt=x", "logger.wandb.projekt is not known; did you mean project?"),
        ("logger.wandb.mode=ofline", "logger.wandb.mode=ofline is not known; did you mean offline?"),
        ("+logger.mlflow.x=1", "logger=mlflow is not known"),
    ],
)
def test_unknown_loggers_and_options(data_root: Path, tmp_path: Path, override: str, message: str) -> None:
    outcome = runner.execute(tiny(data_root, tmp_path, "logger=[wandb,tensorboard]", override))
    assert outcome.status == "failed"
    assert outcome.error is not None
    assert outcome.error.startswith(message)
    assert len(outcome.error.splitlines()) == 1
    assert not list(tmp_path.rglob("traceback.txt"))


def row(step: int, loss: float | None, split: str = "train") -> record.Row:
    return {"step": step, "split": split, "loss": loss, "seconds": dict.fromkeys(record.BUCKETS, 1.0 * step)}


@pytest.mark.parametrize("resumed", [0, 3])
def test_a_resumed_run_replaces_what_tensorboard_showed_after_its_checkpoint(tmp_path: Path, resumed: int) -> None:
    killed = loggers.TensorBoardLogger(tmp_path, {}, 0)
    for step in range(6):
        killed.log(row(step, 1.0))
    killed.close("failed")
    after = loggers.TensorBoardLogger(tmp_path, {}, resumed)
    for step in range(resumed + 1, 5):
        after.log(row(step, 2.0))
    after.close("finished")
    kept = [(step, 1.0) for step in range(resumed + 1)] if resumed else []
    assert events(tmp_path)["train/loss"] == [*kept, *((step, 2.0) for step in range(resumed + 1, 5))]


def test_a_run_that_goes_on_continues_its_curves(data_root: Path, tmp_path: Path) -> None:
    for steps in (2, 4):
        outcome = runner.execute(tiny(data_root, tmp_path, "logger=tensorboard", f"max_steps={steps}"))
        assert outcome.status == "finished"
    (folder,) = record.find_runs(tmp_path)
    assert events(folder) == expected_events(folder)
    assert [step for step, _ in events(folder)["train/loss"]] == [1, 2, 3, 4]


def test_scalars_leave_out_what_is_not_finite() -> None:
    assert loggers.scalars(row(3, None, "test")) == {"test/time": 6.0}
    assert loggers.scalars(row(3, 0.5)) == {"train/loss": 0.5, "train/time": 6.0}


# Progress


@pytest.mark.parametrize(
    ("loss", "speed", "expected"),
    [
        (0.5, 2.0, "rms seed0  step 40/100  loss 0.5000  2.0 steps/s  0:30 left"),
        (None, 2.0, "rms seed0  step 40/100  loss not finite  2.0 steps/s  0:30 left"),
        (0.5, 0.0, "rms seed0  step 40/100  loss 0.5000  0.0 steps/s  0:00 left"),
        (0.5, 0.01, "rms seed0  step 40/100  loss 0.5000  0.0 steps/s  1:40:00 left"),
    ],
)
def test_plain_lines_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, loss: float | None, speed: float, expected: str
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    display = progress.ProgressDisplay("rms seed0", 100)
    display.update(row(40, loss), speed)
    display.close()
    captured = capsys.readouterr()
    assert captured.err == f"{expected}\n"
    assert captured.out == ""


def test_evaluations_show_their_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    display = progress.ProgressDisplay("rms seed0", 100)
    display.evaluated(row(40, 0.25, "test") | {"epoch": 1.0, "examples": 9, "error": 0.125, "bleu": None})
    assert capsys.readouterr().err == "rms seed0  step 40/100  test: loss 0.2500, error 0.1250\n"


def test_a_line_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    text = "prms+axes=[1,2] [bold]x[/bold] :smile: " + "a" * 300
    progress.ProgressDisplay("prms", 1).say(text)
    assert capsys.readouterr().err.rstrip("\n") == text


def test_a_bar_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    display = progress.ProgressDisplay("rms seed0", 100)
    display.update(row(40, 0.5), 2.0)
    display.evaluated(row(40, 0.25, "test"))
    display.close()
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert "40/100" in plain
    assert "loss 0.5000  2.0 steps/s  0:30 left" in plain
    assert "test: loss 0.2500" in plain


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.4, "0:59"), (59.6, "1:00"), (3599, "59:59"), (3600, "1:00:00")]
)
def test_durations(seconds: float, text: str) -> None:
    assert progress._duration(seconds) == text


# Provenance


def test_a_session_says_what_computed_it() -> None:
    session = provenance.session(CPU, 7)
    assert session["from_step"] == 7
    assert session["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    assert session["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert re.fullmatch("[0-9a-f]{16}", session["code"])
    assert session["device"]
    assert (session["device_type"], session["threads"]) == ("cpu", torch.get_num_threads())
    assert session == json.loads(json.dumps(session))


@pytest.mark.parametrize("key", ["code", "versions", "device", "device_type", "threads"])
def test_what_may_change_results_or_times_is_noticed(key: str) -> None:
    before = provenance.session(CPU, 0)
    assert provenance.changed(before, before | {"from_step": 5, "started": "later", "git": {}}) == []
    assert provenance.changed(before, before | {key: "other"}) == [key]
    without = {name: value for name, value in before.items() if name != key}
    assert provenance.changed(without, before) == [key]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of two files in the place of this one, in no checkout."""
    folder = tmp_path / "checkout" / "package"
    (folder / "sub").mkdir(parents=True)
    (folder / "record.py").write_text("1\n")
    (folder / "sub/b.py").write_text("2\n")
    monkeypatch.setattr(provenance, "PACKAGE", folder)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    return folder


@pytest.mark.parametrize("change", ["edit", "add", "rename", "remove"])
def test_the_code_s_digest_follows_every_source(package: Path, change: str) -> None:
    digest_of = provenance._code.__wrapped__
    before = digest_of()
    (package / "notes.txt").write_text("x")
    assert digest_of() == before
    path = package / "sub/b.py"
    if change == "edit":
        path.write_text("3\n")
    elif change == "add":
        (package / "c.py").write_text("")
    elif change == "rename":
        path.rename(package / "sub/c.py")
    else:
        path.unlink()
    assert digest_of() != before


def test_git_state(package: Path) -> None:
    state = provenance._git.__wrapped__

    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(package.parent), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    nothing = {"commit": None, "dirty": None}
    assert state() == nothing
    git("init", "-q")
    assert state() == nothing  # an installed copy inside somebody's checkout
    git("add", ".")
    git("commit", "-q", "-m", "x")
    assert state() == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    (package / "record.py").write_text("4\n")
    assert state() == {"commit": git("rev-parse", "HEAD"), "dirty": True}


def test_without_git_there_is_no_commit(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert package.exists()
    assert provenance._git.__wrapped__() == {"commit": None, "dirty": None}
