"""Measuring in several processes: what is measured together, the budget, the record's content, and failures."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import joblib
import pytest
from helpers import measuring_work

from rmsexp.config.timing import TimingConfig
from rmsexp.measure import new_process, processes
from rmsexp.records.frames import comparable, timing_records
from rmsexp.system import machine_lock
from rmsexp.system.lock import is_locked

ROOT = Path(__file__).parents[2]


def jobs(*norms: str) -> dict[str, Any]:
    """Return what measuring reads of jobs. Whole ones would need torch in each process that gets them."""
    cfg = SimpleNamespace(task="cifar10", scale="demo", seed=0, precision="float32")
    return {norm: SimpleNamespace(setting="demo", config=cfg, impl="eager") for norm in norms}


def measure(
    norms: Sequence[str], work: Any = measuring_work.measured, **options: Any
) -> tuple[list[dict[str, Any]], list[str], str | None]:
    """Return the contents after each process, the reported lines, and the error that ended the measuring, if any."""
    contents, lines = [], list[str]()
    try:
        for content in processes.measure(jobs(*norms), TimingConfig(**options), lines.append, work):
            contents.append(content)
    except new_process.ProcessError as error:
        return contents, lines, str(error)
    return contents, lines, None


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Let the work be done in this process, which is quicker; return its arguments."""
    done: list[tuple[Any, ...]] = []

    def do(name: str, work: Callable[..., Any], arguments: tuple[Any, ...], report: Callable[[str], None]) -> Any:  # noqa: ARG001
        done.append(arguments)
        return work(*arguments, lambda _: None)

    monkeypatch.setattr(processes, "in_new_process", do)
    return done


@pytest.mark.parametrize(
    ("others", "groups"),
    [("", ["l"]), ("a", ["la"]), ("abc", ["labc"]), ("abcd", ["lab", "lcd"]), ("abcdefg", ["labc", "ldef", "lg"])],
)
def test_at_most_four_contestants_are_measured_together(others: str, groups: list[str]) -> None:
    assert comparable.grouped(dict.fromkeys([*others, "l"], "eager"), "l") == [list(group) for group in groups]


@pytest.mark.parametrize(
    ("fused", "groups"),
    [
        (["rms"], [["ln", "rms", "prms", "rms+impl=fused"]]),
        (["ln", "rms"], [["ln", "rms", "prms"], ["ln", "ln+impl=fused", "rms+impl=fused"]]),
        (["none", "rms"], [["ln", "rms", "prms"], ["ln", "none+impl=fused", "rms+impl=fused"]]),
        (
            ["none", "ln", "rms", "prms"],
            [
                ["ln", "rms", "prms"],
                ["ln", "ln+impl=fused", "none+impl=fused", "rms+impl=fused"],
                ["ln", "ln+impl=fused", "prms+impl=fused"],
            ],
        ),
    ],
)
def test_fused_series_are_measured_beside_fused_layernorm(fused: list[str], groups: list[list[str]]) -> None:
    impls = dict.fromkeys(["rms", "ln", "prms"], "eager") | {f"{norm}+impl=fused": "fused" for norm in fused}
    assert comparable.grouped(impls, "ln") == groups
    alone = {"ln": "eager"} | {f"{norm}+impl=fused": "fused" for norm in ("a", "b", "c", "d")}
    assert [len(group) for group in comparable.grouped(alone, "ln")] == [3, 3]  # and no process times ln alone


def test_the_record_grows_with_each_process() -> None:
    contents, lines, error = measure(["ln", "rms"], processes=2)
    assert error is None
    assert [content["stopped"] for content in contents] == ["interrupted", "narrow enough"]
    assert [len(content["processes"]) for content in contents] == [1, 2]
    ids = re.findall(r"process \d of 2: process id (\d+)", "\n".join(lines))
    assert len({*ids, str(os.getpid())}) == 3  # each process is a new one
    (ln, rms) = timing_records.rows(contents[-1], "folder")
    assert (ln["ratio"], ln["processes"]) == (1, 2)
    assert rms["estimates"] == pytest.approx((0.9, 0.89))
    assert rms["ratio"] == pytest.approx((0.9 * 0.89) ** 0.5)
    assert rms["low"] < 0.89 < 0.9 < rms["high"]
    assert (rms["rounds"], rms["commit"], rms["dirty"], rms["code"]) == (8, "abcd", False, "0123")
    assert "saved vs LayerNorm, one process, not replicated: RMSNorm 10.0 % (10.0 to 10.0)" in lines[2]
    assert "saved vs LayerNorm, 2 processes: RMSNorm 10.5 % (" in lines[4]


