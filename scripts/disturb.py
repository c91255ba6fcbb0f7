"""Disturb small runs in one of five ways, and check that nothing is lost, repeated or different.

    python scripts/disturb.py PART [--times N] [--seed 0] [--results DIR] [KEY=VALUE ...]

Each part first does its runs undisturbed. Then it does them in another folder and disturbs them at random moments. In
the end metrics, weights and statuses of all runs must equal those of the undisturbed ones, bit for bit, except for
times. Words KEY=VALUE change the runs; ``--times`` says how often they are disturbed. The parts:

chaos            kills one run with SIGKILL: while checkpoints and metrics are written, soon after its start, and at
                 random moments, of which many lie in evaluations
chaos_sweep      disturbs a sweep of twelve translation models by signals, full disks, closed pipes and damaged files;
                 a run that then fails must name the cause, and is moved aside and done anew
campaign_kills   kills one of two workers of a campaign with SIGKILL, and replaces it; plan, registration and verdicts
                 must be equal, too, and only kills may make a run continue
preempted_sweep  sends SIGUSR2 to each job of submitit's local executor, and SIGKILL to some later; submitit requeues
                 the former, and the command, repeated, does the rest
ray_node_lost    removes one of the two nodes of a Ray cluster in the middle of a campaign's runs

Commands are typed as a user types them, and runs are judged by their records alone. In the first three parts a command
is done by a copy of this process, because importing PyTorch takes longer than such a run. The copy replaces
``os.fsync``, so that this script knows when a file is written.
"""

from __future__ import annotations

import argparse
import csv
import errno
import importlib.util
import itertools
import json
import os
import pty
import random
import re
import runpy
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import yaml
from check_record import Check, add_option, at_least
from fuzzing import damage

Found = dict[str, Any]  # results of a part, as its record has them
POLL_SECONDS = 0.02
REPAIRS = 3  # repetitions of an undisturbed sweep in which failed runs are moved aside and done anew

# ----------------------------------------------------------------------------------------------- reading records


def runs_below(results: Path) -> list[Path]:
    """Return the folders of all runs below a folder, except those that were moved aside."""
    return sorted({path.parent for path in results.rglob("status.json") if ".old" not in path.parent.name})


