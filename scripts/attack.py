"""Disturb runs, reports and preparations in ways that happen, and count what goes wrong.

    python scripts/attack.py [PART ...] [--python PYTHON] [--results DIR]

Parts: signals, disk, readonly, umask, users, ranks, prepare, prompts; all by default. ``disk`` mounts small file
systems, and ``readonly`` and ``users`` act as the user ``nobody``, so they need root. Each case disturbs a command and
then repeats it undisturbed. It is counted as

wrong       a result that differs from the undisturbed one, without a word
lost        something that was finished before is gone
hang        a command ran longer than ``LIMIT`` seconds
traceback   a command printed one
other       an expectation of the case failed, such as a status or a message

scripts/fuzz.py (damaged files), disturb.py (a run, a sweep, a campaign) and sanitize.py (C++) disturb in other ways.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from check_record import Check, add_option

LIMIT = 120.0
NOBODY = 65534
RUN = (
    *("task=order_embedding", "scale=demo", "model.hidden=8", "model.embedding=8", "batch_size=8", "norm=rms"),
    *(
        "schedule.steps=200",
        "data.valid_images=20",
        "log_every=10",
        "eval_every=50",
        "checkpoint_every=10",
        "threads=1",
    ),
)
TEXT = ("task=language_model", "scale=demo", "max_steps=20", "threads=1")
TRANSLATOR = ("task=transformer", "scale=demo", "max_steps=20", "threads=1")
SIGNALS = ("INT", "TERM", "HUP", "QUIT", "USR1", "ALRM", "PIPE", "XCPU", "KILL")
KILLS = 10
# torchrun's own traceback when a process of its has failed, which is none of the package's
OF_TORCHRUN = re.compile(r"Traceback .*\n(?:  .*\n)+torch\.distributed\.elastic\..*ChildFailedError")
DISKS = (8, 16, 32, 64, 96, 128, 256)  # kilobytes


@dataclass
class Tally:
    """What happened: the number of cases by part, and of faults by part and kind, with a line for each fault."""

    cases: Counter[str] = field(default_factory=Counter)
    faults: Counter[tuple[str, str]] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)

    def case(self, part: str) -> None:
        self.cases[part] += 1

    def fault(self, part: str, kind: str, what: str) -> None:
        self.faults[part, kind] += 1
        self.lines.append(f"{part}: {kind}: {what}")
        print(self.lines[-1], flush=True)


class Attack:
    """The commands of all parts. ``python``: that of the package. ``folder``: for everything that is written."""

    def __init__(self, python: str, folder: Path) -> None:
        self.python, self.folder, self.tally, self.rng = python, folder, Tally(), random.Random(0)
        folder.chmod(0o755)

    def start(self, words: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
        return subprocess.Popen([self.python, "-m", *words], **(pipes | options))

    def end(self, part: str, process: subprocess.Popen[str], what: str, text: str | None = None) -> tuple[int, str]:
        """Wait for a command; return its status and what it printed."""
        try:
            shown, _ = process.communicate(text, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            shown, _ = process.communicate()
            self.tally.fault(part, "hang", what)
        if "Traceback" in OF_TORCHRUN.sub("", shown):
            self.tally.fault(part, "traceback", f"{what}: {shown.strip().splitlines()[-1][:200]}")
        return process.returncode, shown

    def do(
        self, part: str, words: Sequence[str], what: str, text: str | None = None, **options: Any
    ) -> tuple[int, str]:
        stdin = {"stdin": subprocess.PIPE} if text is not None else {}
        return self.end(part, self.start(words, **stdin, **options), what, text)

    def train(self, part: str, results: Path, *words: str, what: str = "a run", **options: Any) -> tuple[int, str]:
        return self.do(part, ["rmsexp", *RUN, f"results={results}", *words], what, **options)

    def reference(self) -> dict[str, Any]:
        results = self.folder / "reference"
        if not results.exists():
            status, shown = self.train("reference", results)
            assert status == 0, shown
        return outcome(results)

    def same(self, part: str, results: Path, what: str) -> None:
        """Check that the run in ``results`` ended as the undisturbed one."""
        if outcome(results) != self.reference():
            self.tally.fault(part, "wrong", f"{what}: the run differs from the undisturbed one")

    def signals(self) -> None:
        """A signal at a random moment of a run; then the same command again."""
        self.reference()
        for name in SIGNALS:
            for number in range(3):
                self.tally.case("signals")
                results, what = self.folder / f"signal-{name}-{number}", f"SIG{name} {number}"
                process = self.start(["rmsexp", *RUN, f"results={results}"])
                when = self.rng.uniform(0.5, 6.0)
                try:
                    process.wait(when)
                except subprocess.TimeoutExpired:
                    process.send_signal(getattr(signal, f"SIG{name}"))
                status, _ = self.end("signals", process, what)
                ended = [
                    path
                    for path in results.rglob("status.json")
                    if json.loads(path.read_text())["status"] == "finished"
                ]
                if status == 0 and not ended:
                    self.tally.fault(
                        "signals", "other", f"{what} after {when:.1f} s: status 0, but the run is not finished"
                    )
                status, shown = self.train("signals", results, what=what)
                if status:
                    self.tally.fault("signals", "other", f"{what}, continued: status {status}: {shown[-200:]}")
                self.same("signals", results, what)

    def disk(self) -> None:
        """A file system that is full during a run; then more space, and the same command again."""
        for size in DISKS:
            self.tally.case("disk")
            place, what = self.folder / f"disk-{size}", f"disk of {size} kB"
            place.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(place)], check=True)
            try:
                status, shown = self.train("disk", place / "results", what=what)
                if status and "space" not in shown:
                    self.tally.fault("disk", "other", f"{what}: no message names the full disk: {shown[-200:]}")
                subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True)
                status, shown = self.train("disk", place / "results", what=what)
                if status:
                    self.tally.fault("disk", "other", f"{what}, continued: status {status}: {shown[-200:]}")
                self.same("disk", place / "results", what)
                subprocess.run(["mount", "-o", f"remount,size={max(4, used(place) // 1024)}k", str(place)], check=False)
                report = ["rmsexp.report", str(place / "results"), "--out", str(place / "report")]
                status, shown = self.do("disk", report, f"report on a {what}")
                if status == 0 and not (place / "report/README.md").exists():
                    self.tally.fault("disk", "wrong", f"report on a {what}: status 0 without its pages")
                self.same("disk", place / "results", f"report on a {what}")
            finally:
                subprocess.run(["umount", str(place)], check=True)

    def readonly(self) -> None:
        """Commands on finished results that the user may read and not write."""
        self.reference()
        results = self.folder / "reference"
        subprocess.run(["chmod", "-R", "a+rX,go-w", str(results)], check=True)
        cases: list[tuple[Sequence[str], bool]] = [
            (["rmsexp.report", str(results), "--out", str(self.open_folder())], True),
            (["rmsexp.report", str(results), "--out", str(results / "report")], False),
            (["rmsexp.status", str(results)], True),
            (["rmsexp", *RUN, f"results={results}"], False),
            (["rmsexp", *RUN, f"results={results}", "seed=1"], False),
            (["rmsexp", *RUN, f"results={results}", "force=true"], False),
            (["rmsexp", "-m", *RUN, f"results={results}", "seed=0,1"], False),
        ]
        for words, works in cases:
            self.tally.case("readonly")
            what = " ".join(word for word in words if word not in RUN)
            status, shown = self.do(
                "readonly", words, what, user=NOBODY, group=NOBODY, extra_groups=[], env=self.home()
            )
            if (status == 0) != works:
                self.tally.fault("readonly", "other", f"{what}: status {status}: {shown[-300:]}")
            self.same("readonly", results, what)

    def umask(self) -> None:
        """Files of a run under umask 077, read by another user."""
        self.tally.case("umask")
        results = self.folder / "umask"
        self.train("umask", results, umask=0o077)
        self.same("umask", results, "umask 077")
        words = ["rmsexp.report", str(results), "--out", str(self.open_folder())]
        status, shown = self.do(
            "umask", words, "report by another user", user=NOBODY, group=NOBODY, extra_groups=[], env=self.home()
        )
        if status == 0 or "ermission" not in shown:
            self.tally.fault("umask", "other", f"report by another user: status {status}: {shown[-300:]}")

    def users(self) -> None:
        """Two users who share a folder of results, with different and with equal runs."""
        results = self.open_folder()
        for user in (0, NOBODY, 0):
            for seed in (0, 1):
                self.tally.case("users")
                own = {} if user == 0 else {"user": NOBODY, "group": NOBODY, "extra_groups": [], "env": self.home()}
                self.train("users", results, f"seed={seed + (user > 0)}", what=f"user {user}", **own)
        self.same("users", results, "two users")

    def ranks(self) -> None:
        """Two processes of one run: one is killed, or has another config; then the run goes on."""
        launch = [
            "torch.distributed.run",
            "--nproc_per_node=2",
            "--max-restarts=0",
            "-m",
            "rmsexp",
            *RUN,
            "micro_batches=2",
        ]
        self.do("ranks", [*launch, f"results={self.folder / 'ranks-reference'}"], "two processes")
        reference = outcome(self.folder / "ranks-reference")
        for number in range(3):
            self.tally.case("ranks")
            results = self.folder / f"ranks-{number}"
            process = self.start([*launch, f"results={results}", "distributed.timeout=30"])
            time.sleep(self.rng.uniform(6.0, 12.0))
            children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False)
            if children.stdout.split():
                os.kill(int(children.stdout.split()[-1]), signal.SIGKILL)
            self.end("ranks", process, f"a killed rank, {number}")
            self.do("ranks", [*launch, f"results={results}"], f"after a killed rank, {number}")
            if outcome(results) != reference:
                self.tally.fault("ranks", "wrong", f"a killed rank, {number}: the run differs from the undisturbed one")
        self.tally.case("ranks")
        other = [*RUN, "micro_batches=2", f"results={self.folder / 'ranks-other'}", "seed=$RANK"]
        script = f"exec {self.python} -m rmsexp {' '.join(other)}"
        words = ["torch.distributed.run", "--nproc_per_node=2", "--no-python", "bash", "-c", script]
        status, shown = self.do("ranks", words, "differing configs")
        if status == 0 or "seed" not in shown:
            self.tally.fault("ranks", "other", f"differing configs: status {status}: {shown[-300:]}")

    def prepare(self) -> None:
        """A preparation that is killed again and again."""
        words = ["rmsexp.prepare", "task=cifar10", "scale=demo"]
        reference = self.folder / "prepared"
        self.do("prepare", [*words, f"data.root={reference}"], "prepare")
        for number in range(KILLS):
            self.tally.case("prepare")
            root = self.folder / f"prepare-{number}"
            process = self.start([*words, f"data.root={root}"])
            try:
                process.wait(self.rng.uniform(1.0, 8.0))
            except subprocess.TimeoutExpired:
                process.kill()
            self.end("prepare", process, f"kill {number}")
            status, shown = self.do("prepare", [*words, f"data.root={root}"], f"after kill {number}")
            if status or content(root) != content(reference):
                self.tally.fault("prepare", "wrong", f"kill {number}: status {status}, other files: {shown[-200:]}")
            shutil.rmtree(root, ignore_errors=True)

    def prompts(self) -> None:
        """A prompt of a million bytes, and lines that are empty, long, or not UTF-8."""
        model, translator = self.folder / "text", self.folder / "translator"
        self.do("prompts", ["rmsexp", *TEXT, f"results={model}"], "a language model")
        self.do("prompts", ["rmsexp", *TRANSLATOR, f"results={translator}"], "a translator")
        run, other = (str(next(path.rglob("run.json")).parent) for path in (model, translator))
        for what, prompt in {
            "100,000 bytes": "ab cd " * 16_667,
            "control characters": "\x01\x02\t\r\n",
            "empty": "",
        }.items():
            self.tally.case("prompts")
            status, shown = self.do("prompts", ["rmsexp.generate", run, "--prompt", prompt, "--tokens", "5"], what)
            if status:
                self.tally.fault("prompts", "other", f"generate, {what}: status {status}: {shown[-200:]}")
        for what, line in {
            "a million bytes": "a man " * 166_667,
            "a million lines of nothing": "\n" * 999,
            "NUL": "a\0b",
        }.items():
            self.tally.case("prompts")
            status, shown = self.do(
                "prompts", ["rmsexp.translate", other], what, text=f"{line}\n", stderr=subprocess.DEVNULL
            )
            if status == 0 and shown.count("\n") != line.count("\n") + 1:
                self.tally.fault("prompts", "wrong", f"translate, {what}: {shown.count(chr(10))} lines")

    def open_folder(self) -> Path:
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        folder.chmod(0o777)
        return folder

    def home(self) -> dict[str, str]:
        return os.environ | {"HOME": str(self.open_folder()), "PYTHONDONTWRITEBYTECODE": "1"}


def outcome(results: Path) -> dict[str, Any]:
    """Return status, metrics without times, and number of checkpoints of each run below ``results``."""
    found: dict[str, Any] = {}
    for path in sorted(results.rglob("run.json")):
        if "seed1" in str(path) or "seed2" in str(path):
            continue
        folder = path.parent
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        kept = [{key: value for key, value in row.items() if key not in ("seconds", "time")} for row in rows]
        status = json.loads((folder / "status.json").read_text())
        found[str(folder.relative_to(results))] = (status["status"], status["step"], kept)
    return found


def content(root: Path) -> dict[str, bytes]:
    """Return the files below a folder of data, except locks."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }


def used(folder: Path) -> int:
    usage = shutil.disk_usage(folder)
    return usage.total - usage.free


def main() -> int:
    parts: dict[str, Callable[[Attack], None]] = {
        name: getattr(Attack, name)
        for name in ("signals", "disk", "readonly", "umask", "users", "ranks", "prepare", "prompts")
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(parts), metavar="PART")
    parser.add_argument("--python", default=sys.executable)
    add_option(parser, None)
    arguments = parser.parse_args()
    check = Check("attack", arguments.results)
    with tempfile.TemporaryDirectory() as folder:
        attack = Attack(arguments.python, Path(folder))
        for name in arguments.parts:
            began = time.monotonic()
            parts[name](attack)
            counts = {kind: count for (part, kind), count in attack.tally.faults.items() if part == name}
            print(
                f"{name}: {attack.tally.cases[name]} cases, {counts or 'no faults'}, {time.monotonic() - began:.0f} s",
                flush=True,
            )
    tally = attack.tally
    faults = {part: {kind: count for (of, kind), count in tally.faults.items() if of == part} for part in tally.cases}
    check.write({"cases": dict(tally.cases), "faults": faults, "lines": tally.lines})
    return int(bool(tally.faults))


if __name__ == "__main__":
    sys.exit(main())
