"""Kill two workers of a campaign again and again with SIGKILL, and check that nothing is lost, repeated or different.

    python scripts/campaign_kills.py [--kills 10] [--seed 0] [KEY=VALUE ...]

The campaign asks whether RMSNorm equals LayerNorm, with small runs on synthetic captions; words KEY=VALUE change it.
First a single worker does it, undisturbed. Then two workers do it in another folder. At random moments one of them,
drawn at random, is killed, and another worker is started in its place. In the end

- all runs have ended, and no step was trained twice unless the worker that trained it before was killed;
- metrics, weights and statuses of all runs equal those of the undisturbed campaign, except for times and process ids;
- so do ``campaign.json``, the registration and the verdicts;
- the command, typed again, does nothing.

A worker is a copy of this process, because starting Python and importing PyTorch takes longer than a run.
"""

from __future__ import annotations

import argparse
import os
import random
import selectors
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import chaos
import chaos_sweep
import yaml
from check_record import Check, add_option

from rmsexp.records import record
from rmsexp.system.readers import read_json

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
MOST_REPEATED = 8  # steps that a kill costs at most: it can come while the checkpoint of every fourth step is written
EVENTS = (5, 90)  # a worker is killed after a number of steps and writes between these, drawn at random


@dataclass(frozen=True)
class Step:
    """A training step: when it began, in nanoseconds, in which process, and of which run."""

    time: int
    pid: int
    folder: str
    step: int


@dataclass
class Worker:
    """A process that does the campaign. ``reading``: the end of a pipe to which it writes a line per event."""

    pid: int
    reading: int
    rest: bytes = b""


@dataclass
class Report:
    """What happened. ``killed``: ids of the workers that were killed. ``statuses``: exit statuses of the others."""

    steps: list[Step] = field(default_factory=list)
    killed: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)


def start(argv: Sequence[str], log: Path) -> Worker:
    """Start a worker with the command line ``argv``, which prints to the file ``log``."""
    reading, writing = os.pipe()
    with log.open("ab") as file:
        pid = os.fork()
        if not pid:
            status = 1
            try:
                for number in (1, 2):
                    os.dup2(file.fileno(), number)
                status = be_worker(writing, argv)
            except SystemExit as end:
                status = int(end.code or 0)
            except Exception:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(status)
    os.close(writing)
    return Worker(pid, reading)


def be_worker(descriptor: int, argv: Sequence[str]) -> int:
    """Do the campaign and return the exit status.

    Before each training step, warm-up excluded, a line "TIME FOLDER STEP" is written to ``descriptor``, and a shorter
    one each time the process waits for a file to be written through to the disk.
    """
    from rmsexp.commands.campaign import main
    from rmsexp.train import loop

    original_fsync, original_update, original_warm_up = os.fsync, loop.Trainer._update, loop.Trainer._warm_up
    warm = False

    def fsync(file: int) -> None:
        os.write(descriptor, b"write\n")
        original_fsync(file)

    def warm_up(self: loop.Trainer) -> None:
        nonlocal warm
        warm = True
        original_warm_up(self)
        warm = False

    def update(self: loop.Trainer, step: int, batches: Sequence[Any]) -> Any:
        if not warm:
            os.write(descriptor, f"{time.monotonic_ns()} {self._folder.path} {step}\n".encode())
        return original_update(self, step, batches)

    os.fsync = fsync  # type: ignore[assignment]
    loop.Trainer._warm_up, loop.Trainer._update = warm_up, update  # type: ignore[method-assign]
    return main(argv)


def read(worker: Worker, steps: list[Step]) -> int | None:
    """Read what a worker has written, and add its steps to ``steps``. Return the number of events; None at its end."""
    content = os.read(worker.reading, 1 << 16)
    if not content:
        return None
    *lines, worker.rest = (worker.rest + content).split(b"\n")
    for words in (line.decode().rsplit(" ", 1) for line in lines):
        if len(words) == 2:
            moment, folder = words[0].split(" ", 1)
            steps.append(Step(int(moment), worker.pid, folder, int(words[1])))
    return len(lines)


def do(argv: Sequence[str], log: Path, workers: int, kills: int, rng: random.Random) -> Report:
    """Do the campaign with several workers, of which one is killed and replaced ``kills`` times."""
    report, running = Report(), selectors.DefaultSelector()

    def begin() -> None:
        worker = start(argv, log)
        running.register(worker.reading, selectors.EVENT_READ, worker)

    def others() -> list[Worker]:
        return [key.data for key in running.get_map().values()]

    for _ in range(workers):
        begin()
    target, remaining = rng.choice(others()).pid, rng.randint(*EVENTS)
    while running.get_map():
        for key, _ in running.select():
            worker: Worker = key.data
            events = read(worker, report.steps)
            if events is None:
                running.unregister(worker.reading)
                os.close(worker.reading)
                status = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
                if worker.pid in report.killed and status == -signal.SIGKILL:
                    begin()
                else:
                    report.statuses.append(status)
                if worker.pid == target and others():
                    target, remaining = rng.choice(others()).pid, rng.randint(*EVENTS)
            elif worker.pid == target and len(report.killed) < kills:
                remaining -= events
                if remaining <= 0 and worker.pid not in report.killed:
                    time.sleep(rng.uniform(0, 0.05))
                    os.kill(worker.pid, signal.SIGKILL)
                    report.killed.append(worker.pid)
                    last = next((step for step in report.steps[::-1] if step.pid == worker.pid), None)
                    where = (
                        f"in step {last.step} of {Path(last.folder).parent.name}" if last else "before its first step"
                    )
                    print(f"{len(report.killed):4}  process {worker.pid} killed, {where}, or later", flush=True)
    return report


