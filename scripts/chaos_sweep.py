"""Disturb a sweep of runs again and again, and check that each run ends as in an undisturbed sweep, or says why not.

This is ``python scripts/chaos.py --sweep``. The sweep trains small translation models, whose subwords and encoded text
are cached. Faults come in cycles. After each cycle the sweep is repeated without faults. A run that fails then must
name the cause; it is moved aside, as ``force=true`` does, and done anew.
"""

from __future__ import annotations

import errno
import os
import pty
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzzing import damage

from rmsexp.records import record

SIGNALS = {name: getattr(signal, name) for name in ("SIGKILL", "SIGTERM", "SIGHUP", "SIGINT")}
FILES = {  # fault -> files that it damages
    "checkpoint": "results/*/*/*/seed*/checkpoints/*.pt",
    "swap": "results/*/*/*/seed*/checkpoints/*.pt",
    "record": "results/*/*/*/seed*/[a-z]*.[jy]*",
    "cache": "data/[st]*/*/*",
}
NOTHING = "nothing there yet"
WEIGHTS = {  # how often a fault is drawn, relative to the others
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
STEPS = (3, 30)  # least and greatest number of steps, warm-up included, after which a process is stopped
REPAIRS = 3  # repetitions of an undisturbed sweep in which failed runs are moved aside and done anew
# Reads lines from standard input and ends after some of them, so that whoever writes there gets an error.
LISTENER = "import os, sys; n = int(sys.argv[1])\nwhile n > 0: n -= max(os.read(0, 1000).count(b'\\n'), 1)"


@dataclass
class Report:
    """What happened: by fault, how its process ended; runs with the result of the reference, or failed; mistakes."""

    ends: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    identical: int = 0
    causes: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def content(self) -> dict[str, Any]:
        """Return the report for a record, as JSON can store it."""
        return vars(self) | {"ends": {fault: dict(ends) for fault, ends in self.ends.items()}}


@dataclass(frozen=True)
class End:
    """How a process of the sweep ended: its exit status, and the number of steps that it computed."""

    status: int
    steps: int

    def __str__(self) -> str:
        return signal.Signals(-self.status).name if self.status < 0 else f"exit {self.status}"


def write_text(folder: Path) -> None:
    """Write a small parallel corpus to files in ``folder``."""
    from rmsexp.data.synthetic import phrases

    folder.mkdir()
    corpus = phrases.phrases(200, 6, 6)
    for split in corpus.splits:
        for language, lines in zip(("en", "de"), corpus.text(split), strict=True):
            (folder / f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines))


def words(root: Path, text: Path, runs: Sequence[str]) -> list[str]:
    """Return the command line of the sweep, with results and data in ``root``. ``runs``: what is swept."""
    return [
        *("-m", "task=rnnsearch", *runs, "schedule.steps=12", "log_every=2"),
        *("eval_every=6", "checkpoint_every=3", "threads=1", "batch_size=10", "pool=3", "model.embedding=8"),
        *("model.hidden=12", "decoding.max_length=6", "decoding.beam=2", "decoding.valid_beam=1", "data.name=files"),
        *(f"data.{split}={text / split}" for split in ("train", "valid", "test")),
        *("data.vocabulary=200", f"data.root={root / 'data'}", f"results={root / 'results'}"),
    ]


def launch(command: Sequence[str], log: Path, fault: str, rng: random.Random) -> End:
    """Run the sweep in a child of this process, with the fault ``fault``; after some steps, stop it with a signal.

    ``fault``: the name of a signal; or what happens in the child, which is stopped later with SIGTERM; "none": the
    child is not disturbed. A child is a copy of this process, because starting Python and importing PyTorch takes
    longer than the steps.
    """
    errors = (rng.choice(ERRORS), rng.randint(1, 60), rng.randint(1, 6)) if fault == "full disk" else ("ENOSPC", 0, 0)
    limit = rng.randint(*STEPS) if fault != "none" else sys.maxsize
    reading, writing = os.pipe()
    with log.open("ab") as file:
        display, listener = _display(fault, file.fileno(), rng)
        child = os.fork()
        if not child:
            status = 1
            try:
                os.close(reading)
                _set_streams(display, fault == "closed stderr")
                status = be_child(writing, *errors, command)
            except SystemExit as end:  # a signal stopped the sweep
                status = int(end.code or 0)
            except Exception:
                if sys.stderr is not None:  # it may have been closed on purpose
                    traceback.print_exc()
            finally:
                os._exit(status)
        if display != file.fileno():
            os.close(display)
    os.close(writing)
    steps = 0
    with os.fdopen(reading) as lines:
        for _ in lines:
            steps += 1
            if steps == limit:
                time.sleep(rng.uniform(0, 0.1))
                os.kill(child, SIGNALS.get(fault, signal.SIGTERM))
    _, status = os.waitpid(child, 0)
    if listener is not None:
        listener.wait()
    return End(os.waitstatus_to_exitcode(status), steps)