def test_a_record_has_the_random_number_of_its_orders(here: list[tuple[Any, ...]]) -> None:
    records = [measure(["none", "ln", "rms"], processes=2)[0][-1] for _ in range(2)]
    seeds = [content["order_seed"] for content in records]
    assert len({*seeds}) == 2
    assert [arguments[3] for arguments in here] == [seeds[0], seeds[0], seeds[1], seeds[1]]


def test_groups_share_the_reference(here: list[tuple[Any, ...]]) -> None:
    contents, _, _ = measure(["none", "ln", "rms", "prms", "bn"], processes=2)
    assert [list(selected) for selected, *_ in here] == [["ln", "none", "rms"], ["ln", "prms", "bn"]] * 2
    assert [number for _, _, number, *_ in here] == [0, 0, 1, 1]
    rows = timing_records.rows(contents[-1], "folder")
    assert {row["series"]: row["processes"] for row in rows} == {"none": 2, "ln": 4, "rms": 2, "prms": 2, "bn": 2}
    assert {row["forward"] for row in rows} == {50}
    # interrupted after the first group
    assert [series["series"] for series in contents[0]["series"]] == ["none", "ln", "rms"]


def test_processes_share_the_budget_equally(here: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "Stopwatch", type("Watch", (), {"seconds": property(lambda _: 40.0 * len(here))}))
    contents, lines, _ = measure(["ln", "rms"], processes=6)
    assert [budget.seconds for *_, budget in here] == [50, 52, 55, 60, 70, 100]
    assert lines[0].endswith("; processes: 6, budget: 300 s")
    assert ", 260 of 300 s left;" in lines[1]
    here.clear()
    contents, _, _ = measure(["ln", "rms"], processes=6, budget=100.0)
    assert len(here) == 3  # the budget ends during the third
    assert (len(contents[-1]["processes"]), contents[-1]["stopped"]) == (3, "budget spent")


def test_a_process_with_other_code_does_not_count(here: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    def work(*arguments: Any) -> dict[str, Any]:
        if len(here) == 2:
            monkeypatch.setitem(measuring_work.SESSION, "code", "4567")
        answer = measuring_work.measured(*arguments)
        answer["process"]["session"] = dict(answer["process"]["session"])
        return answer

    contents, _, error = measure(["ln", "rms"], work, processes=3)
    assert error == "process 2 of 3 does not count, because it differs from the first in: code"
    assert [content["stopped"] for content in contents] == ["interrupted"]


@pytest.mark.parametrize(
    ("work", "message", "finished"),
    [
        (measuring_work.killed, "process 2 of 3 was ended by SIGKILL; perhaps there was too little memory", 1),
        (measuring_work.refused, "device=cuda, but there is none", 0),
        (measuring_work.crashed, "process 1 of 3 ended with exit status 1", 0),
    ],
)
def test_a_process_that_fails_keeps_the_finished_ones(work: Any, message: str, finished: int) -> None:
    contents, _, error = measure(["ln", "rms"], work, processes=3)
    assert error == message
    assert len(contents) == finished


def test_the_lock_is_held_between_processes_and_freed_at_the_end(here: list[tuple[Any, ...]]) -> None:  # noqa: ARG001
    measured = processes.measure(jobs("ln", "rms"), TimingConfig(), lambda _: None, measuring_work.measured)
    next(measured)
    assert is_locked(machine_lock.FOLDER / machine_lock.NAME)
    measured.close()
    assert not is_locked(machine_lock.FOLDER / machine_lock.NAME)


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.minutes), signal.SIGKILL])
def test_a_measuring_process_ends_with_its_parent(number: signal.Signals, tmp_path: Path) -> None:
    code = (
        "from types import SimpleNamespace as Job; from rmsexp.measure import processes\n"
        "from rmsexp.config.timing import TimingConfig; from helpers import measuring_work\n"
        "jobs = {norm: Job(setting='demo', impl='eager', config=Job(task='cifar10')) for norm in ('ln', 'rms')}\n"
        "report = lambda line: print(line, flush=True)\n"
        "next(processes.measure(jobs, TimingConfig(), report, measuring_work.endless))"
    )
    own_lock = {"TMPDIR": str(tmp_path)}  # or this would wait for measurements on this machine
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"} | own_lock
    parent = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
    child = next(int(found[1]) for line in parent.stdout if (found := re.search(r"process id (\d+)", line)))
    parent.send_signal(number)
    parent.wait()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{child}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_worker_of_joblib_measures_in_new_processes() -> None:
    """Joblib's way to start processes is not known in them."""
    work = (measuring_work.own_id, (), print)
    ids = joblib.Parallel(2)(joblib.delayed(new_process.in_new_process)("process", *work) for _ in range(2))
    assert len({each["id"] for each in ids}) == 2
    method = multiprocessing.get_start_method()
    new_process.in_new_process("process", *work)
    assert multiprocessing.get_start_method() == method