def repeated(report: Report) -> list[str]:
    """Return a line for each step that was left out, or trained twice without need.

    Only the steps of a worker that was killed may be trained twice, and at most ``MOST_REPEATED`` of them.
    """
    errors = []
    by_run: dict[str, list[Step]] = defaultdict(list)
    for step in sorted(report.steps, key=lambda step: step.time):
        by_run[step.folder].append(step)
    for folder, steps in by_run.items():
        reached = 0  # number of steps that are trained, of which later processes may repeat some
        for before, step in zip([None, *steps], steps, strict=False):
            continues = before is not None and before.pid == step.pid
            if continues and step.step != reached:
                errors.append(f"{folder}: process {step.pid} trained step {step.step} after {reached - 1}")
            elif not continues and step.step > reached:
                errors.append(f"{folder}: process {step.pid} began at step {step.step}, after {reached - 1}")
            elif not continues and before is not None and before.pid not in report.killed:
                errors.append(f"{folder}: step {step.step} was trained by {step.pid}, though {before.pid} lived")
            elif not continues and reached - step.step > MOST_REPEATED:
                errors.append(f"{folder}: {reached - step.step} steps were trained again after a kill")
            reached = step.step + 1
    return errors


def content(results: Path) -> dict[str, Any]:
    """Return what a campaign has written, without times, process ids and the folder of the results."""
    from rmsexp.campaign import results as campaign_results

    (path,) = results.glob("campaigns/*/campaign.json")
    campaign = campaign_results.load(path)
    found = campaign.results()
    plan, registered = read_json(path), read_json(path.with_name("registered.json"))
    del plan["registered"]["date"], registered["date"]
    runs = chaos_sweep.contents(results.parent)
    for job in campaign.jobs:
        files = record.RunFolder(results / job.folder)
        status = read_json(files.status_path)
        runs[f"{results.name}/{job.folder}"] |= {
            "status.json": {key: value for key, value in status.items() if key not in ("process", "digest", "metrics")}
        }
    unknown = runs.keys() - {f"{results.name}/{job.folder}" for job in campaign.jobs}
    verdicts = [repr(verdict) for verdict in campaign.verdicts(found)]
    open_ = [job.folder for job in campaign.jobs if not found[job].ended]
    return {
        "plan": plan,
        "registered": registered,
        "runs": runs,
        "verdicts": verdicts,
        "open": open_,
        "no job": unknown,
    }


def starts(results: Path) -> dict[str, list[int]]:
    """Return the steps at which the sessions of each run began, by the run's folder in ``results``."""
    return {
        str(folder.relative_to(results)): [
            session["from_step"] for session in record.RunFolder(folder).read_run()["sessions"]
        ]
        for folder in record.find_runs(results)
    }


def sessions(results: Path) -> list[str]:
    """Return a line for each run whose sessions do not continue each other from step 0 on."""
    return [
        f"{run}: its sessions begin at steps {steps}"
        for run, steps in starts(results).items()
        if steps[0] != 0 or steps != sorted(set(steps))
    ]


def kill_and_compare(kills: int, root: Path, seed: int, words: Sequence[str] = ()) -> list[str]:
    """Do the campaign undisturbed, and with kills, below the folder ``root``. Return a line for each error."""
    from rmsexp import config

    os.environ["OMP_WAIT_POLICY"] = "passive"  # idle threads do not spin: faster on a shared machine
    config.job(["task=order_embedding"])  # imports what the workers need, and finds Hydra's plugins
    path = root / "configs" / "campaign" / f"{NAME}.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(CAMPAIGN))
    rng, log, errors = random.Random(seed), root / "log.txt", []

    def work(name: str, workers: int, kills: int) -> Report:
        argv = [NAME, "--config-dir", str(root / "configs"), f"results={root / name / 'results'}", *words]
        began = time.monotonic()
        report = do(argv, log, workers, kills, rng)
        print(f"{name}: {len(report.steps)} steps in {time.monotonic() - began:.0f} s", flush=True)
        errors.extend(f"{name}: a worker ended with status {status}; see {log}" for status in report.statuses if status)
        errors.extend(repeated(report))
        return report

    work("undisturbed", 1, 0)
    killed = work("killed", 2, kills).killed
    if len(killed) < kills:
        errors.append(f"only {len(killed)} kills happened; make the campaign longer, for example by final.min_seeds=6")
    if again := work("killed", 1, 0).steps:
        errors.append(f"the command, typed again, trained {len(again)} steps")
    if errors:
        return errors
    expected, found = content(root / "undisturbed" / "results"), content(root / "killed" / "results")
    print(f"{len(expected['plan']['jobs'])} runs, {len(expected['verdicts'])} verdicts")
    errors += [f"not ended: {folder}" for folder in expected["open"] + found["open"]]
    return [*errors, *sessions(root / "killed" / "results"), *chaos.differences(expected, found)]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=10, help="number of kills (10)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments of the kills (0)")
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="changes of the campaign")
    add_option(parser, None)
    options = parser.parse_args()
    check = Check("campaign_kills", options.results)
    began, root = time.monotonic(), Path(tempfile.mkdtemp(prefix="rmsexp-kills-"))
    errors = kill_and_compare(options.kills, root, options.seed, options.words)
    print("\n".join(errors) or "all runs were done once, and equal those of the undisturbed campaign")
    seconds = time.monotonic() - began
    print(f"{seconds:.0f} s ({root})")
    check.write({"kills": options.kills, "errors": errors, "seconds": seconds})
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