def status_of(folder: Path) -> Found:
    """Return the content of a run's ``status.json``; {} if it is missing or damaged."""
    try:
        content = json.loads((folder / "status.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def running(results: Path) -> dict[Path, tuple[int, int]]:
    """Return the process that trains each run at this moment, and the last step in the run's metrics."""
    found = {}
    for folder in runs_below(results):
        status, metrics = status_of(folder), folder / "metrics.jsonl"
        if status.get("status") == "running":
            lines = metrics.read_text().splitlines() if metrics.exists() else []
            with suppress(ValueError):  # the last line is being written
                found[folder] = status["process"], int(json.loads(lines[-1])["step"]) if lines else 0
    return found


def starts(results: Path) -> dict[str, list[int]]:
    """Return the steps at which the sessions of each run began, by the run's folder below ``results``."""
    sessions = {folder: json.loads((folder / "run.json").read_text())["sessions"] for folder in runs_below(results)}
    return {
        str(folder.relative_to(results)): [session["from_step"] for session in of_run]
        for folder, of_run in sessions.items()
    }


def not_continued(results: Path) -> list[str]:
    """Return a line for each run whose sessions do not continue each other from step 0 on."""
    return [
        f"{run}: its sessions begin at steps {steps}"
        for run, steps in starts(results).items()
        if steps[:1] != [0] or steps != sorted(set(steps))
    ]


def run_content(results: Path) -> Found:
    """Return the content of the only run below ``results`` (see :func:`content`)."""
    (folder,) = runs_below(results)
    return content(folder)


def content(folder: Path) -> Found:
    """Return the content of a run without times and process ids. Of a damaged checkpoint it is the word "damaged"."""
    import torch

    status = status_of(folder)
    result: Found = {
        "files": sorted(str(path.relative_to(folder)) for path in folder.rglob("*")),
        "status": {name: value for name, value in status.items() if name not in ("process", "digest", "metrics")},
        "metrics": [
            json.loads(line) | {"seconds": None} for line in (folder / "metrics.jsonl").read_text().splitlines()
        ],
    }
    for path in (folder / "checkpoints").glob("*.pt"):
        try:
            result[path.name] = torch.load(path, map_location="cpu", weights_only=True)
            result[path.name].pop("clock", None)
            for name in ("metrics_bytes", "metrics_digest"):
                result[path.name].get("state", {}).pop(name, None)
        except Exception:  # damage raises many types of exceptions
            result[path.name] = "damaged"
    return result


def contents(results: Path) -> dict[str, Found]:
    """Return the content of each finished run, by its folder below ``results``, without files that may differ."""
    finished = [folder for folder in runs_below(results) if status_of(folder).get("status") == "finished"]
    may_differ = ("files", "previous.pt", "damaged.pt")
    return {
        str(folder.relative_to(results)): {
            name: value for name, value in content(folder).items() if name not in may_differ
        }
        for folder in finished
    }


def differences(a: Any, b: Any, place: str = "") -> list[str]:
    """Return a line for each place where two nested values differ in type, keys, layout or bits."""
    import torch

    if type(a) is not type(b):
        return [f"{place}: {type(a).__name__}, {type(b).__name__}"]
    if isinstance(a, torch.Tensor):
        same_layout = (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        return [] if same_layout and a.numpy().tobytes() == b.numpy().tobytes() else [f"{place}: the tensors differ"]
    if isinstance(a, dict) and a.keys() == b.keys():
        return [line for key in a for line in differences(a[key], b[key], f"{place}/{key}")]
    if isinstance(a, list | tuple) and len(a) == len(b):
        return [line for i in range(len(a)) for line in differences(a[i], b[i], f"{place}/{i}")]
    return [] if repr(a) == repr(b) else [f"{place}: {a!r:.200}, {b!r:.200}"]


# ------------------------------------------------------------------- commands that are done by copies of this process

Hook = Callable[[int], None]  # what a copy does with the descriptor of a file, before it is written through to the disk


@dataclass(eq=False)
class Copy:
    """A copy of this process that does a command.

    ``reading``: a pipe with a byte for each file that the copy wrote. ``writes``: the number of bytes that were read.
    """

    pid: int
    reading: int
    writes: int = 0

    def end(self) -> int:
        """Wait for the end of the copy and return its exit status, or minus the number of the signal that ended it."""
        while more := os.read(self.reading, 1 << 16):
            self.writes += len(more)
        os.close(self.reading)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self, number: int, delay_seconds: float) -> None:
        time.sleep(delay_seconds)
        os.kill(self.pid, number)


def start(words: Sequence[str], log: Path, hook: Hook | None = None, output: int = -1, stderr: bool = True) -> Copy:
    """Start ``python -m`` with these words in a copy of this process.

    ``output``: the descriptor to which it prints, by default the file ``log``. ``stderr``: whether standard error is
    open.
    """
    os.environ["OMP_WAIT_POLICY"] = "passive"  # idle threads do not spin: faster on a shared machine
    reading, writing = os.pipe()
    with log.open("ab") as file:
        pid = os.fork()
        if not pid:
            os.close(reading)
            for descriptor in (1, 2):
                os.dup2(file.fileno() if output < 0 else output, descriptor)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            if not stderr:
                os.close(2)
                sys.stderr = None  # type: ignore[assignment]  # as in a process that is started without it
            _be_copy(words, writing, hook)
    os.close(writing)
    return Copy(pid, reading)


def _be_copy(words: Sequence[str], writing: int, hook: Hook | None) -> NoReturn:
    status, original = 1, os.fsync

    def fsync(descriptor: int) -> None:
        os.write(writing, b".")
        if hook:
            hook(descriptor)
        original(descriptor)

    os.fsync = fsync  # type: ignore[assignment]
    try:
        sys.argv = list(words)
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:
        if sys.stderr is not None:
            traceback.print_exc()
            sys.stderr.flush()
    finally:
        os._exit(status)


def wait(copies: Sequence[Copy], target: Copy, writes: float) -> Copy | None:
    """Wait until ``target`` has written ``writes`` files, or one of the copies has ended, which is returned."""
    with selectors.DefaultSelector() as selector:
        for copy in copies:
            selector.register(copy.reading, selectors.EVENT_READ, copy)
        while target.writes < writes:
            for key, _ in selector.select():
                more = os.read(key.fd, 1 << 16)
                key.data.writes += len(more)
                if not more:
                    return key.data  # type: ignore[no-any-return]
    return None


def prepare(log: Path) -> None:
    """Import what the copies need, and find Hydra's plugins, which takes longer than a run."""
    from rmsexp import config

    config.job(["task=rnnsearch"])
    log.touch()


# ------------------------------------------------------------------------------------------------- one run: chaos

CHECKPOINT_EVERY = 10
# SHARES: how many of 20 kills hit each place. COUNTS: the copy is killed when it reaches its place for the n-th time,
# with n drawn between these numbers; for "start" and "random", soon after it has written n files.
SHARES = {"checkpoint": 3, "rename": 2, "metrics": 4, "start": 4}
COUNTS = {"checkpoint": (1, 2), "rename": (1, 2), "metrics": (3, 4), "start": (1, 4), "random": (8, 40)}


@dataclass(frozen=True)
class Kill:
    """A planned kill of a process: at which point, and when it is there for the ``count``-th time."""

    point: str
    count: int


def plan(kills: int, rng: random.Random) -> list[Kill]:
    """Draw ``kills`` kills in random order."""
    shares = [point for point, share in SHARES.items() for _ in range(share)]
    points = (shares + ["random"] * kills)[:kills] if kills >= len(shares) else rng.sample(shares, kills)
    rng.shuffle(points)
    return [Kill(point, rng.randint(*COUNTS[point])) for point in points]


def killing(kill: Kill) -> Hook:
    """Return the hook that kills its process while it writes a file, which is then half written."""
    remaining = kill.count

    def hook(descriptor: int) -> None:
        nonlocal remaining
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        checkpoints = path if path.is_dir() else path.parent
        if kill.point == "checkpoint":
            here = re.fullmatch(r"\.\w+\.pt\..+\.tmp", path.name) is not None
        elif kill.point == "metrics":
            here = path.name == "metrics.jsonl" and path.stat().st_size > 0
        else:  # last.pt has been renamed, and there is no new one yet
            here = (checkpoints / "previous.pt").exists() and not (checkpoints / "last.pt").exists()
        remaining -= here
        if here and remaining == 0:
            if kill.point == "checkpoint":
                os.truncate(path, path.stat().st_size // 2)
            elif kill.point == "metrics":  # the last line is half written
                data = path.read_bytes()
                os.truncate(path, (data[:-1].rfind(b"\n") + 1 + len(data)) // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


def kill_run(words: Sequence[str], log: Path, kill: Kill, rng: random.Random) -> int:
    """Do a run in a copy of this process that is killed as planned; return the copy's exit status."""
    by_hook = kill.point not in ("start", "random")
    copy = start(["rmsexp", *words], log, killing(kill) if by_hook else None)
    if not by_hook and wait([copy], copy, kill.count) is None:
        copy.kill(signal.SIGKILL, rng.uniform(0, 0.5))
    return copy.end()


def chaos(times: int, root: Path, rng: random.Random, words: Sequence[str]) -> Found:
    """Kill one run ``times`` times. The default norm is bn, whose running statistics are lost most easily."""
    log, steps = root / "log.txt", CHECKPOINT_EVERY * (times + 10)
    run = ["norm=bn", f"schedule.steps={steps}", f"checkpoint_every={CHECKPOINT_EVERY}", "log_every=5", "eval_every=20"]
    run += ["batch_size=20", "threads=1", *words]
    prepare(log)
    reference, killed = ([*run, f"results={root / name}"] for name in ("reference", "killed"))
    if start(["rmsexp", *reference], log).end():
        return {"kills": times, "errors": [f"the reference failed: see {log}"]}
    errors = []
    for number, kill in enumerate(plan(times, rng), 1):
        status = kill_run(killed, log, kill, rng)
        print(f"{number:4}  {kill.point:10}  {[*starts(root / 'killed').values()]}", flush=True)
        if status != -signal.SIGKILL:
            errors.append(f"kill {number} ({kill.point}) did not happen: the process ended with status {status}")
    if status := start(["rmsexp", *killed], log).end():
        return {"kills": times, "errors": [*errors, f"the last process failed with status {status}: see {log}"]}
    found = differences(*(run_content(root / name) for name in ("reference", "killed")))
    return {"kills": times, "errors": errors + found}


# ---------------------------------------------------------------------------------------------- a sweep: chaos_sweep

SIGNALS = {name: getattr(signal, name) for name in ("SIGKILL", "SIGTERM", "SIGHUP", "SIGINT")}
FILES = {  # fault -> files that it damages
    "checkpoint": "results/*/*/*/seed*/checkpoints/*.pt",
    "swap": "results/*/*/*/seed*/checkpoints/*.pt",
    "record": "results/*/*/*/seed*/*.*",
    "cache": "data/**/*.*",
}
WEIGHTS = {  # how often each fault comes; those that are no signal and damage no file happen in the process
    "SIGKILL": 16,
    "SIGTERM": 10,
    "SIGHUP": 8,
    "SIGINT": 6,
    "full disk": 16,
    "checkpoint": 16,
    "swap": 6,
    "record": 8,
    "cache": 8,
    "closed stderr": 3,
    "closed pipe": 4,
    "closed terminal": 4,
}
ERRORS = ("ENOSPC", "EDQUOT", "EIO", "EFBIG")
RUNS = ("norm=none,ln,rms,prms,bn,wn", "seed=0,1")  # twelve runs
FAULTS_PER_CYCLE = 10
WRITES = (5, 60)  # least and greatest number of files that a process writes before it is stopped
NOTHING = "nothing there yet"
# Reads lines from standard input and ends after some of them, so that whoever writes there gets an error.
LISTENER = "import os, sys; n = int(sys.argv[1])\nwhile n > 0: n -= max(os.read(0, 1000).count(b'\\n'), 1)"


@dataclass
class Report:
    """What happened: by fault, how its process ended; runs with the result of the reference, or failed; mistakes."""

    ends: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    identical: int = 0
    causes: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def write_text(folder: Path) -> None:
    """Write a small parallel corpus to files in ``folder``."""
    rng, words = random.Random(0), ("a man", "a dog", "sees", "the red", "ball", "in", "the house", "runs")
    folder.mkdir()
    for split, number in {"train": 200, "valid": 6, "test": 6}.items():
        lines = [" ".join(rng.choices(words, k=rng.randint(3, 6))) for _ in range(number)]
        for language, change in {"en": str, "de": str.title}.items():
            (folder / f"{split}.{language}").write_text("".join(f"{change(line)}\n" for line in lines))


def sweep_words(root: Path, text: Path, runs: Sequence[str]) -> list[str]:
    """Return the command line of the sweep, with results and data in ``root``. ``runs``: what is swept."""
    return [
        *("rmsexp", "-m", "task=rnnsearch", *runs, "schedule.steps=12", "log_every=2"),
        *("eval_every=6", "checkpoint_every=3", "threads=1", "batch_size=10", "pool=3", "model.embedding=8"),
        *("model.hidden=12", "decoding.max_length=6", "decoding.beam=2", "decoding.valid_beam=1", "data.name=files"),
        *(f"data.{split}={text / split}" for split in ("train", "valid", "test")),
        *("data.vocabulary=100", f"data.root={root / 'data'}", f"results={root / 'results'}"),
    ]


def failing(error: str, first: int, count: int) -> Hook:
    """Return the hook with which ``count`` writes fail with an error such as ENOSPC, from the ``first`` on."""
    remaining, failures = first, count

    def hook(_: int) -> None:
        nonlocal remaining, failures
        remaining -= 1
        if remaining < 0 < failures:
            failures -= 1
            number = getattr(errno, error)
            raise OSError(number, os.strerror(number))

    return hook


def launch(command: Sequence[str], log: Path, fault: str, rng: random.Random) -> str:
    """Do the sweep with a fault, and return how its process ended.

    ``fault``: the name of a signal; or what happens in the process, which is stopped later with SIGTERM; or "none".
    """
    hook = failing(rng.choice(ERRORS), rng.randint(1, 60), rng.randint(1, 6)) if fault == "full disk" else None
    output, listener = -1, None
    if fault in ("closed pipe", "closed terminal"):
        reading, output = os.pipe() if fault == "closed pipe" else pty.openpty()
        lines = str(rng.randint(1, 40))
        listener = subprocess.Popen([sys.executable, "-SEc", LISTENER, lines], stdin=reading)
        os.close(reading)
    copy = start(command, log, hook, output, fault != "closed stderr")
    if output >= 0:
        os.close(output)
    if fault != "none" and wait([copy], copy, rng.randint(*WRITES)) is None:
        copy.kill(SIGNALS.get(fault, signal.SIGTERM), rng.uniform(0, 0.1))
    status = copy.end()
    if listener is not None:
        listener.wait()
    return signal.Signals(-status).name if status < 0 else f"exit {status}"


def damage_files(fault: str, root: Path, rng: random.Random) -> str:
    """Damage a file, delete it, or put the same file of another run in its place. Return what was done.

    Files of finished runs are left alone: a sweep does not read them again.
    """
    finished = [path for path in runs_below(root / "results") if status_of(path).get("status") == "finished"]
    paths = [path for path in sorted(root.glob(FILES[fault])) if path.is_file()]
    chosen = [path for path in paths if not any(folder in path.parents for folder in finished)]
    if not chosen:
        return NOTHING
    path = rng.choice(chosen)
    others = [other for other in paths if other.name == path.name and other != path]
    if fault == "swap" and others:
        shutil.copyfile(rng.choice(others), path)
        return f"{path.relative_to(root)} of another run"
    if rng.random() < 0.2:
        path.unlink()
        return f"{path.relative_to(root)} deleted"
    path.write_bytes(damage.content(path.name, path.read_bytes(), rng))
    return f"{path.relative_to(root)} damaged"


def refusal(folder: Path) -> str | None:
    """Return the message with which a command that reads ``best.pt`` of a run refuses it; None if it does not."""
    command = [sys.executable, "-m", "rmsexp.translate", str(folder)]
    done = subprocess.run(command, input="a man\n", capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode == 1 and "Traceback" not in done.stderr else None


def check(root: Path, reference: Mapping[str, Found], command: Sequence[str], log: Path, report: Report) -> None:
    """Repeat the sweep until all runs have finished, and compare them with the reference.

    A run that does not finish must be named in what the sweep prints, with a cause. It is moved aside. A best
    checkpoint that was damaged must be refused when it is read; training only writes it.
    """
    results = root / "results"
    for _ in range(REPAIRS):
        size = log.stat().st_size
        launch(command, log, "none", random.Random(0))
        printed = log.read_bytes()[size:].decode(errors="replace")
        found = contents(results)
        for folder in reference.keys() - found.keys():
            name = "/".join(Path(folder).parts[-2:])  # a message can lack the middle of a long path
            cause = re.search(rf"^.*(?<!\w){re.escape(name)}\b.*$", printed, re.MULTILINE)
            if cause is None:
                report.errors.append(f"lost: {folder} did not finish, and no message says why")
            else:
                report.causes.append(cause[0].replace(f"{root}/", ""))
            if (results / folder).exists():
                (results / folder).rename(results / f"{folder}.old{time.time_ns()}")
        if found.keys() >= reference.keys():
            break
    for folder, expected in reference.items():
        run = found.get(folder, {})
        changed = run and differences(expected.get("best.pt"), run.get("best.pt"))
        if changed and (message := refusal(results / folder)):
            report.causes.append(message.replace(f"{root}/", ""))
            run["best.pt"] = expected["best.pt"]
        different = differences(expected, run) if run else ["it did not finish"]
        report.identical += not different
        report.errors += [f"different: {folder}: {line}" for line in different[:1]]


def disturb_sweep(times: int, root: Path, rng: random.Random, runs: Sequence[str] = RUNS) -> Report:
    """Do the sweep ``runs`` without faults, then with ``times`` faults in cycles; print a line for each fault."""
    report, log, text, disturbed = Report(), root / "log.txt", root / "text", root / "disturbed"
    prepare(log)
    write_text(text)
    end = launch(sweep_words(root / "reference", text, runs), log, "none", rng)
    reference = contents(root / "reference" / "results")
    if end != "exit 0" or not reference:  # nothing to compare with
        report.errors.append(f"the sweep without faults ended with {end}; see {log}")
        return report
    command, number = sweep_words(disturbed, text, runs), 0
    while number < times:
        shutil.rmtree(disturbed, ignore_errors=True)
        for _ in range(min(FAULTS_PER_CYCLE, times - number)):
            number, done = number + 1, NOTHING
            while done == NOTHING:
                (fault,) = rng.choices(list(WEIGHTS), WEIGHTS.values())
                done = damage_files(fault, disturbed, rng) if fault in FILES else ""
            end = launch(command, log, fault, rng)
            report.ends[fault][end] += 1
            print(f"{number:4}  {fault:16} {end:10}  {done}", flush=True)
            if end == "exit 0":
                break  # all runs have finished
        errors = len(report.errors)
        check(disturbed, reference, command, log, report)
        print(f"      {report.identical} runs identical, {len(report.causes)} failures named", *report.errors, sep="\n")
        if len(report.errors) > errors:
            shutil.copytree(disturbed, root / f"kept{number}")
    return report


def table(ends: Mapping[str, Mapping[str, int]]) -> str:
    """Return a Markdown table with a row per fault: how often it came, how the processes ended (``Report.ends``)."""
    rows = ["| fault | times | processes ended with |", "| --- | --- | --- |"]
    for fault, counts in ends.items():
        listed = ", ".join(f"{end} ({count})" for end, count in Counter(counts).most_common())
        rows.append(f"| {fault} | {sum(counts.values())} | {listed} |")
    return "\n".join(rows)


def chaos_sweep(times: int, root: Path, rng: random.Random, words: Sequence[str]) -> Found:
    """Disturb a sweep and print what happened, with the causes of runs that failed and were done anew."""
    report = disturb_sweep(times, root, rng, words or RUNS)
    print(table({fault: report.ends[fault] for fault in WEIGHTS}))
    for cause, count in Counter(re.sub(r"\d+", "N", cause) for cause in report.causes).most_common():
        print(f"{count:4}  {cause[:300]}")
    return {"faults": times} | vars(report) | {"ends": {fault: dict(ends) for fault, ends in report.ends.items()}}


# -------------------------------------------------------------------------------------- a campaign: campaign_kills

NAME = "kills"
CAMPAIGN = {
    "question": "Does RMSNorm equal LayerNorm, also if workers are killed?",
    "runs": {
        "task": "order_embedding",
        "scale": "demo",
        "model.hidden": 8,
        "model.embedding": 8,
        "batch_size": 8,
        "schedule.steps": 20,
        "data.valid_images": 20,
        "log_every": 5,
        "checkpoint_every": 4,
    },
    "norms": ["ln", "rms"],
    "pilot": {"rate": 0.002},
    "tune": {"over": {"optim.lr": [0.001, 0.002, 0.004]}},
    "final": {"seeds": {"look": 3, "most": 4}},
    "claims": [{"claim": "RMSNorm equals LayerNorm", "test": "equivalence", "a": "rms", "b": "ln", "margin": 5}],
}
EVENTS = (5, 90)  # a worker is killed after it has written a number of files between these, drawn at random


def work(argv: Sequence[str], log: Path, workers: int, kills: int, rng: random.Random) -> tuple[int, list[int]]:
    """Do a campaign with some workers, of which one is killed and replaced ``kills`` times.

    Return how many kills there were, and the exit statuses of the workers that were not killed.
    """
    copies, killed, statuses = [start(argv, log) for _ in range(workers)], 0, list[int]()
    while copies:
        target = rng.choice(copies)
        ended = wait(copies, target, target.writes + rng.randint(*EVENTS) if killed < kills else float("inf"))
        if ended is not None:
            copies.remove(ended)
            statuses.append(ended.end())
            continue
        target.kill(signal.SIGKILL, rng.uniform(0, 0.05))
        killed += target.end() == -signal.SIGKILL
        print(f"{killed:4}  worker {target.pid} killed", flush=True)
        copies[copies.index(target)] = start(argv, log)
    return killed, statuses


def campaign_content(results: Path) -> Found:
    """Return what a campaign has written, without times and process ids, and the verdicts of its report."""
    (path,) = results.glob("campaigns/*/campaign.json")
    planned, registered = (json.loads(file.read_text()) for file in (path, path.with_name("registered.json")))
    del planned["registered"]["date"], registered["date"]
    report = results.parent / "report"
    subprocess.run([sys.executable, "-m", "rmsexp.report", results, "--out", report], check=True, capture_output=True)
    with (report / "verdicts.csv").open() as file:
        verdicts = [{name: value for name, value in row.items() if name != "root"} for row in csv.DictReader(file)]
    statuses = {str(folder.relative_to(results)): status_of(folder).get("status") for folder in runs_below(results)}
    return {
        "plan": planned,
        "registered": registered,
        "verdicts": verdicts,
        "runs": contents(results),
        "not ended": [run for run, status in statuses.items() if status not in ("finished", "diverged")],
        "no job": sorted(statuses.keys() - {job["folder"] for job in planned["jobs"]}),
    }


def campaign_kills(times: int, root: Path, rng: random.Random, words: Sequence[str]) -> Found:
    """Kill one of two workers ``times`` times. A run has one session, and one more per kill that interrupted it."""
    log, path = root / "log.txt", root / "configs" / "campaign" / f"{NAME}.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(CAMPAIGN))
    prepare(log)
    errors: list[str] = []
    killed = 0
    results = {name: root / name / "results" for name in ("undisturbed", "killed")}
    sessions: list[dict[str, list[int]]] = []
    for name, workers, kills in (("undisturbed", 1, 0), ("killed", 2, times), ("killed", 1, 0)):
        argv = ["rmsexp.campaign", NAME, "--config-dir", str(root / "configs"), f"results={results[name]}", *words]
        happened, statuses = work(argv, log, workers, kills, rng)
        killed += happened
        sessions.append(starts(results[name]))
        errors += [f"{name}: a worker ended with status {status}; see {log}" for status in statuses if status]
    if killed < times:
        errors.append(f"only {killed} kills happened; make the campaign longer, for example by final.min_seeds=6")
    if sessions[2] != sessions[1]:
        errors.append("the command, typed again, trained")
    if (more := sum(map(len, sessions[1].values())) - len(sessions[1])) > killed:
        errors.append(f"runs were continued {more} times after {killed} kills")
    errors += not_continued(results["killed"])
    found = differences(*(campaign_content(folder) for folder in results.values())) if not errors else []
    return {"kills": times, "errors": errors + found}


# ---------------------------------------------------------------------------------- jobs of submitit: preempted_sweep

STEPS = 300
JOBS = (
    *("task=order_embedding", "model.hidden=8", "model.embedding=8", "batch_size=8", "data.valid_images=20"),
    *(f"schedule.steps={STEPS}", "eval_every=100", f"checkpoint_every={STEPS}", "log_every=5", "threads=1"),
)
NORMS, SEEDS = ("none", "ln", "rms", "prms"), (0, 1, 2)
SWEPT = (f"norm={','.join(NORMS)}", f"seed={','.join(map(str, SEEDS))}")
FIRST, LAST = 5, STEPS - 100  # the least and greatest step at which a run gets a signal


def typed(words: Sequence[str], results: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start ``python -m`` with these words in a new process that prints to the file ``log``."""
    os.environ["OMP_WAIT_POLICY"] = "passive"  # idle threads do not spin: faster on a shared machine
    with log.open("ab") as file:
        return subprocess.Popen([sys.executable, "-m", *words, f"results={results}"], stdout=file, stderr=file)


def moments(kills: int, rng: random.Random) -> dict[str, list[tuple[signal.Signals, int]]]:
    """Return the signals that each run gets, and the step after which each comes. ``kills``: runs with SIGKILL, too."""
    runs = [f"{norm}/seed{seed}" for norm, seed in itertools.product(NORMS, SEEDS)]
    killed = rng.sample(runs, kills)
    steps = {run: sorted(rng.sample(range(FIRST, LAST), 1 + (run in killed))) for run in runs}
    return {run: list(zip((signal.SIGUSR2, signal.SIGKILL), steps[run], strict=False)) for run in runs}


def lost_steps(sessions: Mapping[str, list[int]], reached: Mapping[str, int]) -> list[str]:
    """Return a line for each run that was not continued exactly once, or from a step before SIGUSR2 came.

    ``reached``: the last recorded step of each run, named NORM/SEED, when SIGUSR2 came.
    """
    lines = []
    for run, steps in sessions.items():
        least = max(FIRST, reached.get("/".join(run.split("/")[-2:]), 0))
        if not (len(steps) == 2 and steps[0] == 0 and least <= steps[1] < STEPS):
            lines.append(f"{run}: its sessions begin at steps {steps}; SIGUSR2 came after {least}")
    return lines


def preempted_sweep(times: int, root: Path, rng: random.Random, words: Sequence[str]) -> Found:
    """Send SIGUSR2 to twelve jobs, as SLURM does before it takes a node away, and SIGKILL to ``times`` of them."""
    log, results, undisturbed = root / "log.txt", root / "preempted", root / "undisturbed"
    asked, waiting, reached = ["rmsexp", "-m", *JOBS, *SWEPT, *words], moments(times, rng), dict[str, int]()
    if status := typed(asked, undisturbed, log).wait():
        return {"runs": 0, "kills": times, "errors": [f"the undisturbed sweep ended with {status}; see {log}"]}
    launched = [*asked, "hydra/launcher=submitit_local"]
    first = typed(launched, results, log)
    while first.poll() is None:
        time.sleep(POLL_SECONDS)
        for folder, (process, step) in running(results).items():
            run = f"{folder.parent.name}/{folder.name}"
            if waiting[run] and step >= waiting[run][0][1]:
                number, _ = waiting[run].pop(0)
                reached.setdefault(run, step)  # before SIGUSR2, the first signal
                with suppress(ProcessLookupError):
                    os.kill(process, number)
                print(f"{number.name:8} after step {step} or later: {run}", flush=True)
    errors = [f"{run} ended before {left}" for run, left in waiting.items() if left]
    while any(Path(f"/proc/{process}").exists() for process, _ in running(results).values()):  # jobs that go on
        time.sleep(POLL_SECONDS)
    second = typed(launched, results, log).wait()
    if (bool(first.returncode), second) != (times > 0, 0):
        errors.append(f"the exit statuses are {first.returncode} and {second}; see {log}")
    expected, found = contents(undisturbed), contents(results)
    errors += [*lost_steps(starts(results), reached), *differences(expected, found)]
    return {"runs": len(expected), "kills": times, "errors": errors}


# ------------------------------------------------------------------------------------- nodes of Ray: ray_node_lost

CORES = 2  # of each node
EVERY = 20  # steps from one checkpoint to the next
ITEM = {  # a table that needs these runs
    "title": "Twelve runs",
    "caption": "Those of preempted_sweep, with checkpoints on their way.",
    "seeds": list(SEEDS),
    "groups": [{"runs": {"task": "order_embedding"}, "norms": dict(zip(NORMS, NORMS, strict=True))}],
    "columns": [{"heading": "Recall", "quantity": "valid image_recall"}],
}


def node_of(process: int, nodes: Sequence[int]) -> int | None:
    """Return the number of the node, 1 or 2, that has a process; None if it has ended. ``nodes``: their raylets."""
    import psutil

    with suppress(psutil.NoSuchProcess):
        parents = [parent.pid for parent in psutil.Process(process).parents()]
        return next((number for number, node in enumerate(nodes, 1) if node in parents), None)
    return None


def ray_node_lost(times: int, root: Path, rng: random.Random, words: Sequence[str]) -> Found:  # noqa: ARG001
    """Do twelve runs on two nodes on this machine, and remove node 2 when each of its cores is in the middle of a run.

    Ray's workers on it end without warning. Node 1 must continue their runs from the last checkpoints.
    """
    import psutil
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    log, path = root / "log.txt", root / "configs" / "item" / "twelve_runs.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(ITEM))
    task, *of_runs = (*JOBS, f"checkpoint_every={EVERY}", *words)  # of two words with one key the last counts
    undisturbed, results = root / "undisturbed", root / "on two nodes"
    found: Found = {"nodes": 2, "cores": CORES, "runs": len(NORMS) * len(SEEDS), "ended": 0, "lost": {}}
    if status := typed(["rmsexp", "-m", task, *SWEPT, *of_runs], undisturbed, log).wait():
        return found | {"errors": [f"the undisturbed sweep ended with status {status}; see {log}"]}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": CORES, "include_dashboard": False})
    second = cluster.add_node(num_cpus=CORES)
    raylets = [node.all_processes["raylet"][0].process.pid for node in (cluster.head_node, second)]
    places: defaultdict[str, dict[int, int]] = defaultdict(dict)  # of each run: process -> number of its node
    command = ["rmsexp.campaign", "twelve_runs", "--config-dir", str(root / "configs"), *of_runs]
    ray = "hydra.launcher.ray.init"
    launcher = ["hydra/launcher=ray", f"{ray}.address={cluster.address}", f"+{ray}.object_store_memory=null"]
    campaign = typed([*command, "--jobs", str(2 * CORES), *launcher], results, log)
    try:
        while campaign.poll() is None:
            time.sleep(POLL_SECONDS)
            there: dict[str, int] = {}  # steps of the runs on node 2
            for folder, (process, step) in running(results).items():
                run = str(folder.relative_to(results))
                if node := places[run].get(process) or node_of(process, raylets):
                    places[run][process] = node
                    there |= {run: step} if node == 2 else {}
            ended = sum(status_of(folder).get("status") == "finished" for folder in runs_below(results))
            middle = [step for step in there.values() if EVERY < step <= STEPS - 2 * EVERY]
            if not found["lost"] and 3 * ended >= found["runs"] and len(middle) == CORES:
                found |= {"ended": ended, "lost": there}
                workers = psutil.Process(raylets[1]).children(recursive=True)
                cluster.remove_node(second, allow_graceful=False)
                for worker in workers:
                    with suppress(psutil.NoSuchProcess):
                        worker.kill()
                print(f"node 2 is removed: {ended} runs have ended, its own are at {[*there.values()]}", flush=True)
    finally:
        cluster.shutdown()
    sessions = starts(results)
    found |= {"places": {run: [*nodes.values()] for run, nodes in sorted(places.items())}, "sessions": sessions}
    errors = [] if found["lost"] else ["no node was removed, because node 2 was never in the middle of two runs"]
    errors += [f"the command ended with status {campaign.returncode}; see {log}"] if campaign.returncode else []
    errors += not_from_a_checkpoint(found["lost"], sessions, found["places"])
    errors += [*not_continued(results), *differences(contents(undisturbed), contents(results))]
    return found | {"errors": errors}


def not_from_a_checkpoint(
    lost: Mapping[str, int], sessions: Mapping[str, list[int]], places: Mapping[str, list[int]]
) -> list[str]:
    """Return a line for each run of the lost node that was not continued by the other one from a checkpoint."""
    return [
        f"{run}: its sessions begin at steps {sessions[run]}, on nodes {places[run]}"
        for run in lost
        if len(sessions[run]) != 2 or sessions[run][1] not in range(EVERY, STEPS, EVERY) or places[run] != [2, 1]
    ]


# ------------------------------------------------------------------------------------------------------ the command

Part = Callable[[int, Path, random.Random, Sequence[str]], Found]
PARTS: dict[str, tuple[Part, int]] = {  # with the number of times
    "chaos": (chaos, 20),
    "chaos_sweep": (chaos_sweep, 20),
    "campaign_kills": (campaign_kills, 10),
    "preempted_sweep": (preempted_sweep, 2),
    "ray_node_lost": (ray_node_lost, 1),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--times", type=at_least(0), help="how often the runs are disturbed")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments (0)")
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="changes of the runs")
    add_option(parser, None)
    options = parser.parse_args()
    part, times = PARTS[options.part]
    if options.part == "ray_node_lost" and importlib.util.find_spec("ray") is None:
        parser.error("ray_node_lost needs Ray: pip install -e '.[ray]'")
    record = Check(options.part, options.results)
    began, root = time.monotonic(), Path(tempfile.mkdtemp(prefix="rmsexp-disturb-"))
    times = times if options.times is None else options.times
    found = part(times, root, random.Random(options.seed), options.words)
    print("\n".join(found["errors"]) or "nothing was lost, repeated or different")
    seconds = time.monotonic() - began
    print(f"{seconds:.0f} s ({root})")
    record.write(found | {"seconds": seconds})
    return 1 if found["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
