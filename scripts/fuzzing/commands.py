"""Argument lists of all commands. Work that takes long, such as training, is replaced by an immediate end."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from fuzzing import arguments, capture
from fuzzing.damage import Files
from fuzzing.hostile import ARGUMENTS
from fuzzing.inputs import put
from fuzzing.workers import Reader, Refused
from rmsexp import __main__ as entry
from rmsexp import config, tasks
from rmsexp.commands import (
    analysis,
    run,
    bench,
    campaign,
    generate,
    goals,
    prepare,
    published,
    report,
    status,
    timing,
    translate,
)
from rmsexp.data import DataError
from rmsexp.measure import layers, processes
from rmsexp.records import record
from rmsexp.train.device import set_up_device
from rmsexp.work import runner, workers

OUTSIDE = re.compile(r"(^|[=,:\[{(\"' ])(/|~root)|\.\.")  # words that may name a file outside of the working folder
HARMLESS = re.compile(r"(^|=)/dev/null")
SMALL = ["task=attentive_reader", "model.width=6", "max_steps=1", "threads=1"]  # a run that takes a second
PROCESS_SECONDS = 50
ELSEWHERE = re.compile(r"joblib|submitit|wandb|env_set|_target_")  # words that start processes or call any function


def harmless(words: Sequence[str]) -> bool:
    """Return whether a command with these words stays in its working folder and in this process."""
    return not any((OUTSIDE.search(word) and not HARMLESS.search(word)) or ELSEWHERE.search(word) for word in words)


def varying(command: str) -> Callable[[Files, random.Random], Files]:
    """Return a function that draws an argument list of a command and writes it to the files as ``ARGUMENTS``."""

    def vary(files: Files, rng: random.Random) -> Files:
        words = arguments.draw(command, rng)
        while not harmless(words):
            words = arguments.draw(command, rng)
        return files | {ARGUMENTS: json.dumps(words).encode()}

    return vary


def make_folder(folder: Path) -> None:
    """Write files and folders that the argument lists name."""
    put(folder / ARGUMENTS, '["--help"]')
    put(folder / "text.txt", "hello\n")
    put(folder / "log.csv", "epoch,time,train_error,test_error\n0,1.5,0.5,0.5\n")
    put(folder / "empty/.keep", "")
    put(folder / "my/campaign/mine.yaml", (config.CONFIGS / "campaign/quality.yaml").read_bytes())
    put(folder / "my/norm/own.yaml", "_target_: rmsexp.norms.RMS\nname: own\nimpl: eager\n")


def _execute(job: config.Job, around: runner.Around = runner.ALONE) -> runner.Outcome:
    """Set up the device of a run, and write its status instead of training."""
    try:
        set_up_device(job.config, around.n_jobs)
    except ValueError as error:
        return runner.Outcome("failed", 0, str(error))
    folder = record.RunFolder(job.folder)
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.write_status("finished", job.config.max_steps)
    return runner.Outcome("finished", job.config.max_steps)


def _refuse(*_: object, **__: object) -> Any:
    raise DataError("the arguments were accepted")


def _done(*_: object, **__: object) -> int:
    return 0


class _Prepared:
    """A task without data."""

    dataset = mock.Mock(digest="digest")

    def prepare(self, _: object) -> None: ...


@contextmanager
def without_work() -> Iterator[None]:
    """Inside the context, replace training, measuring, analyses, drawing, data sets and the network."""
    threads = torch.get_num_threads()
    with (
        mock.patch.object(runner, "execute", _execute),
        mock.patch.object(tasks, "make", return_value=_Prepared()),
        mock.patch.object(processes, "in_new_process", _refuse),
        mock.patch.object(layers, "measure", side_effect=ValueError("the arguments were accepted")),
        mock.patch.object(report, "run", return_value=[Path("page.html")]),
        mock.patch.object(analysis, "_analyse", _refuse),
        mock.patch.object(translate, "_translate", _refuse),
        mock.patch.object(generate, "_generate", _refuse),
        mock.patch.object(published, "import_log", return_value=Path("record")),
        mock.patch.object(published, "draw", return_value=Path("curves")),
        mock.patch.object(campaign, "_work", _done),
        mock.patch.object(workers, "start", _done),
        mock.patch.multiple(goals.Verdicts, print_plan=_done, conclude=_done),
        mock.patch.multiple(goals.PaperItems, print_plan=_done, conclude=_done),
        mock.patch.object(socket, "getaddrinfo", side_effect=OSError("no network")),
    ):
        yield
    torch.set_num_threads(threads)


def running(main: Callable[[Sequence[str]], int | None], *first: str) -> Callable[[Path], object]:
    """Return a function that runs a command with the stored argument list."""

    def read(folder: Path) -> object:
        with without_work():
            return capture.command(main, [*first, *json.loads((folder / ARGUMENTS).read_bytes())])

    return read


COMMANDS: dict[str, Callable[[Sequence[str]], int | None]] = {
    "run": run.main,
    "sweep": run.main,
    "timing": timing.main,
    "campaign": campaign.main,
    "bench": bench.main,
    "report": report.main,
    "status": status.main,
    "analysis": analysis.main,
    "translate": translate.main,
    "generate": generate.main,
    "prepare": prepare.main,
    "published": published.main,
    "rmsexp": entry.main,
}


def run_process(folder: Path) -> object:
    """Run ``python -m rmsexp`` with the stored argument list in a process of its own, without replacing any work."""
    words = json.loads((folder / ARGUMENTS).read_bytes())
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-m", "rmsexp", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        env=environment,
        timeout=PROCESS_SECONDS,
    )
    return capture.judged(done.returncode, done.stdout, done.stderr)


def vary_process(files: Files, rng: random.Random) -> Files:
    """Draw an argument list of any command; if it trains or measures, this takes a few seconds at most."""
    words = ["campaign"]
    while words[0] == "campaign":  # which takes minutes
        words = json.loads(varying("rmsexp")(files, rng)[ARGUMENTS] or b"")
    small = {"timing": ["timing.budget=0.1"], "bench": ["--seconds", "0.01"], "run": SMALL, "sweep": SMALL}
    first = words[1:] if words[0] in ("run", "sweep") else words  # these two are no commands, but their absence
    return files | {ARGUMENTS: json.dumps([*first, *small.get(words[0], [])]).encode()}


SLOW = dict.fromkeys(("run", "sweep", "timing", "prepare", "campaign"), 10)  # commands that compose configs
READERS = (
    *(
        Reader(
            f"arguments of {name}", make_folder, running(main), (Refused,), vary=varying(name), weight=SLOW.get(name, 1)
        )
        for name, main in COMMANDS.items()
    ),
    Reader("processes", make_folder, run_process, (Refused,), vary=vary_process, weight=50),
)