def _display(fault: str, log: int, rng: random.Random) -> tuple[int, subprocess.Popen[bytes] | None]:
    """Return the descriptor to which a child prints, and the process that reads what it prints (None: the log)."""
    if fault not in ("closed pipe", "closed terminal"):
        return log, None
    reading, writing = os.pipe() if fault == "closed pipe" else pty.openpty()
    lines = str(rng.randint(1, 40))
    listener = subprocess.Popen([sys.executable, "-SEc", LISTENER, lines], stdin=reading)
    os.close(reading)
    return writing, listener


def _set_streams(display: int, close_stderr: bool) -> None:
    """Make ``display`` the standard output and standard error of this process; standard error can be closed."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(display, 1)
    os.dup2(display, 2)
    if close_stderr:
        os.close(2)
        sys.stderr = None  # type: ignore[assignment]  # as in a process that is started without it


def be_child(descriptor: int, error: str, first: int, count: int, command: Sequence[str]) -> int:
    """Run the command line, write a line for each step to ``descriptor``, and return the exit status.

    From the ``first`` time on that the process waits for a file to be written through to the disk, ``count`` such calls
    fail with the error ``error``, such as ENOSPC.
    """
    from rmsexp.commands import outcomes, run
    from rmsexp.train import loop

    remaining, failures = first, count
    original_fsync, original_update = os.fsync, loop.Trainer._update

    def fsync(file: int) -> None:
        nonlocal remaining, failures
        remaining -= 1
        if remaining < 0 < failures:
            failures -= 1
            number = getattr(errno, error)
            raise OSError(number, os.strerror(number))
        original_fsync(file)

    def update(self: loop.Trainer, *arguments: Any) -> Any:
        os.write(descriptor, b"step\n")
        return original_update(self, *arguments)

    os.fsync = fsync  # type: ignore[assignment]
    loop.Trainer._update = update  # type: ignore[method-assign]
    outcomes.draw = lambda _: None  # figures take longer than these runs
    return run.main(command)


def damage_files(fault: str, root: Path, rng: random.Random) -> str:
    """Damage a file, delete it, or put the same file of another run in its place. Return what was done.

    Files of finished runs are left alone: a sweep does not read them again.
    """
    finished = [str(folder) for folder in record.find_runs(root / "results") if _is_finished(folder)]
    paths = [path for path in sorted(root.glob(FILES[fault])) if path.is_file()]
    chosen = [path for path in paths if not str(path).startswith(tuple(finished))]
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


def _is_finished(folder: Path) -> bool:
    try:
        return record.RunFolder(folder).read_status()["status"] == "finished"
    except (OSError, ValueError, KeyError):
        return False


def contents(root: Path) -> dict[str, dict[str, Any]]:
    """Return the content of each finished run below ``root``, by its folder, without files that may differ."""
    import chaos

    results = {}
    for folder in filter(_is_finished, record.find_runs(root / "results")):
        content = chaos.content(record.RunFolder(folder))
        results[str(folder.relative_to(root))] = {
            name: value for name, value in content.items() if name not in ("files", "previous.pt", "damaged.pt")
        }
    return results


def refusal(folder: Path) -> str | None:
    """Return why ``best.pt`` of a run is refused whenever it is read, or None if it is not. A run goes on anyway."""
    from rmsexp import config
    from rmsexp.system.readers import read_yaml
    from rmsexp.train import checkpoint

    files = record.RunFolder(folder)
    resolved = read_yaml(files.config_path)
    identity = checkpoint.Identity(resolved["seed"], config.digest(resolved), files.read_run()["dataset"]["digest"])
    try:
        checkpoint.read(files.checkpoints / checkpoint.BEST, identity)
    except checkpoint.CheckpointError as error:
        return str(error)
    return None


def check(root: Path, reference: dict[str, dict[str, Any]], command: Sequence[str], log: Path, report: Report) -> None:
    """Repeat the sweep until all runs have finished, and compare them with the reference.

    A run that does not finish must be named in what the sweep prints, with a cause. It is moved aside. A best
    checkpoint that was damaged must be refused when it is read.
    """
    import chaos

    rng = random.Random(0)
    for _ in range(REPAIRS):
        size = log.stat().st_size
        launch(command, log, "none", rng)
        printed = log.read_bytes()[size:].decode(errors="replace")
        results = contents(root)
        for folder in reference.keys() - results.keys():
            name = "/".join(Path(folder).parts[-2:])  # a message can lack the middle of a long path
            cause = re.search(rf"^.*(?<!\w){re.escape(name)}\b.*$", printed, re.MULTILINE)
            if cause is None:
                report.errors.append(f"lost: {folder} did not finish, and no message says why")
            else:
                report.causes.append(cause[0].replace(f"{root}/", ""))
            record.RunFolder(root / folder).move_aside()
        if results.keys() >= reference.keys():
            break
    for folder, content in reference.items():
        found = results.get(folder, {})
        changed = found and chaos.differences(content.get("best.pt"), found.get("best.pt"))
        if changed and (cause := refusal(root / folder)):
            report.causes.append(cause.replace(f"{root}/", ""))
            found["best.pt"] = content["best.pt"]
        different = chaos.differences(content, found) if found else ["it did not finish"]
        report.identical += not different
        report.errors += [f"different: {folder}: {line}" for line in different[:1]]


def disturb(faults: int, root: Path, seed: int, runs: Sequence[str] = RUNS) -> Report:
    """Do the sweep ``runs`` without faults, then with ``faults`` faults; print a line for each. ``root``: a folder."""
    from rmsexp import config

    rng, report, log = random.Random(seed), Report(), root / "log.txt"
    os.environ["OMP_WAIT_POLICY"] = "passive"  # idle threads do not spin: faster on a shared machine
    config.job(["task=rnnsearch"])  # imports what the children need, and finds Hydra's plugins
    write_text(root / "text")
    undisturbed = launch(words(root / "reference", root / "text", runs), log, "none", rng)
    print(f"undisturbed: {undisturbed}", flush=True)
    reference = contents(root / "reference")
    if undisturbed.status or not reference:  # nothing to compare with
        report.errors.append(f"the sweep without faults ended with {undisturbed}; see {log}")
        return report
    disturbed, number = root / "disturbed", 0
    command = words(disturbed, root / "text", runs)
    while number < faults:
        shutil.rmtree(disturbed, ignore_errors=True)
        for _ in range(min(FAULTS_PER_CYCLE, faults - number)):
            number += 1
            done = NOTHING
            while done == NOTHING:
                (fault,) = rng.choices(list(WEIGHTS), WEIGHTS.values())
                done = damage_files(fault, disturbed, rng) if fault in FILES else ""
            end = launch(command, log, fault, rng)
            report.ends[fault][str(end)] += 1
            print(f"{number:4}  {fault:16} {end!s:10} after {end.steps:3} steps  {done}", flush=True)
            if end.status == 0:
                break  # all runs have finished
        before = report.identical, len(report.causes), len(report.errors)
        check(disturbed, reference, command, log, report)
        identical, causes, errors = (
            now - then
            for now, then in zip((report.identical, len(report.causes), len(report.errors)), before, strict=True)
        )
        print(
            f"      {identical} of {len(reference)} runs identical, {causes} failures named, {errors} errors",
            flush=True,
        )
        if errors:
            shutil.copytree(disturbed, root / f"kept{number}")
    return report


def table(ends: Mapping[str, Mapping[str, int]]) -> str:
    """Return a Markdown table with a row per fault: how often it came, how the processes ended (``Report.ends``)."""
    rows = ["| fault | times | processes ended with |", "| --- | --- | --- |"]
    for fault, counts in ends.items():
        listed = ", ".join(f"{end} ({count})" for end, count in Counter(counts).most_common())
        rows.append(f"| {fault} | {sum(counts.values())} | {listed} |")
    return "\n".join(rows)


def disturb_and_report(faults: int, root: Path, seed: int) -> Report:
    """Disturb a sweep, print what happened, and return it."""
    report = disturb(faults, root, seed)
    print(table({fault: report.ends[fault] for fault in WEIGHTS}))
    print(f"{report.identical} runs ended as in the undisturbed sweep; failures of runs that were then done anew:")
    for cause, count in Counter(re.sub(r"\d+", "N", cause) for cause in report.causes).most_common():
        print(f"{count:4}  {cause[:300]}")
    print("\n".join(report.errors) or "no run was lost, none was silently different")
    return report
